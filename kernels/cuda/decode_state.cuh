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
  /* Children of a node that are merged at once; more of large ones would not fit registers. */
  static constexpr int kRadix = Shape::kRows * (2 + kValues) <= 12 ? 16 : 2;
  float e[Shape::kRows], l[Shape::kRows], o[Shape::kRows][kValues];
};
template <class Shape> struct node { image<Shape> tiles[Shape::kRowTiles]; };

template <class Shape> SKV_DEVICE image<Shape> empty_image(void) {
  image<Shape> state;
#pragma unroll
  for (int h = 0; h < Shape::kRows; ++h) {
    state.e[h] = skv__empty_exponent(), state.l[h] = 0.0f;
#pragma unroll
    for (int i = 0; i < image<Shape>::kValues; ++i)
      state.o[h][i] = 0.0f;
  }
  return state;
}

/* right = merge(left, right) */
template <class Shape> SKV_DEVICE void merge_left(const image<Shape> &left, image<Shape> *right) {
#pragma unroll
  for (int h = 0; h < Shape::kRows; ++h) {
    skv__weights_t w = skv__merge_weights(left.e[h], right->e[h]);
    right->e[h] = w.e;
    right->l[h] = skv__merge_value(w, left.l[h], right->l[h]);
#pragma unroll
    for (int i = 0; i < image<Shape>::kValues; ++i)
      right->o[h][i] = skv__merge_value(w, left.o[h][i], right->o[h][i]);
  }
}

/* ---- states in scratch ---- */

template <class Shape> struct climber {
  const decode_params_t *p;
  int32_t slice;
  const decode_walk_t *walk;
};

/* Slot `k` of a piece, for row tile 0. */
template <class Shape>
SKV_DEVICE float4 *slot_of(const climber<Shape> &c, int32_t piece, int32_t k) {
  const decode_item_t &item = c.walk->item;
  int64_t index = (int64_t)(item.unit + piece - item.pieces.begin) * c.p->piece_slots + k;
  return c.p->slots +
         (index * Shape::kSlices + c.slice) * (Shape::kRowTiles * Shape::kVectors * 32) +
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

template <class Shape> SKV_DEVICE image<Shape> get_image(const float4 *slot) {
  image<Shape> state;
#pragma unroll
  for (int i = 0; i < Shape::kVectors; ++i) {
    const float4 four = __ldcg(slot + 32 * i);
    const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (4 * i + j < (int)(sizeof state / 4))
        ((float *)&state)[4 * i + j] = values[j];
  }
  return state;
}

template <class Shape> SKV_DEVICE void put_node(float4 *slot, const node<Shape> &state) {
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r)
    put_image<Shape>(slot + 32 * Shape::kVectors * r, state.tiles[r]);
}

/* state = merge(what is in the slot, state) */
template <class Shape> SKV_DEVICE void merge_slot(const float4 *slot, node<Shape> *state) {
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r)
    merge_left(get_image<Shape>(slot + 32 * Shape::kVectors * r), &state->tiles[r]);
}

#endif
