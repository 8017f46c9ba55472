/* narrow.h: fp32 to fp16 and bf16, to nearest even, for files that the command writes. */
#ifndef SKV_NARROW_H
#define SKV_NARROW_H

#include <stdint.h>
#include <string.h>

static inline uint16_t skv__narrow_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return (uint16_t)(bits >> 16 | 0x40u); /* quiet, and stays NaN */
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline uint16_t skv__narrow_fp16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return (uint16_t)(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) /* 65520 and more round to infinity */
    return (uint16_t)(sign | 0x7c00u);
  if (magnitude >= 0x38800000u) { /* normal: drop 13 bits and rebias the exponent by 112 */
    uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
  }
  uint32_t shift = 126u - (magnitude >> 23); /* subnormal: in units of 2^-24 */
  if (shift > 24u)
    return (uint16_t)sign;
  uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  uint32_t kept = significand >> shift, rest = significand & ((1u << shift) - 1u);
  uint32_t half = 1u << (shift - 1u);
  return (uint16_t)(sign | (kept + (rest > half || (rest == half && (kept & 1u)))));
}

#endif
