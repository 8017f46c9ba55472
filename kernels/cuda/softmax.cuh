/* softmax.cuh: the arithmetic of a leaf and of folding leaves, as every sm_90 kernel does it. A
 * warpgroup has 64 rows; each thread has columns of two of them, r = 0 and 1, in the accumulator
 * layout of wgmma.cuh; the four threads of a quad share a row. One order, whatever the kernel: bits
 * depend on nothing else. docs/numerics-sm90.md is the contract. */
#ifndef SKV_CUDA_SOFTMAX_CUH
#define SKV_CUDA_SOFTMAX_CUH

#include "kernels/cuda/wgmma.cuh"
#include "kernels/state.h"

/* (e, l) of the thread's two rows. Inside a leaf l is the thread's own part of the row's mass. */
typedef struct rows {
  float e[2], l[2];
} rows_t;

SKV_DEVICE rows_t rows_empty(void) {
  float e = skv__empty_exponent();
  return (rows_t){{e, e}, {0.0f, 0.0f}};
}

/* ---- in a leaf ---- */

/* Scores of keys outside [low, high) become -inf. `key` is the key of the thread's first column. */
template <int N>
SKV_DEVICE void mask_scores(float (&s)[N / 2], int32_t key, const int32_t (&low)[2],
                            const int32_t (&high)[2]) {
  int32_t from[2] = {low[0] - key, low[1] - key}, to[2] = {high[0] - key, high[1] - key};
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    int column = 8 * (i / 4) + i % 2, r = i / 2 % 2;
    bool seen = column >= from[r] && column < to[r];
    s[i] = seen ? s[i] : skv__bits_float(SKV__MINUS_INF_BITS);
  }
}

template <int N> SKV_DEVICE void row_maxima(const float (&s)[N / 2], float (&most)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float even = s[2 * r], odd = s[2 * r + 1];
#pragma unroll
    for (int i = 4; i < N / 2; i += 4)
      even = fmaxf(even, s[i + 2 * r]), odd = fmaxf(odd, s[i + 2 * r + 1]);
    most[r] = fmaxf(even, odd);
    most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffff, most[r], 1));
    most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffff, most[r], 2));
  }
}

/* skv__exponent and skv__rescale by selection: a branch between issuing products and waiting for
 * them makes the compiler wait at once. */
SKV_DEVICE float exponent_of(float t) {
  float e = ceilf(t) + 0.0f;
  e = t < -SKV__EXPONENT_LIMIT && t >= -FLT_MAX ? -SKV__EXPONENT_LIMIT : e;
  e = t > SKV__EXPONENT_LIMIT ? skv__bits_float(SKV__INF_BITS) : e;
  return e == e ? e : skv__bits_float(SKV__NAN_BITS);
}
SKV_DEVICE float rescale_of(float e_old, float e_new) {
  float d = e_old - e_new;
  float clamped = d > -127.0f ? d : -127.0f;
  float power = skv__bits_float((uint32_t)(__float2int_rz(clamped) + 127) << 23);
  power = d == d ? power : skv__bits_float(SKV__NAN_BITS);
  return e_old == e_new ? 1.0f : power;
}

/* One tile of N keys: scores become weights 2^(s c - e), rows advance, `factor` is what O must be
 * multiplied by before the tile's products are added: exactly 1 where the exponent did not move. */
template <int N>
SKV_DEVICE void softmax_tile(float (&s)[N / 2], rows_t *rows, float (&factor)[2], float c) {
  float most[2], bias[2];
  row_maxima<N>(s, most);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float e_tile = exponent_of(most[r] * c), e_old = rows->e[r];
    rows->e[r] = e_old > e_tile ? e_old : e_tile;
    factor[r] = rescale_of(e_old, rows->e[r]);
    bias[r] = skv__is_empty(rows->e[r]) ? 0.0f : -rows->e[r];
    rows->l[r] *= factor[r];
  }
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    int r = i / 2 % 2;
    s[i] = exp2_fast(__fmaf_rn(s[i], c, bias[r]));
    rows->l[r] += s[i];
  }
}

template <typename Type, int N>
SKV_DEVICE void pack_weights(uint32_t (&p)[N / 4], const float (&s)[N / 2]) {
#pragma unroll
  for (int i = 0; i < N / 4; ++i)
    p[i] = pack<Type>(s[2 * i], s[2 * i + 1]);
}

template <int Count> SKV_DEVICE void scale_rows(float (&o)[Count], const float (&factor)[2]) {
  if (!__any_sync(0xffffffff, factor[0] != 1.0f || factor[1] != 1.0f))
    return;
#pragma unroll
  for (int i = 0; i < Count; ++i)
    o[i] *= factor[i / 2 % 2];
}

/* ---- where a leaf ends ---- */

/* The mass of the row from its four threads, and what skv__leaf_exponent says. O is left as it is:
 * merging adds it to a sum that is never -0, which does what leaf_value would. */
SKV_DEVICE void leaf_end(rows_t *rows) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float l = rows->l[r];
    l += __shfl_xor_sync(0xffffffff, l, 1);
    l += __shfl_xor_sync(0xffffffff, l, 2);
    rows->l[r] = skv__leaf_value(l);
    rows->e[r] = skv__leaf_exponent(rows->e[r], rows->l[r]);
  }
}

/* rows = merge(left, rows); the weights for O. An EMPTY side has O = 0, so that weights 1 and 0
 * keep the other side bit for bit. */
SKV_DEVICE void merge_rows(const rows_t *left, rows_t *rows, float (&wl)[2], float (&wr)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    skv__weights_t w = skv__merge_weights(left->e[r], rows->e[r]);
    rows->e[r] = w.e;
    rows->l[r] = skv__merge_value(w, left->l[r], rows->l[r]);
    wl[r] = w.keep == SKV__KEEP_LEFT ? 1.0f : w.keep == SKV__KEEP_RIGHT ? 0.0f : w.left;
    wr[r] = w.keep == SKV__KEEP_LEFT ? 0.0f : w.keep == SKV__KEEP_RIGHT ? 1.0f : w.right;
  }
}

#endif
