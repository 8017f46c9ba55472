/* lse_merge.c: skv_merge_lse, the merge of foreign (O, LSE) partials. */
#include <string.h>

#include "kernels/convert.h"
#include "kernels/cpu/rounding.h"
#include "kernels/lse.h"
#include "skv.h"

/* One row of O. `dtype` is a constant where this is called, so that the loop has no branch. */
static inline void merge_row(void *out, const void *left, const void *right,
                             skv__lse_weights_t weights, int64_t dim, skv_dtype_t dtype) {
  for (int64_t d = 0; d < dim; ++d) {
    float value =
        skv__lse_merge_value(weights, skv__load(dtype, left, d), skv__load(dtype, right, d));
    skv__store(dtype, out, d, value);
  }
}

static void merge_row_of(void *out, const void *left, const void *right, skv__lse_weights_t weights,
                         int64_t dim, skv_dtype_t dtype) {
  size_t row_bytes = (size_t)(dim * skv__dtype_bytes(dtype));
  if (skv__is_empty(weights.lse))
    memset(out, 0, row_bytes);
  else if (weights.keep == SKV__KEEP_LEFT)
    memmove(out, left, row_bytes);
  else if (weights.keep == SKV__KEEP_RIGHT)
    memmove(out, right, row_bytes);
  else if (dtype == SKV_FP32)
    merge_row(out, left, right, weights, dim, SKV_FP32);
  else if (dtype == SKV_FP16)
    merge_row(out, left, right, weights, dim, SKV_FP16);
  else
    merge_row(out, left, right, weights, dim, SKV_BF16);
}

skv_status_t skv_merge_lse(void *o_out, float *lse_out, const void *o_a, const float *lse_a,
                           const void *o_b, const float *lse_b, int64_t rows, int64_t dim,
                           skv_dtype_t dtype, skv_lse_base_t base) {
  bool known_dtype = dtype == SKV_FP32 || dtype == SKV_FP16 || dtype == SKV_BF16;
  bool known_base = base == SKV_LSE_NATURAL || base == SKV_LSE_BASE2;
  if (rows < 0 || dim < 1 || dim > INT64_MAX / 4 || !known_dtype || !known_base)
    return SKV_INVALID;
  if (rows > INT64_MAX / 4 / dim)
    return SKV_INVALID;
  if (rows > 0 && (!o_out || !lse_out || !o_a || !lse_a || !o_b || !lse_b))
    return SKV_INVALID;
  skv__rounding_t before = skv__rounding_set();
  int64_t row_bytes = dim * skv__dtype_bytes(dtype);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t at = row * row_bytes;
    skv__lse_weights_t weights = skv__lse_merge_weights(lse_a[row], lse_b[row], base);
    merge_row_of((char *)o_out + at, (const char *)o_a + at, (const char *)o_b + at, weights, dim,
                 dtype);
    lse_out[row] = weights.lse;
  }
  skv__rounding_restore(before);
  return SKV_OK;
}
