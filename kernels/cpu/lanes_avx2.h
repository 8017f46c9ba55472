/* lanes_avx2.h: the vector vocabulary of tile_body.h for AVX2 with FMA and F16C. */
#ifndef SKV_CPU_LANES_H
#define SKV_CPU_LANES_H

#include <immintrin.h>

#include "kernels/cpu/transpose_avx2.h"
#include "kernels/state.h"

enum { LANES = 8, BLOCK_ROWS = 6, BLOCK_VECTORS = 2, THIN_VECTORS = 8 };
typedef __m256 lanes_t;

static inline lanes_t lanes_load(const float *from) {
  return _mm256_loadu_ps(from);
}
static inline void lanes_store(float *to, lanes_t a) {
  _mm256_storeu_ps(to, a);
}
static inline lanes_t lanes_all(float value) {
  return _mm256_set1_ps(value);
}
static inline lanes_t lanes_fma(lanes_t a, lanes_t b, lanes_t c) {
  return _mm256_fmadd_ps(a, b, c);
}
static inline lanes_t lanes_add(lanes_t a, lanes_t b) {
  return _mm256_add_ps(a, b);
}
static inline lanes_t lanes_subtract(lanes_t a, lanes_t b) {
  return _mm256_sub_ps(a, b);
}
static inline lanes_t lanes_multiply(lanes_t a, lanes_t b) {
  return _mm256_mul_ps(a, b);
}
static inline lanes_t lanes_divide(lanes_t a, lanes_t b) {
  return _mm256_div_ps(a, b);
}
/* a > b ? a : b */
static inline lanes_t lanes_max(lanes_t a, lanes_t b) {
  return _mm256_max_ps(a, b);
}
/* x < bound ? below : other */
static inline lanes_t lanes_below(lanes_t x, lanes_t bound, lanes_t below, lanes_t other) {
  return _mm256_blendv_ps(other, below, _mm256_cmp_ps(x, bound, _CMP_LT_OQ));
}
/* bits << 23 */
static inline lanes_t lanes_power(lanes_t shifted) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted), 23));
}
static inline lanes_t lanes_sign(lanes_t a) {
  return _mm256_and_ps(a, _mm256_set1_ps(-0.0f));
}
static inline lanes_t lanes_flip(lanes_t a, lanes_t sign) {
  return _mm256_xor_ps(a, sign);
}
/* a where begin <= lane < end, -inf elsewhere */
static inline lanes_t lanes_visible(lanes_t a, int begin, int end) {
  __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  __m256i late = _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane);
  __m256i hidden = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane), late);
  return _mm256_blendv_ps(_mm256_set1_ps(skv__empty_exponent()), a, _mm256_castsi256_ps(hidden));
}
static inline float lanes_largest(lanes_t a) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline lanes_t lanes_widen(skv_dtype_t dtype, const void *data, int64_t index) {
  return skv__widen8(dtype, data, index);
}

#endif
