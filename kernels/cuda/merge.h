/* merge.h: launchers of the kernels that merge states, and partials of other libraries. The bits
 * are those of skv__merge_row and skv_merge_lse. */
#ifndef SKV_CUDA_MERGE_H
#define SKV_CUDA_MERGE_H

#include <stdint.h>

#include <cuda_runtime_api.h>

#include "skv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Most states that one launch merges. */
#define SKV__MERGE_MAX 16

/* out = states[0..count) merged along the canonical tree over `count`, row by row; states[0] covers
 * the lowest positions. Slices as in kernels/job.h: O [rows][value_head_dim], e [rows], l [rows],
 * on the device, 16-byte aligned. `out` may be any of the states. 1 <= count <= SKV__MERGE_MAX.
 * Enqueues. */
skv_status_t skv__launch_merge(float *out, const float *const *states, int32_t count, int64_t rows,
                               int64_t value_head_dim, cudaStream_t stream);

/* skv_merge_lse for arrays on the device, with its contract: dense rows, natural log or base 2,
 * +inf or -inf for empty, `out` may be `a`. Enqueues. */
skv_status_t skv__launch_merge_lse(void *o_out, float *lse_out, const void *o_a, const float *lse_a,
                                   const void *o_b, const float *lse_b, int64_t rows, int64_t dim,
                                   skv_dtype_t dtype, skv_lse_base_t base, int32_t multiprocessors,
                                   cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
