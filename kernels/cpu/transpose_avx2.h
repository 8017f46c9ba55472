/* transpose_avx2.h: eight elements of any dtype as fp32, and 8 x 8 of them turned. Also used by
 * AVX-512: packing is bound by shuffles and memory, not by lanes. */
#ifndef SKV_CPU_TRANSPOSE_AVX2_H
#define SKV_CPU_TRANSPOSE_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#include "skv.h"

#define SKV__TRANSPOSE 8

static inline __m256 skv__widen8(skv_dtype_t dtype, const void *data, int64_t index) {
  if (dtype == SKV_FP32)
    return _mm256_loadu_ps((const float *)data + index);
  __m128i half = _mm_loadu_si128((const __m128i *)((const uint16_t *)data + index));
  if (dtype == SKV_FP16)
    return _mm256_cvtph_ps(half);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* to[d * step + key] = element d of row `key`, for 8 x 8. */
static inline void skv__transpose8(float *to, int64_t step, skv_dtype_t dtype, const char *from,
                                   int64_t stride_bytes, int64_t d) {
  __m256 row[8], pair[8], quad[8];
  for (int i = 0; i < 8; ++i)
    row[i] = skv__widen8(dtype, from + i * stride_bytes, d);
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
    pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    quad[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
    quad[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xee);
    quad[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
    quad[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * step, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * step, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31));
  }
}

#endif
