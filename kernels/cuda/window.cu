/* window.cu: see window.h. The memory is NCCL's: a symmetric window, of which the device API tells
 * where each rank's piece is mapped. No multicast object is asked for. */
#include "kernels/cuda/window.h"

#include <nccl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda_runtime.h>

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* in its headers */
#include <nccl_device.h>
#pragma GCC diagnostic pop

enum { SECONDS_TO_APPEAR = 2, SECONDS_TO_CLOSE = 5 };

typedef struct window {
  skv__window_t known; /* first: what callers have */
  ncclComm_t comm;
  void *allocated;
  ncclWindow_t registered;
  uint32_t *stop;
} window_t;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Communicators need not block: a call may still be in progress when it has returned, whatever it
 * returned. */
static skv_status_t settle(ncclComm_t comm, ncclResult_t result, double timeout_seconds,
                           const char *call, skv__error_t *error) {
  const double since = now();
  if (result == ncclInvalidUsage || result == ncclInvalidArgument) /* the communicator goes on */
    return skv__fail(error, SKV_UNSUPPORTED, "%s: %s (%s)", call, ncclGetErrorString(result),
                     ncclGetLastError(comm));
  while (result == ncclSuccess || result == ncclInProgress) {
    const struct timespec pause = {0, 20000};
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &result);
    if (asked != ncclSuccess)
      result = asked;
    if (result == ncclSuccess)
      return SKV_OK;
    if (result == ncclInProgress && now() - since > timeout_seconds)
      return skv__fail(error, SKV_TIMEOUT, "%s: waited %.1f s for the other ranks", call,
                       now() - since);
    nanosleep(&pause, NULL);
  }
  return skv__fail(error, SKV_TRANSPORT, "%s: %s (%s)", call, ncclGetErrorString(result),
                   ncclGetLastError(comm));
}

/* The handle is written by a thread of NCCL, last of all. */
static bool appears(const window_t *made) {
  const double since = now();
  const struct timespec pause = {0, 20000};
  const ncclWindow_t volatile *handle = &made->registered;
  while (!*handle && now() - since < SECONDS_TO_APPEAR)
    nanosleep(&pause, NULL);
  return *handle != NULL;
}

static skv_status_t check(cudaError_t code, const char *doing, skv__error_t *error) {
  if (code == cudaSuccess)
    return SKV_OK;
  cudaGetLastError();
  return skv__fail(error, code == cudaErrorMemoryAllocation ? SKV_MEMORY : SKV_INTERNAL, "%s: %s",
                   doing, cudaGetErrorString(code));
}

bool skv__window_available(void *native, skv__error_t *error) {
  ncclComm_t comm = (ncclComm_t)native;
  int version = 0, ranks = 0;
  ncclGetVersion(&version);
  ncclCommCount(comm, &ranks);
  if (version < NCCL_VERSION(2, 28, 0)) {
    skv__fail(error, SKV_UNSUPPORTED, "NCCL here is version %d, older than 2.28", version);
    return false;
  }
  const int reached = ncclTeamLsa(comm).nRanks;
  if (ranks > SKV__WINDOW_RANKS)
    skv__fail(error, SKV_UNSUPPORTED, "there are %d ranks, more than %d", ranks,
              (int)SKV__WINDOW_RANKS);
  else if (reached != ranks)
    skv__fail(error, SKV_UNSUPPORTED, "a rank can load from %d of the %d ranks only", reached,
              ranks);
  else
    return true;
  return false;
}

static __global__ void find_memories(ncclWindow_t window, int ranks, void **memories) {
  for (int i = 0; i < ranks; ++i)
    memories[i] = ncclGetLsaPointer(window, 0, i);
}

static skv_status_t find(window_t *made, skv__error_t *error) {
  void **on_device = NULL, *memories[SKV__WINDOW_RANKS] = {NULL};
  SKV_TRY(
      check(cudaMalloc((void **)&on_device, sizeof memories), "the addresses of a window", error));
  find_memories<<<1, 1>>>(made->registered, made->known.ranks, on_device);
  cudaError_t code = cudaMemcpy(memories, on_device, sizeof memories, cudaMemcpyDeviceToHost);
  cudaFree(on_device);
  for (int i = 0; i < made->known.ranks; ++i)
    made->known.memory[i] = (unsigned char *)memories[i] + SKV__WINDOW_HEADER;
  return check(code, "the addresses of a window", error);
}

static skv_status_t reserve(window_t *made, ncclComm_t comm, int64_t bytes, skv__error_t *error) {
  enum { SECONDS_TO_COUNT = 2 };
  const size_t all = (size_t)bytes + SKV__WINDOW_HEADER;
  made->comm = comm;
  made->known.bytes = bytes;
  SKV_TRY(settle(comm, ncclCommCount(comm, &made->known.ranks), SECONDS_TO_COUNT, "ncclCommCount",
                 error));
  SKV_TRY(settle(comm, ncclCommUserRank(comm, &made->known.rank), SECONDS_TO_COUNT,
                 "ncclCommUserRank", error));
  SKV_TRY(check(cudaHostAlloc((void **)&made->stop, sizeof *made->stop, cudaHostAllocMapped),
                "a word of the host that devices see", error));
  *made->stop = 0;
  made->known.stop = made->stop;
  ncclResult_t result = ncclMemAlloc(&made->allocated, all);
  if (result != ncclSuccess)
    return skv__fail(error, SKV_MEMORY, "ncclMemAlloc of %zu bytes: %s", all,
                     ncclGetErrorString(result));
  /* before any rank can have met another: registering waits for all of them */
  SKV_TRY(
      check(cudaMemset(made->allocated, 0, SKV__WINDOW_HEADER), "the header of a window", error));
  return check(cudaStreamSynchronize(NULL), "the header of a window", error);
}

skv_status_t skv__window_reserve(skv__window_t **window, void *native, int64_t bytes,
                                 skv__error_t *error) {
  window_t *made = (window_t *)calloc(1, sizeof *made);
  *window = NULL;
  if (!made)
    return skv__fail(error, SKV_MEMORY, "out of memory for a window");
  skv_status_t status = reserve(made, (ncclComm_t)native, bytes, error);
  if (status == SKV_OK)
    *window = &made->known;
  else
    skv__window_close(&made->known);
  return status;
}

skv_status_t skv__window_open(skv__window_t *window, double timeout_seconds, skv__error_t *error) {
  window_t *made = (window_t *)window;
  const size_t all = (size_t)window->bytes + SKV__WINDOW_HEADER;
  SKV_TRY(settle(made->comm,
                 ncclCommWindowRegister(made->comm, made->allocated, all, &made->registered,
                                        NCCL_WIN_COLL_SYMMETRIC),
                 timeout_seconds, "ncclCommWindowRegister", error));
  if (!appears(made))
    return skv__fail(error, SKV_UNSUPPORTED, "NCCL registers no symmetric memory here");
  return find(made, error);
}

void skv__window_close(skv__window_t *window) {
  window_t *made = (window_t *)window;
  const bool whole = !made->stop || !*made->stop;
  skv__error_t ignored = {};
  if (whole && made->registered)
    settle(made->comm, ncclCommWindowDeregister(made->comm, made->registered), SECONDS_TO_CLOSE,
           "ncclCommWindowDeregister", &ignored);
  if (whole && made->allocated)
    ncclMemFree(made->allocated);
  if (whole)
    cudaFreeHost(made->stop);
  free(made);
}

#else

bool skv__window_available(void *native, skv__error_t *error) {
  (void)native;
  skv__fail(error, SKV_UNSUPPORTED, "this build's NCCL is older than 2.28");
  return false;
}

skv_status_t skv__window_reserve(skv__window_t **window, void *native, int64_t bytes,
                                 skv__error_t *error) {
  (void)bytes;
  *window = NULL;
  skv__window_available(native, error);
  return SKV_UNSUPPORTED;
}

skv_status_t skv__window_open(skv__window_t *window, double timeout_seconds, skv__error_t *error) {
  (void)window, (void)timeout_seconds, (void)error;
  return SKV_UNSUPPORTED;
}

void skv__window_close(skv__window_t *window) {
  (void)window;
}

#endif
