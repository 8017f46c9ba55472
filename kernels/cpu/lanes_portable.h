/* lanes_portable.h: the vector vocabulary of tile_body.h in plain C, for any machine. */
#ifndef SKV_CPU_LANES_H
#define SKV_CPU_LANES_H

#include "kernels/convert.h"
#include "kernels/state.h"

enum { LANES = 16, BLOCK_ROWS = 4, BLOCK_VECTORS = 1, THIN_VECTORS = 1 };
typedef struct lanes {
  float x[LANES];
} lanes_t;

#define EACH_LANE for (int lane = 0; lane < LANES; ++lane)

static inline lanes_t lanes_load(const float *from) {
  lanes_t to;
  EACH_LANE to.x[lane] = from[lane];
  return to;
}
static inline void lanes_store(float *to, lanes_t a) {
  EACH_LANE to[lane] = a.x[lane];
}
static inline lanes_t lanes_all(float value) {
  lanes_t to;
  EACH_LANE to.x[lane] = value;
  return to;
}
static inline lanes_t lanes_fma(lanes_t a, lanes_t b, lanes_t c) {
  EACH_LANE c.x[lane] = fmaf(a.x[lane], b.x[lane], c.x[lane]);
  return c;
}
static inline lanes_t lanes_add(lanes_t a, lanes_t b) {
  EACH_LANE a.x[lane] += b.x[lane];
  return a;
}
static inline lanes_t lanes_subtract(lanes_t a, lanes_t b) {
  EACH_LANE a.x[lane] -= b.x[lane];
  return a;
}
static inline lanes_t lanes_multiply(lanes_t a, lanes_t b) {
  EACH_LANE a.x[lane] *= b.x[lane];
  return a;
}
static inline lanes_t lanes_divide(lanes_t a, lanes_t b) {
  EACH_LANE a.x[lane] /= b.x[lane];
  return a;
}
/* a > b ? a : b */
static inline lanes_t lanes_max(lanes_t a, lanes_t b) {
  EACH_LANE a.x[lane] = a.x[lane] > b.x[lane] ? a.x[lane] : b.x[lane];
  return a;
}
/* x < bound ? below : other */
static inline lanes_t lanes_below(lanes_t x, lanes_t bound, lanes_t below, lanes_t other) {
  EACH_LANE x.x[lane] = x.x[lane] < bound.x[lane] ? below.x[lane] : other.x[lane];
  return x;
}
/* bits << 23 */
static inline lanes_t lanes_power(lanes_t shifted) {
  EACH_LANE shifted.x[lane] = skv__bits_float(skv__float_bits(shifted.x[lane]) << 23);
  return shifted;
}
static inline lanes_t lanes_sign(lanes_t a) {
  EACH_LANE a.x[lane] = skv__bits_float(skv__float_bits(a.x[lane]) & 0x80000000u);
  return a;
}
static inline lanes_t lanes_flip(lanes_t a, lanes_t sign) {
  EACH_LANE a.x[lane] = skv__bits_float(skv__float_bits(a.x[lane]) ^ skv__float_bits(sign.x[lane]));
  return a;
}
/* a where begin <= lane < end, -inf elsewhere */
static inline lanes_t lanes_visible(lanes_t a, int begin, int end) {
  EACH_LANE a.x[lane] = lane >= begin && lane < end ? a.x[lane] : skv__empty_exponent();
  return a;
}
static inline float lanes_largest(lanes_t a) {
  float largest = a.x[0];
  EACH_LANE largest = a.x[lane] > largest ? a.x[lane] : largest;
  return largest;
}
static inline lanes_t lanes_widen(skv_dtype_t dtype, const void *data, int64_t index) {
  lanes_t to;
  EACH_LANE to.x[lane] = skv__load(dtype, data, index + lane);
  return to;
}

#endif
