/* nccl_end.c: the ends of a communicator. ncclCommAbort, ncclCommFinalize and ncclCommDestroy may
 * wait for NCCL's own threads, and those for a rank that is gone, whatever the communicator was
 * told about blocking. So they run in a thread that may be left behind. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "comm/comm_nccl.h"

/* Shared by the thread and the one that looks at it: the last one frees it. */
struct skv__nccl_end {
  ncclComm_t comm;
  int device;
  bool force;
  ncclResult_t result;
  atomic_int holders;
};

void skv__nccl_end_drop(skv__nccl_end_t *end) {
  if (atomic_fetch_sub(&end->holders, 1) == 1)
    free(end);
}

static ncclResult_t part(ncclComm_t comm) {
  ncclResult_t code = ncclCommFinalize(comm);
  while (code == ncclInProgress) {
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    ncclResult_t asked = ncclCommGetAsyncError(comm, &code);
    if (asked != ncclSuccess)
      code = asked;
  }
  return code == ncclSuccess ? ncclCommDestroy(comm) : code;
}

static void *run(void *argument) {
  skv__nccl_end_t *end = argument;
  cudaSetDevice(end->device);
  end->result = end->force ? ncclCommAbort(end->comm) : part(end->comm);
  skv__nccl_end_drop(end);
  return NULL;
}

skv__nccl_end_t *skv__nccl_end(ncclComm_t comm, int device, bool force) {
  pthread_t thread;
  skv__nccl_end_t *end = malloc(sizeof *end);
  if (!end)
    return NULL;
  *end = (skv__nccl_end_t){.comm = comm, .device = device, .force = force, .holders = 2};
  if (pthread_create(&thread, NULL, run, end) != 0) {
    free(end);
    return NULL;
  }
  pthread_detach(thread);
  return end;
}

bool skv__nccl_ended(const skv__nccl_end_t *end, ncclResult_t *result) {
  if (atomic_load(&end->holders) == 2)
    return false;
  *result = end->result;
  return true;
}
