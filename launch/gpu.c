/* gpu.c: see gpu.h. */
#include "launch/gpu.h"

#include <stdio.h>
#include <string.h>

#include "launch/map.h"

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

void skv__gpu_take(skv__station_t *station, int32_t local_rank, int32_t local_ranks) {
  struct cudaDeviceProp properties;
  skv__gpu_map_t map;
  skv__gpu_map(&map);
  int32_t number = skv__place_gpu(local_rank, local_ranks, map.count);
  cudaError_t code = number == SKV__NO_GPU ? cudaErrorNoDevice : cudaSetDevice(number);
  station->full = code == cudaErrorMemoryAllocation;
  if (code == cudaSuccess && cudaGetDeviceProperties(&properties, number) == cudaSuccess) {
    station->number = number;
    station->numa = map.each[number].numa;
    snprintf(station->bus_id, sizeof station->bus_id, "%.19s", map.each[number].bus_id);
    snprintf(station->gpu, sizeof station->gpu, "%.63s", properties.name);
    memcpy(station->unique, properties.uuid.bytes, sizeof station->unique);
  }
  cudaGetLastError(); /* a rank without a GPU is told of where the others are known */
}

#else

void skv__adapters(skv__adapters_t *adapters) {
  memset(adapters, 0, sizeof *adapters);
  snprintf(adapters->cuda, sizeof adapters->cuda, "no");
}

void skv__gpu_take(skv__station_t *station, int32_t local_rank, int32_t local_ranks) {
  (void)local_rank, (void)local_ranks;
  station->number = SKV__NO_GPU;
}

#endif
