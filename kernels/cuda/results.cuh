/* results.cuh: what the prefill kernel writes of its rows: states, or O and LSE. */
#ifndef SKV_CUDA_RESULTS_CUH
#define SKV_CUDA_RESULTS_CUH

#include "kernels/convert.h"
#include "kernels/cuda/fold.cuh"

/* The state of a key with value 0 and this logit comes last. */
template <int Count> SKV_DEVICE void merge_sink(float (&o)[Count], rows_t *rows, float sink) {
  skv__mass_t mass = skv__mass_from_lse(sink);
  rows_t left = *rows;
  *rows = (rows_t){{mass.e, mass.e}, {mass.l, mass.l}};
  float wl[2], wr[2];
  merge_rows(&left, rows, wl, wr);
#pragma unroll
  for (int i = 0; i < Count; ++i)
    o[i] = __fmaf_rn(0.0f, wr[i / 2 % 2], o[i] * wl[i / 2 % 2]);
}

/* ---- where it goes ---- */

typedef struct destination {
  void *o;      /* or NULL */
  float *e, *l; /* or NULL; l is the LSE's place where e is NULL */
} destination_t;

SKV_DEVICE destination_t output_place(const prefill_params_t &p, const skv__device_run_t &run,
                                      int64_t query, int64_t head) {
  const skv__finish_t &f = p.finish;
  int64_t sequence = run.sequence, element_bytes = skv__dtype_bytes(f.out_dtype);
  destination_t to = {f.o.data, NULL, f.lse};
  query += run.q_begin;
  if (f.o.data)
    to.o = (char *)f.o.data + element_bytes * (sequence * f.o.stride[0] + query * f.o.stride[1] +
                                               head * f.o.stride[2]);
  if (f.lse)
    to.l += sequence * f.lse_stride[0] + query * f.lse_stride[1] + head * f.lse_stride[2];
  return to;
}

SKV_DEVICE destination_t state_place(const prefill_params_t &p, const skv__device_run_t &run,
                                     int64_t query, int64_t head) {
  const int64_t dim = p.value_head_dim;
  int64_t index;
  skv__device_place_t place = skv__place_at(p.tables, run, query, head, p.q_heads, &index);
  if (!place.slice)
    return (destination_t){NULL, NULL, NULL};
  return (destination_t){place.slice + index * dim, place.slice + place.rows * dim + index,
                         place.slice + place.rows * (dim + 1) + index};
}

/* One element of what is written. */
SKV_DEVICE float result_of(bool state, float e, float l, float o) {
  if (state)
    return skv__is_empty(e) ? 0.0f : skv__leaf_value(o);
  return skv__state_output(e, l, o);
}

/* Whether all of the warp's values are ordinary, so that write_quickly may have them. Rows that are
 * not written do not count. */
template <int Count>
SKV_DEVICE bool are_ordinary(const float (&o)[Count], const rows_t &rows, const bool (&here)[2]) {
  bool ordinary = true;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    bool mine = rows.l[r] > 0x1p-40f && rows.l[r] < 0x1p40f && !skv__is_empty(rows.e[r]);
#pragma unroll
    for (int i = 2 * r; i < Count; i += 4)
#pragma unroll
      for (int j = i; j < i + 2; ++j)
        mine &= (fabsf(o[j]) > 0x1p-60f || o[j] == 0.0f) && fabsf(o[j]) < 0x1p60f;
    ordinary &= mine || !here[r];
  }
  return __all_sync(0xffffffff, ordinary);
}

/* Four words of each thread of a quad: thread i gets the i-th of all four. */
SKV_DEVICE void transpose_quad(uint32_t (&words)[4]) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    bool upper = (threadIdx.x & (uint32_t)step) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step)
        continue;
      uint32_t theirs = __shfl_xor_sync(0xffffffff, upper ? words[i] : words[i + step], step);
      words[i] = upper ? theirs : words[i];
      words[i + step] = upper ? words[i + step] : theirs;
    }
  }
}

/* Row r; nowhere if `to` is NULL. With the nearest to 1 / l, two corrections give the nearest to
 * o / l while no intermediate result leaves the normal range: what skv__state_output says. They
 * make 0 of -0; and of a state, which is not divided, they change nothing. A quad's stores are
 * whole sectors: half of one each took 5 us a row tile. By the whole warp. */
template <typename Type, int Count>
SKV_DEVICE void write_quickly(const prefill_params_t &p, void *to, float (&o)[Count], float l,
                              int r) {
  const float divisor = p.states ? 1.0f : l, inverse = __frcp_rn(divisor);
  const int32_t dim = to ? p.value_head_dim : 0, lane = (int32_t)(threadIdx.x % 4);
  const bool wide = p.finish.out_dtype == SKV_FP32;
#pragma unroll
  for (int i = 0; i < Count / 4; i += 4) {
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float pair[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float x = o[4 * (i + j) + 2 * r + k], q = x * inverse;
        q = __fmaf_rn(__fmaf_rn(-q, divisor, x), inverse, q);
        pair[k] = __fmaf_rn(__fmaf_rn(-q, divisor, x), inverse, q);
      }
      words[j] = pack<Type>(pair[0], pair[1]);
      if (wide && 8 * (i + j) < dim)
        *(float2 *)((float *)to + 8 * (i + j) + 2 * lane) = make_float2(pair[0], pair[1]);
    }
    if (wide)
      continue;
    transpose_quad(words);
    if (8 * (i + lane) < dim)
      *(uint4 *)((uint16_t *)to + 8 * (i + lane)) =
          make_uint4(words[0], words[1], words[2], words[3]);
  }
}

/* Row r, from the thread's own image; any values, type and alignment. */
template <int ValueDim>
SKV_DEVICE void write_slowly(const prefill_params_t &p, void *to,
                             const state_image<ValueDim> *image, float e, float l, int r) {
#pragma unroll 1
  for (int i = 0; i < p.value_head_dim / 8; ++i)
#pragma unroll 1
    for (int j = 0; j < 2; ++j) {
      float o = ((const float *)&image->o[i][threadIdx.x % 128])[2 * r + j];
      int32_t column = 8 * i + 2 * (int32_t)(threadIdx.x % 4) + j;
      skv__store(p.finish.out_dtype, to, column, result_of(p.states, e, l, o));
    }
}

/* The rows of tile `t` that are the warpgroup's; o is used up, and so is slot 0, which nothing
 * needs any more. */
template <typename Type, typename Shape>
SKV_DEVICE void write_rows(const prefill_params_t &p, const row_tile_t &t,
                           float (&o)[Shape::kValueDim / 2], rows_t rows) {
  const skv__device_run_t run = skv__run_copy(p.tables, t.run);
  const int64_t head = p.head_begin + t.head;
  const int64_t query = t.q_begin + 64 * (int64_t)my_warpgroup() + my_row();
  const bool here[2] = {query < run.q_count, query + 8 < run.q_count};
  if (p.tables.has_sinks)
    merge_sink(o, &rows, skv__sink_at(p.tables, head));
  bool quick = are_ordinary(o, rows, here) && p.quick;
  state_image<Shape::kValueDim> *spare = slot_image<Shape>(p, 0);
  if (!quick)
    store_image(spare, o, rows);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    destination_t to = {NULL, NULL, NULL};
    if (here[r])
      to = p.states ? state_place(p, run, query + 8 * r, head)
                    : output_place(p, run, query + 8 * r, head);
    if (quick)
      write_quickly<Type>(p, to.o, o, rows.l[r], r);
    else if (to.o)
      write_slowly(p, to.o, spare, rows.e[r], rows.l[r], r);
    if (threadIdx.x % 4 != 0)
      continue;
    if (to.e)
      *to.e = rows.e[r];
    if (to.l)
      *to.l = p.states ? rows.l[r] : skv__state_lse(rows.e[r], rows.l[r]);
  }
}

#endif
