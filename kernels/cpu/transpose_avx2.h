/* transpose_avx2.h: 16 bytes of eight rows, of any dtype, as fp32 columns. Also used by
 * AVX-512: this is bound by shuffles and memory, not by lanes. */
#ifndef SKV_CPU_TRANSPOSE_AVX2_H
#define SKV_CPU_TRANSPOSE_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#include "skv.h"

#define SKV__TURN 8 /* rows turned at a time, and columns at most */

/* Eight rows: row i is at `from` and, for each bit that i has, that bit's step, in bytes. */
typedef struct skv__eight {
  const char *from;
  int64_t step[3];
} skv__eight_t;

static inline __attribute__((always_inline)) const char *skv__eight_row(const skv__eight_t *eight,
                                                                        int i) {
  return eight->from + (i & 1) * eight->step[0] + (i >> 1 & 1) * eight->step[1] +
         (i >> 2) * eight->step[2];
}

static inline __attribute__((always_inline)) __m256 skv__widen8(const skv_dtype_t dtype,
                                                                const void *data, int64_t index) {
  if (dtype == SKV_FP32)
    return _mm256_loadu_ps((const float *)data + index);
  __m128i half = _mm_loadu_si128((const __m128i *)((const uint16_t *)data + index));
  if (dtype == SKV_FP16)
    return _mm256_cvtph_ps(half);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* Two 16-bit elements of a lane each become columns. */
static inline __attribute__((always_inline)) void skv__part(__m256 *column, const skv_dtype_t dtype,
                                                            __m256i both) {
  if (dtype == SKV_BF16) {
    column[0] = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    column[1] = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(-65536)));
    return;
  }
  __m256i low = _mm256_and_si256(both, _mm256_set1_epi32(65535));
  __m256i halves = _mm256_packus_epi32(low, _mm256_srli_epi32(both, 16));
  halves = _mm256_permute4x64_epi64(halves, 0xd8);
  column[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  column[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
}

static inline int skv__turn_columns(const skv_dtype_t dtype) {
  return dtype == SKV_FP32 ? 4 : 8;
}

/* column[i] lane j = element d + i of row j, for as many columns as 16 bytes hold. Two loads do the
 * work of a shuffle; 16-bit elements are turned in pairs. */
static inline __attribute__((always_inline)) void skv__turn(__m256 *column, const skv_dtype_t dtype,
                                                            const skv__eight_t *eight, int64_t d) {
  const int64_t at = d * (dtype == SKV_FP32 ? 4 : 2);
  __m256 row[4], turned[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    row[i] = _mm256_insertf128_ps(
        _mm256_castps128_ps256(
            _mm_loadu_ps((const float *)(const void *)(skv__eight_row(eight, i) + at))),
        _mm_loadu_ps((const float *)(const void *)(skv__eight_row(eight, i + 4) + at)), 1);
  __m256 a = _mm256_unpacklo_ps(row[0], row[1]), b = _mm256_unpackhi_ps(row[0], row[1]);
  __m256 c = _mm256_unpacklo_ps(row[2], row[3]), e = _mm256_unpackhi_ps(row[2], row[3]);
  turned[0] = _mm256_shuffle_ps(a, c, 0x44);
  turned[1] = _mm256_shuffle_ps(a, c, 0xee);
  turned[2] = _mm256_shuffle_ps(b, e, 0x44);
  turned[3] = _mm256_shuffle_ps(b, e, 0xee);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    if (dtype == SKV_FP32)
      column[i] = turned[i];
    else
      skv__part(column + 2 * i, dtype, _mm256_castps_si256(turned[i]));
}

#endif
