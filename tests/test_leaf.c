/* test_leaf.c: the CPU kernels against the fp64 oracle, on every shape, mask and dtype, and on the
 * inputs that broke others. */
#include "leaf_job.h"

static void expect_right(const kit_case_t *test, const leaf_way_t *way) {
  char text[512], what[512];
  leaf_result_t result = leaf_run(test, way);
  kit_case_describe(test, what, sizeof what);
  cr_expect(result.intact, "%s: wrote past a buffer", what);
  cr_expect(kit_check(test, result.o, result.lse, text, sizeof text), "%s: %s", what, text);
  leaf_free(&result);
}

static skv_problem_t small_problem(void) {
  return (skv_problem_t){.struct_bytes = sizeof(skv_problem_t),
                         .batch = 1,
                         .q_tokens = 40,
                         .kv_capacity_tokens = 300,
                         .q_heads = 4,
                         .kv_heads = 2,
                         .head_dim = 64,
                         .value_head_dim = 64,
                         .scale = 0.125f,
                         .window_left_tokens = SKV_UNBOUNDED,
                         .window_right_tokens = SKV_UNBOUNDED,
                         .leaf_tokens = 64,
                         .block_tokens = 128};
}

Test(leaf, random_problems_keep_the_error_rule) {
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    kit_case_t *test = kit_case_random(seed);
    expect_right(test, &(leaf_way_t){.threads = 1 + (int32_t)(seed % 2), .node_cut = seed % 3});
    kit_case_free(test);
  }
}

Test(leaf, every_head_dim_and_value_head_dim) {
  static const int64_t dims[] = {1, 7, 8, 59, 63, 64, 80, 128, 200, 256};
  for (int d = 0; d < 10; ++d)
    for (int v = 0; v < 10; ++v) {
      skv_problem_t problem = small_problem();
      problem.head_dim = dims[d], problem.value_head_dim = dims[v];
      problem.scale = (float)(1 / sqrt((double)dims[d]));
      problem.causal = v % 2;
      problem.dtype = (skv_dtype_t)((d + v) % 3);
      kit_case_t *test =
          kit_case_create(&problem, NULL, NULL, false, 100 * (uint64_t)d + (uint64_t)v + 1);
      expect_right(test, &(leaf_way_t){.threads = 2});
      kit_case_free(test);
    }
}

Test(leaf, every_gqa_ratio_and_row_count) {
  static const int64_t groups[] = {1, 2, 4, 7, 8};
  for (int g = 0; g < 5; ++g)
    for (int64_t queries = 1; queries <= 14; ++queries) {
      skv_problem_t problem = small_problem();
      problem.q_heads = groups[g] * problem.kv_heads;
      problem.q_tokens = queries;
      problem.out_dtype = SKV_BF16; /* few rows: see kit.h on the rule and fp32 */
      kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, (uint64_t)queries);
      expect_right(test, &(leaf_way_t){.threads = 2});
      kit_case_free(test);
    }
}

/* Few rows, where lanes are heads: every way that heads fill eight lanes, keys that begin and end
 * anywhere in a tile. */
Test(leaf, every_number_of_kv_heads) {
  for (int64_t heads = 1; heads <= 17; ++heads)
    for (int64_t rows = 1; rows <= 9; ++rows) {
      skv_problem_t problem = small_problem();
      problem.kv_heads = heads, problem.q_heads = heads * (rows < 5 ? rows : 1);
      problem.q_tokens = rows < 5 ? 1 : rows;
      problem.dtype = (skv_dtype_t)((heads + rows) % 3), problem.out_dtype = SKV_BF16;
      problem.head_dim = rows % 2 ? 40 : 64, problem.value_head_dim = rows % 2 ? 64 : 48;
      problem.causal = 1, problem.window_left_tokens = 150 + heads;
      kit_case_t *test =
          kit_case_create(&problem, NULL, NULL, false, 100 * (uint64_t)heads + (uint64_t)rows);
      expect_right(test, &(leaf_way_t){.threads = 1 + (int32_t)(rows % 2)});
      kit_case_free(test);
    }
}

/* More rows than a tile of scores, than a task; blocks and leaves in number. */
Test(leaf, longer_prefill) {
  skv_problem_t problem = small_problem();
  problem.q_tokens = 700, problem.kv_capacity_tokens = 1500, problem.causal = 1;
  problem.leaf_tokens = 128, problem.block_tokens = 256;
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, true, 5);
  expect_right(test, &(leaf_way_t){.threads = 2});
  kit_case_free(test);
}

/* One key whose raw logit is -524288 (a running maximum that starts at a finite value hides it). */
Test(leaf, one_large_negative_logit) {
  skv_problem_t problem = small_problem();
  problem.q_heads = problem.kv_heads = problem.q_tokens = problem.kv_capacity_tokens = 1;
  problem.head_dim = problem.value_head_dim = 128, problem.dtype = SKV_BF16;
  problem.scale = (float)(1 / sqrt(128.0));
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 1);
  for (int64_t d = 0; d < 128; ++d) {
    kit_narrow(SKV_BF16, test->q, d, 64.0f);
    kit_narrow(SKV_BF16, test->k, d, -64.0f);
    kit_narrow(SKV_BF16, test->v, d, 1.0f);
  }
  leaf_result_t result = leaf_run(test, &(leaf_way_t){.threads = 1});
  for (int64_t d = 0; d < 128; ++d)
    cr_expect_eq(((float *)result.o)[d], 1.0f);
  cr_expect_float_eq(result.lse[0], -46340.95f, 0.01f);
  leaf_free(&result);
  kit_case_free(test);
}

/* 65536 equal scores, V = 4 in fp16: an accumulator of 16 bits would overflow. */
Test(leaf, many_equal_scores) {
  skv_problem_t problem = small_problem();
  problem.q_heads = problem.kv_heads = problem.q_tokens = 1;
  problem.kv_capacity_tokens = 65536, problem.leaf_tokens = 512, problem.block_tokens = 4096;
  problem.head_dim = problem.value_head_dim = 8, problem.dtype = SKV_FP16;
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 1);
  for (int64_t i = 0; i < 65536 * 8; ++i) {
    kit_narrow(SKV_FP16, test->k, i, 0.0f);
    kit_narrow(SKV_FP16, test->v, i, 4.0f);
  }
  leaf_result_t result = leaf_run(test, &(leaf_way_t){.threads = 2});
  for (int64_t d = 0; d < 8; ++d)
    cr_expect_eq(((float *)result.o)[d], 4.0f);
  cr_expect_float_eq(result.lse[0], 11.0903549f, 1e-5f);
  leaf_free(&result);
  kit_case_free(test);
}

/* No key, and rows before the first key: exactly (0, -inf), and the digest is of those. */
Test(leaf, rows_that_see_nothing) {
  skv_problem_t problem = small_problem();
  problem.causal = 1, problem.batch = 2, problem.out_dtype = SKV_BF16;
  const int64_t q_tokens[] = {40, 40}, k_tokens[] = {0, 7};
  kit_case_t *test = kit_case_create(&problem, q_tokens, k_tokens, false, 3);
  expect_right(test, &(leaf_way_t){.threads = 2, .node_cut = 1});
  kit_case_free(test);
}

/* An infinite logit is an error that shows: NaN, whatever else the row sees; and a logit of -inf
 * weighs nothing. */
Test(leaf, infinite_logits) {
  skv_problem_t problem = small_problem();
  problem.q_heads = problem.kv_heads = 1, problem.q_tokens = 3;
  problem.head_dim = 1, problem.scale = 1.0f;
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 3);
  float *q = test->q, *k = test->k;
  q[0] = 1e30f, q[1] = -1e30f, q[2] = 0.0f;
  for (int64_t j = 0; j < 300; ++j)
    k[j] = j < 200 ? 1e30f : 0.0f;
  leaf_result_t result = leaf_run(test, &(leaf_way_t){.threads = 1});
  float *o = result.o;
  cr_expect(isnan(o[0]) && isnan(result.lse[0]), "+inf logits");
  cr_expect(isfinite(o[64]) && fabsf(result.lse[1] - logf(100.0f)) < 1e-5f, "-inf logits");
  cr_expect(isfinite(o[128]) && fabsf(result.lse[2] - logf(300.0f)) < 1e-5f, "plain logits");
  leaf_free(&result);
  kit_case_free(test);
}

/* Base-2 logits past +-2^30, where the exponent ends: above, the row is NaN; below, keys weigh
 * nothing, and a row without another key is NaN. Row 3 stays just inside. */
static void expect_limits(const char *kernel) {
  skv_problem_t problem = small_problem();
  problem.q_heads = problem.kv_heads = 1, problem.q_tokens = 4;
  problem.head_dim = 1, problem.scale = 3e9f;
  const int64_t q_tokens[] = {4}, k_tokens[] = {300};
  kit_case_t *test = kit_case_create(&problem, q_tokens, k_tokens, false, 3);
  float *q = test->q, *k = test->k;
  q[0] = 1.0f, q[1] = -1.0f, q[2] = 0.5f, q[3] = 0x1p-3f;
  for (int64_t j = 0; j < 300; ++j)
    k[j] = 1.0f;
  k[299] = 0.0f; /* row 1 has this key besides those that weigh nothing */
  leaf_result_t result = leaf_run(test, &(leaf_way_t){.threads = 1, .kernel = kernel});
  float *o = result.o, *v = test->v;
  cr_expect(isnan(o[0]) && isnan(result.lse[0]), "%s: above", kernel);
  cr_expect(o[64] == v[299 * 64] && result.lse[1] == 0.0f, "%s: below, and one key", kernel);
  cr_expect(isnan(o[128]) && isnan(result.lse[2]), "%s: above by half", kernel);
  cr_expect(isfinite(o[192]) && fabsf(result.lse[3] / 3.75e8f - 1.0f) < 1e-6f, "%s: in", kernel);
  leaf_free(&result);
  k[299] = 1.0f;
  result = leaf_run(test, &(leaf_way_t){.threads = 1, .kernel = kernel});
  o = result.o;
  cr_expect(isnan(o[64]) && isnan(result.lse[1]), "%s: below, no other key", kernel);
  leaf_free(&result);
  kit_case_free(test);
}

Test(leaf, logits_past_the_exponents_limits) {
  for (const skv__kernel_t *const *kernel = skv__kernels(); *kernel; ++kernel)
    if ((*kernel)->backend == SKV_BACKEND_CPU && (*kernel)->available(NULL))
      expect_limits((*kernel)->name);
}
