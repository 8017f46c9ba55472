/* transpose_avx2.h: eight elements of any dtype as fp32, and 8 x 8 of them turned. Also used by
 * AVX-512: packing is bound by shuffles and memory, not by lanes. */
#ifndef SKV_CPU_TRANSPOSE_AVX2_H
#define SKV_CPU_TRANSPOSE_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#include "skv.h"

#define SKV__TRANSPOSE 8

static inline __attribute__((always_inline)) __m256 skv__widen8(const skv_dtype_t dtype,
                                                                const void *data, int64_t index) {
  if (dtype == SKV_FP32)
    return _mm256_loadu_ps((const float *)data + index);
  __m128i half = _mm_loadu_si128((const __m128i *)((const uint16_t *)data + index));
  if (dtype == SKV_FP16)
    return _mm256_cvtph_ps(half);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* Rows `row` and `row + 4`, elements d .. d + 3 each: two loads do the work of a shuffle. */
static inline __m256 skv__row_pair(const char *from, int64_t stride_bytes, int row, int64_t d) {
  const float *low = (const float *)(const void *)(from + row * stride_bytes) + d;
  const float *high = (const float *)(const void *)(from + (row + 4) * stride_bytes) + d;
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
}

/* Four columns of 8 rows, given as pairs of rows: to[d * step + row]. */
static inline void skv__transpose4(float *to, int64_t step, const __m256 *pair) {
  __m256 a = _mm256_unpacklo_ps(pair[0], pair[1]), b = _mm256_unpackhi_ps(pair[0], pair[1]);
  __m256 c = _mm256_unpacklo_ps(pair[2], pair[3]), d = _mm256_unpackhi_ps(pair[2], pair[3]);
  _mm256_storeu_ps(to, _mm256_shuffle_ps(a, c, 0x44));
  _mm256_storeu_ps(to + step, _mm256_shuffle_ps(a, c, 0xee));
  _mm256_storeu_ps(to + 2 * step, _mm256_shuffle_ps(b, d, 0x44));
  _mm256_storeu_ps(to + 3 * step, _mm256_shuffle_ps(b, d, 0xee));
}

/* to[d * step + row] = element d of row `row`, for 8 x 8. */
static inline __attribute__((always_inline)) void skv__transpose8(float *to, int64_t step,
                                                                  const skv_dtype_t dtype,
                                                                  const char *from,
                                                                  int64_t stride_bytes, int64_t d) {
  __m256 low[4], high[4];
  for (int i = 0; i < 4; ++i) {
    if (dtype == SKV_FP32) {
      low[i] = skv__row_pair(from, stride_bytes, i, d);
      high[i] = skv__row_pair(from, stride_bytes, i, d + 4);
    } else {
      __m256 a = skv__widen8(dtype, from + i * stride_bytes, d);
      __m256 b = skv__widen8(dtype, from + (i + 4) * stride_bytes, d);
      low[i] = _mm256_permute2f128_ps(a, b, 0x20);
      high[i] = _mm256_permute2f128_ps(a, b, 0x31);
    }
  }
  skv__transpose4(to, step, low);
  skv__transpose4(to + 4 * step, step, high);
}

#endif
