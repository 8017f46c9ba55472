/* clock.h: how long a device computes in an execute: marks on the caller's stream. */
#ifndef SKV_CUDA_CLOCK_H
#define SKV_CUDA_CLOCK_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "kernels/streams.h"

/* The last interval takes what comes beyond: it ends with the last that is measured. */
enum { SKV__CLOCK_INTERVALS = 64 };

typedef struct skv__clock {
  cudaEvent_t start, begin[SKV__CLOCK_INTERVALS], end[SKV__CLOCK_INTERVALS], over;
  int32_t intervals; /* begun in this execute */
} skv__clock_t;

cudaError_t skv__clock_open(skv__clock_t *clock);
void skv__clock_close(skv__clock_t *clock);
cudaError_t skv__clock_tick(skv__clock_t *clock, skv__tick_t tick, cudaStream_t stream);
/* After a wait for the stream: seconds between begins and their ends, and of the whole execute.
 * Zeros where nothing was measured, or a graph took it. */
void skv__clock_read(const skv__clock_t *clock, double *computed, double *total);

#endif
