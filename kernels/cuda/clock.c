/* clock.c: see clock.h. */
#include "kernels/cuda/clock.h"

cudaError_t skv__clock_open(skv__clock_t *clock) {
  cudaError_t code = cudaEventCreate(&clock->start);
  if (code == cudaSuccess)
    code = cudaEventCreate(&clock->over);
  for (int i = 0; code == cudaSuccess && i < SKV__CLOCK_INTERVALS; ++i) {
    code = cudaEventCreate(&clock->begin[i]);
    if (code == cudaSuccess)
      code = cudaEventCreate(&clock->end[i]);
  }
  return code;
}

static void destroy(cudaEvent_t event) {
  if (event)
    cudaEventDestroy(event);
}

void skv__clock_close(skv__clock_t *clock) {
  for (int i = 0; i < SKV__CLOCK_INTERVALS; ++i) {
    destroy(clock->begin[i]);
    destroy(clock->end[i]);
  }
  destroy(clock->start);
  destroy(clock->over);
}

cudaError_t skv__clock_tick(skv__clock_t *clock, skv__tick_t tick, cudaStream_t stream) {
  switch (tick) {
  case SKV__TICK_START:
    clock->intervals = 0;
    return cudaEventRecord(clock->start, stream);
  case SKV__TICK_BEGIN:
    if (clock->intervals < SKV__CLOCK_INTERVALS)
      return cudaEventRecord(clock->begin[clock->intervals++], stream);
    break;
  case SKV__TICK_END:
    return cudaEventRecord(clock->end[clock->intervals - 1], stream);
  case SKV__TICK_OVER:
    return cudaEventRecord(clock->over, stream);
  }
  return cudaSuccess;
}

static double between(cudaEvent_t from, cudaEvent_t to) {
  float milliseconds = 0;
  if (cudaEventElapsedTime(&milliseconds, from, to) != cudaSuccess) {
    cudaGetLastError(); /* it was captured, or is not done: nothing was measured */
    return 0;
  }
  return 1e-3 * (double)milliseconds;
}

void skv__clock_read(const skv__clock_t *clock, double *computed, double *total) {
  *computed = *total = 0;
  for (int32_t i = 0; i < clock->intervals; ++i)
    *computed += between(clock->begin[i], clock->end[i]);
  if (clock->intervals)
    *total = between(clock->start, clock->over);
}
