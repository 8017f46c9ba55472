/* mirror.h: a job's tensors and workspace in the memory of this rank's GPU. A build without CUDA
 * has no kernel for which a mirror could be asked. */
#ifndef SKV_MIRROR_H
#define SKV_MIRROR_H

#include "launch/attention.h"

/* Host pages of the same sizes hold what files and checks see. */
typedef struct skv__mirror {
  skv__data_t data;
  skv__pages_t workspace;
  uint64_t *bits;
  void *began, *ended; /* events */
} skv__mirror_t;

/* Collective: the GPUs have room for what all ranks need, or all ranks say which has not. `error`
 * holds this rank's failure on entry, and then all end with it. */
skv_status_t skv__mirror_fits(const skv__data_t *host, int64_t workspace_bytes,
                              skv__session_t *session, skv__error_t *error);
/* Allocates, and uploads Q, K and V. Call free whatever comes back. */
skv_status_t skv__mirror_open(skv__mirror_t *mirror, const skv__data_t *host,
                              int64_t workspace_bytes, skv__error_t *error);
void skv__mirror_free(skv__mirror_t *mirror);
/* Forget the results, so that what is fetched next was written next. */
skv_status_t skv__mirror_clear(skv__mirror_t *mirror, skv__error_t *error);
/* The work that is enqueued between these two is measured, by the GPU's own clock. */
skv_status_t skv__mirror_begin(skv__mirror_t *mirror, skv__error_t *error);
skv_status_t skv__mirror_end(skv__mirror_t *mirror, skv__error_t *error);
/* Its time, after a wait. */
skv_status_t skv__mirror_seconds(const skv__mirror_t *mirror, double *seconds, skv__error_t *error);
/* Wait for what was enqueued, no longer than the session's deadline allows. */
skv_status_t skv__mirror_wait(skv__session_t *session, skv__error_t *error);
/* After the wait: bring the step's rows of O and LSE that this rank got to the host, and add the
 * bits to *bits. */
skv_status_t skv__mirror_fetch(const skv__mirror_t *mirror, const skv__data_t *host,
                               const skv__input_t *input, const skv_plan_t *plan,
                               const skv__step_t *step, uint64_t *bits, skv__error_t *error);

#endif
