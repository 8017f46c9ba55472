/* nccl_gpus.c: NCCL wants a GPU for each rank; two ranks with one would wait for each other. */
#define _GNU_SOURCE /* gethostname */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm_nccl.h"

typedef struct gpu {
  cudaUUID_t uuid; /* the one name that tells GPUs, and parts of them, of all hosts apart */
  char bus[24], host[64];
} gpu_t;

static skv_status_t describe(gpu_t *gpu, skv__error_t *error) {
  struct cudaDeviceProp properties;
  int device = 0;
  *gpu = (gpu_t){0};
  cudaError_t code = cudaGetDevice(&device);
  if (code == cudaSuccess)
    code = cudaGetDeviceProperties(&properties, device);
  if (code == cudaSuccess)
    code = cudaDeviceGetPCIBusId(gpu->bus, sizeof gpu->bus, device);
  if (code != cudaSuccess)
    return skv__fail(error, SKV_UNSUPPORTED, "the current CUDA device: %s",
                     cudaGetErrorString(code));
  gpu->uuid = properties.uuid;
  gethostname(gpu->host, sizeof gpu->host - 1);
  return SKV_OK;
}

static skv_status_t find_shared(const gpu_t *gpus, int32_t ranks, skv__error_t *error) {
  for (int32_t b = 1; b < ranks; b++)
    for (int32_t a = 0; a < b; a++)
      if (memcmp(&gpus[a].uuid, &gpus[b].uuid, sizeof gpus[a].uuid) == 0)
        return skv__fail(error, SKV_INVALID,
                         "ranks %d and %d have the same GPU (%s of %s): NCCL needs one for each "
                         "rank; start fewer ranks, or use --transport mpi",
                         (int)a, (int)b, gpus[a].bus, gpus[a].host);
  return SKV_OK;
}

skv_status_t skv__nccl_check_gpus(skv__comm_t *comm, skv_status_t status, const char *text) {
  skv__error_t mine = {0};
  gpu_t gpu, *all = calloc((size_t)comm->ranks, sizeof *all);
  if (status != SKV_OK)
    skv__fail(&mine, status, "%s", text);
  else if (!all)
    status = skv__fail(&mine, SKV_MEMORY, "no memory for the GPUs of %d ranks", (int)comm->ranks);
  skv_status_t described = describe(&gpu, &mine);
  if (status == SKV_OK)
    status = described;
  const skv__fact_t facts[] = {{"NCCL version", (uint64_t)skv__nccl_version()}};
  skv_status_t agreed = skv__comm_agree(comm, facts, 1, status, mine.text);
  if (agreed == SKV_OK)
    agreed = skv__comm_gather(comm, &gpu, sizeof gpu, all, "GPUs");
  if (agreed == SKV_OK) {
    status = comm->rank == 0 ? find_shared(all, comm->ranks, &mine) : SKV_OK;
    agreed = skv__comm_agree(comm, NULL, 0, status, mine.text);
  }
  free(all);
  return agreed;
}
