/* test_account.c: the accounting reproduces the figures of the textbook case: one layer of
 * Llama-3-8B (32 query heads, 8 KV heads, head dim 128, fp16) on an H100. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <string.h>

#include "launch/account.h"
#include "launch/shape.h"

static const double GIB = 1024.0 * 1024.0 * 1024.0;

static const skv__gpu_t *gpu_named(const char *name) {
  const skv__gpu_t *gpu = skv__gpus;
  while (gpu->name && strcmp(gpu->name, name) != 0)
    ++gpu;
  cr_assert(gpu->name != NULL);
  return gpu;
}

static skv__account_t llama(int64_t queries, int64_t keys, int64_t layers, bool causal) {
  skv__account_case_t work = {.q_heads = 32,
                              .kv_heads = 8,
                              .head_dim = 128,
                              .value_head_dim = 128,
                              .queries = queries,
                              .keys = keys,
                              .batch = 1,
                              .layers = layers,
                              .element_bytes = 2,
                              .causal = causal};
  return skv__account_of(&work, gpu_named("h100"));
}

/* `actual` prints as `digits` says. */
static void expect_rounded(double actual, double expected, double last_digit, const char *what) {
  cr_expect(fabs(actual - expected) <= last_digit / 2 * (1 + 1e-9), "%s: %.6g, not %.6g", what,
            actual, expected);
}

Test(account, scores_are_quadratic) {
  cr_expect(eq(dbl, llama(8192, 8192, 1, false).score_bytes, 4.0 * GIB));
  cr_expect(eq(dbl, llama(32768, 32768, 1, false).score_bytes, 64.0 * GIB));
}

Test(account, prefill_of_8192) {
  skv__account_t one = llama(8192, 8192, 1, false), all = llama(8192, 8192, 32, false);
  expect_rounded(one.flop, 1.0995e12, 1e8, "FLOP");
  expect_rounded(one.materialised_bytes / GIB, 16.156, 1e-3, "GiB materialised");
  expect_rounded(one.materialised_intensity, 63, 1, "FLOP/byte materialised");
  expect_rounded(one.compulsory_intensity, 6553.6, 0.1, "FLOP/byte compulsory");
  cr_expect(eq(dbl, one.head_intensity, 4096.0));
  expect_rounded(one.ridge, 295, 1, "ridge");
  expect_rounded(one.materialised_seconds * 1e3, 5.18, 0.01, "ms a layer");
  expect_rounded(all.materialised_seconds * 1e3, 165.7, 0.1, "ms for 32 layers");
  expect_rounded(all.compute_seconds * 1e3, 35.6, 0.1, "ms arithmetic floor");
  expect_rounded(all.materialised_seconds / all.compute_seconds, 4.7, 0.1, "slowdown");
}

Test(account, merge_of_a_row) {
  skv__account_t account = llama(1, 1, 1, false);
  cr_expect(eq(dbl, account.merge_bytes, 776.0));
  cr_expect(fabs(account.merge_flop - 390.0) <= 3.9, "%g FLOP", account.merge_flop);
}

Test(account, decode_intensity_does_not_depend_on_length) {
  /* 2 h / (b h_kv) = 4, once K and V outweigh one query. */
  expect_rounded(llama(1, 100000, 1, false).compulsory_intensity, 4.0, 0.01, "short");
  expect_rounded(llama(1, 10000000, 1, false).compulsory_intensity, 4.0, 0.01, "long");
}

Test(account, causal_counts_the_visible_pairs) {
  for (int64_t queries = 1; queries <= 9; ++queries)
    for (int64_t keys = 1; keys <= 9; ++keys) {
      double pairs = 0;
      for (int64_t q = 0; q < queries; ++q)
        for (int64_t k = 0; k < keys; ++k)
          pairs += k <= keys - queries + q;
      cr_expect(eq(dbl, llama(queries, keys, 1, true).pairs, pairs), "%d x %d", (int)queries,
                (int)keys);
    }
}

Test(account, every_named_model_has_its_layers) {
  for (const skv__model_t *model = skv__models(); model->name; ++model)
    cr_expect(skv__account_layers(model->name) > 1, "%s", model->name);
  cr_expect(eq(i64, skv__account_layers("llama3-8b"), 32));
  cr_expect(eq(i64, skv__account_layers("32,8,128"), 1));
}

Test(account, figures_of_gpus) {
  cr_expect(eq(dbl, gpu_named("h100")->flop_per_second, 989.4e12));
  cr_expect(eq(dbl, gpu_named("h100")->bytes_per_second, 3.35e12));
  cr_expect(eq(dbl, gpu_named("h200")->bytes_per_second, 4.8e12));
}
