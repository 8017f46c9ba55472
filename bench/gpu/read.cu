/* read.cu: the ceiling of kernels that read much and write little: 16-byte loads of a region,
 * several in flight a thread, by CTAs that stay. */
#include <stdint.h>

#include <cuda_runtime.h>

enum { THREADS = 512, AHEAD = 8 };

static __global__ void __launch_bounds__(THREADS)
    read_all(const uint4 *from, int64_t count, uint32_t *sink) {
  uint32_t mixed = 0;
  const int64_t stride = (int64_t)gridDim.x * THREADS;
  int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  for (; i + (AHEAD - 1) * stride < count; i += AHEAD * stride) {
    uint4 values[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; ++j)
      values[j] = __ldcs(from + i + j * stride);
#pragma unroll
    for (int j = 0; j < AHEAD; ++j)
      mixed ^= values[j].x ^ values[j].y ^ values[j].z ^ values[j].w;
  }
  for (; i < count; i += stride) {
    uint4 value = __ldcs(from + i);
    mixed ^= value.x ^ value.y ^ value.z ^ value.w;
  }
  if (mixed == 0x9e3779b9u) /* almost never; keeps the loads */
    *sink = mixed;
}

/* Reads `bytes` (a multiple of 16) with `ctas` CTAs. */
extern "C" int skv_bench_read(const void *from, int64_t bytes, int32_t ctas, uint32_t *sink,
                              cudaStream_t stream) {
  read_all<<<(unsigned)ctas, THREADS, 0, stream>>>((const uint4 *)from, bytes / 16, sink);
  return (int)cudaGetLastError();
}
