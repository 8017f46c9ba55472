/* plain.cuh: attention of any shape on sm_80 and later, written to be read: the other kernels do
 * the same, faster. docs/numerics-gpu.md is the contract.
 *
 * A CTA of four warps takes 64 rows of one KV head: a row is a query and one of the head's query
 * heads. It walks the keys that some of them see in tiles, left to right; K and V pass through
 * shared memory in slabs of 64 columns. At the end of a leaf its state is merged into that of its
 * block, at the end of a block that into pending nodes of the canonical tree. Those states lie in
 * scratch, as the threads hold them. CTAs stay and take every gridDim-th row tile. */
#ifndef SKV_CUDA_PLAIN_CUH
#define SKV_CUDA_PLAIN_CUH

#include "kernels/convert.h"
#include "kernels/cuda/plain_tile.cuh"

/* ---- from leaves to the root ---- */

/* Which states wait in scratch. */
typedef struct plain_pending {
  bool block;      /* leaves of the block at hand */
  uint32_t levels; /* nodes of the tree, one a level at most */
} plain_pending_t;

SKV_DEVICE float4 *plain_slot(const plain_params_t &p, int32_t slot) {
  int64_t image = (int64_t)blockIdx.x * p.slots + slot;
  return p.states + image * PLAIN_IMAGE * PLAIN_THREADS + threadIdx.x;
}

SKV_DEVICE void put_state(float4 *slot, const rows_t &rows, const float (&o)[PLAIN_COLUMNS / 2]) {
  slot[0] = make_float4(rows.e[0], rows.e[1], rows.l[0], rows.l[1]);
#pragma unroll
  for (int i = 1; i < PLAIN_IMAGE; ++i)
    slot[i * PLAIN_THREADS] = make_float4(o[4 * i - 4], o[4 * i - 3], o[4 * i - 2], o[4 * i - 1]);
}

/* (rows, o) = merge(what is in the slot, them). */
SKV_DEVICE void merge_state(const float4 *slot, rows_t *rows, float (&o)[PLAIN_COLUMNS / 2]) {
  const float4 head = slot[0];
  skv__weights_t w[2] = {skv__merge_weights(head.x, rows->e[0]),
                         skv__merge_weights(head.y, rows->e[1])};
  rows->e[0] = w[0].e, rows->e[1] = w[1].e;
  rows->l[0] = skv__merge_value(w[0], head.z, rows->l[0]);
  rows->l[1] = skv__merge_value(w[1], head.w, rows->l[1]);
#pragma unroll
  for (int i = 1; i < PLAIN_IMAGE; ++i) {
    const float4 left = slot[i * PLAIN_THREADS];
    float *right = o + 4 * i - 4;
    right[0] = skv__merge_value(w[0], left.x, right[0]);
    right[1] = skv__merge_value(w[0], left.y, right[1]);
    right[2] = skv__merge_value(w[1], left.z, right[2]);
    right[3] = skv__merge_value(w[1], left.w, right[3]);
  }
}

/* The leaf's state, with which all before `key` are done, becomes part of its block, and at a
 * block's end part of the tree. After the last leaf it is the node's. */
SKV_DEVICE void fold_leaf(const plain_params_t &p, rows_t *rows, float (&o)[PLAIN_COLUMNS / 2],
                          plain_pending_t *pending, int64_t key, bool last) {
  if (pending->block)
    merge_state(plain_slot(p, 0), rows, o);
  pending->block = key % p.block_tokens != 0;
  if (pending->block && !last) {
    put_state(plain_slot(p, 0), *rows, o);
    return;
  }
  /* A node is a right child when its index has bit `level`; its left sibling may be EMPTY. */
  const int64_t block = (key - 1) / p.block_tokens - p.node_begin;
  int32_t level = 0;
  for (; last ? pending->levels >> level != 0 : (block >> level & 1) != 0; ++level)
    if (pending->levels >> level & 1) {
      merge_state(plain_slot(p, 1 + level), rows, o);
      pending->levels &= ~(1u << level);
    }
  if (last)
    return;
  put_state(plain_slot(p, 1 + level), *rows, o);
  pending->levels |= 1u << level;
}

/* ---- results ---- */

/* The root of row r of the lane: O = O / l, LSE. */
SKV_DEVICE void write_output(const plain_params_t &p, const plain_tile_t &t, const rows_t &rows,
                             const float (&o)[PLAIN_COLUMNS / 2], int r) {
  const int64_t row = plain_row() + 8 * r, head = plain_head(p, t, row);
  const int64_t query = t.run.q_begin + plain_query(p, t, row);
  float e = rows.e[r], l = rows.l[r];
  skv__weights_t w = {SKV__KEEP_LEFT, e, 1.0f, 0.0f};
  if (p.tables.has_sinks) {
    skv__mass_t sink = skv__mass_from_lse(skv__sink_at(p.tables, head));
    w = skv__merge_weights(e, sink.e);
    e = w.e;
    l = skv__merge_value(w, l, sink.l);
  }
  int64_t at = t.run.sequence * p.o_stride[0] + query * p.o_stride[1] + head * p.o_stride[2];
#pragma unroll
  for (int i = 0; i < PLAIN_COLUMNS / 4; ++i) {
    int32_t column = t.column_begin + i / 2 * 8 + lane_index() % 4 * 2 + i % 2;
    float value = skv__merge_value(w, o[i / 2 * 4 + 2 * r + i % 2], 0.0f);
    if (p.o && column < p.value_head_dim)
      skv__store(p.out_dtype, p.o, at + column, skv__state_output(e, l, value));
  }
  if (p.lse && t.column_begin == 0 && lane_index() % 4 == 0)
    p.lse[t.run.sequence * p.lse_stride[0] + query * p.lse_stride[1] + head * p.lse_stride[2]] =
        skv__state_lse(e, l);
}

/* The state of row r of the lane, to its owner's slice. */
SKV_DEVICE void write_state(const plain_params_t &p, const plain_tile_t &t, const rows_t &rows,
                            const float (&o)[PLAIN_COLUMNS / 2], int r) {
  const int64_t row = plain_row() + 8 * r, head = plain_head(p, t, row);
  int64_t index;
  skv__device_place_t place =
      skv__place_at(p.tables, t.run, plain_query(p, t, row), head, p.q_heads, &index);
  if (!place.slice)
    return;
  float *to = place.slice + index * p.value_head_dim;
#pragma unroll
  for (int i = 0; i < PLAIN_COLUMNS / 4; ++i) {
    int32_t column = t.column_begin + i / 2 * 8 + lane_index() % 4 * 2 + i % 2;
    if (column < p.value_head_dim)
      to[column] = o[i / 2 * 4 + 2 * r + i % 2];
  }
  if (t.column_begin == 0 && lane_index() % 4 == 0) {
    place.slice[place.rows * p.value_head_dim + index] = rows.e[r];
    place.slice[place.rows * (p.value_head_dim + 1) + index] = rows.l[r];
  }
}

/* ---- the kernel ---- */

/* Keys of the tile from `key` that the lane's rows do not see: their scores become -inf. */
template <int Keys>
SKV_DEVICE void hide_keys(float (&s)[Keys / 2], const plain_params_t &p, const plain_tile_t &t,
                          int64_t key) {
  int32_t low[2], high[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    int64_t begin, end;
    keys_seen(&begin, &end, p, t, t.run.position + plain_query(p, t, plain_row() + 8 * r));
    low[r] = (int32_t)min(max(begin - key, (int64_t)0), (int64_t)Keys);
    high[r] = (int32_t)min(max(end - key, (int64_t)0), (int64_t)Keys);
  }
  mask_scores<Keys>(s, lane_index() % 4 * 2, low, high);
}

template <typename Type, int Keys>
SKV_DEVICE void attend_keys(typename plain_leaf<Type>::template state<Keys> &leaf,
                            const typename plain_leaf<Type>::element *q, plain_ring<Type> &ring,
                            const plain_params_t &p, const plain_tile_t &t, int64_t key) {
  typedef plain_leaf<Type> kind;
  const int32_t pitch = plain_q_pitch<Type>(p.head_dim);
  q += threadIdx.x / 32 * 16 * pitch;
#pragma unroll
  for (int i = 0; i < Keys / 2; ++i)
    leaf.s[i] = 0.0f;
  for (int32_t column = 0; column < p.head_dim; column += PLAIN_SLAB)
    kind::template scores<Keys>(leaf, q + column, pitch, take_slab<Type, Keys>(ring, p, t),
                                min(p.head_dim - column, (int32_t)PLAIN_SLAB));
  if (p.logits.k != 0.0f)
    kind::template cap<Keys>(leaf, p.logits.k);
  hide_keys<Keys>(leaf.s, p, t, key);
  kind::template weigh<Keys>(leaf, p.logits.c);
  const int32_t columns = plain_column_end(p, t) - t.column_begin;
  kind::template values<Keys, 0>(leaf, take_slab<Type, Keys>(ring, p, t), columns);
  if (columns > PLAIN_SLAB)
    kind::template values<Keys, PLAIN_SLAB>(leaf, take_slab<Type, Keys>(ring, p, t),
                                            columns - PLAIN_SLAB);
}

template <typename Type, int Keys>
SKV_DEVICE void attend_rows(typename plain_leaf<Type>::element *q, plain_ring<Type> &ring,
                            const plain_params_t &p, const plain_tile_t &t) {
  typedef plain_leaf<Type> kind;
  typename kind::template state<Keys> leaf;
  rows_t rows = rows_empty();
  plain_pending_t pending = {false, 0};
  bool started = false;
#pragma unroll
  for (int i = 0; i < PLAIN_COLUMNS / 2; ++i)
    leaf.o[i] = 0.0f;
  if (t.begin < t.end)
    begin_slabs<Type, Keys>(ring, q, p, t);
  for (int64_t key = t.begin / Keys * Keys; key < t.end;) {
    if (!started) {
      kind::template begin<Keys>(leaf);
#pragma unroll
      for (int i = 0; i < PLAIN_COLUMNS / 2; ++i)
        leaf.o[i] = 0.0f;
    }
    attend_keys<Type, Keys>(leaf, q, ring, p, t, key);
    key += Keys;
    started = key < t.end && key % p.leaf_tokens != 0;
    if (started)
      continue;
    rows = kind::template end<Keys>(leaf);
#pragma unroll
    for (int i = 0; i < PLAIN_COLUMNS / 2; ++i)
      leaf.o[i] = skv__leaf_value(leaf.o[i]);
    fold_leaf(p, &rows, leaf.o, &pending, key, key >= t.end);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (plain_row() + 8 * r < t.rows) {
      if (p.finish)
        write_output(p, t, rows, leaf.o, r);
      else
        write_state(p, t, rows, leaf.o, r);
    }
}

template <typename Type, int Keys>
__global__ void __launch_bounds__(PLAIN_THREADS) plain(const __grid_constant__ plain_params_t p) {
  typedef typename plain_leaf<Type>::element element;
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ plain_tile_t tile; /* registers are scarce */
  element *q = (element *)memory;
  plain_ring<Type> ring = {q + PLAIN_ROWS * plain_q_pitch<Type>(p.head_dim), {}, 0};
  int64_t index = blockIdx.x; /* of the next row tile, among those of the run */
  for (int64_t i = 0; i < p.tables.run_count; ++i) {
    const skv__device_run_t &run = skv__run_at(p.tables, i);
    int64_t tiles =
        plain_row_tiles(run.q_count, p.group) * p.kv_heads * plain_chunks(p.value_head_dim);
    for (; index < tiles; index += gridDim.x) {
      __syncthreads(); /* others may be at the last tile still */
      if (threadIdx.x == 0)
        tile = plain_tile_at(p, run, index);
      __syncthreads();
      attend_rows<Type, Keys>(q, ring, p, tile);
    }
    index -= tiles;
  }
}

#endif
