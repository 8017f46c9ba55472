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
#include "kernels/cuda/plain_leaf.cuh"
#include "kernels/cuda/tables.h"

enum { PLAIN_ROWS = 64, PLAIN_THREADS = 128, PLAIN_IMAGE = 1 + PLAIN_COLUMNS / 8 };

typedef struct plain_tensor {
  const void *data;
  int64_t stride[3]; /* sequence, token, head; in elements */
  bool vectors;      /* rows can be read 16 bytes at a time */
} plain_tensor_t;

typedef struct plain_params {
  plain_tensor_t q, k, v;
  int64_t q_heads, group;          /* group: query heads of a KV head */
  int64_t kv_head_begin, kv_heads; /* those of the job; k and v hold exactly these */
  int32_t head_dim, value_head_dim;
  skv__logits_t logits;
  int64_t left_tokens, right_tokens;
  int64_t node_begin, node_end, token_offset; /* blocks; see skv__job_node_t */
  int64_t leaf_tokens, block_tokens;
  float4 *states; /* [CTA][slots][PLAIN_IMAGE][PLAIN_THREADS]; slot 0: the block, 1 + n: level n */
  int32_t slots;
  bool finish; /* rows become O and LSE; else states */
  void *o;     /* or NULL */
  skv_dtype_t out_dtype;
  int64_t o_stride[3];
  float *lse; /* or NULL */
  int64_t lse_stride[3];
  skv__tables_t tables;
} plain_params_t;

/* ---- rows ---- */

typedef struct plain_tile {
  skv__device_run_t run;
  int64_t kv_head;         /* counted from kv_head_begin */
  int64_t row_begin, rows; /* of the run's rows of this KV head: query-major */
  int32_t column_begin;    /* of V: a CTA does PLAIN_COLUMNS of them */
  int64_t begin, end;      /* keys in the node that some row sees */
} plain_tile_t;

SKV_DEVICE int64_t plain_query(const plain_params_t &p, const plain_tile_t &t, int64_t row) {
  return (t.row_begin + row) / p.group; /* within the run */
}
SKV_DEVICE int64_t plain_head(const plain_params_t &p, const plain_tile_t &t, int64_t row) {
  return (p.kv_head_begin + t.kv_head) * p.group + (t.row_begin + row) % p.group;
}
/* The first of a lane's two rows in the tile; the other is 8 below. */
SKV_DEVICE int32_t plain_row(void) {
  return (int32_t)(threadIdx.x / 32) * 16 + lane_index() / 4;
}

/* Keys [begin, end) that the query at `position` sees. */
SKV_DEVICE void keys_seen(int64_t *begin, int64_t *end, const plain_params_t &p,
                          const plain_tile_t &t, int64_t position) {
  *begin = max(position - p.left_tokens, (int64_t)0);
  *end = min(position + p.right_tokens + 1, t.run.k_tokens);
}

static __host__ __device__ __forceinline__ int64_t plain_chunks(int64_t value_head_dim) {
  return (value_head_dim + PLAIN_COLUMNS - 1) / PLAIN_COLUMNS;
}
static __host__ __device__ __forceinline__ int64_t plain_row_tiles(int64_t queries, int64_t group) {
  return (queries * group + PLAIN_ROWS - 1) / PLAIN_ROWS;
}

SKV_DEVICE plain_tile_t plain_tile_at(const plain_params_t &p, const skv__device_run_t &run,
                                      int64_t index) {
  const int64_t chunks = plain_chunks(p.value_head_dim);
  plain_tile_t t;
  t.run = run;
  t.column_begin = (int32_t)(index % chunks) * PLAIN_COLUMNS;
  t.kv_head = index / chunks % p.kv_heads;
  t.row_begin = index / chunks / p.kv_heads * PLAIN_ROWS;
  t.rows = min(run.q_count * p.group - t.row_begin, (int64_t)PLAIN_ROWS);
  int64_t begin, end, unused;
  keys_seen(&begin, &unused, p, t, run.position + plain_query(p, t, 0));
  keys_seen(&unused, &end, p, t, run.position + plain_query(p, t, t.rows - 1));
  t.begin = max(begin, p.node_begin * p.block_tokens);
  t.end = max(min(end, p.node_end * p.block_tokens), t.begin);
  return t;
}

/* ---- shared memory ---- */

/* Elements from one row of Q in shared memory to the next. */
template <typename Type>
static __host__ __device__ __forceinline__ int32_t plain_q_pitch(int32_t head_dim) {
  return (head_dim + 15) / 16 * 16 +
         PLAIN_ROW_PAD / (int32_t)sizeof(typename plain_leaf<Type>::element);
}

/* All rows of the tile; others, and columns past head_dim, are 0. */
template <typename Type>
SKV_DEVICE void load_queries(typename plain_leaf<Type>::element *to, const plain_params_t &p,
                             const plain_tile_t &t) {
  typedef typename plain_leaf<Type>::element element;
  const int32_t pitch = plain_q_pitch<Type>(p.head_dim);
  for (int32_t row = (int32_t)threadIdx.x / 32; row < PLAIN_ROWS; row += PLAIN_THREADS / 32) {
    const element *from = (const element *)p.q.data + t.run.sequence * p.q.stride[0] +
                          (t.run.q_begin + plain_query(p, t, row)) * p.q.stride[1] +
                          plain_head(p, t, row) * p.q.stride[2];
    for (int32_t column = lane_index(); column < pitch; column += 32)
      to[row * pitch + column] = row < t.rows && column < p.head_dim ? from[column] : (element)0;
  }
}

/* Columns [column, column + columns) of the tile of keys from `key`. Keys that no row sees, and
 * columns past those, are 0: there may be anything in memory, and a weight of 0 does not hide a
 * NaN. To be called by all threads; those before it may still be using the slab. */
template <typename Type, int Keys>
SKV_DEVICE void load_slab(typename plain_leaf<Type>::element *slab, const plain_tensor_t &tensor,
                          const plain_params_t &p, const plain_tile_t &t, int64_t key,
                          int32_t column, int32_t columns) {
  typedef typename plain_leaf<Type>::element element;
  constexpr int kPitch = plain_leaf<Type>::kPitch, kVector = 16 / (int)sizeof(element);
  const int64_t token = p.token_offset + key - p.node_begin * p.block_tokens;
  const element *from = (const element *)tensor.data + t.run.sequence * tensor.stride[0] +
                        token * tensor.stride[1] + t.kv_head * tensor.stride[2] + column;
  const int32_t step = tensor.vectors ? kVector : 1, across = PLAIN_SLAB / step;
  __syncthreads();
  for (int32_t i = (int32_t)threadIdx.x; i < Keys * across; i += PLAIN_THREADS) {
    const int32_t row = i / across, at = i % across * step;
    const bool seen = key + row >= t.begin && key + row < t.end && at < columns;
    const element *source = seen ? from + row * tensor.stride[1] + at : from;
    element *target = slab + row * kPitch + at;
    if (tensor.vectors)
      copy_16(target, source, !seen);
    else
      *target = seen ? *source : (element)0;
  }
  copies_wait();
  __syncthreads();
}

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
                            const typename plain_leaf<Type>::element *q,
                            typename plain_leaf<Type>::element *slab, const plain_params_t &p,
                            const plain_tile_t &t, int64_t key) {
  typedef plain_leaf<Type> kind;
  const int32_t pitch = plain_q_pitch<Type>(p.head_dim);
#pragma unroll
  for (int i = 0; i < Keys / 2; ++i)
    leaf.s[i] = 0.0f;
  for (int32_t column = 0; column < p.head_dim; column += PLAIN_SLAB) {
    const int32_t columns = min(p.head_dim - column, (int32_t)PLAIN_SLAB);
    load_slab<Type, Keys>(slab, p.k, p, t, key, column, columns);
    kind::template scores<Keys>(leaf, q + threadIdx.x / 32 * 16 * pitch + column, pitch, slab,
                                columns);
  }
  if (p.logits.k != 0.0f)
    kind::template cap<Keys>(leaf, p.logits.k);
  hide_keys<Keys>(leaf.s, p, t, key);
  kind::template weigh<Keys>(leaf, p.logits.c);
  const int32_t columns = p.value_head_dim - t.column_begin;
  load_slab<Type, Keys>(slab, p.v, p, t, key, t.column_begin, columns);
  kind::template values<Keys, 0>(leaf, slab, columns);
  if (columns > PLAIN_SLAB) {
    load_slab<Type, Keys>(slab, p.v, p, t, key, t.column_begin + PLAIN_SLAB, columns - PLAIN_SLAB);
    kind::template values<Keys, PLAIN_SLAB>(leaf, slab, columns - PLAIN_SLAB);
  }
}

template <typename Type, int Keys>
SKV_DEVICE void attend_rows(typename plain_leaf<Type>::element *q,
                            typename plain_leaf<Type>::element *slab, const plain_params_t &p,
                            const plain_tile_t &t) {
  typedef plain_leaf<Type> kind;
  typename kind::template state<Keys> leaf;
  rows_t rows = rows_empty();
  plain_pending_t pending = {false, 0};
  bool started = false;
#pragma unroll
  for (int i = 0; i < PLAIN_COLUMNS / 2; ++i)
    leaf.o[i] = 0.0f;
  __syncthreads();
  load_queries<Type>(q, p, t);
  for (int64_t key = t.begin / Keys * Keys; key < t.end;) {
    if (!started) {
      kind::template begin<Keys>(leaf);
#pragma unroll
      for (int i = 0; i < PLAIN_COLUMNS / 2; ++i)
        leaf.o[i] = 0.0f;
    }
    attend_keys<Type, Keys>(leaf, q, slab, p, t, key);
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
  element *q = (element *)memory, *slab = q + PLAIN_ROWS * plain_q_pitch<Type>(p.head_dim);
  int64_t index = blockIdx.x; /* of the next row tile, among those of the run */
  for (int64_t i = 0; i < p.tables.run_count; ++i) {
    const skv__device_run_t &run = skv__run_at(p.tables, i);
    int64_t tiles =
        plain_row_tiles(run.q_count, p.group) * p.kv_heads * plain_chunks(p.value_head_dim);
    for (; index < tiles; index += gridDim.x)
      attend_rows<Type, Keys>(q, slab, p, plain_tile_at(p, run, index));
    index -= tiles;
  }
}

#endif
