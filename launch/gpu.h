/* gpu.h: which GPUs there are, and which of them is this rank's. */
#ifndef SKV_GPU_H
#define SKV_GPU_H

#include "launch/stations.h"

enum { SKV__ADAPTERS_MAX = 64 };

typedef struct skv__adapter {
  char name[128];
  int32_t major, minor, multiprocessors;
  int64_t memory_bytes;
} skv__adapter_t;

typedef struct skv__adapters {
  char cuda[128]; /* "no", or versions, or why there is no GPU */
  int32_t count;
  skv__adapter_t each[SKV__ADAPTERS_MAX];
} skv__adapters_t;

void skv__adapters(skv__adapters_t *adapters);

/* Makes the rank's GPU the current device, and describes it; station->number is SKV__NO_GPU where
 * there is none. */
void skv__gpu_take(skv__station_t *station, int32_t local_rank, int32_t local_ranks);

#endif
