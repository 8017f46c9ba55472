/* kit_case.c: whole problems on one rank, made from a seed, and the 16-bit formats they are kept
 * in. The conversions are the kit's own: a mistake in the library's must not hide behind the same
 * mistake here. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kit.h"
#include "launch/seeded.h"

/* ---- formats ---- */

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float widen_fp16(uint16_t half) {
  int exponent = (half >> 10) & 31;
  int mantissa = half & 1023;
  float sign = half & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31)
    return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0)
    return sign * ldexpf((float)mantissa, -24);
  return sign * ldexpf((float)(1024 + mantissa), exponent - 25);
}

/* In units of the format's last place at this magnitude the value is rounded by nearbyint, whose
 * ties go to even; overflow is what rounds to 65536 or more. */
static uint16_t narrow_fp16(float value) {
  uint16_t sign = signbit(value) ? 0x8000 : 0;
  if (isnan(value))
    return sign | 0x7e00;
  float magnitude = fabsf(value);
  int exponent = -14;
  if (magnitude >= ldexpf(1.0f, -14) && isfinite(magnitude))
    exponent = ilogbf(magnitude);
  if (exponent > 15 || isinf(magnitude))
    return sign | 0x7c00;
  long units = lrint(ldexp((double)magnitude, 10 - exponent));
  /* A carry out of the mantissa lands in the exponent field, which is what it should do. */
  return (uint16_t)(sign | ((exponent + 14) * 1024 + units));
}

static uint16_t narrow_bf16(float value) {
  if (isnan(value))
    return signbit(value) ? 0xffc0 : 0x7fc0;
  uint32_t bits = to_bits(value);
  uint32_t below = bits & 0xffff;
  uint16_t kept = (uint16_t)(bits >> 16);
  bool up = below > 0x8000 || (below == 0x8000 && (kept & 1));
  return (uint16_t)(kept + (up ? 1 : 0));
}

float kit_widen(skv_dtype_t dtype, const void *data, int64_t index) {
  if (dtype == SKV_FP32)
    return ((const float *)data)[index];
  uint16_t half = ((const uint16_t *)data)[index];
  return dtype == SKV_FP16 ? widen_fp16(half) : from_bits((uint32_t)half << 16);
}

void kit_narrow(skv_dtype_t dtype, void *data, int64_t index, float value) {
  if (dtype == SKV_FP32)
    ((float *)data)[index] = value;
  else
    ((uint16_t *)data)[index] = dtype == SKV_FP16 ? narrow_fp16(value) : narrow_bf16(value);
}

/* ---- cases ---- */

static void *need(size_t count, size_t bytes) {
  void *memory = calloc(count > 0 ? count : 1, bytes);
  if (memory == NULL)
    abort();
  return memory;
}

/* What makes logits large. One-signed: elements of Q and K lose their signs, so that no logit is
 * a small rest of large terms, which no fp32 computation gets right; then all logits are positive,
 * all negative, or of a sign that changes from key to key. Q is `gain` times larger. */
typedef enum signs { SIGNS_ANY, SIGNS_POSITIVE, SIGNS_NEGATIVE, SIGNS_BY_KEY } signs_t;

typedef struct spice {
  float gain;
  signs_t signs;
  int32_t outliers;
} spice_t;

static float spiced(const spice_t *spice, skv__which_t which, int64_t token, float value) {
  if (which == SKV__V)
    return value;
  if (spice->signs != SIGNS_ANY)
    value = fabsf(value);
  if (which == SKV__Q)
    return value * spice->gain;
  bool negative =
      spice->signs == SIGNS_NEGATIVE || (spice->signs == SIGNS_BY_KEY && token % 3 != 1);
  return negative ? -value : value;
}

/* Dense [batch][slots][heads][dim]; slots from tokens[sequence] on hold NaN. */
static void *make_tensor(const skv_problem_t *problem, uint64_t seed, const spice_t *spice,
                         skv__which_t which, const int64_t *tokens) {
  int64_t slots = which == SKV__Q ? problem->q_tokens : problem->kv_capacity_tokens;
  int64_t heads = which == SKV__Q ? problem->q_heads : problem->kv_heads;
  int64_t dim = which == SKV__V ? problem->value_head_dim : problem->head_dim;
  skv__seeded_t seeded = {.seed = seed, .outliers = spice->outliers};
  size_t width = problem->dtype == SKV_FP32 ? 4 : 2;
  void *data = need((size_t)(problem->batch * slots * heads * dim), width);
  int64_t index = 0;
  for (int64_t s = 0; s < problem->batch; s++)
    for (int64_t t = 0; t < slots; t++)
      for (int64_t h = 0; h < heads; h++)
        for (int64_t d = 0; d < dim; d++, index++) {
          float value = NAN;
          if (t < tokens[s])
            value = spiced(spice, which, t, skv__seeded_value(&seeded, which, s, t, h, d));
          kit_narrow(problem->dtype, data, index, value);
        }
  return data;
}

static int64_t *copy_lengths(const int64_t *lengths, int64_t full, int64_t batch) {
  int64_t *copy = need((size_t)batch, sizeof *copy);
  for (int64_t s = 0; s < batch; s++)
    copy[s] = lengths != NULL ? lengths[s] : full;
  return copy;
}

/* A case without its tensors. */
static kit_case_t *outline(const skv_problem_t *problem, const int64_t *q_tokens,
                           const int64_t *k_tokens, uint64_t seed) {
  kit_case_t *test = need(1, sizeof *test);
  test->problem = *problem;
  test->seed = seed;
  test->q_tokens = copy_lengths(q_tokens, problem->q_tokens, problem->batch);
  test->k_tokens = copy_lengths(k_tokens, problem->kv_capacity_tokens, problem->batch);
  return test;
}

static void fill(kit_case_t *test, bool with_sinks, const spice_t *spice) {
  const skv_problem_t *problem = &test->problem;
  test->q = make_tensor(problem, test->seed, spice, SKV__Q, test->q_tokens);
  test->k = make_tensor(problem, test->seed, spice, SKV__K, test->k_tokens);
  test->v = make_tensor(problem, test->seed, spice, SKV__V, test->k_tokens);
  if (!with_sinks)
    return;
  skv__seeded_t seeded = {.seed = ~test->seed};
  test->sinks = need((size_t)problem->q_heads, sizeof *test->sinks);
  for (int64_t h = 0; h < problem->q_heads; h++)
    test->sinks[h] = 2.0f * skv__seeded_value(&seeded, SKV__Q, 0, 0, h, 0);
}

kit_case_t *kit_case_create(const skv_problem_t *problem, const int64_t *q_tokens,
                            const int64_t *k_tokens, bool with_sinks, uint64_t seed) {
  kit_case_t *test = outline(problem, q_tokens, k_tokens, seed);
  fill(test, with_sinks, &(spice_t){.gain = 1.0f});
  return test;
}

void kit_case_free(kit_case_t *test) {
  if (test == NULL)
    return;
  free(test->q_tokens);
  free(test->k_tokens);
  free(test->q_start);
  free(test->sinks);
  free(test->q);
  free(test->k);
  free(test->v);
  free(test);
}

static skv_tensor_t dense(void *data, int64_t tokens, int64_t heads, int64_t dim) {
  return (skv_tensor_t){.data = data, .stride = {tokens * heads * dim, heads * dim, dim, 1}};
}

skv_inputs_t kit_case_inputs(const kit_case_t *test) {
  const skv_problem_t *problem = &test->problem;
  int64_t slots = problem->kv_capacity_tokens;
  return (skv_inputs_t){
      .struct_bytes = sizeof(skv_inputs_t),
      .q = dense(test->q, problem->q_tokens, problem->q_heads, problem->head_dim),
      .k = dense(test->k, slots, problem->kv_heads, problem->head_dim),
      .v = dense(test->v, slots, problem->kv_heads, problem->value_head_dim),
      .sinks = test->sinks,
      .q_tokens = test->q_tokens,
      .k_tokens = test->k_tokens,
      .q_start = test->q_start,
  };
}

/* ---- random cases ---- */

/* splitmix64: the choice of shapes needs no quality, only to be the same everywhere. */
static uint64_t draw(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static int64_t between(uint64_t *state, int64_t low, int64_t high) {
  return low + (int64_t)(draw(state) % (uint64_t)(high - low + 1));
}

static bool one_in(uint64_t *state, int64_t n) {
  return between(state, 1, n) == 1;
}

static void random_heads(uint64_t *state, skv_problem_t *problem) {
  static const int64_t dims[] = {1, 59, 63, 64, 80, 128, 256};
  static const int64_t groups[] = {1, 2, 4, 7, 8};
  problem->kv_heads = between(state, 1, 2);
  problem->q_heads = problem->kv_heads * groups[between(state, 0, 4)];
  problem->head_dim = dims[between(state, 0, 6)];
  problem->value_head_dim = one_in(state, 3) ? dims[between(state, 0, 6)] : problem->head_dim;
  problem->scale = (float)(1.0 / sqrt((double)problem->head_dim));
  if (one_in(state, 6))
    problem->scale *= 1.37f;
}

static void random_mask(uint64_t *state, skv_problem_t *problem) {
  problem->causal = one_in(state, 2);
  problem->window_left_tokens = SKV_UNBOUNDED;
  problem->window_right_tokens = SKV_UNBOUNDED;
  if (one_in(state, 3))
    problem->window_left_tokens = between(state, 0, 150);
  if (one_in(state, 4))
    problem->window_right_tokens = between(state, 0, 80);
  if (one_in(state, 4))
    problem->softcap = (float)between(state, 1, 60) * 0.5f;
}

static void random_problem(uint64_t *state, skv_problem_t *problem) {
  *problem = (skv_problem_t){.struct_bytes = sizeof *problem, .order = SKV_ORDER_PINNED};
  random_heads(state, problem);
  random_mask(state, problem);
  problem->batch = one_in(state, 3) ? between(state, 2, 4) : 1;
  problem->q_tokens = one_in(state, 6) ? 1 : between(state, 2, 40);
  problem->kv_capacity_tokens = between(state, 1, 300);
  problem->dtype = (skv_dtype_t)between(state, 0, 2);
  problem->out_dtype = one_in(state, 3) ? SKV_FP32 : problem->dtype;
  problem->leaf_tokens = one_in(state, 3) ? 128 : 64;
  problem->block_tokens = problem->leaf_tokens * between(state, 1, 4);
}

/* Full, none, or anything between. The first sequence of a batch is never the only busy one. */
static void random_lengths(uint64_t *state, int64_t batch, int64_t full, int64_t *lengths) {
  for (int64_t s = 0; s < batch; s++) {
    lengths[s] = one_in(state, 2) ? full : between(state, 0, full);
    if (one_in(state, 12))
      lengths[s] = 0;
  }
}

/* Under a softcap, large logits of one sign would all become the cap, and their weights equal:
 * there they get both signs and a small gain. The largest gain leaves few rows where two keys
 * compete, which is too few for the error rule unless rounding O to 16 bits covers it. */
static spice_t random_spice(uint64_t *state, const skv_problem_t *problem) {
  static const float gains[] = {4.0f, 20.0f, 80.0f};
  spice_t spice = {.gain = 1.0f, .outliers = one_in(state, 4) ? 2 : 0};
  if (problem->softcap > 0.0f) {
    spice.gain = one_in(state, 2) ? 4.0f : 1.0f;
  } else if (one_in(state, 2)) {
    spice.gain = gains[between(state, 0, problem->out_dtype == SKV_FP32 ? 1 : 2)];
    spice.signs = (signs_t)between(state, SIGNS_POSITIVE, SIGNS_BY_KEY);
  }
  return spice;
}

static kit_case_t *random_outline(uint64_t *state, uint64_t seed) {
  skv_problem_t problem;
  random_problem(state, &problem);
  int64_t q_tokens[4], k_tokens[4];
  random_lengths(state, problem.batch, problem.q_tokens, q_tokens);
  random_lengths(state, problem.batch, problem.kv_capacity_tokens, k_tokens);
  kit_case_t *test = outline(&problem, q_tokens, k_tokens, seed);
  if (one_in(state, 3)) {
    test->q_start = need((size_t)problem.batch, sizeof *test->q_start);
    for (int64_t s = 0; s < problem.batch; s++)
      test->q_start[s] = between(state, -10, problem.kv_capacity_tokens);
  }
  return test;
}

/* Whether the error rule says something about the case. It compares maxima, so it needs rows
 * enough that the plain implementation is not right by luck. On rows that see one key, or one key
 * that outweighs the rest, it is always right to the last bit, and the rule with it would refuse
 * an error of one ulp. Rounding O to 16 bits makes all that unimportant. */
static bool rule_applies(const kit_case_t *test) {
  int64_t busy = kit_rows_seeing(test, 8);
  return test->problem.out_dtype != SKV_FP32 ||
         (busy >= 160 && busy * test->problem.value_head_dim >= 256);
}

kit_case_t *kit_case_random(uint64_t seed) {
  uint64_t state = seed;
  for (;;) {
    kit_case_t *test = random_outline(&state, seed);
    if (rule_applies(test)) {
      spice_t spice = random_spice(&state, &test->problem);
      fill(test, one_in(&state, 4), &spice);
      return test;
    }
    kit_case_free(test);
  }
}

/* ---- description ---- */

static size_t append_lengths(char *text, size_t text_bytes, size_t used, const char *name,
                             const int64_t *lengths, int64_t batch) {
  for (int64_t s = 0; lengths != NULL && s < batch && used < text_bytes; s++) {
    const char *before = s == 0 ? name : ",";
    used += (size_t)snprintf(text + used, text_bytes - used, "%s%" PRId64, before, lengths[s]);
  }
  return used;
}

void kit_case_describe(const kit_case_t *test, char *text, size_t text_bytes) {
  static const char *const dtypes[] = {"fp32", "fp16", "bf16"};
  const skv_problem_t *p = &test->problem;
  int written = snprintf(
      text, text_bytes,
      "seed %" PRIu64 ": heads %" PRId64 "/%" PRId64 " dim %" PRId64 "/%" PRId64
      " %s->%s q %" PRId64 " capacity %" PRId64 " leaf %" PRId64 " block %" PRId64
      " causal %d window %" PRId64 ",%" PRId64 " softcap %g scale %g%s",
      test->seed, p->q_heads, p->kv_heads, p->head_dim, p->value_head_dim, dtypes[p->dtype],
      dtypes[p->out_dtype], p->q_tokens, p->kv_capacity_tokens, p->leaf_tokens, p->block_tokens,
      p->causal, p->window_left_tokens, p->window_right_tokens, (double)p->softcap,
      (double)p->scale, test->sinks != NULL ? " sinks" : "");
  size_t used = (size_t)written;
  used = append_lengths(text, text_bytes, used, " q_tokens ", test->q_tokens, p->batch);
  used = append_lengths(text, text_bytes, used, " k_tokens ", test->k_tokens, p->batch);
  append_lengths(text, text_bytes, used, " q_start ", test->q_start, p->batch);
}
