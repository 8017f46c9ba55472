/* prefill.h: the sm_90a prefill kernel's launcher. */
#ifndef SKV_CUDA_PREFILL_H
#define SKV_CUDA_PREFILL_H

#include <stdint.h>

#include <cuda_runtime_api.h>

#include "skv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One problem whose keys all lie here; head_dim 64, 128 or 256, fp16 or bf16. Tensors as in
 * skv_inputs_t and skv_outputs_t, all pointers to device memory, O of the inputs' dtype. Strides
 * are multiples of 8 elements. */
typedef struct skv__prefill {
  int64_t batch, q_tokens, kv_tokens; /* sequences; tokens that q and k, v are allocated for */
  int64_t q_heads, kv_heads, head_dim;
  skv_dtype_t dtype;
  float scale;
  int64_t left_tokens, right_tokens; /* INT64_MAX / 4: unbounded */
  /* leaf_tokens 0: one endless leaf (free order). Leaves are multiples of 128 keys (64 at head_dim
   * 256, where a block is one leaf). */
  int64_t leaf_tokens, block_tokens;
  skv_tensor_t q, k, v, o;
  float *lse; /* or NULL */
  int64_t lse_stride[3];
  const int64_t *q_lengths, *k_lengths, *q_start; /* [batch] */
  int32_t most_ctas;                              /* 0: one a multiprocessor */
} skv__prefill_t;

/* Scratch on the device; its first 8 bytes must be 0 before the first launch, and are afterwards.
 */
size_t skv__prefill_scratch_bytes(const skv__prefill_t *prefill, int32_t multiprocessors);
/* Enqueues. `multiprocessors` is the device's count. */
skv_status_t skv__launch_prefill(const skv__prefill_t *prefill, int32_t multiprocessors,
                                 void *scratch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
