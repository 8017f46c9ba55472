/* test_math.c: exp2, exp, log and tanh of state.h against the C library's fp64 functions. */
#include <criterion/criterion.h>
#include <math.h>

#include "kernels/state.h"

/* How far `got` is from `want`, in units of the last place of an fp32 near `want`. */
static double ulps(float got, double want) {
  if (isnan(want))
    return isnan(got) ? 0 : INFINITY;
  if (isinf(want) || want == 0)
    return (double)got == want ? 0 : INFINITY;
  int exponent;
  frexp(want, &exponent);
  return fabs((double)got - want) / ldexp(1, exponent < -125 ? -149 : exponent - 24);
}

typedef float (*function_t)(float);
typedef double (*reference_t)(double);

/* The worst error over floats in [low, high]: every `stride`th bit pattern of both signs. */
static double worst(function_t function, reference_t reference, float low, float high,
                    uint32_t stride) {
  double largest = 0;
  for (uint64_t bits = 0; bits <= UINT32_MAX; bits += stride) {
    float x = skv__bits_float((uint32_t)bits);
    if (!(x >= low && x <= high))
      continue;
    double error = ulps(function(x), reference((double)x));
    if (!(error <= largest))
      largest = error;
  }
  return largest;
}

static float exp2_of(float x) {
  return skv__exp2(x);
}
static float exp_of(float x) {
  return skv__exp(x);
}
static float log_of(float x) {
  return skv__log(x);
}
static float tanh_of(float x) {
  return skv__tanh(x);
}

enum { STRIDE = 1021 };

Test(math, errors_stay_below_two_ulps) {
  double exp2_error = worst(exp2_of, exp2, -126.0f, 126.0f, STRIDE);
  double exp_error = worst(exp_of, exp, SKV__EXP_LOWEST, 80.0f, STRIDE);
  double log_error = worst(log_of, log, 0x1p-149f, FLT_MAX, STRIDE);
  double tanh_error = worst(tanh_of, tanh, -FLT_MAX, FLT_MAX, STRIDE);
  cr_log_info("ulps: exp2 %.3f exp %.3f log %.3f tanh %.3f", exp2_error, exp_error, log_error,
              tanh_error);
  cr_expect_leq(exp2_error, 2.0);
  cr_expect_leq(exp_error, 2.0);
  cr_expect_leq(log_error, 2.0);
  cr_expect_leq(tanh_error, 2.0);
}

/* Where cancellation, range reduction and branches are: neighbours of 0, 1 and the thresholds. */
Test(math, errors_stay_below_two_ulps_at_the_seams) {
  const float seams[] = {1.0f, 0.625f, -0.625f, 0x1.6a09e6p-1f, 0x1.6a09e6p+0f, 0.5f,
                         1.5f, 2.5f,   -0.5f,   -1.5f,          0x1p-126f,      3.0f};
  for (size_t i = 0; i < sizeof seams / sizeof seams[0]; ++i) {
    uint32_t centre = skv__float_bits(seams[i]);
    for (uint32_t bits = centre - 2000; bits <= centre + 2000; ++bits) {
      float x = skv__bits_float(bits);
      cr_assert_leq(ulps(skv__exp2(x), exp2((double)x)), 2.0, "exp2(%a)", (double)x);
      cr_assert_leq(ulps(skv__exp(x), exp((double)x)), 2.0, "exp(%a)", (double)x);
      cr_assert_leq(ulps(skv__tanh(x), tanh((double)x)), 2.0, "tanh(%a)", (double)x);
      if (x > 0)
        cr_assert_leq(ulps(skv__log(x), log((double)x)), 2.0, "log(%a)", (double)x);
    }
  }
}

Test(math, exp2_is_exact_at_integers_and_ends_at_minus_126) {
  for (int n = -126; n <= 126; ++n)
    cr_assert_eq(skv__exp2((float)n), ldexpf(1, n), "exp2(%d)", n);
  cr_expect_eq(skv__exp2(nextafterf(-126.0f, -INFINITY)), 0.0f);
  cr_expect_eq(skv__exp2(-1e30f), 0.0f);
  cr_expect_eq(skv__exp2(-INFINITY), 0.0f);
  cr_expect_eq(skv__exp(0.0f), 1.0f);
  cr_expect_eq(skv__exp(nextafterf(SKV__EXP_LOWEST, -INFINITY)), 0.0f);
  cr_expect_eq(skv__exp(-INFINITY), 0.0f);
}

Test(math, pow2_is_exact_and_never_denormal) {
  for (int n = -126; n <= 0; ++n)
    cr_assert_eq(skv__pow2((float)n), ldexpf(1, n), "pow2(%d)", n);
  const float zeros[] = {-127, -128, -149, -255, -256, -1e9f, -3e38f, -INFINITY};
  for (size_t i = 0; i < sizeof zeros / sizeof zeros[0]; ++i)
    cr_expect_eq(skv__float_bits(skv__pow2(zeros[i])), 0u, "pow2(%g)", (double)zeros[i]);
  cr_expect_eq(skv__float_bits(skv__pow2(INFINITY - INFINITY)), SKV__NAN_BITS);
}

Test(math, special_values) {
  const uint32_t nans[] = {0x7fc00000u, 0xffc00001u, 0x7f800001u, 0xffffffffu};
  for (size_t i = 0; i < 4; ++i) {
    float nan_value = skv__bits_float(nans[i]);
    cr_expect_eq(skv__float_bits(skv__exp2(nan_value)), SKV__NAN_BITS);
    cr_expect_eq(skv__float_bits(skv__exp(nan_value)), SKV__NAN_BITS);
    cr_expect_eq(skv__float_bits(skv__log(nan_value)), SKV__NAN_BITS);
    cr_expect_eq(skv__float_bits(skv__tanh(nan_value)), SKV__NAN_BITS);
    cr_expect_eq(skv__float_bits(skv__pow2(nan_value)), SKV__NAN_BITS);
  }
  cr_expect_eq(skv__float_bits(skv__exp2(INFINITY)), SKV__NAN_BITS);
  cr_expect_eq(skv__float_bits(skv__log(1.0f)), 0u);
  cr_expect_eq(skv__log(0.0f), -INFINITY);
  cr_expect_eq(skv__log(-0.0f), -INFINITY);
  cr_expect_eq(skv__log(INFINITY), INFINITY);
  cr_expect_eq(skv__float_bits(skv__log(-1.0f)), SKV__NAN_BITS);
  cr_expect_eq(skv__tanh(INFINITY), 1.0f);
  cr_expect_eq(skv__tanh(-INFINITY), -1.0f);
  cr_expect_eq(skv__float_bits(skv__tanh(-0.0f)), 0x80000000u);
  cr_expect_eq(skv__tanh(0x1p-149f), 0x1p-149f);
}

Test(math, tanh_is_odd_to_the_bit) {
  for (uint64_t bits = 0; bits < 0x7f800000u; bits += STRIDE) {
    float x = skv__bits_float((uint32_t)bits);
    cr_assert_eq(skv__float_bits(skv__tanh(-x)), skv__float_bits(skv__tanh(x)) ^ 0x80000000u,
                 "tanh(%a)", (double)x);
  }
}
