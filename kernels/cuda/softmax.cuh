/* softmax.cuh: the arithmetic of a leaf and of folding leaves, as every sm_90 kernel does it. A
 * warpgroup has 64 rows; each thread has columns of two of them, r = 0 and 1, in the accumulator
 * layout of wgmma.cuh; the four threads of a quad share a row. One order, whatever the kernel: bits
 * depend on nothing else. docs/numerics-gpu.md is the contract. */
#ifndef SKV_CUDA_SOFTMAX_CUH
#define SKV_CUDA_SOFTMAX_CUH

#include "kernels/cuda/wgmma.cuh"
#include "kernels/state.h"

/* Keys of a tile: part of the pinned order. `head_dim` is that of Q and K; V's does not matter. */
__host__ __device__ constexpr int64_t skv__tile_keys(int64_t head_dim) {
  return head_dim <= 128 ? 128 : 64;
}

/* From scores to base-2 logits: c s, or, under a softcap, c tanh(k s). */
typedef struct skv__logits {
  float c, k; /* k 0: no softcap */
} skv__logits_t;

static inline skv__logits_t skv__logits_of(float scale, float softcap) {
  const double log2e = 1.4426950408889634;
  if (softcap == 0.0f)
    return (skv__logits_t){(float)(scale * log2e), 0.0f};
  return (skv__logits_t){(float)(softcap * log2e), (float)((double)scale / softcap)};
}

/* (e, l) of the thread's two rows. Inside a leaf l is the thread's own part of the row's mass. */
typedef struct rows {
  float e[2], l[2];
} rows_t;

SKV_DEVICE rows_t rows_empty(void) {
  float e = skv__empty_exponent();
  return (rows_t){{e, e}, {0.0f, 0.0f}};
}

/* ---- in a leaf ---- */

/* tanh(x), odd to the bit; about 4 ulp. */
SKV_DEVICE float tanh_fast(float x) {
  float a = fabsf(x), square = a * a;
  float p = __fmaf_rn(SKV__TANH_C4, square, SKV__TANH_C3);
  p = __fmaf_rn(p, square, SKV__TANH_C2);
  p = __fmaf_rn(p, square, SKV__TANH_C1);
  p = __fmaf_rn(p, square, SKV__TANH_C0);
  float near = __fmaf_rn(a * square, p, a);
  float far = __fmaf_rn(-2.0f, reciprocal_fast(1.0f + exp2_fast(a * (2.0f * SKV__LOG2E))), 1.0f);
  return copysignf(a < SKV__TANH_SMALL ? near : far, x);
}

/* A softcap's part of the way from scores to logits, before any mask. */
template <int Count> SKV_DEVICE void cap_scores(float (&s)[Count], float k) {
#pragma unroll
  for (int i = 0; i < Count; ++i)
    s[i] = tanh_fast(s[i] * k);
}

/* Bit j says whether column j of the thread's N / 4 in a row is below `column`. */
template <int N> SKV_DEVICE uint32_t columns_below(int32_t column) {
  uint32_t within = (uint32_t)max(min(column, N), 0);
  uint32_t count = within / 8 * 2 + min(within % 8, 2);
  return count < 32 ? (1u << count) - 1 : ~0u;
}

/* Scores of keys outside [low, high) become -inf. `key` is the key of the thread's first column.
 * One bit a column, because comparing each with both ends took twice the time of the exponentials.
 */
template <int N>
SKV_DEVICE void mask_scores(float (&s)[N / 2], int32_t key, const int32_t (&low)[2],
                            const int32_t (&high)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    uint32_t seen = columns_below<N>(high[r] - key) & ~columns_below<N>(low[r] - key);
#pragma unroll
    for (int i = 2 * r; i < N / 2; i += 4)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        s[i + j] = seen >> (i / 4 * 2 + j) & 1 ? s[i + j] : skv__bits_float(SKV__MINUS_INF_BITS);
  }
}

template <int N, int Rows = 2>
SKV_DEVICE void row_maxima(const float (&s)[N / 2], float (&most)[2]) {
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    float even = s[2 * r], odd = s[2 * r + 1];
#pragma unroll
    for (int i = 4; i < N / 2; i += 4)
      even = fmaxf(even, s[i + 2 * r]), odd = fmaxf(odd, s[i + 2 * r + 1]);
    most[r] = fmaxf(even, odd);
    most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffff, most[r], 1));
    most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffff, most[r], 2));
  }
}

/* The exponent of a row is chosen at the first tile that it sees in a leaf, above the tile's
 * largest logit, and stays while no thread's weights of a tile sum to this: far from where weights
 * overflow, in fp16 too. So most tiles need no maximum, and O is rarely rescaled. */
#define WEIGHTS_MOST 0x1p14f

/* Weights 2^(s c + bias) of a tile: packed as the products' A operand, and summed in the order of
 * the thread's columns. Here and below, `Rows` 1: the thread's second row does not exist. */
template <typename Type, int N, int Rows = 2>
SKV_DEVICE void weigh_keys(uint32_t (&p)[N / 4], float (&sum)[2], const float (&s)[N / 2],
                           const float (&bias)[2], float c) {
  sum[0] = sum[1] = 0.0f;
#pragma unroll
  for (int i = 0; i < N / 2; i += 2) {
    int r = i / 2 % 2;
    if (r >= Rows)
      continue;
    float low = exp2_fast(__fmaf_rn(s[i], c, bias[r]));
    float high = exp2_fast(__fmaf_rn(s[i + 1], c, bias[r]));
    sum[r] += low;
    sum[r] += high;
    p[i / 2] = pack<Type>(low, high);
  }
}

/* Whether some thread of row r's quad says so. */
SKV_DEVICE bool any_in_quad(bool says) {
  return (__ballot_sync(0xffffffff, says) >> (threadIdx.x % 32 & 28) & 15) != 0;
}

SKV_DEVICE float bias_of(float e) {
  return skv__is_empty(e) ? 0.0f : -e;
}

/* A tile for which some row of the warp needs another exponent: those rows get theirs. `factor` is
 * what O must be multiplied by: exactly 1 where the exponent did not move. */
template <typename Type, int N, int Rows = 2>
SKV_DEVICE void raise_rows(uint32_t (&p)[N / 4], float (&sum)[2], const float (&s)[N / 2],
                           rows_t *rows, float (&factor)[2], float c) {
  float most[2], bias[2];
  row_maxima<N, Rows>(s, most);
  factor[1] = 1.0f;
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    float e = rows->e[r], e_tile = skv__exponent(most[r] * c);
    bool unfit = any_in_quad(!(sum[r] < WEIGHTS_MOST) || skv__is_empty(e));
    rows->e[r] = unfit && !(e > e_tile) ? e_tile : e;
    factor[r] = skv__rescale(e, rows->e[r]);
    rows->l[r] *= factor[r];
    bias[r] = bias_of(rows->e[r]);
  }
  weigh_keys<Type, N, Rows>(p, sum, s, bias, c);
}

/* One tile of N keys: scores become weights, rows and O advance. `fresh`: the leaf's first tile,
 * where rows are EMPTY and O is not looked at; it only saves work. */
template <typename Type, int N, int Rows = 2, int Count>
SKV_DEVICE void softmax_tile(uint32_t (&p)[N / 4], const float (&s)[N / 2], rows_t *rows,
                             float (&o)[Count], float c, bool fresh) {
  float sum[2] = {0.0f, 0.0f}, factor[2];
  bool fits = false;
  if (!fresh) {
    float bias[2] = {bias_of(rows->e[0]), bias_of(rows->e[1])};
    weigh_keys<Type, N, Rows>(p, sum, s, bias, c);
    fits = sum[0] < WEIGHTS_MOST && !skv__is_empty(rows->e[0]);
    if (Rows > 1)
      fits &= sum[1] < WEIGHTS_MOST && !skv__is_empty(rows->e[1]);
  }
  if (__builtin_expect(!__all_sync(0xffffffff, fits), 0)) {
    raise_rows<Type, N, Rows>(p, sum, s, rows, factor, c);
    if (!fresh)
#pragma unroll
      for (int i = 0; i < Count; ++i)
        o[i] *= factor[i / 2 % 2];
  }
  rows->l[0] += sum[0];
  if (Rows > 1)
    rows->l[1] += sum[1];
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
