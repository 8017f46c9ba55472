/* decode_results.cuh: what the decode kernel writes of an item's rows: O and LSE, or states. */
#ifndef SKV_CUDA_DECODE_RESULTS_CUH
#define SKV_CUDA_DECODE_RESULTS_CUH

#include "kernels/cuda/decode_state.cuh"

SKV_DEVICE void store_pair(const decode_params_t &p, int64_t at, float low, float high) {
  const uint32_t pair =
      p.out_dtype == SKV_FP16 ? pack<fp16_type>(low, high) : pack<bf16_type>(low, high);
  if (p.out_dtype == SKV_FP32) {
    ((float *)p.o)[at] = low, ((float *)p.o)[at + 1] = high;
  } else {
    ((uint16_t *)p.o)[at] = (uint16_t)pair, ((uint16_t *)p.o)[at + 1] = (uint16_t)(pair >> 16);
  }
}

/* A row: O and LSE, or the state. The lane has pairs of columns, every eighth from `column` on; O
 * is used up. */
template <class Shape>
SKV_DEVICE void finish_row(const decode_params_t &p, const decode_item_t &item, int32_t row,
                           int32_t column, float e, float l, float (&o)[image<Shape>::kValues]) {
  const skv__device_run_t &run = skv__run_at(p.tables, item.run);
  const int32_t query = row / p.group;
  const int32_t head = (p.kv_head_begin + item.kv_head) * p.group + row % p.group;
  const bool first = column == 0;
  skv__weights_t sink = skv__merge_weights(e, skv__empty_exponent());
  float *state = NULL;
  int64_t at =
      item.sequence * p.o_stride[0] + (item.q_begin + query) * p.o_stride[1] + head * p.o_stride[2];
  if (p.states) {
    int64_t index;
    skv__device_place_t place = skv__place_at(p.tables, run, query, head, p.q_heads, &index);
    if (!place.slice)
      return;
    state = place.slice + index * p.value_head_dim;
    if (first) {
      place.slice[place.rows * p.value_head_dim + index] = e;
      place.slice[place.rows * (p.value_head_dim + 1) + index] = l;
    }
  } else {
    if (p.tables.has_sinks) {
      skv__mass_t mass = skv__mass_from_lse(skv__sink_at(p.tables, head));
      sink = skv__merge_weights(e, mass.e);
      e = sink.e, l = skv__merge_value(sink, l, mass.l);
    }
    if (first && p.lse)
      p.lse[item.sequence * p.lse_stride[0] + (item.q_begin + query) * p.lse_stride[1] +
            head * p.lse_stride[2]] = skv__state_lse(e, l);
  }
  /* One pair of columns after the other, by one piece of code: it runs once, from instructions that
   * nobody has fetched yet. */
  constexpr int kPairs = image<Shape>::kValues / 2;
#pragma unroll 1
  for (int i = 0; i < kPairs; ++i, column += 8) {
    const bool there = column < p.value_head_dim;
    if (p.states && there)
      state[column] = skv__canonical(o[0]), state[column + 1] = skv__canonical(o[1]);
    else if (p.o && there)
      store_pair(p, at + column, skv__state_output(e, l, skv__merge_value(sink, o[0], 0.0f)),
                 skv__state_output(e, l, skv__merge_value(sink, o[1], 0.0f)));
#pragma unroll
    for (int j = 2; j < 2 * kPairs; ++j)
      o[j - 2] = o[j];
  }
}

template <class Shape> SKV_DEVICE void finish(const climber<Shape> &c, node<Shape> &state) {
  const decode_item_t &item = c.walk->item;
  const int32_t column = c.slice * Shape::kColumns + 2 * (int32_t)(lane_index() % 4);
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r)
#pragma unroll
    for (int h = 0; h < Shape::kRows; ++h) {
      const int32_t row = 16 * r + (int32_t)lane_index() / 4 + 8 * h;
      image<Shape> &tile = state.tiles[r];
      if (row < item.rows)
        finish_row<Shape>(*c.p, item, row, column, tile.e[h], tile.l[h], tile.o[h]);
    }
}

#endif
