/* decode_state.cuh: states in the decode kernel: as a warp's lanes hold them, merged, and waiting
 * in scratch. A lane has a slice of O's columns for its rows of an item. */
#ifndef SKV_CUDA_DECODE_STATE_CUH
#define SKV_CUDA_DECODE_STATE_CUH

#include "kernels/cuda/decode_shape.cuh"

/* What a value warp has of a leaf: in row tile r a lane has rows lane / 4 and 8 below. */
template <class Shape> struct part {
  rows_t rows[Shape::kRowTiles];
  float o[Shape::kRowTiles][Shape::kColumns / 2];
};

template <class Shape> SKV_DEVICE void empty_part(part<Shape> *state) {
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    state->rows[r] = rows_empty();
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 2; ++i)
      state->o[r][i] = 0.0f;
  }
}

/* A lane's share of a state in one row tile: of each of its rows e, l and a slice of O. */
template <class Shape> struct image {
  static constexpr int kValues = Shape::kColumns / 4; /* pairs of columns, every eighth */
  float e[Shape::kRows], l[Shape::kRows], o[Shape::kRows][kValues];
};

/* EMPTY rows have -0 for l and O: what is added to it stays as it is. */
template <class Shape> SKV_DEVICE void clear_if_empty(image<Shape> *state) {
#pragma unroll
  for (int h = 0; h < Shape::kRows; ++h) {
    const bool empty = skv__is_empty(state->e[h]);
    state->l[h] = empty ? -0.0f : state->l[h];
#pragma unroll
    for (int i = 0; i < image<Shape>::kValues; ++i)
      state->o[h][i] = empty ? -0.0f : state->o[h][i];
  }
}

template <class Shape> SKV_DEVICE image<Shape> empty_image(void) {
  image<Shape> state;
#pragma unroll
  for (int h = 0; h < Shape::kRows; ++h)
    state.e[h] = skv__empty_exponent();
  clear_if_empty(&state);
  return state;
}

/* right = merge(left, right): what skv__merge_weights and skv__merge_value say, but for the bits of
 * a NaN. 2^x is exact for whole x; the side of the larger exponent has the weight 1, and EMPTY adds
 * nothing to the other. */
template <class Shape> SKV_DEVICE void merge_left(const image<Shape> &left, image<Shape> *right) {
#pragma unroll
  for (int h = 0; h < Shape::kRows; ++h) {
    const float a = left.e[h], b = right->e[h];
    const bool first = a > b || skv__is_empty(b);
    const float weight = exp2_fast(fmaxf(-fabsf(a - b), -200.0f));
    const float wa = first ? 1.0f : weight, wb = first ? weight : 1.0f;
    right->e[h] = first ? a : b;
    right->l[h] = __fmaf_rn(right->l[h], wb, left.l[h] * wa);
#pragma unroll
    for (int i = 0; i < image<Shape>::kValues; ++i)
      right->o[h][i] = __fmaf_rn(right->o[h][i], wb, left.o[h][i] * wa);
  }
}

/* ---- states in scratch ---- */

/* What a warp climbs with: a slice of columns for one row tile of an item. */
template <class Shape> struct climber {
  const decode_params_t *p;
  const decode_walk_t *walk;
  int32_t slice, row_tile;
  float4 *held;
};

/* Slot `k` of a piece. */
template <class Shape>
SKV_DEVICE float4 *slot_of(const climber<Shape> &c, int32_t piece, int32_t k) {
  const decode_item_t &item = c.walk->item;
  int64_t index = (int64_t)(item.unit + piece - item.pieces.begin) * c.p->piece_slots + k;
  return c.p->slots +
         ((index * Shape::kSlices + c.slice) * Shape::kRowTiles + c.row_tile) *
             (Shape::kVectors * 32) +
         lane_index();
}

template <class Shape> SKV_DEVICE void put_image(float4 *slot, const image<Shape> &state) {
  float values[Shape::kVectors * 4];
#pragma unroll
  for (int i = 0; i < Shape::kVectors * 4; ++i)
    values[i] = i < (int)(sizeof state / 4) ? ((const float *)&state)[i] : 0.0f;
#pragma unroll
  for (int i = 0; i < Shape::kVectors; ++i)
    slot[32 * i] =
        make_float4(values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3]);
}

/* What the lane itself, or another CTA, has put there. */
template <class Shape, bool Others = false> SKV_DEVICE image<Shape> image_at(const float4 *slot) {
  image<Shape> state;
#pragma unroll
  for (int i = 0; i < Shape::kVectors; ++i) {
    const float4 four = Others ? __ldcg(slot + 32 * i) : slot[32 * i];
    const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (4 * i + j < (int)(sizeof state / 4))
        ((float *)&state)[4 * i + j] = values[j];
  }
  return state;
}

template <class Shape>
SKV_DEVICE image<Shape> either(bool first, const image<Shape> &a, const image<Shape> &b) {
  image<Shape> out;
#pragma unroll
  for (int i = 0; i < (int)(sizeof out / 4); ++i)
    ((float *)&out)[i] = first ? ((const float *)&a)[i] : ((const float *)&b)[i];
  return out;
}

#endif
