/* bits.cu: the same hash as bits.c, from a GPU. */
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "cases.h"

static __global__ void run_cases(unsigned long long *hash, uint64_t cases) {
  uint64_t sum = 0;
  uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
  for (uint64_t index = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; index < cases;
       index += stride)
    sum += bits_case(index);
  atomicAdd(hash, (unsigned long long)sum);
}

int main(int argc, char **argv) {
  uint64_t cases = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
  unsigned long long *device_hash = NULL, hash = 0;
  if (cudaMalloc(&device_hash, sizeof hash) != cudaSuccess ||
      cudaMemset(device_hash, 0, sizeof hash) != cudaSuccess)
    return 1;
  run_cases<<<256, 128>>>(device_hash, cases);
  if (cudaMemcpy(&hash, device_hash, sizeof hash, cudaMemcpyDeviceToHost) != cudaSuccess)
    return 1;
  printf("%016" PRIx64 "\n", (uint64_t)hash);
  return 0;
}
