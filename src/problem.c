#include "problem.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "context.h"

/* The tile grid of every kernel fits into this many keys. */
enum { TILE_TOKENS = 64, HEAD_DIM_MAX = 256 };
/* Token counts and extents stay below this, so that sums of a few never overflow. */
#define TOKENS_MAX (INT64_C(1) << 48)
#define BATCH_MAX (INT64_C(1) << 30)
/* Rows, or keys of all heads: times a state's or a key's bytes, this stays below 2^63. */
#define ROWS_MAX 0x1p50

void skv_problem_init(skv_problem_t *problem, size_t struct_bytes, int64_t q_heads,
                      int64_t kv_heads, int64_t head_dim) {
  skv_problem_t defaults = {
      .struct_bytes = struct_bytes,
      .batch = 1,
      .q_heads = q_heads,
      .kv_heads = kv_heads,
      .head_dim = head_dim,
      .value_head_dim = head_dim,
      .scale = head_dim > 0 ? (float)(1.0 / sqrt((double)head_dim)) : 1.0f,
      .window_left_tokens = SKV_UNBOUNDED,
      .window_right_tokens = SKV_UNBOUNDED,
      .leaf_tokens = 2048,
      .block_tokens = head_dim > 128 ? 2048 : 4096,
  };
  memcpy(problem, &defaults, struct_bytes < sizeof defaults ? struct_bytes : sizeof defaults);
}

static skv_status_t check_extents(const skv_problem_t *p, skv__error_t *error) {
  if (p->batch < 1 || p->batch > BATCH_MAX)
    return skv__fail(error, SKV_INVALID, "batch is %lld: give 1 to 2^30 sequences",
                     (long long)p->batch);
  if (p->q_tokens < 0 || p->q_tokens > TOKENS_MAX)
    return skv__fail(error, SKV_INVALID, "q_tokens is %lld: give 0 to 2^48",
                     (long long)p->q_tokens);
  if (p->kv_capacity_tokens < 0 || p->kv_capacity_tokens > TOKENS_MAX)
    return skv__fail(error, SKV_INVALID, "kv_capacity_tokens is %lld: give 0 to 2^48",
                     (long long)p->kv_capacity_tokens);
  if (p->q_heads < 1 || p->kv_heads < 1 || p->q_heads > 1 << 20 || p->q_heads % p->kv_heads)
    return skv__fail(
        error, SKV_INVALID,
        "%lld query heads over %lld KV heads: the query heads must be a multiple of the KV heads",
        (long long)p->q_heads, (long long)p->kv_heads);
  if (p->head_dim < 1 || p->head_dim > HEAD_DIM_MAX || p->value_head_dim < 1 ||
      p->value_head_dim > HEAD_DIM_MAX)
    return skv__fail(error, SKV_INVALID,
                     "head_dim %lld and value_head_dim %lld: each must be 1 to %d",
                     (long long)p->head_dim, (long long)p->value_head_dim, HEAD_DIM_MAX);
  double states = (double)p->batch * (double)p->q_tokens * (double)p->q_heads;
  double keys = (double)p->batch * (double)p->kv_capacity_tokens * (double)p->kv_heads;
  if (states > ROWS_MAX || keys > ROWS_MAX)
    return skv__fail(
        error, SKV_INVALID,
        "%.3g rows over %.3g keys of all heads: more than 2^50 of either cannot be addressed",
        states, keys);
  return SKV_OK;
}

static skv_status_t check_order(const skv_problem_t *p, skv__error_t *error) {
  if (p->leaf_tokens < TILE_TOKENS || p->leaf_tokens % TILE_TOKENS || p->leaf_tokens > TOKENS_MAX)
    return skv__fail(error, SKV_INVALID, "leaf_tokens is %lld: give a multiple of %d",
                     (long long)p->leaf_tokens, TILE_TOKENS);
  if (p->block_tokens < p->leaf_tokens || p->block_tokens % p->leaf_tokens ||
      p->block_tokens > TOKENS_MAX)
    return skv__fail(error, SKV_INVALID,
                     "block_tokens is %lld: give a multiple of leaf_tokens (%lld)",
                     (long long)p->block_tokens, (long long)p->leaf_tokens);
  if (p->order != SKV_ORDER_PINNED && p->order != SKV_ORDER_FREE)
    return skv__fail(error, SKV_INVALID, "order is %d: give SKV_ORDER_PINNED or SKV_ORDER_FREE",
                     (int)p->order);
  return SKV_OK;
}

static skv_status_t check_mask(const skv_problem_t *p, skv__error_t *error) {
  if (!isfinite(p->scale) || p->scale <= 0)
    return skv__fail(error, SKV_INVALID, "scale is %g: give a finite number above 0",
                     (double)p->scale);
  if (!isfinite(p->softcap) || p->softcap < 0)
    return skv__fail(error, SKV_INVALID, "softcap is %g: give 0 (off) or a finite number above 0",
                     (double)p->softcap);
  if (p->window_left_tokens < SKV_UNBOUNDED || p->window_right_tokens < SKV_UNBOUNDED ||
      p->window_left_tokens > TOKENS_MAX || p->window_right_tokens > TOKENS_MAX)
    return skv__fail(error, SKV_INVALID,
                     "window %lld,%lld: each side is -1 (unbounded) or 0 and more",
                     (long long)p->window_left_tokens, (long long)p->window_right_tokens);
  if (p->causal != 0 && p->causal != 1)
    return skv__fail(error, SKV_INVALID, "causal is %d: give 0 or 1", p->causal);
  return SKV_OK;
}

static bool is_dtype(skv_dtype_t dtype) {
  return dtype == SKV_FP32 || dtype == SKV_FP16 || dtype == SKV_BF16;
}

skv_status_t skv__problem_check(const skv_problem_t *problem, skv__error_t *error) {
  if (!problem || problem->struct_bytes != sizeof *problem)
    return skv__fail(error, SKV_INVALID,
                     "the problem was not set up by skv_problem_init of this version (%s)",
                     SKV_VERSION);
  if (!is_dtype(problem->dtype) || !is_dtype(problem->out_dtype))
    return skv__fail(error, SKV_INVALID,
                     "dtype %d, out_dtype %d: give SKV_FP32, SKV_FP16 or SKV_BF16",
                     (int)problem->dtype, (int)problem->out_dtype);
  SKV_TRY(check_extents(problem, error));
  SKV_TRY(check_order(problem, error));
  return check_mask(problem, error);
}

int64_t skv__problem_blocks(const skv_problem_t *problem) {
  return (problem->kv_capacity_tokens + problem->block_tokens - 1) / problem->block_tokens;
}

int64_t skv__problem_left(const skv_problem_t *problem) {
  return problem->window_left_tokens == SKV_UNBOUNDED ? SKV__FAR : problem->window_left_tokens;
}

int64_t skv__problem_right(const skv_problem_t *problem) {
  if (problem->causal)
    return 0;
  return problem->window_right_tokens == SKV_UNBOUNDED ? SKV__FAR : problem->window_right_tokens;
}

uint64_t skv_order_id(const skv_context_t *context, const skv_problem_t *problem) {
  const char *leaf_order =
      is_dtype(problem->dtype) ? context->kernel->order[problem->dtype] : "none";
  int64_t facts[] = {(int64_t)XXH64(leaf_order, strlen(leaf_order), 0),
                     problem->leaf_tokens,
                     problem->block_tokens,
                     problem->head_dim,
                     problem->value_head_dim,
                     problem->dtype,
                     problem->order};
  return XXH64(facts, sizeof facts, 0);
}
