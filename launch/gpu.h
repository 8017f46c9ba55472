/* gpu.h: the GPU's side of the command: what there is, and a job's tensors on it. A build without
 * CUDA has no kernel for which a mirror could be asked. */
#ifndef SKV_GPU_H
#define SKV_GPU_H

#include "launch/attention.h"

/* ---- for info ---- */

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

/* ---- for jobs ---- */

/* Tensors and workspace in the memory of the current device; host pages of the same sizes hold what
 * files and checks see. */
typedef struct skv__mirror {
  skv__data_t data;
  skv__pages_t workspace;
  uint64_t *bits;
} skv__mirror_t;

/* Allocates, and uploads Q, K and V. Call free whatever comes back. */
skv_status_t skv__mirror_open(skv__mirror_t *mirror, const skv__data_t *host,
                              int64_t workspace_bytes, skv__error_t *error);
void skv__mirror_free(skv__mirror_t *mirror);
/* Wait for what was enqueued. */
skv_status_t skv__mirror_wait(skv__error_t *error);
/* Wait, then bring the step's rows of O and LSE to the host, and add the bits to *bits. */
skv_status_t skv__mirror_fetch(const skv__mirror_t *mirror, const skv__data_t *host,
                               const skv__job_extents_t *extents, const skv__step_t *step,
                               uint64_t *bits, skv__error_t *error);

#endif
