/* test_kit.c: the instruments that all other tests trust, against answers found by hand. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kit/kit.h"

/* ---- formats ---- */

static uint16_t half_of(skv_dtype_t dtype, float value) {
  uint16_t half = 0;
  kit_narrow(dtype, &half, 0, value);
  return half;
}

static void every_half_survives(skv_dtype_t dtype) {
  for (uint32_t bits = 0; bits < 65536; bits++) {
    uint16_t half = (uint16_t)bits;
    float wide = kit_widen(dtype, &half, 0);
    if (isnan(wide))
      cr_assert(isnan(kit_widen(dtype, &(uint16_t){half_of(dtype, wide)}, 0)));
    else
      cr_assert_eq(half_of(dtype, wide), half, "%04x became %04x", half, half_of(dtype, wide));
  }
}

Test(kit, sixteen_bit_values_survive_widening) {
  every_half_survives(SKV_FP16);
  every_half_survives(SKV_BF16);
}

Test(kit, fp16_rounds_to_nearest_even) {
  static const float values[] = {
      1.0f,         -2.0f,           65504.0f,        65519.996f, 65520.0f,
      1e30f,        0x1p-24f,        0x1p-25f,        0x1.8p-24f, 0x1.000002p-25f,
      0x1.ffep-15f, 1.0f + 0x1p-11f, 1.0f + 0x3p-11f, -0.0f,      0x1p-100f,
      INFINITY,
  };
  static const uint16_t halves[] = {
      0x3c00, 0xc000, 0x7bff, 0x7bff, 0x7c00, 0x7c00, 0x0001, 0x0000,
      0x0002, 0x0001, 0x0400, 0x3c00, 0x3c02, 0x8000, 0x0000, 0x7c00,
  };
  for (size_t i = 0; i < sizeof values / sizeof *values; i++)
    cr_expect_eq(half_of(SKV_FP16, values[i]), halves[i], "%a became %04x", (double)values[i],
                 half_of(SKV_FP16, values[i]));
}

Test(kit, bf16_rounds_to_nearest_even) {
  cr_expect_eq(half_of(SKV_BF16, 1.0f + 0x1p-8f), 0x3f80);
  cr_expect_eq(half_of(SKV_BF16, 1.0f + 0x3p-8f), 0x3f82);
  cr_expect_eq(half_of(SKV_BF16, 1.0f + 0x1.02p-8f), 0x3f81);
  cr_expect_eq(half_of(SKV_BF16, 0x1.fffffep+127f), 0x7f80);
  cr_expect_eq(half_of(SKV_BF16, -0.0f), 0x8000);
}

/* ---- the oracle, by hand ---- */

/* fp32, one head of dim 1, scale 1: logit = q * k, so that answers are easy. */
static kit_case_t *scalar_case(int64_t q_tokens, int64_t k_tokens) {
  skv_problem_t problem = {.struct_bytes = sizeof problem,
                           .batch = 1,
                           .q_tokens = q_tokens,
                           .kv_capacity_tokens = k_tokens,
                           .q_heads = 1,
                           .kv_heads = 1,
                           .head_dim = 1,
                           .value_head_dim = 1,
                           .scale = 1.0f,
                           .window_left_tokens = SKV_UNBOUNDED,
                           .window_right_tokens = SKV_UNBOUNDED,
                           .leaf_tokens = 64,
                           .block_tokens = 64};
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 1);
  for (int64_t i = 0; i < q_tokens; i++)
    ((float *)test->q)[i] = 1.0f;
  return test;
}

static void set_keys(kit_case_t *test, const float *logits, const float *values) {
  for (int64_t i = 0; i < test->problem.kv_capacity_tokens; i++) {
    ((float *)test->k)[i] = logits[i];
    ((float *)test->v)[i] = values[i];
  }
}

static void expect_row(const kit_case_t *test, int64_t row, double o, double lse) {
  double all_o[64], all_lse[64];
  float plain_o[64], plain_lse[64];
  kit_oracle(test, all_o, all_lse);
  kit_plain(test, plain_o, plain_lse);
  cr_expect_float_eq(all_o[row], o, 1e-14, "row %d: O %.17g, not %.17g", (int)row, all_o[row], o);
  cr_expect_float_eq((double)plain_o[row], o, 1e-5, "plain row %d", (int)row);
  if (lse == -INFINITY) {
    cr_expect_eq(all_lse[row], lse);
    cr_expect_eq(plain_lse[row], -INFINITY);
    return;
  }
  cr_expect_float_eq(all_lse[row], lse, 1e-14, "row %d: LSE %.17g", (int)row, all_lse[row]);
  cr_expect_float_eq((double)plain_lse[row], lse, 1e-5, "plain row %d", (int)row);
}

/* Equal logits of `seen` ascending keys from `first`, whose values are their positions. */
static void expect_band(const kit_case_t *test, int64_t row, int64_t first, int64_t seen) {
  if (seen == 0)
    expect_row(test, row, 0.0, -INFINITY);
  else
    expect_row(test, row, (double)first + (double)(seen - 1) / 2.0, log((double)seen));
}

static kit_case_t *positions_case(int64_t q_tokens, int64_t k_tokens) {
  kit_case_t *test = scalar_case(q_tokens, k_tokens);
  float zeros[64] = {0.0f}, positions[64];
  for (int i = 0; i < 64; i++)
    positions[i] = (float)i;
  set_keys(test, zeros, positions);
  return test;
}

Test(kit, two_keys_by_hand) {
  kit_case_t *test = scalar_case(1, 2);
  set_keys(test, (float[]){0.0f, 1.0f}, (float[]){10.0f, 20.0f});
  double e = exp(1.0);
  expect_row(test, 0, (10.0 + 20.0 * e) / (1.0 + e), log(1.0 + e));
  test->problem.scale = 2.0f;
  expect_row(test, 0, (10.0 + 20.0 * e * e) / (1.0 + e * e), log(1.0 + e * e));
  test->problem.softcap = 0.5f;
  double capped = exp(0.5 * tanh(4.0));
  expect_row(test, 0, (10.0 + 20.0 * capped) / (1.0 + capped), log(1.0 + capped));
  kit_case_free(test);
}

Test(kit, a_sink_takes_mass_and_gives_nothing) {
  kit_case_t *test = scalar_case(1, 1);
  set_keys(test, (float[]){2.0f}, (float[]){8.0f});
  test->sinks = malloc(sizeof *test->sinks);
  test->sinks[0] = 3.0f;
  double e = exp(1.0);
  expect_row(test, 0, 8.0 / (1.0 + e), 2.0 + log(1.0 + e));
  test->k_tokens[0] = 0;
  expect_row(test, 0, 0.0, 3.0);
  kit_case_free(test);
}

/* The causal diagonal ends in the bottom right corner (field bug B13). */
Test(kit, causal_is_bottom_right) {
  kit_case_t *wide = positions_case(2, 5);
  wide->problem.causal = 1;
  expect_band(wide, 0, 0, 4);
  expect_band(wide, 1, 0, 5);
  kit_case_free(wide);
  kit_case_t *tall = positions_case(5, 2);
  tall->problem.causal = 1;
  static const int64_t seen[] = {0, 0, 0, 1, 2};
  for (int64_t row = 0; row < 5; row++)
    expect_band(tall, row, 0, seen[row]);
  kit_case_free(tall);
}

Test(kit, windows_and_explicit_starts) {
  kit_case_t *test = positions_case(3, 10);
  test->problem.window_left_tokens = 2;
  test->problem.window_right_tokens = 1;
  expect_band(test, 0, 5, 4); /* position 7 sees 5, 6, 7, 8 */
  expect_band(test, 2, 7, 3); /* position 9 sees 7, 8, 9 */
  test->problem.causal = 1;
  expect_band(test, 0, 5, 3);
  test->problem.window_left_tokens = SKV_UNBOUNDED;
  expect_band(test, 0, 0, 8);
  test->q_start = malloc(sizeof *test->q_start);
  test->q_start[0] = -1;
  expect_band(test, 0, 0, 0);
  expect_band(test, 1, 0, 1);
  test->q_start[0] = 100;
  expect_band(test, 0, 0, 10);
  test->problem.window_left_tokens = 90;
  expect_band(test, 0, 0, 0);
  kit_case_free(test);
}

/* Query heads 0..3 share KV head 0 and 4..7 share 1; sequence 1 is shorter than its slots. */
Test(kit, heads_and_sequences_find_their_keys) {
  skv_problem_t problem = {.struct_bytes = sizeof problem,
                           .batch = 2,
                           .q_tokens = 2,
                           .kv_capacity_tokens = 3,
                           .q_heads = 8,
                           .kv_heads = 2,
                           .head_dim = 3,
                           .value_head_dim = 2,
                           .scale = 1.0f,
                           .window_left_tokens = SKV_UNBOUNDED,
                           .window_right_tokens = SKV_UNBOUNDED,
                           .leaf_tokens = 64,
                           .block_tokens = 64};
  int64_t k_tokens[] = {3, 1};
  kit_case_t *test = kit_case_create(&problem, NULL, k_tokens, false, 9);
  const float *v = test->v;
  cr_expect(isnan(v[(1 * 3 + 1) * 2 * 2]), "slots past the length hold NaN");
  double o[2 * 2 * 8 * 2], lse[2 * 2 * 8];
  kit_oracle(test, o, lse);
  for (int64_t head = 0; head < 8; head++)
    for (int64_t d = 0; d < 2; d++) {
      int64_t row = (1 * 2 + 1) * 8 + head; /* sequence 1, query 1: its one key is its answer */
      double expected = (double)v[((1 * 3 + 0) * 2 + head / 4) * 2 + d];
      cr_expect_float_eq(o[row * 2 + d], expected, 1e-15);
    }
  kit_case_free(test);
}

/* ---- the error rule ---- */

typedef struct result {
  kit_case_t *test;
  float *o, *lse;
  char text[1024];
} result_t;

/* A causal case whose first two rows see nothing, with the plain implementation's answer. */
static result_t plain_result(void) {
  skv_problem_t problem = {.struct_bytes = sizeof problem,
                           .batch = 1,
                           .q_tokens = 12,
                           .kv_capacity_tokens = 10,
                           .q_heads = 2,
                           .kv_heads = 1,
                           .head_dim = 16,
                           .value_head_dim = 8,
                           .scale = 0.25f,
                           .causal = 1,
                           .window_left_tokens = SKV_UNBOUNDED,
                           .window_right_tokens = SKV_UNBOUNDED,
                           .leaf_tokens = 64,
                           .block_tokens = 64};
  result_t result = {.test = kit_case_create(&problem, NULL, NULL, false, 3)};
  result.o = calloc(12 * 2 * 8, sizeof(float));
  result.lse = calloc(12 * 2, sizeof(float));
  kit_plain(result.test, result.o, result.lse);
  return result;
}

static bool kept(result_t *result) {
  return kit_check(result->test, result->o, result->lse, result->text, sizeof result->text);
}

static void result_free(result_t *result) {
  kit_case_free(result->test);
  free(result->o);
  free(result->lse);
}

Test(kit, the_plain_implementation_keeps_the_rule) {
  result_t result = plain_result();
  cr_expect(kept(&result), "%s", result.text);
  result_free(&result);
}

Test(kit, the_rule_sees_small_and_large_mistakes_in_o) {
  static const float mistakes[] = {2e-6f, -2e-6f, 1.0f, NAN, INFINITY};
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
    result_t result = plain_result();
    result.o[20 * 8 + 3] += mistakes[i];
    cr_expect(!kept(&result), "O off by %g was accepted", (double)mistakes[i]);
    cr_expect_not_null(strstr(result.text, "query 10 head 0"), "%s", result.text);
    cr_expect_not_null(strstr(result.text, "seed 3"), "%s", result.text);
    result_free(&result);
  }
}

Test(kit, the_rule_sees_mistakes_in_lse) {
  static const float mistakes[] = {5e-5f, -5e-5f, NAN, INFINITY, -INFINITY};
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
    result_t result = plain_result();
    result.lse[20] += mistakes[i];
    cr_expect(!kept(&result), "LSE off by %g was accepted", (double)mistakes[i]);
    result_free(&result);
  }
}

Test(kit, empty_rows_are_exact_or_wrong) {
  static const float lses[] = {INFINITY, -5e4f, NAN};
  for (size_t i = 0; i < sizeof lses / sizeof *lses; i++) {
    result_t result = plain_result();
    cr_assert_eq(result.lse[1], -INFINITY);
    result.lse[1] = lses[i];
    cr_expect(!kept(&result), "LSE %g of an empty row was accepted", (double)lses[i]);
    result_free(&result);
  }
  static const float os[] = {-0.0f, 1e-30f, NAN};
  for (size_t i = 0; i < sizeof os / sizeof *os; i++) {
    result_t result = plain_result();
    result.o[8] = os[i];
    cr_expect(!kept(&result), "O %g of an empty row was accepted", (double)os[i]);
    result_free(&result);
  }
}

/* ---- random cases ---- */

static void check_plain(uint64_t seed) {
  kit_case_t *test = kit_case_random(seed);
  const skv_problem_t *p = &test->problem;
  size_t rows = (size_t)(p->batch * p->q_tokens * p->q_heads);
  float *o = calloc(rows * (size_t)p->value_head_dim, sizeof *o);
  float *lse = calloc(rows, sizeof *lse);
  char text[1024];
  kit_plain(test, o, lse);
  for (size_t i = 0; i < rows * (size_t)p->value_head_dim; i++)
    kit_narrow(p->out_dtype, o, (int64_t)i, o[i]); /* in place: never ahead of what is read */
  cr_expect(kit_check(test, o, lse, text, sizeof text), "%s", text);
  free(o);
  free(lse);
  kit_case_free(test);
}

Test(kit, random_cases_can_be_answered) {
  for (uint64_t seed = 0; seed < 100; seed++)
    check_plain(seed);
}

/* How many of many cases have each property; each must occur. */
typedef struct census {
  int dim[257], group[9], dtype[3];
  int other_value_dim, wider_output, batch, causal, left, right, softcap, sinks, q_start, block;
  int no_keys, spare, more_queries, more_keys, empty_rows, huge, hugely_negative;
} census_t;

static void count_results(census_t *census, const kit_case_t *test) {
  const skv_problem_t *p = &test->problem;
  size_t rows = (size_t)(p->batch * p->q_tokens * p->q_heads);
  double *o = calloc(rows * (size_t)p->value_head_dim, sizeof *o);
  double *lse = calloc(rows, sizeof *lse);
  kit_oracle(test, o, lse);
  bool empty = false, huge = false, negative = false;
  for (size_t row = 0; row < rows; row++) {
    empty |= lse[row] == -INFINITY;
    huge |= lse[row] > 100.0;
    negative |= lse[row] < -100.0 && lse[row] > -INFINITY;
  }
  census->empty_rows += empty;
  census->huge += huge;
  census->hugely_negative += negative;
  free(o);
  free(lse);
}

static void count(census_t *census, const kit_case_t *test) {
  const skv_problem_t *p = &test->problem;
  census->dim[p->head_dim]++;
  census->group[p->q_heads / p->kv_heads]++;
  census->dtype[p->dtype]++;
  census->other_value_dim += p->value_head_dim != p->head_dim;
  census->wider_output += p->out_dtype != p->dtype;
  census->batch += p->batch > 1;
  census->causal += p->causal;
  census->left += p->window_left_tokens >= 0;
  census->right += p->window_right_tokens >= 0;
  census->softcap += p->softcap > 0.0f;
  census->sinks += test->sinks != NULL;
  census->q_start += test->q_start != NULL;
  census->block += p->block_tokens > p->leaf_tokens;
  for (int64_t s = 0; s < p->batch; s++) {
    census->no_keys += test->k_tokens[s] == 0;
    census->spare += test->k_tokens[s] < p->kv_capacity_tokens;
    census->more_queries += test->q_tokens[s] > test->k_tokens[s];
    census->more_keys += test->q_tokens[s] < test->k_tokens[s];
  }
  count_results(census, test);
}

Test(kit, random_cases_cover_what_they_should) {
  census_t census = {.batch = 0};
  for (uint64_t seed = 0; seed < 200; seed++) {
    kit_case_t *test = kit_case_random(seed);
    count(&census, test);
    kit_case_free(test);
  }
  static const int dims[] = {1, 59, 63, 64, 80, 128, 256};
  static const int groups[] = {1, 2, 4, 7, 8};
  for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
    cr_expect_gt(census.dim[dims[i]], 5, "head_dim %d", dims[i]);
  for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
    cr_expect_gt(census.group[groups[i]], 5, "GQA %d", groups[i]);
  for (int dtype = 0; dtype < 3; dtype++)
    cr_expect_gt(census.dtype[dtype], 20);
  const int properties[] = {
      census.other_value_dim,
      census.wider_output,
      census.batch,
      census.causal,
      census.left,
      census.right,
      census.softcap,
      census.sinks,
      census.q_start,
      census.block,
      census.no_keys,
      census.spare,
      census.more_queries,
      census.more_keys,
      census.empty_rows,
      census.huge,
      census.hugely_negative,
  };
  for (size_t i = 0; i < sizeof properties / sizeof *properties; i++)
    cr_expect_gt(properties[i], 5, "property %zu occurs in %d of 200 cases", i, properties[i]);
}

Test(kit, a_seed_gives_one_case) {
  kit_case_t *a = kit_case_random(77), *b = kit_case_random(77), *c = kit_case_random(78);
  char text_a[512], text_b[512], text_c[512];
  kit_case_describe(a, text_a, sizeof text_a);
  kit_case_describe(b, text_b, sizeof text_b);
  kit_case_describe(c, text_c, sizeof text_c);
  cr_expect_str_eq(text_a, text_b);
  cr_expect_str_neq(text_a, text_c);
  size_t width = a->problem.dtype == SKV_FP32 ? 4 : 2;
  size_t elements = (size_t)(a->problem.q_heads * a->problem.head_dim);
  cr_expect_arr_eq(a->q, b->q, elements * width);
  char little[16];
  kit_case_describe(a, little, sizeof little); /* must not write past the end */
  cr_expect_eq(strlen(little), 15);
  kit_case_free(a);
  kit_case_free(b);
  kit_case_free(c);
}

/* ---- poison ---- */

Test(kit, poison_is_nan_and_guards_watch) {
  float *memory = kit_poisoned(5 * sizeof(float));
  cr_expect_eq((uintptr_t)memory % 64, 0);
  for (int i = 0; i < 5; i++)
    cr_expect(isnan(memory[i]));
  for (int64_t i = 0; i < 10; i++) {
    cr_expect(isnan(kit_widen(SKV_FP16, memory, i)));
    cr_expect(isnan(kit_widen(SKV_BF16, memory, i)));
  }
  memset(memory, 0, 5 * sizeof(float));
  cr_expect(kit_guards_intact(memory));
  unsigned char *bytes = (unsigned char *)memory;
  static const int64_t places[] = {-1, -64, 20, 83};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    bytes[places[i]] ^= 1;
    cr_expect(!kit_guards_intact(memory), "a write at %d went unseen", (int)places[i]);
    bytes[places[i]] ^= 1;
  }
  kit_poisoned_free(memory);
}
