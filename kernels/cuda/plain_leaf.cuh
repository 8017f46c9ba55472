/* plain_leaf.cuh: a leaf as the plain kernel computes it, for 16 rows of a warp. Three steps a tile
 * of keys: scores, weights, values. Rows and columns lie in lanes as in mma.cuh: a lane has two
 * rows, r = 0 and 1, and of 16 columns four pairs.
 *
 * fp16 and bf16 are the order of the Hopper kernels: products by tensor cores, softmax.cuh. fp32 is
 * the CPU's order "cpu-1", to the bit: one fmaf chain over head_dim, one over keys,
 * kernels/state.h.
 */
#ifndef SKV_CUDA_PLAIN_LEAF_CUH
#define SKV_CUDA_PLAIN_LEAF_CUH

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/softmax.cuh"

typedef struct fp32_type fp32_type;

enum {
  PLAIN_SLAB = 64,     /* columns of K or V that are in shared memory at a time */
  PLAIN_COLUMNS = 128, /* of V, for which a CTA has O in registers */
  PLAIN_ROW_PAD = 16   /* bytes after a row in shared memory: neighbours in other banks */
};

SKV_DEVICE int32_t lane_index(void) {
  return (int32_t)(threadIdx.x % 32);
}

/* ---- fp16 and bf16 ---- */

template <typename Type> struct plain_leaf {
  typedef uint16_t element;
  static constexpr int kPitch = PLAIN_SLAB + PLAIN_ROW_PAD / 2; /* of a slab, in elements */

  /* The leaf at hand; O[16][PLAIN_COLUMNS]. */
  template <int Keys> struct state {
    rows_t rows;
    float s[Keys / 2], o[PLAIN_COLUMNS / 2];
    uint32_t weights[Keys / 4];
  };

  template <int Keys> SKV_DEVICE void begin(state<Keys> &leaf) {
    leaf.rows = rows_empty();
  }

  /* s += q k, over `columns` columns of a slab. q: the warp's rows. */
  template <int Keys>
  SKV_DEVICE void scores(state<Keys> &leaf, const element *q, int32_t q_pitch, const element *slab,
                         int32_t columns) {
    const int32_t lane = lane_index();
    for (int32_t column = 0; column < columns; column += 16) {
      uint32_t a[4], b[4];
      load_matrices(a, q + lane % 16 * q_pitch + column + lane / 16 * 8);
#pragma unroll
      for (int key = 0; key < Keys; key += 16) {
        int32_t row = key + lane % 8 + lane / 16 * 8;
        load_matrices(b, slab + row * kPitch + column + lane / 8 % 2 * 8);
        mma<Type>(leaf.s + key / 2, a, b[0], b[1]);
        mma<Type>(leaf.s + key / 2 + 4, a, b[2], b[3]);
      }
    }
  }

  template <int Keys> SKV_DEVICE void cap(state<Keys> &leaf, float k) {
    cap_scores(leaf.s, k);
  }

  template <int Keys> SKV_DEVICE void weigh(state<Keys> &leaf, float c) {
    softmax_tile<Type, Keys>(leaf.weights, leaf.s, &leaf.rows, leaf.o, c, false);
  }

  /* o += weights v, for the slab's columns, the first of which is First. */
  template <int Keys, int First>
  SKV_DEVICE void values(state<Keys> &leaf, const element *slab, int32_t columns) {
    const int32_t lane = lane_index();
#pragma unroll
    for (int key = 0; key < Keys; key += 16) {
      uint32_t a[4] = {leaf.weights[key / 4], leaf.weights[key / 4 + 1], leaf.weights[key / 4 + 2],
                       leaf.weights[key / 4 + 3]};
      uint32_t b[4];
#pragma unroll
      for (int column = 0; column < PLAIN_SLAB; column += 16)
        if (column < columns) {
          load_transposed(b, slab + (key + lane % 16) * kPitch + column + lane / 16 * 8);
          mma<Type>(leaf.o + (First + column) / 2, a, b[0], b[1]);
          mma<Type>(leaf.o + (First + column) / 2 + 4, a, b[2], b[3]);
        }
    }
  }

  template <int Keys> SKV_DEVICE rows_t end(const state<Keys> &leaf) {
    rows_t rows = leaf.rows;
    leaf_end(&rows);
    return rows;
  }
};

/* ---- fp32 ---- */

template <> struct plain_leaf<fp32_type> {
  typedef float element;
  static constexpr int kPitch = PLAIN_SLAB + PLAIN_ROW_PAD / 4;

  /* Scores become weights where they are. l: of the row's 16 lanes (key mod 16), those of the
   * lane's columns: 2 (lane % 4), the next, and both + 8. */
  template <int Keys> struct state {
    float e[2], l[2][4];
    float s[Keys / 2], o[PLAIN_COLUMNS / 2];
  };

  template <int Keys> SKV_DEVICE void begin(state<Keys> &leaf) {
    leaf.e[0] = leaf.e[1] = skv__empty_exponent();
#pragma unroll
    for (int i = 0; i < 8; ++i)
      leaf.l[i / 4][i % 4] = 0.0f;
  }

  template <int Keys>
  SKV_DEVICE void scores(state<Keys> &leaf, const element *q, int32_t q_pitch, const element *slab,
                         int32_t columns) {
    const int32_t row = lane_index() / 4, key = lane_index() % 4 * 2;
    for (int32_t column = 0; column < columns; column += 4) {
      const float4 a0 = *(const float4 *)(q + row * q_pitch + column);
      const float4 a1 = *(const float4 *)(q + (row + 8) * q_pitch + column);
#pragma unroll
      for (int i = 0; i < Keys / 4; ++i) {
        const float4 b = *(const float4 *)(slab + (i / 2 * 8 + key + i % 2) * kPitch + column);
        chain(leaf.s[i / 2 * 4 + i % 2], a0, b);
        chain(leaf.s[i / 2 * 4 + 2 + i % 2], a1, b);
      }
    }
  }

  SKV_DEVICE void chain(float &sum, float4 a, float4 b) {
    sum = __fmaf_rn(a.x, b.x, sum);
    sum = __fmaf_rn(a.y, b.y, sum);
    sum = __fmaf_rn(a.z, b.z, sum);
    sum = __fmaf_rn(a.w, b.w, sum);
  }

  template <int Keys> SKV_DEVICE void cap(state<Keys> &leaf, float k) {
#pragma unroll
    for (int i = 0; i < Keys / 2; ++i)
      leaf.s[i] = skv__tanh(leaf.s[i] * k);
  }

  template <int Keys> SKV_DEVICE void weigh(state<Keys> &leaf, float c) {
    float most[2], factor[2], bias[2];
    row_maxima<Keys>(leaf.s, most);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float e = leaf.e[r], e_tile = skv__exponent(most[r] * c);
      leaf.e[r] = e > e_tile ? e : e_tile;
      factor[r] = skv__rescale(e, leaf.e[r]);
      bias[r] = bias_of(leaf.e[r]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        leaf.l[r][i] *= factor[r];
    }
#pragma unroll
    for (int i = 0; i < PLAIN_COLUMNS / 2; ++i)
      leaf.o[i] *= factor[i / 2 % 2];
#pragma unroll
    for (int i = 0; i < Keys / 2; ++i) {
      int r = i / 2 % 2;
      leaf.s[i] = skv__exp2(__fmaf_rn(leaf.s[i], c, bias[r]));
      leaf.l[r][i / 4 % 2 * 2 + i % 2] += leaf.s[i];
    }
  }

  template <int Keys, int First>
  SKV_DEVICE void values(state<Keys> &leaf, const element *slab, int32_t) {
    const element *v = slab + lane_index() % 4 * 2;
#pragma unroll
    for (int i = 0; i < Keys / 8; ++i)
#pragma unroll 1
      for (int32_t owner = 0; owner < 4; ++owner) /* of keys 8 i + 2 owner and the next */
#pragma unroll
        for (int next = 0; next < 2; ++next, v += kPitch) {
          float w0 = __shfl_sync(0xffffffff, leaf.s[4 * i + next], owner, 4);
          float w1 = __shfl_sync(0xffffffff, leaf.s[4 * i + 2 + next], owner, 4);
#pragma unroll
          for (int column = 0; column < PLAIN_SLAB; column += 8) {
            float2 b = *(const float2 *)(v + column);
            float *o = leaf.o + (First + column) / 2;
            o[0] = __fmaf_rn(w0, b.x, o[0]), o[1] = __fmaf_rn(w0, b.y, o[1]);
            o[2] = __fmaf_rn(w1, b.x, o[2]), o[3] = __fmaf_rn(w1, b.y, o[3]);
          }
        }
  }

  template <int Keys> SKV_DEVICE rows_t end(const state<Keys> &leaf) {
    rows_t rows;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float even = leaf.l[r][0] + leaf.l[r][2], odd = leaf.l[r][1] + leaf.l[r][3];
      even += __shfl_xor_sync(0xffffffff, even, 2), odd += __shfl_xor_sync(0xffffffff, odd, 2);
      even += __shfl_xor_sync(0xffffffff, even, 1), odd += __shfl_xor_sync(0xffffffff, odd, 1);
      rows.l[r] = skv__leaf_value(even + odd);
      rows.e[r] = skv__leaf_exponent(leaf.e[r], rows.l[r]);
    }
    return rows;
  }
};

#endif
