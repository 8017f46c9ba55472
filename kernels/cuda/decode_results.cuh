/* decode_results.cuh: what the decode kernel writes of an item's rows: O and LSE, or states. */
#ifndef SKV_CUDA_DECODE_RESULTS_CUH
#define SKV_CUDA_DECODE_RESULTS_CUH

#include "kernels/cuda/decode_state.cuh"

/* Whether one division of all will do: with the nearest to 1 / l, two corrections give the nearest
 * to o / l while no intermediate result leaves the normal range. */
template <int Count> SKV_DEVICE bool is_ordinary(const float (&o)[Count], float e, float l) {
  bool ordinary = l > 0x1p-40f && l < 0x1p40f && !skv__is_empty(e);
#pragma unroll
  for (int i = 0; i < Count; ++i)
    ordinary &= (fabsf(o[i]) > 0x1p-60f && fabsf(o[i]) < 0x1p60f) || skv__float_bits(o[i]) == 0;
  return ordinary;
}

/* What is written of O: of a state, or skv__state_output. Others than ordinary values go one after
 * the other through one piece of code. */
template <int Count> SKV_DEVICE void results_of(float (&o)[Count], bool state, float e, float l) {
  if (!state && is_ordinary(o, e, l)) {
    const float inverse = __frcp_rn(l);
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      float q = o[i] * inverse;
      q = __fmaf_rn(__fmaf_rn(-q, l, o[i]), inverse, q);
      o[i] = __fmaf_rn(__fmaf_rn(-q, l, o[i]), inverse, q);
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < Count; ++i) {
    const float out =
        state && !skv__is_empty(e) ? skv__canonical(o[0]) : skv__state_output(e, l, o[0]);
#pragma unroll
    for (int j = 1; j < Count; ++j)
      o[j - 1] = o[j];
    o[Count - 1] = out;
  }
}

/* Pairs of columns, every eighth from `column` on, of a row that begins at `to`. */
template <int Count>
SKV_DEVICE void store_row(void *to, skv_dtype_t dtype, int32_t column, int32_t end,
                          const float (&o)[Count]) {
  const bool aligned = (uintptr_t)to % 4 == 0;
#pragma unroll
  for (int i = 0; i < Count; i += 2, column += 8) {
    const uint32_t pair =
        dtype == SKV_FP16 ? pack<fp16_type>(o[i], o[i + 1]) : pack<bf16_type>(o[i], o[i + 1]);
    float *wide = (float *)to + column;
    uint16_t *narrow = (uint16_t *)to + column;
    if (column >= end)
      continue;
    if (dtype == SKV_FP32)
      wide[0] = o[i], wide[1] = o[i + 1];
    else if (aligned)
      *(uint32_t *)narrow = pair;
    else
      narrow[0] = (uint16_t)pair, narrow[1] = (uint16_t)(pair >> 16);
  }
}

/* A row: O and LSE, or the state. O is used up. */
template <class Shape>
SKV_DEVICE void finish_row(const decode_params_t &p, const decode_item_t &item, int32_t row,
                           int32_t column, float e, float l, float (&o)[image<Shape>::kValues]) {
  const int32_t query = row / p.group;
  const int32_t head = (p.kv_head_begin + item.kv_head) * p.group + row % p.group;
  const bool first = column == 0;
  void *to = NULL;
  if (p.states) {
    int64_t index;
    const skv__device_run_t &run = skv__run_at(p.tables, item.run);
    skv__device_place_t place = skv__place_at(p.tables, run, query, head, p.q_heads, &index);
    if (!place.slice)
      return;
    to = place.slice + index * p.value_head_dim;
    if (first) {
      place.slice[place.rows * p.value_head_dim + index] = e;
      place.slice[place.rows * (p.value_head_dim + 1) + index] =
          skv__is_empty(e) ? 0.0f : skv__canonical(l);
    }
  } else if (p.tables.has_sinks) {
    skv__mass_t mass = skv__mass_from_lse(skv__sink_at(p.tables, head));
    skv__weights_t sink = skv__merge_weights(e, mass.e);
    e = sink.e, l = skv__merge_value(sink, l, mass.l);
#pragma unroll
    for (int i = 0; i < image<Shape>::kValues; ++i)
      o[i] = skv__merge_value(sink, o[i], 0.0f);
  }
  if (!p.states && p.o)
    to = (uint8_t *)p.o + (p.out_dtype == SKV_FP32 ? 4 : 2) *
                              (item.sequence * p.o_stride[0] +
                               (item.q_begin + query) * p.o_stride[1] + head * p.o_stride[2]);
  results_of(o, p.states, e, l);
  if (to)
    store_row(to, p.states ? SKV_FP32 : p.out_dtype, column, p.value_head_dim, o);
  if (first && !p.states && p.lse)
    p.lse[item.sequence * p.lse_stride[0] + (item.q_begin + query) * p.lse_stride[1] +
          head * p.lse_stride[2]] = skv__state_lse(e, l);
}

template <class Shape> SKV_DEVICE void finish(const climber<Shape> &c, image<Shape> &state) {
  const decode_item_t &item = c.walk->item;
  const int32_t column = c.slice * Shape::kColumns + 2 * (int32_t)(lane_index() % 4);
#pragma unroll
  for (int h = 0; h < Shape::kRows; ++h) {
    const int32_t row = 16 * c.row_tile + (int32_t)lane_index() / 4 + 8 * h;
    if (row < item.rows)
      finish_row<Shape>(*c.p, item, row, column, state.e[h], state.l[h], state.o[h]);
  }
}

#endif
