/* transpose_avx2.h: four elements of eight rows, of any dtype, as fp32 columns. Also used by
 * AVX-512: this is bound by shuffles and memory, not by lanes. */
#ifndef SKV_CPU_TRANSPOSE_AVX2_H
#define SKV_CPU_TRANSPOSE_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#include "skv.h"

enum { SKV__TURN_ROWS = 8, SKV__TURN_COLUMNS = 4 };
#define SKV__TURN 1

static inline __attribute__((always_inline)) __m256 skv__widen8(const skv_dtype_t dtype,
                                                                const void *data, int64_t index) {
  if (dtype == SKV_FP32)
    return _mm256_loadu_ps((const float *)data + index);
  __m128i half = _mm_loadu_si128((const __m128i *)((const uint16_t *)data + index));
  if (dtype == SKV_FP16)
    return _mm256_cvtph_ps(half);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* Elements d .. d + 3 of two rows: two loads do the work of a shuffle. */
static inline __attribute__((always_inline)) __m256
skv__row_pair(const skv_dtype_t dtype, const void *low, const void *high, int64_t d) {
  if (dtype == SKV_FP32)
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps((const float *)low + d)),
                                _mm_loadu_ps((const float *)high + d), 1);
  __m128i first =
      _mm_loadu_si64((const uint16_t *)low + d); /* any address, which load_sd forbids */
  __m128d both = _mm_loadh_pd(_mm_castsi128_pd(first),
                              (const double *)(const void *)((const uint16_t *)high + d));
  __m128i half = _mm_castpd_si128(both);
  if (dtype == SKV_FP16)
    return _mm256_cvtph_ps(half);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* column[i] lane j = element d + i of row j. */
static inline __attribute__((always_inline)) void skv__turn(__m256 *column, const skv_dtype_t dtype,
                                                            const char *from, int64_t stride_bytes,
                                                            int64_t d) {
  const char *far = from + 4 * stride_bytes;
  __m256 pair[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    pair[i] = skv__row_pair(dtype, from + i * stride_bytes, far + i * stride_bytes, d);
  __m256 a = _mm256_unpacklo_ps(pair[0], pair[1]), b = _mm256_unpackhi_ps(pair[0], pair[1]);
  __m256 c = _mm256_unpacklo_ps(pair[2], pair[3]), e = _mm256_unpackhi_ps(pair[2], pair[3]);
  column[0] = _mm256_shuffle_ps(a, c, 0x44);
  column[1] = _mm256_shuffle_ps(a, c, 0xee);
  column[2] = _mm256_shuffle_ps(b, e, 0x44);
  column[3] = _mm256_shuffle_ps(b, e, 0xee);
}

#endif
