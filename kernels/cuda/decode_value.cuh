/* decode_value.cuh: the value warps of the decode kernel: weights times values, leaf after leaf,
 * and from there up the tree. */
#ifndef SKV_CUDA_DECODE_VALUE_CUH
#define SKV_CUDA_DECODE_VALUE_CUH

#include "kernels/cuda/decode_climb.cuh"

/* Keys that no row sees may hold anything, and a weight of 0 does not hide a NaN: the warp's
 * columns of those outside [from, to) become 0. */
template <class Shape>
SKV_DEVICE void clear_values(uint8_t *slab, uint32_t chunk, int32_t from, int32_t to) {
  constexpr int kChunks = Shape::kColumns / 8;
  for (int32_t i = (int32_t)lane_index(); i < Shape::kKeys * kChunks; i += 32) {
    const int32_t key = i / kChunks;
    const uint32_t at = (uint32_t)key * Shape::kPitch + (chunk + (uint32_t)(i % kChunks)) * 16;
    if (key < from || key >= to)
      *(uint4 *)(slab + (at ^ (at >> 7 & (Shape::kPitch / 16 - 1)) << 4)) = make_uint4(0, 0, 0, 0);
  }
  __syncwarp();
}

/* A operand `i` of a tile's products. */
template <class Shape>
SKV_DEVICE void get_weights(uint32_t (&weights)[4], const entry_of<Shape, false> &from, int i) {
  const uint4 four = from.weights[i][lane_index()];
  weights[0] = four.x, weights[1] = four.y, weights[2] = four.z, weights[3] = four.w;
}
template <class Shape>
SKV_DEVICE void get_weights(uint32_t (&weights)[4], const entry_of<Shape, true> &from, int i) {
  const uint2 two = ((const uint2 *)&from.weights[i / 2][lane_index()])[i % 2];
  weights[0] = two.x, weights[2] = two.y;
  weights[1] = weights[3] = 0;
}

/* What 16 keys of a tile are multiplied by and with. */
template <class Shape> struct value_step {
  uint32_t weights[Shape::kRowTiles][4], values[Shape::kColumns / 16][4];
};

template <class Shape>
SKV_DEVICE void multiply_step(part<Shape> *state, const value_step<Shape> &step) {
#pragma unroll
  for (int j = 0; j < Shape::kColumns / 16; ++j)
#pragma unroll
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      const uint32_t(&m)[4] = step.values[j];
      mma<typename Shape::Type>(state->o[r] + 8 * j, step.weights[r], m[0], m[1]);
      mma<typename Shape::Type>(state->o[r] + 8 * j + 4, step.weights[r], m[2], m[3]);
    }
}

/* Operands are loaded a step ahead, where registers allow it. */
template <class Shape>
SKV_DEVICE void multiply_values(part<Shape> *state, const entry<Shape> *entries,
                                const uint8_t *slab, uint32_t chunk) {
  constexpr int kSteps = Shape::kKeys / 16;
  constexpr int kAhead = Shape::kRowTiles * Shape::kColumns <= 64;
  const uint32_t lane = lane_index();
  uint32_t from[Shape::kColumns / 16]; /* of the first 16 keys: offsets of the lane's matrix rows */
  value_step<Shape> steps[2];
#pragma unroll
  for (int j = 0; j < Shape::kColumns / 16; ++j) {
    uint32_t at = (lane % 16) * Shape::kPitch + (chunk + 2 * j + lane / 16) * 16;
    from[j] = at ^ (at >> 7 & (Shape::kPitch / 16 - 1)) << 4;
  }
#pragma unroll
  for (int i = 0; i < kSteps + kAhead; ++i) {
    value_step<Shape> &next = steps[i % 2];
    if (i < kSteps) {
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r)
        get_weights(next.weights[r], entries[r], i);
#pragma unroll
      for (int j = 0; j < Shape::kColumns / 16; ++j)
        load_transposed(next.values[j], slab + from[j] + i * 16 * Shape::kPitch);
    }
    if (i >= kAhead)
      multiply_step(state, steps[(i - kAhead) % 2]);
  }
}

/* To the tile's exponents and masses. */
template <class Shape>
SKV_DEVICE void advance_rows(part<Shape> *state, const entry<Shape> *entries) {
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    const float4 mass = entries[r].mass[lane_index()];
    float factor[2] = {mass.x, 1.0f};
    rows_t &rows = state->rows[r];
    if constexpr (Shape::kRows == 1) {
      rows.e[0] = mass.z, rows.l[0] *= mass.x, rows.l[0] += mass.y;
    } else {
      const float4 e = entries[r].e[lane_index()];
      factor[1] = mass.y;
      rows.e[0] = e.x, rows.l[0] *= mass.x, rows.l[0] += mass.z;
      rows.e[1] = e.y, rows.l[1] *= mass.y, rows.l[1] += mass.w;
    }
    if (__any_sync(0xffffffff, factor[0] != 1.0f || factor[1] != 1.0f))
#pragma unroll
      for (int i = 0; i < Shape::kColumns / 2; ++i)
        state->o[r][i] *= factor[i / 2 % 2];
  }
}

/* The leaf's state in a row tile: what skv__leaf_exponent and skv__leaf_value say. */
template <class Shape> SKV_DEVICE image<Shape> end_part(part<Shape> *state, int r) {
  image<Shape> leaf;
  leaf_end(&state->rows[r]);
#pragma unroll
  for (int h = 0; h < Shape::kRows; ++h) {
    leaf.e[h] = state->rows[r].e[h], leaf.l[h] = state->rows[r].l[h];
#pragma unroll
    for (int i = 0; i < image<Shape>::kValues; ++i)
      leaf.o[h][i] = skv__leaf_value(state->o[r][i / 2 * 4 + 2 * h + i % 2]);
  }
  clear_if_empty(&leaf);
  return leaf;
}

/* Parameters that are needed at the end are fetched now, while there is nothing else to do: later
 * everybody would wait for them. */
SKV_DEVICE void touch_results(const decode_params_t &p) {
  asm volatile("" ::"l"(p.o), "l"(p.lse), "l"(p.slots), "l"(p.counters), "r"((int)p.out_dtype),
               "r"((int)p.states), "r"((int)p.tables.has_sinks), "l"(p.o_stride[2]),
               "l"(p.lse_stride[2]), "r"(p.value_head_dim));
}

template <class Shape>
SKV_DEVICE void value_warp(decode_shared<Shape> *s, const decode_params_t &p, uint32_t warp) {
  constexpr int kKeys = Shape::kKeys;
  const uint32_t column = warp * Shape::kColumns; /* of the CTA's */
  const uint32_t slab = column / (Shape::kPitch / 2) * (kKeys * Shape::kPitch);
  const uint32_t chunk = column % (Shape::kPitch / 2) / 8;
  const int32_t slice = my_columns<Shape>() * Shape::kValueWarps + (int32_t)warp;
  uint32_t tiles = 0;
  part<Shape> state;
  touch_results(p);
  decode_walk_t walk = walk_begin(p, my_part<Shape>());
  while (walk_next<Shape>(p, &walk)) {
    const decode_way_t way = way_of<Shape>(p, walk);
    empty_part(&state);
    for (int32_t tile = walk.tile_begin; tile < walk.tile_end; ++tile, ++tiles) {
      nth<Shape::kEntries> at(tiles);
      nth<Shape::kValueStages> v(tiles);
      const entry<Shape> *entries = s->entries[at.place];
      const int32_t from = walk.item.key_begin - tile * kKeys,
                    to = walk.item.key_end - tile * kKeys;
      const bool partly = from > 0 || to < kKeys;
      barrier_wait(&s->v_full[v.place], v.parity);
      if (partly)
        clear_values<Shape>(s->v[v.place] + slab, chunk, from, to);
      barrier_wait(&s->entry_full[at.place], at.parity);
      advance_rows(&state, entries);
      multiply_values(&state, entries, s->v[v.place] + slab, chunk);
      if (partly)
        proxy_fence();
      arrive_all(&s->v_empty[v.place]);
      arrive_all(&s->entry_empty[at.place]);
    }
    image<Shape> leaf = end_part(&state, 0), second = leaf;
    if (Shape::kRowTiles > 1)
      second = end_part(&state, Shape::kRowTiles - 1);
#pragma unroll 1
    for (int r = 0; r < Shape::kRowTiles; ++r, leaf = second)
      climb(climber<Shape>{&p, &walk, slice, r, &s->held[warp][r][0][lane_index()]}, way, &leaf);
    if (Shape::kSpread) { /* nothing that peers sent may be under way when the CTA ends */
      if (tiles)
        barrier_wait(&s->guess_full, 0), barrier_wait(&s->verdict_full, 0);
      break;
    }
  }
}

#endif
