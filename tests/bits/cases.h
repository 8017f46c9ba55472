/* cases.h: random and special inputs to everything in state.h, lse.h and convert.h, and a hash of
 * the results. Cases are added modulo 2^64, so that they may run in any order, on any device. */
#ifndef BITS_CASES_H
#define BITS_CASES_H

#include "kernels/convert.h"
#include "kernels/lse.h"

#define BITS_DIM 3

SKV_FN uint64_t bits_mix(uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

SKV_FN uint64_t bits_draw(uint64_t *state) {
  *state += 0x9e3779b97f4a7c15u;
  return bits_mix(*state);
}

SKV_FN void bits_add(uint64_t *hash, float value) {
  *hash = bits_mix(*hash ^ skv__float_bits(value)) + 1;
}

SKV_FN float bits_special(uint64_t draw) {
  const uint32_t specials[] = {
      0x00000000u, 0x80000000u, 0x3f800000u, 0xbf800000u, 0x7f800000u, 0xff800000u, 0x7fc00000u,
      0xffc12345u, 0x00000001u, 0x80000001u, 0x007fffffu, 0x00800000u, 0x7f7fffffu, 0xff7fffffu,
      0xc2fc0000u, 0xc2fc0001u, 0xc2aeac4fu, 0xc2aeac50u, 0x3f000000u, 0x3f200000u, 0x3f1fffffu,
      0x3f3504f3u, 0x3f3504f2u, 0x4b800000u, 0x4e800000u, 0xce800001u, 0x477fefffu, 0x477ff000u,
      0x33000000u, 0x33000001u, 0x3fc00000u, 0x387fffffu};
  return skv__bits_float(specials[draw % (sizeof specials / sizeof specials[0])]);
}

/* A float of some kind: any bits, special, an exponent's argument, near 1, tiny, or large. */
SKV_FN float bits_float(uint64_t *state) {
  uint64_t draw = bits_draw(state);
  uint32_t low = (uint32_t)(draw >> 32);
  float unit = (float)(low >> 8) * 0x1p-24f;
  switch (draw & 7) {
  case 0:
    return skv__bits_float(low);
  case 1:
    return bits_special(low);
  case 2:
    return unit * -130.0f + 2.0f;
  case 3:
    return skv__bits_float((low & 0x80000000u) | (low & 0x7fffffu)); /* denormal */
  case 4:
    return (unit - 0.5f) * 1e5f;
  case 5:
    return skv__bits_float((low & 0x80ffffffu) | 0x3f000000u);
  default:
    return (unit - 0.5f) * 4.0f;
  }
}

/* The exponent of a state: mostly near others, now and then EMPTY, NaN, +inf or far away. */
SKV_FN float bits_exponent(uint64_t *state) {
  uint64_t draw = bits_draw(state);
  uint32_t kind = (uint32_t)(draw & 15);
  if (kind == 0)
    return skv__empty_exponent();
  if (kind == 1)
    return skv__exponent(bits_special(draw >> 8));
  return (float)(int32_t)(draw >> 8 & 511) - (kind == 2 ? 66000.0f : 256.0f);
}

SKV_FN void bits_functions(uint64_t *state, uint64_t *hash) {
  float x = bits_float(state);
  float y = bits_float(state);
  bits_add(hash, skv__exp2(x));
  bits_add(hash, skv__exp(x));
  bits_add(hash, skv__log(y));
  bits_add(hash, skv__tanh(x));
  bits_add(hash, skv__leaf_value(y));
  float e_old = skv__exponent(x);
  float e_new = skv__exponent(y);
  bits_add(hash, e_old);
  bits_add(hash, skv__leaf_exponent(e_old, y));
  bits_add(hash, skv__rescale(e_old, e_new > e_old ? e_new : e_old));
  bits_add(hash, (float)skv__narrow_fp16(x));
  bits_add(hash, (float)skv__narrow_bf16(y));
  uint16_t half = (uint16_t)bits_draw(state);
  bits_add(hash, skv__widen_fp16(half));
  bits_add(hash, skv__widen_bf16(half));
}

SKV_FN void bits_merges(uint64_t *state, uint64_t *hash) {
  float left[BITS_DIM], right[BITS_DIM];
  for (int d = 0; d < BITS_DIM; ++d) {
    left[d] = bits_float(state);
    right[d] = bits_float(state);
  }
  float left_e = bits_exponent(state), left_l = bits_float(state);
  float right_e = bits_exponent(state), right_l = bits_float(state);
  skv__merge_row(left, &left_e, &left_l, right, right_e, right_l, BITS_DIM);
  bits_add(hash, left_e);
  bits_add(hash, left_l);
  bits_add(hash, skv__state_lse(left_e, left_l));
  for (int d = 0; d < BITS_DIM; ++d) {
    bits_add(hash, left[d]);
    bits_add(hash, skv__state_output(left_e, left_l, left[d]));
  }
}

SKV_FN void bits_partials(uint64_t *state, uint64_t *hash) {
  float left = bits_float(state), right = bits_float(state);
  for (int base = 0; base < 2; ++base) {
    skv_lse_base_t lse_base = base ? SKV_LSE_BASE2 : SKV_LSE_NATURAL;
    skv__mass_t mass = skv__mass_from_partial(left, lse_base);
    bits_add(hash, mass.e);
    bits_add(hash, mass.l);
    bits_add(hash, skv__partial_lse(mass.e, mass.l, lse_base));
    skv__lse_weights_t weights = skv__lse_merge_weights(left, right, lse_base);
    bits_add(hash, skv__canonical(weights.lse));
    bits_add(hash, skv__canonical(weights.left));
    bits_add(hash, skv__lse_merge_value(weights, right, left));
  }
}

SKV_FN uint64_t bits_case(uint64_t index) {
  uint64_t state = bits_mix(index + 1);
  uint64_t hash = index;
  bits_functions(&state, &hash);
  bits_merges(&state, &hash);
  bits_partials(&state, &hash);
  return hash;
}

#endif
