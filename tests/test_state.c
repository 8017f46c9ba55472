/* test_state.c: the state algebra: EMPTY, merges, special values, the ways in and out. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/lse.h"
#include "kernels/state.h"

enum { DIM = 4 };

typedef struct state {
  float o[DIM], e, l;
} state_t;

static state_t merged(state_t left, state_t right) {
  skv__merge_row(left.o, &left.e, &left.l, right.o, right.e, right.l, DIM);
  return left;
}

static bool same_bits(const state_t *a, const state_t *b) {
  return memcmp(a, b, sizeof *a) == 0;
}

static state_t empty(void) {
  return (state_t){.e = -INFINITY};
}

/* EMPTY is judged by e alone: what else is in the state must not matter. */
static state_t dirty_empty(void) {
  return (state_t){.o = {NAN, INFINITY, -0.0f, 1}, .e = -INFINITY, .l = NAN};
}

/* The state of one key with logit x and value v, as a leaf would leave it. */
static state_t one_key(float x, float v) {
  skv__mass_t mass = skv__mass_from_lse(x);
  state_t state = {.e = mass.e, .l = mass.l};
  for (int d = 0; d < DIM; ++d)
    state.o[d] = skv__leaf_value(mass.l * v);
  return state;
}

static float output_of(state_t state) {
  return skv__state_output(state.e, state.l, state.o[0]);
}

static uint32_t bits(float value) {
  return skv__float_bits(value);
}

/* B01: -inf - (-inf). */
Test(state, two_empty_states_are_empty) {
  state_t state = merged(empty(), empty());
  state_t want = empty();
  cr_expect(same_bits(&state, &want));
  cr_expect_eq(skv__state_lse(state.e, state.l), -INFINITY);
  cr_expect_eq(bits(output_of(state)), 0u);
}

Test(state, empty_is_an_exact_identity_on_both_sides) {
  const state_t states[] = {{{1, -2, 3, 0.1f}, 5, 1.5f},
                            {{-0.0f, 0x1p-149f, -0x1p-149f, FLT_MAX}, -60000, 0.75f},
                            {{INFINITY, -INFINITY, 0, 1}, 0, 1},
                            {{0, -0.0f, 0, 0}, 0x1p30f, 0x1p-149f}};
  for (size_t i = 0; i < sizeof states / sizeof states[0]; ++i) {
    state_t left = merged(states[i], dirty_empty());
    state_t right = merged(dirty_empty(), states[i]);
    cr_expect(same_bits(&left, &states[i]), "state %zu, EMPTY on the right", i);
    cr_expect(same_bits(&right, &states[i]), "state %zu, EMPTY on the left", i);
  }
}

/* B02: no keys is -inf in every kernel's words, FlashAttention-2's +inf included. */
Test(state, plus_infinity_from_elsewhere_means_empty) {
  for (int base = 0; base < 2; ++base) {
    skv_lse_base_t lse_base = base ? SKV_LSE_BASE2 : SKV_LSE_NATURAL;
    cr_expect_eq(skv__mass_from_partial(INFINITY, lse_base).e, -INFINITY);
    cr_expect_eq(skv__mass_from_partial(-INFINITY, lse_base).e, -INFINITY);
    cr_expect_eq(skv__mass_from_partial(-INFINITY, lse_base).l, 0.0f);
    cr_expect_eq(skv__partial_lse(-INFINITY, 0, lse_base), -INFINITY);
  }
}

/* B03: a row without keys is exactly -inf, and so a row far below any finite sentinel wins. */
Test(state, no_finite_sentinel) {
  cr_expect_eq(bits(skv__empty_exponent()), SKV__MINUS_INF_BITS);
  cr_expect_eq(skv__exponent(-INFINITY), -INFINITY);
  state_t low = one_key(-5e6f, 3);
  state_t state = merged(empty(), low);
  cr_expect(same_bits(&state, &low));
  cr_expect_float_eq(skv__state_lse(low.e, low.l), -5e6f, 0.5f);
  cr_expect_eq(output_of(merged(low, one_key(-5e4f, 1))), 1.0f);
}

/* B05, natural and base 2: partition sums 2 and 8, outputs 0 and 10. */
Test(state, the_base_of_an_lse_is_named) {
  const float natural[] = {logf(2), logf(8)};
  const float base2[] = {1, 3};
  for (int base = 0; base < 2; ++base) {
    skv_lse_base_t lse_base = base ? SKV_LSE_BASE2 : SKV_LSE_NATURAL;
    state_t states[2];
    for (int i = 0; i < 2; ++i) {
      skv__mass_t mass = skv__mass_from_partial(base ? base2[i] : natural[i], lse_base);
      states[i] = (state_t){.e = mass.e, .l = mass.l, .o = {mass.l * (i ? 10.0f : 0.0f)}};
    }
    state_t state = merged(states[0], states[1]);
    cr_expect_float_eq(output_of(state), 8.0f, 2e-6f);
    double want = base ? log2(10) : log(10);
    cr_expect_float_eq((double)skv__partial_lse(state.e, state.l, lse_base), want, 5e-7);
  }
}

/* B06: log(1 + exp(b - a)) would overflow. */
Test(state, far_apart_masses_do_not_overflow) {
  const float distances[] = {88, 89, 100, 1e4f, 1e6f};
  for (size_t i = 0; i < sizeof distances / sizeof distances[0]; ++i) {
    for (int swapped = 0; swapped < 2; ++swapped) {
      state_t near = one_key(0, -7), far = one_key(distances[i], 3);
      state_t state = swapped ? merged(far, near) : merged(near, far);
      cr_expect_eq(output_of(state), 3.0f);
      cr_expect_float_eq(skv__state_lse(state.e, state.l), distances[i], distances[i] * 1e-6f);
    }
  }
}

/* B07: raw score -524288 at head_dim 128. */
Test(state, logits_below_any_finite_floor) {
  float lse = -524288.0f / sqrtf(128.0f);
  state_t state = one_key(lse, 1);
  cr_expect_eq(output_of(state), 1.0f);
  cr_expect_float_eq(skv__state_lse(state.e, state.l), -46340.95f, 0.005f);
  state_t twice = merged(state, state);
  cr_expect_eq(output_of(twice), 1.0f);
  cr_expect_float_eq((double)skv__state_lse(twice.e, twice.l), (double)lse + log(2), 0.005);
}

/* The largest factor between e's is 2^126; below it the smaller state has no weight. */
Test(state, weights_end_at_minus_126) {
  state_t big = {.o = {1}, .e = 126, .l = 1};
  state_t small = {.o = {0x1p126f}, .e = 0, .l = 0x1p126f};
  cr_expect_eq(merged(big, small).o[0], 2.0f);
  small.e = -1;
  cr_expect_eq(merged(big, small).o[0], 1.0f);
  cr_expect_eq(merged(small, big).l, 1.0f);
}

Test(state, denormals_are_kept) {
  state_t a = {.o = {0x1p-149f, 0x1p-140f, 0, 0}, .e = 3, .l = 1};
  state_t b = {.o = {0x1p-148f, -0x1p-140f, 0x1p-126f, 0}, .e = 2, .l = 1};
  state_t state = merged(a, b);
  cr_expect_eq(state.o[0], 0x1p-148f);
  cr_expect_eq(state.o[1], 0x1p-141f);
  cr_expect_eq(state.o[2], 0x1p-127f);
}

/* A NaN or +inf logit gives NaN rows, never EMPTY ones; NaN has one spelling. */
Test(state, nan_spreads_and_is_never_empty) {
  const float nan_value = skv__bits_float(0xffc12345u);
  float e = skv__leaf_exponent(-INFINITY, nan_value); /* the only key was NaN */
  cr_expect_eq(bits(e), SKV__NAN_BITS);
  cr_expect_eq(bits(skv__leaf_exponent(INFINITY, skv__exp2(INFINITY - INFINITY))), SKV__NAN_BITS);
  cr_expect_eq(bits(skv__leaf_value(nan_value)), SKV__NAN_BITS);
  state_t bad[2] = {{{NAN, NAN, NAN, NAN}, e, NAN}, {{1, 1, 1, 1}, INFINITY, 1}};
  state_t good = {{1, 2, 3, 4}, 1, 1};
  for (int i = 0; i < 2; ++i) {
    for (int order = 0; order < 3; ++order) {
      state_t state = merged(order == 1 ? good : bad[i], order == 0 ? good : bad[i]);
      cr_expect(!skv__is_empty(state.e));
      cr_expect_eq(bits(state.l), SKV__NAN_BITS);
      cr_expect_eq(bits(state.o[3]), SKV__NAN_BITS);
      cr_expect_eq(bits(skv__state_lse(state.e, state.l)), SKV__NAN_BITS);
      cr_expect_eq(bits(output_of(state)), SKV__NAN_BITS);
    }
  }
  cr_expect_eq(bits(skv__mass_from_lse(INFINITY).e), SKV__NAN_BITS);
}

Test(state, nan_in_values_has_one_spelling) {
  const uint32_t spellings[] = {0xffc12345u, 0x7f800001u, 0xffffffffu};
  for (size_t i = 0; i < 3; ++i) {
    float bad = skv__bits_float(spellings[i]);
    state_t left = {.o = {bad, 1, bad, 0}, .e = 1, .l = bad},
            right = {.o = {1, bad, bad, 0}, .e = 2, .l = 1};
    state_t state = merged(left, right);
    cr_expect_eq(bits(state.l), SKV__NAN_BITS);
    for (int d = 0; d < 3; ++d)
      cr_expect_eq(bits(state.o[d]), SKV__NAN_BITS);
    cr_expect_eq(state.o[3], 0.0f);
    cr_expect_eq(bits(skv__state_output(1, 1, bad)), SKV__NAN_BITS);
  }
}

Test(state, leaf_helpers) {
  cr_expect_eq(bits(skv__leaf_value(-0.0f)), 0u);
  cr_expect_eq(bits(skv__exponent(-0.5f)), 0u, "no -0 among exponents");
  cr_expect_eq(skv__exponent(2.25f), 3.0f);
  cr_expect_eq(skv__exponent(1e10f), INFINITY);
  cr_expect_eq(skv__exponent(-1e10f), -0x1p30f);
  cr_expect_eq(skv__rescale(-INFINITY, -INFINITY), 1.0f, "a masked tile moves nothing");
  cr_expect_eq(skv__rescale(-INFINITY, 3), 0.0f);
  cr_expect_eq(skv__rescale(3, 3), 1.0f);
  cr_expect_eq(skv__rescale(3, 5), 0.25f);
}

Test(state, an_lse_survives_the_way_in_and_out) {
  unsigned short random[3] = {1, 2, 3};
  for (int i = 0; i < 100000; ++i) {
    float lse = (float)((erand48(random) - 0.5) * (i % 2 ? 200 : 100000));
    skv__mass_t mass = skv__mass_from_lse(lse);
    double exact = log((double)mass.l) + (double)mass.e * 0.693147180559945309;
    cr_assert_float_eq(exact, (double)lse, 3e-7, "%a", (double)lse);
    cr_assert(mass.l >= 0.49f && mass.l <= 1.01f, "%a", (double)lse);
    float back = skv__state_lse(mass.e, mass.l);
    cr_assert_float_eq(back, lse, 5e-7f + 1e-7f * fabsf(lse), "%a", (double)lse);
  }
}

/* A sink is one more key, with value 0. */
Test(state, a_sink_takes_its_share) {
  const float sinks[] = {-3, 0, 2.5f, 40};
  for (size_t i = 0; i < sizeof sinks / sizeof sinks[0]; ++i) {
    state_t state = merged(merged(one_key(1, 2), one_key(-1, 5)), one_key(sinks[i], 0));
    double sum = exp(1) + exp(-1) + exp((double)sinks[i]);
    cr_expect_float_eq((double)output_of(state), (2 * exp(1) + 5 * exp(-1)) / sum, 1e-6);
    cr_expect_float_eq((double)skv__state_lse(state.e, state.l), log(sum), 1e-6 * log(sum) + 3e-7);
  }
  state_t keys = one_key(1, 2);
  state_t state = merged(keys, one_key(-INFINITY, 0));
  cr_expect(same_bits(&state, &keys), "a sink of -inf is no sink");
}

/* The values of docs/numerics.md: bits, so that no change of an operation goes unnoticed. */
Test(state, the_values_that_the_contract_lists) {
  cr_expect_eq(bits(skv__exp2(-0.3f)), 0x3f4fefc6u);
  cr_expect_eq(bits(skv__exp2(-20.7f)), 0x351d961eu);
  cr_expect_eq(bits(skv__exp(-1.0f)), 0x3ebc5ab1u);
  cr_expect_eq(bits(skv__log(10.0f)), 0x40135d8eu);
  cr_expect_eq(bits(skv__log(0x1p-149f)), 0xc2ce8ed0u);
  cr_expect_eq(bits(skv__tanh(0.3f)), 0x3e9526eeu);
  cr_expect_eq(bits(skv__tanh(1.0f)), 0x3f42f7d6u);
  cr_expect_eq(bits(skv__merge_value(skv__merge_weights(3, 5), 0.1f, 0.7f)), 0x3f399999u);
  skv__mass_t mass = skv__mass_from_lse(2.5f);
  cr_expect_eq(bits(mass.e), 0x40800000u);
  cr_expect_eq(bits(mass.l), 0x3f42eb7fu);
  mass = skv__mass_from_lse(-46340.95f);
  cr_expect_eq(bits(mass.e), 0xc7829380u);
  cr_expect_eq(bits(mass.l), 0x3f0d46a4u);
  skv__lse_weights_t weights = skv__lse_merge_weights(1.0f, 2.5f, SKV_LSE_NATURAL);
  cr_expect_eq(bits(weights.lse), 0x402ce3f4u);
  cr_expect_eq(bits(skv__lse_merge_value(weights, 0.1f, 0.7f)), 0x3f172df0u);
}
