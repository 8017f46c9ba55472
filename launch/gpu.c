/* gpu.c: see gpu.h. */
#include "launch/gpu.h"

#include <stdio.h>
#include <string.h>

#ifdef SKV_HAVE_CUDA

#include <cuda_runtime_api.h>

#include "kernels/kernel.h"

/* ---- for info ---- */

static bool describe(int number, skv__adapter_t *adapter) {
  struct cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, number) != cudaSuccess)
    return false;
  *adapter = (skv__adapter_t){.major = properties.major,
                              .minor = properties.minor,
                              .multiprocessors = properties.multiProcessorCount,
                              .memory_bytes = (int64_t)properties.totalGlobalMem};
  snprintf(adapter->name, sizeof adapter->name, "%.127s", properties.name);
  return true;
}

void skv__adapters(skv__adapters_t *adapters) {
  int runtime = 0, driver = 0, count = 0;
  skv__error_t why = {0};
  memset(adapters, 0, sizeof *adapters);
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  int used =
      snprintf(adapters->cuda, sizeof adapters->cuda, "%d.%d", runtime / 1000, runtime % 100 / 10);
  if (cudaGetDeviceCount(&count) == cudaSuccess)
    for (int number = 0; number < count && number < SKV__ADAPTERS_MAX; ++number)
      adapters->count += describe(number, &adapters->each[adapters->count]);
  cudaGetLastError(); /* told below */
  if (adapters->count)
    snprintf(adapters->cuda + used, sizeof adapters->cuda - (size_t)used, ", driver for %d.%d",
             driver / 1000, driver % 100 / 10);
  else if (!skv__kernel_pick(SKV_BACKEND_CUDA, NULL, &why))
    snprintf(adapters->cuda + used, sizeof adapters->cuda - (size_t)used, " (%.100s)", why.text);
}

/* ---- for jobs ---- */

static skv_status_t check(cudaError_t code, const char *doing, skv__error_t *error) {
  if (code == cudaSuccess)
    return SKV_OK;
  cudaGetLastError();
  return skv__fail(error, code == cudaErrorMemoryAllocation ? SKV_MEMORY : SKV_INTERNAL,
                   "the GPU, %s: %s", doing, cudaGetErrorString(code));
}

static skv_status_t fits(double bytes, skv__error_t *error) {
  size_t available = 0, total = 0;
  SKV_TRY(check(cudaMemGetInfo(&available, &total), "its free memory", error));
  if (bytes <= (double)available)
    return SKV_OK;
  return skv__fail(error, SKV_MEMORY,
                   "Q, K, V, O, LSE and the workspace need %s, but %s of the GPU's %s are free",
                   skv__bytes_text(bytes).text, skv__bytes_text((double)available).text,
                   skv__bytes_text((double)total).text);
}

static skv_status_t allocate(skv__pages_t *pages, size_t bytes, skv__error_t *error) {
  pages->bytes = bytes;
  return check(cudaMalloc(&pages->data, bytes ? bytes : 1), "allocating memory", error);
}

skv_status_t skv__mirror_open(skv__mirror_t *mirror, const skv__data_t *host,
                              int64_t workspace_bytes, skv__error_t *error) {
  memset(mirror, 0, sizeof *mirror);
  const struct {
    const skv__pages_t *from;
    skv__pages_t *to;
    bool upload;
  } tensors[] = {{&host->q, &mirror->data.q, true},
                 {&host->k, &mirror->data.k, true},
                 {&host->v, &mirror->data.v, true},
                 {&host->o, &mirror->data.o, false},
                 {&host->lse, &mirror->data.lse, false}};
  const size_t count = sizeof tensors / sizeof *tensors;
  double bytes = (double)workspace_bytes;
  for (size_t i = 0; i < count; ++i)
    bytes += (double)tensors[i].from->bytes;
  SKV_TRY(fits(bytes, error));
  mirror->data.own_tokens = host->own_tokens;
  SKV_TRY(allocate(&mirror->workspace, (size_t)workspace_bytes, error));
  for (size_t i = 0; i < count; ++i) {
    SKV_TRY(allocate(tensors[i].to, tensors[i].from->bytes, error));
    if (tensors[i].upload)
      SKV_TRY(check(cudaMemcpy(tensors[i].to->data, tensors[i].from->data, tensors[i].from->bytes,
                               cudaMemcpyHostToDevice),
                    "uploading tensors", error));
  }
  SKV_TRY(
      check(cudaMalloc((void **)&mirror->bits, sizeof *mirror->bits), "allocating memory", error));
  return check(cudaMemset(mirror->bits, 0, sizeof *mirror->bits), "clearing the bits", error);
}

void skv__mirror_free(skv__mirror_t *mirror) {
  void *all[] = {mirror->data.q.data, mirror->data.k.data,   mirror->data.v.data,
                 mirror->data.o.data, mirror->data.lse.data, mirror->workspace.data,
                 mirror->bits};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
    if (all[i])
      cudaFree(all[i]);
  memset(mirror, 0, sizeof *mirror);
}

skv_status_t skv__mirror_wait(skv__error_t *error) {
  return check(cudaDeviceSynchronize(), "computing", error);
}

/* The step's rows of one tensor: a strip of each sequence. */
static skv_status_t fetch_rows(const skv__pages_t *to, const skv__pages_t *from,
                               const skv__job_extents_t *extents, const skv__step_t *step,
                               skv__error_t *error) {
  size_t queries = (size_t)(extents->batch * extents->q_tokens);
  size_t query_bytes = queries ? from->bytes / queries : 0;
  size_t pitch = (size_t)extents->q_tokens * query_bytes;
  size_t offset = (size_t)step->q_begin * query_bytes;
  if (!step->q_count)
    return SKV_OK;
  return check(cudaMemcpy2D((char *)to->data + offset, pitch, (const char *)from->data + offset,
                            pitch, (size_t)step->q_count * query_bytes, (size_t)extents->batch,
                            cudaMemcpyDeviceToHost),
               "bringing results back", error);
}

skv_status_t skv__mirror_fetch(const skv__mirror_t *mirror, const skv__data_t *host,
                               const skv__job_extents_t *extents, const skv__step_t *step,
                               uint64_t *bits, skv__error_t *error) {
  uint64_t sum = 0;
  SKV_TRY(skv__mirror_wait(error));
  SKV_TRY(fetch_rows(&host->o, &mirror->data.o, extents, step, error));
  SKV_TRY(fetch_rows(&host->lse, &mirror->data.lse, extents, step, error));
  SKV_TRY(check(cudaMemcpy(&sum, mirror->bits, sizeof sum, cudaMemcpyDeviceToHost),
                "bringing results back", error));
  *bits += sum;
  return check(cudaMemset(mirror->bits, 0, sizeof sum), "clearing the bits", error);
}

#else

void skv__adapters(skv__adapters_t *adapters) {
  memset(adapters, 0, sizeof *adapters);
  snprintf(adapters->cuda, sizeof adapters->cuda, "no");
}

skv_status_t skv__mirror_open(skv__mirror_t *mirror, const skv__data_t *host,
                              int64_t workspace_bytes, skv__error_t *error) {
  (void)mirror, (void)host, (void)workspace_bytes;
  return skv__fail(error, SKV_UNSUPPORTED, "this build has no CUDA");
}
void skv__mirror_free(skv__mirror_t *mirror) {
  (void)mirror;
}
skv_status_t skv__mirror_wait(skv__error_t *error) {
  return skv__fail(error, SKV_UNSUPPORTED, "this build has no CUDA");
}
skv_status_t skv__mirror_fetch(const skv__mirror_t *mirror, const skv__data_t *host,
                               const skv__job_extents_t *extents, const skv__step_t *step,
                               uint64_t *bits, skv__error_t *error) {
  (void)mirror, (void)host, (void)extents, (void)step, (void)bits;
  return skv__fail(error, SKV_UNSUPPORTED, "this build has no CUDA");
}

#endif
