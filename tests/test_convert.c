/* test_convert.c: fp16 and bf16, every value of both, and every place where rounding turns. */
#include <criterion/criterion.h>
#include <math.h>

#include "kernels/convert.h"

/* A 16-bit float with `mantissa_bits` of mantissa by its definition, in fp64. */
static double defined(uint16_t half, int mantissa_bits) {
  int exponent_bits = 15 - mantissa_bits;
  int bias = (1 << (exponent_bits - 1)) - 1;
  int exponent = half >> mantissa_bits & ((1 << exponent_bits) - 1);
  int mantissa = half & ((1 << mantissa_bits) - 1);
  double sign = half >> 15 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0)
    return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

typedef float (*widen_t)(uint16_t);
typedef uint16_t (*narrow_t)(float);

static float widen_fp16(uint16_t half) {
  return skv__widen_fp16(half);
}
static uint16_t narrow_fp16(float value) {
  return skv__narrow_fp16(value);
}
static float widen_bf16(uint16_t half) {
  return skv__widen_bf16(half);
}
static uint16_t narrow_bf16(float value) {
  return skv__narrow_bf16(value);
}

static void check_every_value(widen_t widen, narrow_t narrow, int mantissa_bits) {
  for (uint32_t half = 0; half <= 0xffff; ++half) {
    double want = defined((uint16_t)half, mantissa_bits);
    float got = widen((uint16_t)half);
    if (isnan(want)) {
      cr_assert(isnan(got) && isnan(widen(narrow(got))), "%04x is NaN", half);
      continue;
    }
    cr_assert((double)got == want && !signbit(got) == !signbit(want), "%04x", half);
    cr_assert_eq(narrow(got), half, "%04x does not survive", half);
  }
}

/* Between neighbours a < b of the format: below the middle gives a, above it b, and the middle the
 * even one. The neighbour of the largest finite value is where the next power of two would be. */
static void check_rounding(narrow_t narrow, int mantissa_bits) {
  uint16_t infinity = (uint16_t)(0x7fff >> mantissa_bits << mantissa_bits);
  for (uint16_t half = 0; half < infinity; ++half) {
    double low = defined(half, mantissa_bits);
    double high = half + 1 == infinity ? 2 * low - defined((uint16_t)(half - 1), mantissa_bits)
                                       : defined((uint16_t)(half + 1), mantissa_bits);
    float middle = (float)((low + high) / 2);
    uint16_t even = half & 1 ? (uint16_t)(half + 1) : half;
    cr_assert_eq((double)middle, (low + high) / 2, "the middle is an fp32");
    cr_assert_eq(narrow(middle), even, "middle above %04x", half);
    cr_assert_eq(narrow(-middle), even | 0x8000, "middle above -%04x", half);
    cr_assert_eq(narrow(nextafterf(middle, 0)), half, "below the middle above %04x", half);
    cr_assert_eq(narrow(nextafterf(middle, INFINITY)), half + 1, "above the middle above %04x",
                 half);
  }
  cr_assert_eq(narrow(FLT_MAX), infinity);
  cr_assert_eq(narrow(INFINITY), infinity);
}

Test(convert, every_fp16) {
  check_every_value(widen_fp16, narrow_fp16, 10);
}
Test(convert, every_bf16) {
  check_every_value(widen_bf16, narrow_bf16, 7);
}
Test(convert, fp16_rounds_to_nearest_even) {
  check_rounding(narrow_fp16, 10);
}
Test(convert, bf16_rounds_to_nearest_even) {
  check_rounding(narrow_bf16, 7);
}

Test(convert, fp16_overflows_to_infinity) {
  const float values[] = {65520, 65536, 100000, 131072, 262144, 1e9f};
  for (size_t i = 0; i < sizeof values / sizeof values[0]; ++i) {
    cr_expect_eq(skv__narrow_fp16(values[i]), 0x7c00, "%g", (double)values[i]);
    cr_expect_eq(skv__narrow_fp16(-values[i]), 0xfc00, "-%g", (double)values[i]);
  }
}

Test(convert, nan_stays_nan_and_quiet) {
  const uint32_t nans[] = {0x7fc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu};
  for (size_t i = 0; i < 4; ++i) {
    float value = skv__bits_float(nans[i]);
    cr_expect_eq(skv__narrow_fp16(value) & 0x7e00, 0x7e00);
    cr_expect_eq(skv__narrow_bf16(value) & 0x7fc0, 0x7fc0);
  }
  cr_expect_eq(skv__narrow_fp16(skv__bits_float(SKV__NAN_BITS)), 0x7e00);
  cr_expect_eq(skv__narrow_bf16(skv__bits_float(SKV__NAN_BITS)), 0x7fc0);
}

Test(convert, load_and_store_by_dtype) {
  const skv_dtype_t dtypes[] = {SKV_FP32, SKV_FP16, SKV_BF16};
  for (size_t i = 0; i < 3; ++i) {
    float memory[3] = {7, 7, 7};
    skv__store(dtypes[i], memory, 1, -0.75f);
    cr_expect_eq(skv__load(dtypes[i], memory, 1), -0.75f);
    cr_expect_eq(skv__dtype_bytes(dtypes[i]), dtypes[i] == SKV_FP32 ? 4 : 2);
    cr_expect_eq(memory[2], 7.0f, "nothing past the element is written");
  }
}
