/* account.c: the arithmetic of account.h. */
#include "launch/account.h"

#include <stddef.h>
#include <string.h>

/* Vendors' data sheets: dense, SXM or OAM form where there are several. */
const skv__gpu_t skv__gpus[] = {
    {"a100", 312.0e12, 2.039e12},
    {"h100", 989.4e12, 3.35e12},
    {"h200", 989.4e12, 4.8e12},
    {"b200", 2250.0e12, 8.0e12},
    {"l40s", 362.05e12, 0.864e12},
    {"mi300x", 1307.4e12, 5.3e12},
    {NULL, 0.0, 0.0},
};

int64_t skv__account_layers(const char *shape) {
  static const struct {
    const char *name;
    int64_t layers;
  } models[] = {{"llama2-7b", 32},  {"llama3-8b", 32}, {"llama3-70b", 80}, {"llama3-405b", 126},
                {"mistral-7b", 32}, {"qwen2-7b", 28},  {"gemma-7b", 28},   {"phi3-mini", 32},
                {"gpt2", 12},       {"minilm-l6", 6}};
  for (size_t i = 0; i < sizeof models / sizeof *models; ++i)
    if (strcmp(shape, models[i].name) == 0)
      return models[i].layers;
  return 1;
}

/* Query i of n sees all keys but the n - 1 - i last ones; a query before the first key sees none.
 */
static double visible_pairs(const skv__account_case_t *work) {
  double queries = (double)work->queries, keys = (double)work->keys;
  if (!work->causal)
    return queries * keys;
  if (queries > keys)
    return keys * (keys + 1.0) / 2.0;
  return queries * keys - queries * (queries - 1.0) / 2.0;
}

skv__account_t skv__account_of(const skv__account_case_t *work, const skv__gpu_t *gpu) {
  double q_heads = (double)work->q_heads, kv_heads = (double)work->kv_heads;
  double dims = (double)(work->head_dim + work->value_head_dim);
  double batch = (double)work->batch, bytes = (double)work->element_bytes;
  double queries = (double)work->queries, keys = (double)work->keys, layers = (double)work->layers;
  skv__account_t account = {.pairs = visible_pairs(work)};
  account.flop = 2.0 * batch * q_heads * account.pairs * dims;
  account.score_bytes = batch * q_heads * queries * keys * bytes;
  account.compulsory_bytes = batch * bytes * dims * (q_heads * queries + kv_heads * keys);
  account.materialised_bytes = 4.0 * account.score_bytes + account.compulsory_bytes;
  account.materialised_intensity = account.flop / account.materialised_bytes;
  account.compulsory_intensity = account.flop / account.compulsory_bytes;
  account.head_intensity = account.flop / (batch * bytes * dims * q_heads * (queries + keys));
  account.ridge = gpu->flop_per_second / gpu->bytes_per_second;
  account.materialised_seconds = layers * account.materialised_bytes / gpu->bytes_per_second;
  account.compulsory_seconds = layers * account.compulsory_bytes / gpu->bytes_per_second;
  account.compute_seconds = layers * account.flop / gpu->flop_per_second;
  /* Two O and two LSE in, one O out. Three operations an element; two differences, two
   * exponentials, their sum and two quotients a row. */
  account.merge_bytes = 3.0 * (double)work->value_head_dim * bytes + 2.0 * 4.0;
  account.merge_flop = 3.0 * (double)work->value_head_dim + 7.0;
  return account;
}
