/* lse.h: partial results as other libraries pass them, a normalised O and one LSE a row. Merging
 * them rounds at every step; states (state.h) do not. Natural log or base 2; some kernels write
 * +inf for a row without keys (FlashAttention-2), which means the same as -inf here. */
#ifndef SKV_LSE_H
#define SKV_LSE_H

#include "kernels/state.h"
#include "skv.h"

/* An LSE as given, with one spelling of empty. */
SKV_FN float skv__lse_given(float lse) {
  return lse > FLT_MAX ? skv__empty_exponent() : lse;
}

/* ---- to a state and back: O = output * l, output = skv__state_output(e, l, O) ---- */

SKV_FN skv__mass_t skv__mass_from_partial(float lse, skv_lse_base_t base) {
  lse = skv__lse_given(lse);
  if (base == SKV_LSE_NATURAL || skv__is_empty(lse))
    return skv__mass_from_lse(lse);
  skv__mass_t mass;
  mass.e = skv__exponent(lse);
  mass.l = skv__exp2(lse - mass.e);
  mass.e = skv__leaf_exponent(mass.e, mass.l);
  return mass;
}

SKV_FN float skv__partial_lse(float e, float l, skv_lse_base_t base) {
  if (base == SKV_LSE_NATURAL || skv__is_empty(e))
    return skv__state_lse(e, l);
  return skv__canonical(skv__fma(skv__log(l), SKV__LOG2E, e));
}

/* ---- merging two of them ---- */

typedef struct skv__lse_weights {
  skv__keep_t keep;
  float lse;         /* of the result; -inf: both are empty, and O is 0 */
  float left, right; /* for SKV__KEEP_BOTH; they add up to 1 */
} skv__lse_weights_t;

/* Scale first, then multiply: the weights are divided by their sum before they meet O, so that
 * nothing overflows that is not an overflow of the result. */
SKV_FN skv__lse_weights_t skv__lse_merge_weights(float left_lse, float right_lse,
                                                 skv_lse_base_t base) {
  skv__lse_weights_t weights;
  left_lse = skv__lse_given(left_lse);
  right_lse = skv__lse_given(right_lse);
  weights.left = weights.right = 0.0f;
  weights.keep = SKV__KEEP_LEFT;
  weights.lse = left_lse;
  if (skv__is_empty(right_lse))
    return weights;
  weights.keep = SKV__KEEP_RIGHT;
  weights.lse = right_lse;
  if (skv__is_empty(left_lse))
    return weights;
  bool natural = base == SKV_LSE_NATURAL;
  float largest = left_lse > right_lse ? left_lse : right_lse;
  float left = left_lse - largest;
  float right = right_lse - largest;
  left = natural ? skv__exp(left) : skv__exp2(left);
  right = natural ? skv__exp(right) : skv__exp2(right);
  float sum = left + right;
  weights.keep = SKV__KEEP_BOTH;
  weights.left = skv__divide(left, sum);
  weights.right = skv__divide(right, sum);
  float log_sum = skv__log(sum);
  weights.lse = skv__canonical(largest + (natural ? log_sum : log_sum * SKV__LOG2E));
  return weights;
}

SKV_FN float skv__lse_merge_value(skv__lse_weights_t weights, float left, float right) {
  return skv__canonical(skv__fma(right, weights.right, left * weights.left));
}

#endif
