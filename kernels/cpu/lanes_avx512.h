/* lanes_avx512.h: the vector vocabulary of tile_body.h for AVX-512 F, DQ, BW, VL. */
#ifndef SKV_CPU_LANES_H
#define SKV_CPU_LANES_H

#include <immintrin.h>

#include "kernels/cpu/transpose_avx2.h"
#include "kernels/state.h"

enum { LANES = 16, BLOCK_ROWS = 12, BLOCK_VECTORS = 2, THIN_VECTORS = 4 };
typedef __m512 lanes_t;

static inline lanes_t lanes_load(const float *from) {
  return _mm512_loadu_ps(from);
}
static inline void lanes_store(float *to, lanes_t a) {
  _mm512_storeu_ps(to, a);
}
static inline lanes_t lanes_all(float value) {
  return _mm512_set1_ps(value);
}
static inline lanes_t lanes_fma(lanes_t a, lanes_t b, lanes_t c) {
  return _mm512_fmadd_ps(a, b, c);
}
static inline lanes_t lanes_add(lanes_t a, lanes_t b) {
  return _mm512_add_ps(a, b);
}
static inline lanes_t lanes_subtract(lanes_t a, lanes_t b) {
  return _mm512_sub_ps(a, b);
}
static inline lanes_t lanes_multiply(lanes_t a, lanes_t b) {
  return _mm512_mul_ps(a, b);
}
static inline lanes_t lanes_divide(lanes_t a, lanes_t b) {
  return _mm512_div_ps(a, b);
}
/* a > b ? a : b */
static inline lanes_t lanes_max(lanes_t a, lanes_t b) {
  return _mm512_max_ps(a, b);
}
/* x < bound ? below : other */
static inline lanes_t lanes_below(lanes_t x, lanes_t bound, lanes_t below, lanes_t other) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, bound, _CMP_LT_OQ), other, below);
}
/* bits << 23 */
static inline lanes_t lanes_power(lanes_t shifted) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(shifted), 23));
}
static inline lanes_t lanes_sign(lanes_t a) {
  return _mm512_and_ps(a, _mm512_set1_ps(-0.0f));
}
static inline lanes_t lanes_flip(lanes_t a, lanes_t sign) {
  return _mm512_xor_ps(a, sign);
}
/* a where begin <= lane < end, -inf elsewhere */
static inline lanes_t lanes_visible(lanes_t a, int begin, int end) {
  __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __mmask16 late = _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(end));
  __mmask16 visible = _mm512_mask_cmpge_epi32_mask(late, lane, _mm512_set1_epi32(begin));
  return _mm512_mask_blend_ps(visible, _mm512_set1_ps(skv__empty_exponent()), a);
}
static inline float lanes_largest(lanes_t a) {
  __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline lanes_t lanes_widen(skv_dtype_t dtype, const void *data, int64_t index) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(skv__widen8(dtype, data, index)),
                            skv__widen8(dtype, data, index + 8), 1);
}

#endif
