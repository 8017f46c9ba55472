/* test_merge_error.c: what merging costs in accuracy, against fp64: states (e, l, O), and the
 * (O, LSE) partials that other libraries pass. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/convert.h"
#include "kernels/lse.h"
#include "kernels/state.h"
#include "skv.h"

enum { KEYS = 1024, DIM = 16, SHARDS = 64, SEEDS = 20 };

/* Keys whose raw scores are small integers around `centre`: exact in fp32 however large they are,
 * so that what is measured is the arithmetic after the dot product. Values of 128 neighbours have
 * one sign: were shards alike, wrong weights would not show. */
typedef struct keys {
  float scale;
  float score[KEYS];
  float value[KEYS][DIM];
} keys_t;

typedef struct exact {
  double o[DIM], lse;
} exact_t;

typedef struct state {
  float o[DIM], e, l;
} state_t;

typedef struct partial {
  uint32_t o[DIM]; /* of any dtype */
  float lse;
} partial_t;

static uint64_t splitmix(uint64_t value) {
  value = (value + 1) * 0x9e3779b97f4a7c15u;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  return (value ^ value >> 27) * 0x94d049bb133111ebu >> 32;
}

static keys_t make_keys(uint64_t seed, float centre) {
  keys_t keys = {.scale = 0.08838834764831845f}; /* 1/sqrt(128) */
  unsigned short random[3] = {(unsigned short)seed, 17, 4711};
  for (int j = 0; j < KEYS; ++j) {
    keys.score[j] = centre + floorf((float)erand48(random) * 40.0f);
    for (int d = 0; d < DIM; ++d) {
      double sign = splitmix(seed * 1000 + (uint64_t)(j / 128 * DIM + d)) & 1 ? 1.0 : -1.0;
      keys.value[j][d] = (float)(sign * (1 - erand48(random) / 4));
    }
  }
  return keys;
}

static exact_t attend_exactly(const keys_t *keys, int begin, int end) {
  exact_t exact = {.lse = 0};
  double largest = -INFINITY, sum = 0;
  for (int j = begin; j < end; ++j)
    largest = fmax(largest, (double)keys->scale * (double)keys->score[j]);
  for (int j = begin; j < end; ++j) {
    double weight = exp((double)keys->scale * (double)keys->score[j] - largest);
    sum += weight;
    for (int d = 0; d < DIM; ++d)
      exact.o[d] += weight * (double)keys->value[j][d];
  }
  for (int d = 0; d < DIM; ++d)
    exact.o[d] /= sum;
  exact.lse = largest + log(sum);
  return exact;
}

static state_t attend(const keys_t *keys, int begin, int end) {
  float factor = (float)((double)keys->scale * 1.4426950408889634);
  state_t state = {.e = skv__empty_exponent()};
  float largest = -INFINITY;
  for (int j = begin; j < end; ++j)
    largest = keys->score[j] > largest ? keys->score[j] : largest;
  state.e = skv__exponent(largest * factor);
  for (int j = begin; j < end; ++j) {
    float p = skv__exp2(fmaf(keys->score[j], factor, -state.e));
    state.l += p;
    for (int d = 0; d < DIM; ++d)
      state.o[d] = fmaf(p, keys->value[j][d], state.o[d]);
  }
  return state;
}

static double output_error(const float *o, const exact_t *exact) {
  double largest = 0;
  for (int d = 0; d < DIM; ++d)
    largest = fmax(largest, fabs((double)o[d] - exact->o[d]));
  return largest;
}

/* `shards` states of neighbouring keys, merged from left to right. */
static double state_error(const keys_t *keys, int shards, double *lse_error) {
  static state_t states[SHARDS];
  for (int s = 0; s < shards; ++s)
    states[s] = attend(keys, s * KEYS / shards, (s + 1) * KEYS / shards);
  for (int s = 1; s < shards; ++s)
    skv__merge_row(states[0].o, &states[0].e, &states[0].l, states[s].o, states[s].e, states[s].l,
                   DIM);
  exact_t exact = attend_exactly(keys, 0, KEYS);
  float o[DIM];
  for (int d = 0; d < DIM; ++d)
    o[d] = skv__state_output(states[0].e, states[0].l, states[0].o[d]);
  *lse_error = fabs((double)skv__state_lse(states[0].e, states[0].l) - exact.lse);
  return output_error(o, &exact);
}

/* The same with (O, LSE): each shard is right to the last bit before it is rounded to `dtype`. */
static double partial_error(const keys_t *keys, int shards, skv_dtype_t dtype, double *lse_error) {
  static partial_t partials[SHARDS];
  for (int s = 0; s < shards; ++s) {
    exact_t exact = attend_exactly(keys, s * KEYS / shards, (s + 1) * KEYS / shards);
    partials[s].lse = (float)exact.lse;
    for (int d = 0; d < DIM; ++d)
      skv__store(dtype, partials[s].o, d, (float)exact.o[d]);
  }
  for (int s = 1; s < shards; ++s)
    cr_assert_eq(skv_merge_lse(partials[0].o, &partials[0].lse, partials[0].o, &partials[0].lse,
                               partials[s].o, &partials[s].lse, 1, DIM, dtype, SKV_LSE_NATURAL),
                 SKV_OK);
  exact_t exact = attend_exactly(keys, 0, KEYS);
  float o[DIM];
  for (int d = 0; d < DIM; ++d)
    o[d] = skv__load(dtype, partials[0].o, d);
  *lse_error = fabs((double)partials[0].lse - exact.lse);
  return output_error(o, &exact);
}

typedef struct errors {
  double state, partial, state_lse, partial_lse;
} errors_t;

static errors_t worst_errors(float centre, int shards) {
  errors_t worst = {0};
  for (uint64_t seed = 1; seed <= SEEDS; ++seed) {
    keys_t keys = make_keys(seed, centre);
    double lse_error;
    worst.state = fmax(worst.state, state_error(&keys, shards, &lse_error));
    worst.state_lse = fmax(worst.state_lse, lse_error);
    worst.partial = fmax(worst.partial, partial_error(&keys, shards, SKV_FP32, &lse_error));
    worst.partial_lse = fmax(worst.partial_lse, lse_error);
  }
  cr_log_info("centre %g, %d shards: state %.2g (LSE %.2g), partial %.2g (LSE %.2g)",
              (double)centre, shards, worst.state, worst.state_lse, worst.partial,
              worst.partial_lse);
  return worst;
}

/* LSE near 46 000: an fp32 LSE has a last place of 1/256 there, the state keeps all its bits. */
Test(merge_error, large_logits_cost_states_nothing) {
  errors_t errors = worst_errors(520000.0f, 8);
  cr_expect_leq(errors.state, 4e-7);
  cr_expect_geq(errors.partial, 1e-4, "the rounded LSE is what the state form avoids");
  cr_expect_leq(errors.partial, 4e-3);
  cr_expect_leq(errors.state_lse, 1e-5 * 46000);
  cr_expect_leq(errors.partial_lse, 1e-5 * 46000);
}

Test(merge_error, ordinary_logits) {
  errors_t errors = worst_errors(40.0f, SHARDS);
  cr_expect_leq(errors.state, 4e-7);
  cr_expect_geq(errors.partial, 3 * errors.state);
  cr_expect_leq(errors.partial, 2e-6);
  cr_expect_leq(errors.state_lse, 1e-5);
  cr_expect_leq(errors.partial_lse, 1e-5);
}

/* Very negative logits: no finite floor anywhere. */
Test(merge_error, very_negative_logits) {
  errors_t errors = worst_errors(-524288.0f, 8);
  cr_expect_leq(errors.state, 4e-7);
  cr_expect_leq(errors.state_lse, 1e-5 * 46341);
}

/* One shard or 64: the error of states does not grow with merges. bf16 partials do grow: rounding
 * at every hop is what fp32 states are for. */
Test(merge_error, flat_in_the_number_of_merges) {
  double one = worst_errors(0.0f, 1).state;
  for (int shards = 2; shards <= SHARDS; shards *= 2)
    cr_expect_leq(worst_errors(0.0f, shards).state, one + 0x1p-24, "%d shards", shards);
  double bf16 = 0;
  for (uint64_t seed = 1; seed <= SEEDS; ++seed) {
    keys_t keys = make_keys(seed, 0);
    double lse_error;
    bf16 = fmax(bf16, partial_error(&keys, SHARDS, SKV_BF16, &lse_error));
  }
  cr_log_info("bf16 partials, %d shards: %.2g", SHARDS, bf16);
  cr_expect_geq(bf16, 100 * one);
}
