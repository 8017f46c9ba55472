/* state.h: the state algebra. One source for gcc, clang and nvcc; the same bits from all of them.
 *
 * A state of a row is (e, l, O): e an integer-valued exponent of two, l a mass, O an unnormalised
 * output, all fp32. It stands for the keys it has seen: sum_j exp(x_j) = l * 2^e and
 * sum_j exp(x_j) v_j = O * 2^e. EMPTY is e = -inf, judged by e alone. docs/numerics.md is the
 * contract.
 *
 * Every function here is a sequence of IEEE additions, multiplications, fused multiply-adds,
 * comparisons with selection, and bit operations. Lane versions repeat the sequence with the
 * SKV__* constants, operation by operation, so that each lane has the scalar's bits. A NaN's
 * payload is the one thing lanes need not repeat: it becomes SKV__NAN_BITS where a leaf ends.
 *
 * Compile with -ffp-contract=off (nvcc: -fmad=false -ftz=false -prec-div=true), and never with
 * flush-to-zero.
 */
#ifndef SKV_STATE_H
#define SKV_STATE_H

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__)
#error "splitkv's bits are IEEE arithmetic as written: compile without -ffast-math"
#endif

#if defined(__CUDACC__)
#define SKV_FN static __host__ __device__ __forceinline__
#else
#define SKV_FN static inline
#endif

#if !defined(__CUDA_ARCH__)
static_assert(FLT_EVAL_METHOD == 0, "float expressions must be evaluated in float");
#endif

#define SKV__NAN_BITS 0x7fc00000u
#define SKV__INF_BITS 0x7f800000u
#define SKV__MINUS_INF_BITS 0xff800000u
#define SKV__EXPONENT_LIMIT 0x1p30f /* largest |e| */

/* log2(e) and ln(2), each as the nearest fp32 and the fp32 nearest to what is left. */
#define SKV__LOG2E 0x1.715476p+0f
#define SKV__LOG2E_LOW 0x1.4ae0cp-26f
#define SKV__LN2 0x1.62e43p-1f
#define SKV__LN2_LOW (-0x1.05c61p-29f)

/* exp2: adding the magic number rounds to an integer n and leaves n + 127 in the low bits. */
#define SKV__EXP2_MAGIC 0x1.8000fep+23f
#define SKV__EXP2_LOWEST (-126.0f)
#define SKV__EXP2_C1 0x1.62e432p-1f
#define SKV__EXP2_C2 0x1.ebfbe6p-3f
#define SKV__EXP2_C3 0x1.c6ada6p-5f
#define SKV__EXP2_C4 0x1.3b21c8p-7f
#define SKV__EXP2_C5 0x1.5f89f6p-10f
#define SKV__EXP2_C6 0x1.48a5d4p-13f
#define SKV__EXP_LOWEST (-0x1.5d589ep+6f) /* the fp32 just above -126 ln 2 */

/* log(1 + f) = f - f^2 / 2 + f^3 (C0 + C1 f + ...) for sqrt(1/2) <= 1 + f < sqrt(2) */
#define SKV__LOG_SQRT_HALF_BITS 0x3f3504f3u
#define SKV__LOG_C0 0x1.555548p-2f
#define SKV__LOG_C1 (-0x1.00007p-2f)
#define SKV__LOG_C2 0x1.99a54p-3f
#define SKV__LOG_C3 (-0x1.552f18p-3f)
#define SKV__LOG_C4 0x1.23036cp-3f
#define SKV__LOG_C5 (-0x1.0103bcp-3f)
#define SKV__LOG_C6 0x1.f0105ep-4f
#define SKV__LOG_C7 (-0x1.bf9798p-4f)
#define SKV__LOG_C8 0x1.b6401cp-5f

/* tanh(x) = x + x^3 (C0 + C1 x^2 + ...) for |x| < 5/8 */
#define SKV__TANH_SMALL 0.625f
#define SKV__TANH_EXP2_SCALE (-0x1.715476p+1f) /* -2 log2(e) */
#define SKV__TANH_C0 (-0x1.555534p-2f)
#define SKV__TANH_C1 0x1.11075ep-3f
#define SKV__TANH_C2 (-0x1.b842c4p-5f)
#define SKV__TANH_C3 0x1.524c4p-6f
#define SKV__TANH_C4 (-0x1.767a14p-8f)

/* ---- bits, and the two operations that compilers must not choose themselves ---- */

SKV_FN uint32_t skv__float_bits(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

SKV_FN float skv__bits_float(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

SKV_FN float skv__fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return fmaf(a, b, c);
#endif
}

SKV_FN float skv__divide(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

/* Every NaN becomes one NaN; other values are kept, bit for bit. */
SKV_FN float skv__canonical(float value) {
  return value == value ? value : skv__bits_float(SKV__NAN_BITS);
}

/* ---- functions ---- */

/* 2^d for an integer-valued d <= 0; 0 below -126; NaN for NaN. */
SKV_FN float skv__pow2(float d) {
  float clamped = d > -127.0f ? d : -127.0f; /* NaN too: the conversion must be defined */
  float power = skv__bits_float((uint32_t)((int32_t)clamped + 127) << 23);
  return d == d ? power : skv__bits_float(SKV__NAN_BITS);
}

/* 2^f for |f| <= 1/2 and a little more; exactly 1 at 0. */
SKV_FN float skv__exp2_fraction(float f) {
  float p = skv__fma(SKV__EXP2_C6, f, SKV__EXP2_C5);
  p = skv__fma(p, f, SKV__EXP2_C4);
  p = skv__fma(p, f, SKV__EXP2_C3);
  p = skv__fma(p, f, SKV__EXP2_C2);
  p = skv__fma(p, f, SKV__EXP2_C1);
  return skv__fma(p, f, 1.0f);
}

/* 2^x for x < 127, exactly 0 for x < -126 (results are never denormal), NaN for NaN and +inf.
 * Within 2 ulp; exact where x is an integer. */
SKV_FN float skv__exp2(float x) {
  float shifted = x + SKV__EXP2_MAGIC;
  float f = x - (shifted - SKV__EXP2_MAGIC);
  float value = skv__exp2_fraction(f) * skv__bits_float(skv__float_bits(shifted) << 23);
  return skv__canonical(x < SKV__EXP2_LOWEST ? 0.0f : value);
}

/* e^x for x < 88, with two-part reduction; 0 below -126 ln 2, otherwise like exp2. */
SKV_FN float skv__exp(float x) {
  float shifted = skv__fma(x, SKV__LOG2E, SKV__EXP2_MAGIC);
  float f = skv__fma(x, SKV__LOG2E, -(shifted - SKV__EXP2_MAGIC));
  f = skv__fma(x, SKV__LOG2E_LOW, f);
  float value = skv__exp2_fraction(f) * skv__bits_float(skv__float_bits(shifted) << 23);
  return skv__canonical(x < SKV__EXP_LOWEST ? 0.0f : value);
}

SKV_FN float skv__log_polynomial(float f) {
  float p = skv__fma(SKV__LOG_C8, f, SKV__LOG_C7);
  p = skv__fma(p, f, SKV__LOG_C6);
  p = skv__fma(p, f, SKV__LOG_C5);
  p = skv__fma(p, f, SKV__LOG_C4);
  p = skv__fma(p, f, SKV__LOG_C3);
  p = skv__fma(p, f, SKV__LOG_C2);
  p = skv__fma(p, f, SKV__LOG_C1);
  return skv__fma(p, f, SKV__LOG_C0);
}

/* Natural logarithm: denormals included, -inf for 0, NaN below 0, +inf for +inf. Within 2 ulp;
 * exactly 0 for 1. */
SKV_FN float skv__log(float x) {
  bool small = x < FLT_MIN;
  float scaled = small ? x * 0x1p23f : x;
  uint32_t offset = skv__float_bits(scaled) - SKV__LOG_SQRT_HALF_BITS;
  float f = skv__bits_float((offset & 0x7fffffu) + SKV__LOG_SQRT_HALF_BITS) - 1.0f;
  float e = (float)((int32_t)(offset >> 23) - (offset >> 31 ? 512 : 0) - (small ? 23 : 0));
  float square = f * f;
  float tail = (f * square) * skv__log_polynomial(f);
  tail = skv__fma(e, SKV__LN2_LOW, tail);
  tail = skv__fma(-0.5f, square, tail);
  float value = skv__fma(e, SKV__LN2, f + tail);
  if (x == 0.0f)
    return skv__bits_float(SKV__MINUS_INF_BITS);
  value = x > FLT_MAX ? x : value;
  return x > 0.0f ? value : skv__bits_float(SKV__NAN_BITS);
}

/* Within 2 ulp; odd to the bit; NaN for NaN. */
SKV_FN float skv__tanh(float x) {
  uint32_t sign = skv__float_bits(x) & 0x80000000u;
  float a = skv__bits_float(skv__float_bits(x) ^ sign);
  float square = a * a;
  float p = skv__fma(SKV__TANH_C4, square, SKV__TANH_C3);
  p = skv__fma(p, square, SKV__TANH_C2);
  p = skv__fma(p, square, SKV__TANH_C1);
  p = skv__fma(p, square, SKV__TANH_C0);
  float near = skv__fma(a * square, p, a);
  float t = skv__exp2(a * SKV__TANH_EXP2_SCALE);
  float far = 1.0f - skv__divide(t + t, 1.0f + t);
  float magnitude = a < SKV__TANH_SMALL ? near : far;
  return skv__canonical(skv__bits_float(skv__float_bits(magnitude) | sign));
}

/* ---- inside a leaf ---- */

/* The exponent of a largest base-2 logit t: the integer above it. Never -0, so that it does not
 * matter which of 0 and -0 a maximum kept. -inf (no visible key) stays. Outside +-2^30 the residual
 * t - e no longer fits an exponent: above it the row becomes NaN, below it its mass becomes 0. */
SKV_FN float skv__exponent(float t) {
  float e = skv__canonical(ceilf(t) + 0.0f);
  if (t > SKV__EXPONENT_LIMIT)
    return skv__bits_float(SKV__INF_BITS);
  return t < -SKV__EXPONENT_LIMIT && t >= -FLT_MAX ? -SKV__EXPONENT_LIMIT : e;
}

/* What O and l are multiplied by when the exponent rises from e_old to e_new: exactly 1 when it
 * does not, EMPTY (-inf to -inf) included. */
SKV_FN float skv__rescale(float e_old, float e_new) {
  return e_old == e_new ? 1.0f : skv__pow2(e_old - e_new);
}

/* How a leaf ends: no -0, one NaN. A row whose mass is NaN (a NaN or +inf logit) has e NaN too:
 * it must never be judged EMPTY, nor depend on where the NaN stood. */
SKV_FN float skv__leaf_value(float value) {
  return skv__canonical(value + 0.0f);
}
SKV_FN float skv__leaf_exponent(float e, float l) {
  return l == l ? skv__canonical(e) : skv__bits_float(SKV__NAN_BITS);
}

/* ---- merging ---- */

SKV_FN float skv__empty_exponent(void) {
  return skv__bits_float(SKV__MINUS_INF_BITS);
}
SKV_FN bool skv__is_empty(float e) {
  return e == skv__bits_float(SKV__MINUS_INF_BITS);
}

typedef enum skv__keep { SKV__KEEP_BOTH, SKV__KEEP_LEFT, SKV__KEEP_RIGHT } skv__keep_t;

/* How two states of a row merge. Merging with EMPTY returns the other bit for bit: the guard
 * decides, no arithmetic touches the values. */
typedef struct skv__weights {
  skv__keep_t keep;
  float e;           /* of the result */
  float left, right; /* for SKV__KEEP_BOTH */
} skv__weights_t;

SKV_FN skv__weights_t skv__merge_weights(float left_e, float right_e) {
  skv__weights_t weights;
  bool right_empty = skv__is_empty(right_e);
  bool left_empty = skv__is_empty(left_e);
  float e = left_e > right_e ? left_e : right_e;
  weights.left = skv__pow2(left_e - e);
  weights.right = skv__pow2(right_e - e);
  weights.keep = right_empty ? SKV__KEEP_LEFT : left_empty ? SKV__KEEP_RIGHT : SKV__KEEP_BOTH;
  weights.e = right_empty ? left_e : left_empty ? right_e : skv__canonical(e);
  return weights;
}

/* l, or one element of O, of the merged state. */
SKV_FN float skv__merge_value(skv__weights_t weights, float left, float right) {
  if (weights.keep == SKV__KEEP_LEFT)
    return left;
  if (weights.keep == SKV__KEEP_RIGHT)
    return right;
  return skv__canonical(skv__fma(right, weights.right, left * weights.left));
}

/* left = merge(left, right) for one row; left covers the lower positions. */
SKV_FN void skv__merge_row(float *left_o, float *left_e, float *left_l, const float *right_o,
                           float right_e, float right_l, int64_t dim) {
  skv__weights_t weights = skv__merge_weights(*left_e, right_e);
  *left_e = weights.e;
  *left_l = skv__merge_value(weights, *left_l, right_l);
  if (weights.keep == SKV__KEEP_LEFT)
    return;
  for (int64_t d = 0; d < dim; ++d)
    left_o[d] = skv__merge_value(weights, left_o[d], right_o[d]);
}

/* ---- the root: from a state to (O, LSE) ---- */

/* A mass of 0 (all keys below the range of exponents) is NaN here as in the output: -inf would say
 * EMPTY. */
SKV_FN float skv__state_lse(float e, float l) {
  if (skv__is_empty(e))
    return e;
  float lse = skv__canonical(skv__fma(e, SKV__LN2, skv__log(l)));
  return l == 0.0f ? skv__bits_float(SKV__NAN_BITS) : lse;
}

SKV_FN float skv__state_output(float e, float l, float o) {
  return skv__is_empty(e) ? 0.0f : skv__canonical(skv__divide(o, l));
}

/* ---- from (O, LSE) to a state ---- */

typedef struct skv__mass {
  float e, l;
} skv__mass_t;

/* The mass exp(lse), natural log: EMPTY for -inf; NaN for NaN and +inf. With O = output * l this
 * is the state of (output, lse). With O = 0 it is the state of a sink logit, or of one key with
 * value 0. */
SKV_FN skv__mass_t skv__mass_from_lse(float lse) {
  skv__mass_t mass;
  mass.e = skv__exponent(lse * SKV__LOG2E);
  float t = skv__fma(lse, SKV__LOG2E, -mass.e);
  mass.l = skv__exp2(skv__fma(lse, SKV__LOG2E_LOW, t));
  if (skv__is_empty(lse))
    mass.l = 0.0f;
  mass.e = skv__leaf_exponent(mass.e, mass.l);
  return mass;
}

#endif
