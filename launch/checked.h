/* checked.h: arithmetic on extents that came from outside. */
#ifndef SKV_CHECKED_H
#define SKV_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

#include "skv.h"

static inline int64_t skv__dtype_bytes(skv_dtype_t dtype) {
  return dtype == SKV_FP32 ? 4 : 2;
}

/* Bits of a dense tensor. False when an extent is negative or the product of the extents that are
 * not 0 leaves 63 bits: a tensor without elements must be one whose strides could be computed. */
static inline bool skv__checked_bits(int32_t rank_count, const int64_t *shape, int64_t element_bits,
                                     int64_t *bits) {
  int64_t product = element_bits;
  bool empty = false;
  for (int32_t i = 0; i < rank_count; i++) {
    if (shape[i] < 0)
      return false;
    if (shape[i] == 0)
      empty = true;
    else if (__builtin_mul_overflow(product, shape[i], &product))
      return false;
  }
  *bits = empty ? 0 : product;
  return true;
}

#endif
