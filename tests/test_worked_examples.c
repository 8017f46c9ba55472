/* test_worked_examples.c: the numbers that the literature and bug reports state, as tests. Each is
 * small enough to check by hand; where the library has the operation, the library does it. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/state.h"
#include "kit/kit.h"
#include "kit/solve.h"
#include "launch/seeded.h"

/* ---- the online recurrence ---- */

/* Maximum, sum of exponentials relative to it, and the factor that the last block rescaled by. */
typedef struct running {
  double m, l, alpha;
} running_t;

static void consume(running_t *running, const double *x, int64_t count) {
  double m = running->m;
  for (int64_t i = 0; i < count; i++)
    m = fmax(m, x[i]);
  running->alpha = running->m == -INFINITY ? 0.0 : exp(running->m - m);
  running->l *= running->alpha;
  for (int64_t i = 0; i < count; i++)
    running->l += exp(x[i] - m);
  running->m = m;
}

/* Eight logits in four blocks of two. The running maximum is 3 after the first block, stays 3, is 8
 * from the third on: its rescale by e^-5 makes all before it 148 times smaller. */
static const double eight_logits[8] = {1.0, 3.0, 2.0, -1.0, 8.0, 4.0, 7.0, 5.0};

Test(worked, eight_logits_in_four_blocks) {
  running_t running = {.m = -INFINITY};
  static const double m[] = {3.0, 3.0, 8.0, 8.0};
  double alpha[] = {0.0, 1.0, exp(-5.0), 1.0};
  for (int block = 0; block < 4; block++) {
    consume(&running, eight_logits + 2 * block, 2);
    cr_expect_eq(running.m, m[block]);
    cr_expect_eq(running.alpha, alpha[block]);
  }
  cr_expect_float_eq(alpha[2], 0.0067379, 5e-8);
  cr_expect_float_eq(1.0 / alpha[2], 148.4, 0.05);
  double direct = 0.0;
  for (int i = 0; i < 8; i++)
    direct += exp(eight_logits[i] - 8.0);
  cr_expect_float_eq(running.l, direct, 1e-15);
}

/* The same through the library's states: block 3 lifts the exponent from 5 to 12, a power of two
 * exactly, and the rest of the factor e^-5 is in the masses. */
Test(worked, eight_logits_as_states) {
  float e = skv__empty_exponent(), l = 0.0f, none = 0.0f;
  static const float exponents[] = {5.0f, 5.0f, 12.0f, 12.0f};
  double direct = 0.0;
  for (int block = 0; block < 4; block++) {
    for (int i = 2 * block; i < 2 * block + 2; i++) {
      skv__mass_t key = skv__mass_from_lse((float)eight_logits[i]);
      skv__merge_row(&none, &e, &l, &none, key.e, key.l, 1);
      direct += exp(eight_logits[i]);
    }
    cr_expect_eq(e, exponents[block]);
  }
  cr_expect_float_eq((double)skv__state_lse(e, l), log(direct), 1e-6);
}

/* ---- the outlier: 8192 logits of standard deviation 3, and 40 at index 4000 ---- */

enum { OUTLIER_KEYS = 8192, OUTLIER_DIM = 128, OUTLIER_BLOCK = 64 };

typedef struct outlier {
  double x[OUTLIER_KEYS];
  double v[OUTLIER_KEYS][OUTLIER_DIM];
  double direct[OUTLIER_DIM], online[OUTLIER_DIM];
  int64_t rescale_multiplications, main_multiplications;
} outlier_t;

static outlier_t outlier;

static void outlier_inputs(void) {
  skv__seeded_t seeded = {.seed = 0};
  for (int64_t j = 0; j < OUTLIER_KEYS; j++) {
    outlier.x[j] = 3.0 * (double)skv__seeded_value(&seeded, SKV__Q, 0, j, 0, 0);
    for (int64_t d = 0; d < OUTLIER_DIM; d++)
      outlier.v[j][d] = (double)skv__seeded_value(&seeded, SKV__V, 0, j, 0, d);
  }
  outlier.x[4000] = 40.0;
}

static void outlier_direct(void) {
  double max = -INFINITY, sum = 0.0;
  for (int64_t j = 0; j < OUTLIER_KEYS; j++)
    max = fmax(max, outlier.x[j]);
  for (int64_t j = 0; j < OUTLIER_KEYS; j++)
    sum += exp(outlier.x[j] - max);
  for (int64_t j = 0; j < OUTLIER_KEYS; j++)
    for (int64_t d = 0; d < OUTLIER_DIM; d++)
      outlier.direct[d] += exp(outlier.x[j] - max) / sum * outlier.v[j][d];
}

static void outlier_online(void) {
  running_t running = {.m = -INFINITY};
  for (int64_t begin = 0; begin < OUTLIER_KEYS; begin += OUTLIER_BLOCK) {
    consume(&running, outlier.x + begin, OUTLIER_BLOCK);
    outlier.rescale_multiplications += OUTLIER_DIM + 1; /* O, and l in consume */
    for (int64_t d = 0; d < OUTLIER_DIM; d++) {
      outlier.online[d] *= running.alpha;
      for (int64_t j = begin; j < begin + OUTLIER_BLOCK; j++)
        outlier.online[d] += exp(outlier.x[j] - running.m) * outlier.v[j][d];
    }
    outlier.main_multiplications += OUTLIER_BLOCK * OUTLIER_DIM;
  }
  for (int64_t d = 0; d < OUTLIER_DIM; d++)
    outlier.online[d] /= running.l;
}

Test(worked, a_late_outlier_costs_only_rounding) {
  outlier_inputs();
  outlier_direct();
  outlier_online();
  for (int64_t d = 0; d < OUTLIER_DIM; d++)
    cr_expect_float_eq(outlier.online[d], outlier.direct[d],
                       1e-12 + 1e-12 * fabs(outlier.direct[d]));
  double overhead = (double)outlier.rescale_multiplications / (double)outlier.main_multiplications;
  cr_expect_float_eq(overhead, 0.016, 0.0005, "rescaling costs %.4f of the work", overhead);
}

/* The same fold by fp32 states; the error is that of fp32, not of the rescale at block 62. */
Test(worked, a_late_outlier_in_fp32_states) {
  outlier_inputs();
  outlier_direct();
  float e = skv__empty_exponent(), l = 0.0f, o[OUTLIER_DIM] = {0.0f}, key_o[OUTLIER_DIM];
  for (int64_t j = 0; j < OUTLIER_KEYS; j++) {
    skv__mass_t key = skv__mass_from_lse((float)outlier.x[j]);
    for (int64_t d = 0; d < OUTLIER_DIM; d++)
      key_o[d] = key.l * (float)outlier.v[j][d];
    skv__merge_row(o, &e, &l, key_o, key.e, key.l, OUTLIER_DIM);
  }
  for (int64_t d = 0; d < OUTLIER_DIM; d++)
    cr_expect_float_eq((double)skv__state_output(e, l, o[d]), outlier.direct[d], 2e-6);
}

/* ---- where exponentials end ---- */

static float through_fp16(double value) {
  uint16_t half = 0;
  kit_narrow(SKV_FP16, &half, 0, (float)value);
  return kit_widen(SKV_FP16, &half, 0);
}

Test(worked, fp16_exponentials_overflow_at_11_1) {
  cr_expect_float_eq(log(65504.0), 11.09, 0.0005);
  cr_expect_eq(through_fp16(exp(log(65504.0))), 65504.0f);
  cr_expect_eq(through_fp16(exp(11.1)), INFINITY);
  /* One such logit ruins the row: inf/inf where it stands, 0 everywhere else. */
  float sum = through_fp16(exp(11.1)) + through_fp16(exp(0.5));
  cr_expect(isnan(through_fp16(exp(11.1)) / sum));
  cr_expect_eq(through_fp16(exp(0.5)) / sum, 0.0f);
}

Test(worked, fp32_exponentials_overflow_before_100) {
  cr_expect_float_eq(exp(100.0) / 1e43, 2.688, 0.0005);
  cr_expect_eq(expf(100.0f), INFINITY);
  cr_expect_float_eq(log((double)FLT_MAX), 88.72, 0.005);
  skv__mass_t key = skv__mass_from_lse(100.0f); /* as a state it is harmless */
  cr_expect_float_eq((double)skv__state_lse(key.e, key.l), 100.0, 1e-5);
}

Test(worked, fp16_exponentials_vanish_below_minus_17_33) {
  cr_expect_float_eq(log(0x1p-25), -17.33, 0.005);
  cr_expect_eq(through_fp16(0x1p-25), 0.0f, "half of the smallest is a tie, and 0 is even");
  cr_expect_eq(through_fp16(exp(-17.33)), 0.0f);
  cr_expect_eq(through_fp16(exp(-17.32)), 0x1p-24f);
}

/* E[max] of N normals is about sqrt(2 ln N) - (ln ln N + ln 4 pi) / (2 sqrt(2 ln N)). */
Test(worked, idealised_logits_stay_below_4) {
  double log_n = log(8192.0), root = sqrt(2.0 * log_n);
  double expected = root - (log(log_n) + log(4.0 * acos(-1.0))) / (2.0 * root);
  cr_expect_float_eq(expected, 3.7, 0.05);
  skv__seeded_t seeded = {.seed = 11};
  double sum = 0.0;
  for (int64_t row = 0; row < 64; row++) {
    double max = -INFINITY;
    for (int64_t j = 0; j < 8192; j++)
      max = fmax(max, (double)skv__seeded_value(&seeded, SKV__K, row, j, 0, 0));
    sum += max;
  }
  cr_expect_float_eq(sum / 64.0, 3.7, 0.15, "seeded rows reach %.3f on average", sum / 64.0);
}

/* ---- merges ---- */

typedef struct partial {
  float o, lse;
} partial_t;

static partial_t merged(partial_t a, partial_t b, skv_lse_base_t base) {
  partial_t out = {NAN, NAN};
  cr_assert_eq(skv_merge_lse(&out.o, &out.lse, &a.o, &a.lse, &b.o, &b.lse, 1, 1, SKV_FP32, base),
               SKV_OK);
  return out;
}

/* Field bug B01: -inf - -inf is NaN; the guard must come first. */
Test(worked, two_empty_partials_are_empty) {
  partial_t empty = {0.0f, -INFINITY};
  partial_t out = merged(empty, empty, SKV_LSE_NATURAL);
  cr_expect_eq(out.lse, -INFINITY);
  cr_expect_eq(skv__float_bits(out.o), 0);
  float e = skv__empty_exponent(), l = 0.0f, o = 0.0f;
  skv__merge_row(&o, &e, &l, &(float){0.0f}, skv__empty_exponent(), 0.0f, 1);
  cr_expect(skv__is_empty(e));
  cr_expect_eq(skv__state_lse(e, l), -INFINITY);
  cr_expect_eq(skv__float_bits(skv__state_output(e, l, o)), 0);
}

/* Field bug B02: FlashAttention-2 writes +inf for a row without keys, and anything as O. */
Test(worked, plus_infinity_means_empty) {
  partial_t flash = {NAN, INFINITY}, other = {3.5f, 1.25f};
  partial_t first = merged(flash, other, SKV_LSE_NATURAL);
  partial_t second = merged(other, flash, SKV_LSE_NATURAL);
  cr_expect_eq(first.o, 3.5f);
  cr_expect_eq(first.lse, 1.25f);
  cr_expect_eq(second.o, 3.5f);
  cr_expect_eq(second.lse, 1.25f);
  partial_t both = merged(flash, flash, SKV_LSE_NATURAL);
  cr_expect_eq(both.lse, -INFINITY);
  cr_expect_eq(both.o, 0.0f);
}

/* Multiplying by the raw weights first passes 65504 on the way; scaling first does not. */
Test(worked, scale_first_then_multiply) {
  uint16_t a, b, out = 0;
  float lse = 1.0f, lse_out = NAN;
  kit_narrow(SKV_FP16, &a, 0, 60000.0f);
  kit_narrow(SKV_FP16, &b, 0, 50016.0f);
  float first = through_fp16(60000.0 * 1.0) + through_fp16(50016.0 * 1.0);
  cr_expect_eq(through_fp16((double)first) / 2.0f, INFINITY);
  cr_assert_eq(skv_merge_lse(&out, &lse_out, &a, &lse, &b, &lse, 1, 1, SKV_FP16, SKV_LSE_NATURAL),
               SKV_OK);
  cr_expect_eq(kit_widen(SKV_FP16, &out, 0), 55008.0f);
  cr_expect_float_eq((double)lse_out, 1.0 + log(2.0), 1e-6);
}

/* Field bug B05: partition sums 2 and 8 with outputs 0 and 10 make 8; the wrong base 7.2330. */
Test(worked, the_base_of_an_lse_matters) {
  float ln2 = (float)log(2.0), ln8 = (float)log(8.0);
  partial_t natural = merged((partial_t){0.0f, ln2}, (partial_t){10.0f, ln8}, SKV_LSE_NATURAL);
  cr_expect_float_eq((double)natural.o, 8.0, 2e-6);
  cr_expect_float_eq((double)natural.lse, log(10.0), 5e-7);
  partial_t base2 = merged((partial_t){0.0f, 1.0f}, (partial_t){10.0f, 3.0f}, SKV_LSE_BASE2);
  cr_expect_float_eq((double)base2.o, 8.0, 2e-6);
  cr_expect_float_eq((double)base2.lse, log2(10.0), 5e-7);
  partial_t wrong = merged((partial_t){0.0f, ln2}, (partial_t){10.0f, ln8}, SKV_LSE_BASE2);
  cr_expect_float_eq((double)wrong.o, 7.2330, 5e-5);
}

/* Field bug B06: log(1 + exp(b - a)) overflows once b - a passes 88.72. */
Test(worked, far_apart_partials) {
  cr_expect_eq(logf(1.0f + expf(100.0f - 0.0f)), INFINITY);
  partial_t out = merged((partial_t){7.0f, 0.0f}, (partial_t){3.0f, 100.0f}, SKV_LSE_NATURAL);
  cr_expect_eq(out.lse, 100.0f);
  cr_expect_eq(out.o, 3.0f);
  out = merged((partial_t){3.0f, 100.0f}, (partial_t){7.0f, 0.0f}, SKV_LSE_NATURAL);
  cr_expect_eq(out.lse, 100.0f);
  cr_expect_eq(out.o, 3.0f);
}

/* ---- whole problems, through the public interface ---- */

static skv_problem_t problem_of(int64_t q_tokens, int64_t k_tokens, int64_t heads, int64_t dim) {
  skv_problem_t problem;
  skv_problem_init(&problem, sizeof problem, heads, heads, dim);
  problem.q_tokens = q_tokens;
  problem.kv_capacity_tokens = k_tokens;
  return problem;
}

static kit_answer_t *solved(const kit_case_t *test, int32_t ranks) {
  kit_answer_t *answer = kit_answer_create(test);
  cr_assert(kit_solve(test, &(kit_way_t){.ranks = ranks}, answer));
  return answer;
}

/* Field bug B14: tokens 1 to 4 all ones, 5 to 7 all twos, a query of ones: 1.9269. One token lost
 * in an uneven split makes 1.944. */
static void seven_tokens(int32_t ranks) {
  skv_problem_t problem = problem_of(1, 7, 1, 8);
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 0);
  float *q = test->q, *k = test->k, *v = test->v;
  for (int64_t i = 0; i < 7 * 8; i++)
    k[i] = v[i] = i < 4 * 8 ? 1.0f : 2.0f;
  for (int64_t d = 0; d < 8; d++)
    q[d] = 1.0f;
  kit_answer_t *answer = solved(test, ranks);
  double ones = 4.0 * exp(8.0 / sqrt(8.0)), twos = 3.0 * exp(16.0 / sqrt(8.0));
  for (int64_t d = 0; d < 8; d++) {
    double o = (double)((const float *)answer->o)[d];
    cr_expect_float_eq(o, (ones + 2.0 * twos) / (ones + twos), 5e-7);
    cr_expect_float_eq(o, 1.9269, 5e-5);
  }
  cr_expect_float_eq((double)answer->lse[0], log(ones + twos), 2e-6);
  kit_answer_free(answer);
  kit_case_free(test);
}

Test(worked, seven_tokens) {
  seven_tokens(1);
  seven_tokens(2);
}

/* Keys with equal logits whose values are their positions: O is the middle of what a row sees. */
static void expect_seen(int64_t q_tokens, int64_t k_tokens, const int64_t *seen) {
  skv_problem_t problem = problem_of(q_tokens, k_tokens, 1, 1);
  problem.causal = 1;
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 0);
  for (int64_t j = 0; j < k_tokens; j++) {
    ((float *)test->k)[j] = 0.0f;
    ((float *)test->v)[j] = (float)j;
  }
  kit_answer_t *answer = solved(test, 2);
  for (int64_t row = 0; row < q_tokens; row++) {
    double middle = seen[row] == 0 ? 0.0 : (double)(seen[row] - 1) / 2.0;
    cr_expect_float_eq((double)((const float *)answer->o)[row], middle, 1e-6, "row %d", (int)row);
    if (seen[row] == 0)
      cr_expect_eq(answer->lse[row], -INFINITY);
    else
      cr_expect_float_eq((double)answer->lse[row], log((double)seen[row]), 1e-6);
  }
  kit_answer_free(answer);
  kit_case_free(test);
}

/* Field bug B13: the causal diagonal ends in the bottom right corner. */
Test(worked, the_causal_corner) {
  expect_seen(2, 5, (int64_t[]){4, 5});
  expect_seen(5, 2, (int64_t[]){0, 0, 0, 1, 2});
}

/* Field bug B40: window (-1, 0) under causal is the full causal answer, not an empty band. */
Test(worked, minus_one_is_unbounded) {
  skv_problem_t problem = problem_of(1024, 1024, 8, 128);
  problem.dtype = problem.out_dtype = SKV_BF16;
  problem.causal = 1;
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 40);
  kit_answer_t *full = solved(test, 1);
  test->problem.window_left_tokens = SKV_UNBOUNDED;
  test->problem.window_right_tokens = 0;
  kit_answer_t *windowed = solved(test, 1);
  cr_expect(kit_answer_same(windowed, full));
  char text[1024];
  test->problem.q_tokens = test->q_tokens[0] = 40; /* the first rows, against the oracle */
  test->q_start = calloc(1, sizeof *test->q_start);
  cr_expect(kit_check(test, windowed->o, windowed->lse, text, sizeof text), "%s", text);
  kit_answer_free(full);
  kit_answer_free(windowed);
  kit_case_free(test);
}
