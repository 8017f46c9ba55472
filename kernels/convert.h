/* convert.h: fp16 and bf16 to and from fp32, on bits: the same on every compiler, whatever the
 * hardware has. Narrowing rounds to nearest, ties to even; NaN stays NaN, and becomes quiet. */
#ifndef SKV_CONVERT_H
#define SKV_CONVERT_H

#include "kernels/state.h"
#include "skv.h"

SKV_FN float skv__widen_fp16(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  uint32_t exponent = half >> 10 & 31u;
  uint32_t mantissa = half & 0x3ffu;
  uint32_t bits;
  if (exponent == 0)
    bits = skv__float_bits((float)mantissa * 0x1p-24f);
  else if (exponent == 31)
    bits = 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0);
  else
    bits = (exponent + 112) << 23 | mantissa << 13;
  return skv__bits_float(sign | bits);
}

SKV_FN uint16_t skv__narrow_fp16(float value) {
  uint32_t sign = skv__float_bits(value) >> 16 & 0x8000u;
  uint32_t bits = skv__float_bits(value) & 0x7fffffffu;
  uint32_t half;
  if (bits > 0x7f800000u)
    half = 0x7e00u | (bits >> 13 & 0x3ffu);
  else if (bits >= 0x47800000u) /* 65536 and above */
    half = 0x7c00u;
  else if (bits < 0x38800000u) /* a denormal half: the addition of 1/2 rounds to 2^-24 */
    half = skv__float_bits(skv__bits_float(bits) + 0.5f) - 0x3f000000u;
  else
    half = (bits - 0x38000000u + 0xfffu + (bits >> 13 & 1u)) >> 13;
  return (uint16_t)(sign | half);
}

SKV_FN float skv__widen_bf16(uint16_t half) {
  return skv__bits_float((uint32_t)half << 16);
}

SKV_FN uint16_t skv__narrow_bf16(float value) {
  uint32_t bits = skv__float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return (uint16_t)(bits >> 16 | 0x40u);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

SKV_FN int64_t skv__dtype_bytes(skv_dtype_t dtype) {
  return dtype == SKV_FP32 ? 4 : 2;
}

/* Element `index` of an array of `dtype`, as fp32. */
SKV_FN float skv__load(skv_dtype_t dtype, const void *data, int64_t index) {
  if (dtype == SKV_FP32)
    return ((const float *)data)[index];
  uint16_t half = ((const uint16_t *)data)[index];
  return dtype == SKV_FP16 ? skv__widen_fp16(half) : skv__widen_bf16(half);
}

SKV_FN void skv__store(skv_dtype_t dtype, void *data, int64_t index, float value) {
  if (dtype == SKV_FP32)
    ((float *)data)[index] = value;
  else
    ((uint16_t *)data)[index] =
        dtype == SKV_FP16 ? skv__narrow_fp16(value) : skv__narrow_bf16(value);
}

/* To nearest even, and back. */
SKV_FN float skv__rounded(skv_dtype_t dtype, float value) {
  if (dtype == SKV_FP16)
    return skv__widen_fp16(skv__narrow_fp16(value));
  return dtype == SKV_BF16 ? skv__widen_bf16(skv__narrow_bf16(value)) : value;
}

#endif
