/* test_lse.c: skv_merge_lse, the merge of foreign (O, LSE) partials. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/convert.h"
#include "skv.h"

enum { DIM = 64 };

static const skv_dtype_t dtypes[] = {SKV_FP32, SKV_FP16, SKV_BF16};

/* Merge two rows whose elements all are a and b; returns one element and the LSE. */
static float merge_constant(float a, float a_lse, float b, float b_lse, skv_dtype_t dtype,
                            skv_lse_base_t base, float *lse) {
  uint32_t left[DIM], right[DIM], out[DIM];
  for (int d = 0; d < DIM; ++d) {
    skv__store(dtype, left, d, a);
    skv__store(dtype, right, d, b);
  }
  memset(out, 0xff, sizeof out);
  cr_assert_eq(skv_merge_lse(out, lse, left, &a_lse, right, &b_lse, 1, DIM, dtype, base), SKV_OK);
  for (int d = 1; d < DIM; ++d)
    cr_assert_eq(skv__float_bits(skv__load(dtype, out, d)),
                 skv__float_bits(skv__load(dtype, out, 0)));
  return skv__load(dtype, out, 0);
}

/* B01, B02: 1 x 1 x 64, every dtype; what an empty partial holds in O does not matter. */
Test(lse, two_empty_partials_are_empty) {
  const float empties[] = {-INFINITY, INFINITY};
  for (int i = 0; i < 12; ++i) {
    float lse = 7;
    float o = merge_constant(i & 4 ? NAN : 0, empties[i & 1], 0, empties[i >> 1 & 1], dtypes[i % 3],
                             SKV_LSE_NATURAL, &lse);
    cr_expect_eq(skv__float_bits(o), 0u);
    cr_expect_eq(lse, -INFINITY);
  }
}

Test(lse, an_empty_partial_changes_no_bit) {
  const float empties[] = {-INFINITY, INFINITY};
  for (int i = 0; i < 6; ++i) {
    float lse;
    float o =
        merge_constant(NAN, empties[i & 1], -0.0f, -60000, dtypes[i % 3], SKV_LSE_NATURAL, &lse);
    cr_expect_eq(skv__float_bits(o), 0x80000000u);
    cr_expect_eq(lse, -60000.0f);
    o = merge_constant(0x1p-20f, 1e-40f, NAN, empties[i & 1], dtypes[i % 3], SKV_LSE_BASE2, &lse);
    cr_expect_eq(o, 0x1p-20f);
    cr_expect_eq(lse, 1e-40f);
  }
}

/* B05. */
Test(lse, natural_and_base_2) {
  float lse;
  cr_expect_float_eq(merge_constant(0, logf(2), 10, logf(8), SKV_FP32, SKV_LSE_NATURAL, &lse), 8.0f,
                     2e-6f);
  cr_expect_float_eq((double)lse, log(10), 3e-7);
  cr_expect_float_eq(merge_constant(0, 1, 10, 3, SKV_FP32, SKV_LSE_BASE2, &lse), 8.0f, 2e-6f);
  cr_expect_float_eq((double)lse, log2(10), 3e-7);
}

/* B06: the larger LSE wins; nothing overflows, however far apart. */
Test(lse, far_apart) {
  float lse;
  cr_expect_eq(merge_constant(5, 0, 3, 100, SKV_FP32, SKV_LSE_NATURAL, &lse), 3.0f);
  cr_expect_eq(lse, 100.0f);
  cr_expect_eq(merge_constant(3, 3e38f, 5, -3e38f, SKV_FP32, SKV_LSE_BASE2, &lse), 3.0f);
  cr_expect_eq(lse, 3e38f);
}

/* B07: rows below -5e4 are rows like others. */
Test(lse, very_negative) {
  float lse;
  float o = merge_constant(1, -46340.95f, 1, -46340.95f, SKV_BF16, SKV_LSE_NATURAL, &lse);
  cr_expect_eq(o, 1.0f);
  cr_expect_float_eq((double)lse, -46340.95 + log(2), 0.004);
  merge_constant(2, -70000, 4, -70000, SKV_FP32, SKV_LSE_NATURAL, &lse);
  cr_expect_float_eq((double)lse, -70000 + log(2), 0.008);
}

/* Scale first: e^89 overflows fp32, and so would sums of unnormalised partials. */
Test(lse, large_outputs_do_not_overflow) {
  float lse;
  cr_expect_float_eq(merge_constant(3e38f, 89, 3e38f, 89, SKV_FP32, SKV_LSE_NATURAL, &lse) / 3e38f,
                     1.0f, 1e-6f);
  cr_expect_eq(merge_constant(65504, 89, 65504, 89, SKV_FP16, SKV_LSE_NATURAL, &lse), 65504.0f);
}

Test(lse, nan_spreads) {
  float lse;
  cr_expect(isnan(merge_constant(1, NAN, 1, 0, SKV_FP32, SKV_LSE_NATURAL, &lse)) && isnan(lse));
  cr_expect(isnan(merge_constant(1, 0, 1, NAN, SKV_FP32, SKV_LSE_NATURAL, &lse)) && isnan(lse));
  cr_expect(isnan(merge_constant(1, 0, NAN, 0, SKV_BF16, SKV_LSE_NATURAL, &lse)) && !isnan(lse));
}

/* The stated error of one merge: |O - exact| <= 3e-7 max(|a|, |b|); for the LSE half of its last
 * place and 2e-7, in natural units. */
Test(lse, the_stated_error_of_one_merge) {
  unsigned short random[3] = {5, 6, 7};
  double worst_o = 0, worst_lse = 0;
  for (int i = 0; i < 200000; ++i) {
    bool base2 = i % 2;
    float spread = i % 4 < 2 ? 4.0f : 100.0f;
    float centre = i % 8 < 4 ? 0.0f : 1000.0f;
    float a = (float)erand48(random) * 2 - 1, b = (float)erand48(random) * 2 - 1, lse;
    float a_lse = centre + ((float)erand48(random) - 0.5f) * spread;
    float b_lse = centre + ((float)erand48(random) - 0.5f) * spread;
    float o = a;
    cr_assert_eq(skv_merge_lse(&o, &lse, &o, &a_lse, &b, &b_lse, 1, 1, SKV_FP32,
                               base2 ? SKV_LSE_BASE2 : SKV_LSE_NATURAL),
                 SKV_OK);
    double unit = base2 ? log(2) : 1;
    double ratio = exp(((double)b_lse - (double)a_lse) * unit);
    double want = ((double)a + (double)b * ratio) / (1 + ratio);
    double want_lse = (double)a_lse + log1p(ratio) / unit;
    worst_o = fmax(worst_o, fabs((double)o - want) / fmax(fabs((double)a), fabs((double)b)));
    worst_lse = fmax(worst_lse, (fabs((double)lse - want_lse) - ldexp(fabs(want_lse), -24)) * unit);
  }
  cr_log_info("one merge: O %.3g relative, LSE %.3g", worst_o, worst_lse);
  cr_expect_leq(worst_o, 3e-7);
  cr_expect_leq(worst_lse, 2e-7);
}

Test(lse, many_rows_in_place) {
  enum { ROWS = 37, WIDTH = 5 };
  float left[ROWS * WIDTH], right[ROWS * WIDTH], left_lse[ROWS], right_lse[ROWS];
  for (int i = 0; i < ROWS * WIDTH; ++i) {
    left[i] = (float)i;
    right[i] = (float)-i;
  }
  for (int row = 0; row < ROWS; ++row) {
    left_lse[row] = row % 3 ? 2.0f : -INFINITY;
    right_lse[row] = row % 5 ? 2.0f : INFINITY;
  }
  cr_assert_eq(skv_merge_lse(left, left_lse, left, left_lse, right, right_lse, ROWS, WIDTH,
                             SKV_FP32, SKV_LSE_NATURAL),
               SKV_OK);
  for (int i = 0; i < ROWS * WIDTH; ++i) {
    bool has_left = i / WIDTH % 3, has_right = i / WIDTH % 5;
    float want = has_left == has_right ? 0.0f : has_left ? (float)i : (float)-i;
    cr_expect_eq(left[i], want, "element %d", i);
  }
}

#if defined(__x86_64__)
/* The caller's rounding mode and flush-to-zero change no bit, and are put back. */
Test(lse, the_callers_floating_point_mode_does_not_matter) {
  float out[2], lse[2], a = 0x1.234568p-127f, b = 0x1.8p-148f, a_lse = 1, b_lse = 1.7f;
  for (int i = 0; i < 2; ++i) {
    unsigned mode = i ? 0x1f80u | 0x8040u | 0x6000u : 0x1f80u; /* flush both ways, toward zero */
    _mm_setcsr(mode);
    skv_status_t status =
        skv_merge_lse(&out[i], &lse[i], &a, &a_lse, &b, &b_lse, 1, 1, SKV_FP32, SKV_LSE_NATURAL);
    unsigned after = _mm_getcsr();
    _mm_setcsr(0x1f80u);
    cr_expect_eq(status, SKV_OK);
    cr_expect_eq(after & ~0x3fu, mode);
  }
  cr_expect(out[0] > 0 && out[0] < FLT_MIN, "the result is denormal");
  cr_expect_eq(skv__float_bits(out[0]), skv__float_bits(out[1]));
  cr_expect_eq(skv__float_bits(lse[0]), skv__float_bits(lse[1]));
}
#endif

Test(lse, bad_arguments_are_refused) {
  float o[2] = {1, 2}, lse[2] = {3, 4};
  cr_expect_eq(skv_merge_lse(o, lse, o, lse, o, lse, -1, 2, SKV_FP32, SKV_LSE_NATURAL),
               SKV_INVALID);
  cr_expect_eq(skv_merge_lse(o, lse, o, lse, o, lse, 1, 0, SKV_FP32, SKV_LSE_NATURAL), SKV_INVALID);
  cr_expect_eq(skv_merge_lse(o, lse, o, lse, o, lse, INT64_MAX / 2, 8, SKV_FP32, SKV_LSE_NATURAL),
               SKV_INVALID);
  cr_expect_eq(skv_merge_lse(o, lse, o, lse, o, lse, 1, 2, (skv_dtype_t)9, SKV_LSE_NATURAL),
               SKV_INVALID);
  cr_expect_eq(skv_merge_lse(o, lse, o, lse, o, lse, 1, 2, SKV_FP32, (skv_lse_base_t)2),
               SKV_INVALID);
  cr_expect_eq(skv_merge_lse(o, lse, NULL, lse, o, lse, 1, 2, SKV_FP32, SKV_LSE_NATURAL),
               SKV_INVALID);
  cr_expect_eq(o[0], 1.0f);
  cr_expect_eq(skv_merge_lse(NULL, NULL, NULL, NULL, NULL, NULL, 0, 2, SKV_FP32, SKV_LSE_NATURAL),
               SKV_OK);
}
