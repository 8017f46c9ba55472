/* plain_tile.cuh: what a CTA of the plain kernel works on: 64 rows of one KV head, and the keys
 * that some of them see, tile by tile; and how Q, K and V come to shared memory. */
#ifndef SKV_CUDA_PLAIN_TILE_CUH
#define SKV_CUDA_PLAIN_TILE_CUH

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

/* Where the CTA's columns of V end. */
SKV_DEVICE int32_t plain_column_end(const plain_params_t &p, const plain_tile_t &t) {
  return min(t.column_begin + (int32_t)PLAIN_COLUMNS, p.value_head_dim);
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
  t.end = min(end, p.node_end * p.block_tokens);
  if (t.begin >= t.end) /* none; a tile might begin before both */
    t.begin = t.end = 0;
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

/* PLAIN_SLAB columns of K or V of a tile of keys. */
typedef struct plain_slab {
  int64_t key;    /* the tile's first */
  int32_t column; /* the slab's first */
  bool value;     /* of V */
} plain_slab_t;

/* Slabs are used in this order: those of K, then those of V, tile by tile. */
template <int Keys>
SKV_DEVICE plain_slab_t slab_after(plain_slab_t slab, const plain_params_t &p,
                                   const plain_tile_t &t) {
  slab.column += PLAIN_SLAB;
  if (slab.column < (slab.value ? plain_column_end(p, t) : p.head_dim))
    return slab;
  slab.value = !slab.value;
  slab.column = slab.value ? t.column_begin : 0;
  slab.key += slab.value ? 0 : Keys;
  return slab;
}

/* Begins to copy a slab, `Step` elements at a time. Keys that no row sees, and columns past K's or
 * V's last, are 0: there may be anything in memory, and a weight of 0 does not hide a NaN. */
template <typename Type, int Keys, int Step>
SKV_DEVICE void copy_slab(typename plain_leaf<Type>::element *to, const plain_tensor_t &tensor,
                          int32_t columns, const plain_slab_t &slab, const plain_params_t &p,
                          const plain_tile_t &t) {
  typedef typename plain_leaf<Type>::element element;
  constexpr int kAcross = PLAIN_SLAB / Step;
  const int64_t token = p.token_offset + slab.key - p.node_begin * p.block_tokens;
  const element *from = (const element *)tensor.data + t.run.sequence * tensor.stride[0] +
                        token * tensor.stride[1] + t.kv_head * tensor.stride[2] + slab.column;
  const int32_t begin = (int32_t)max(t.begin - slab.key, (int64_t)0);
  const int32_t end = (int32_t)min(t.end - slab.key, (int64_t)Keys);
#pragma unroll 4
  for (int32_t i = (int32_t)threadIdx.x; i < Keys * kAcross; i += PLAIN_THREADS) {
    const int32_t row = i / kAcross, column = i % kAcross * Step;
    const bool seen = row >= begin && row < end && slab.column + column < columns;
    const element *source = seen ? from + row * tensor.stride[1] + column : from;
    element *target = to + row * plain_leaf<Type>::kPitch + column;
    if constexpr (Step > 1)
      copy_16(target, source, !seen);
    else
      *target = seen ? *source : (element)0;
  }
}

template <typename Type, int Keys>
SKV_DEVICE void load_slab(typename plain_leaf<Type>::element *to, const plain_slab_t &slab,
                          const plain_params_t &p, const plain_tile_t &t) {
  constexpr int kVector = 16 / (int)sizeof(*to);
  const plain_tensor_t &tensor = slab.value ? p.v : p.k;
  const int32_t columns = slab.value ? p.value_head_dim : p.head_dim;
  if (tensor.vectors)
    copy_slab<Type, Keys, kVector>(to, tensor, columns, slab, p, t);
  else
    copy_slab<Type, Keys, 1>(to, tensor, columns, slab, p, t);
}

/* Two slabs of shared memory: while one is used the next is under way. */
template <typename Type> struct plain_ring {
  typename plain_leaf<Type>::element *memory;
  plain_slab_t next; /* which to load into slab `at` of the two; tiles end where t.end is reached */
  int32_t at;
};

/* By all threads: the slab that was under way, for use until the next call. */
template <typename Type, int Keys>
SKV_DEVICE const typename plain_leaf<Type>::element *
take_slab(plain_ring<Type> &ring, const plain_params_t &p, const plain_tile_t &t) {
  constexpr int kElements = Keys * plain_leaf<Type>::kPitch;
  copies_wait();
  __syncthreads();
  const typename plain_leaf<Type>::element *here = ring.memory + (ring.at ^ 1) * kElements;
  if (ring.next.key < t.end)
    load_slab<Type, Keys>(ring.memory + ring.at * kElements, ring.next, p, t);
  ring.next = slab_after<Keys>(ring.next, p, t);
  ring.at ^= 1;
  return here;
}

/* Q and the first slab, by all threads, once nobody uses the memory. */
template <typename Type, int Keys>
SKV_DEVICE void begin_slabs(plain_ring<Type> &ring, typename plain_leaf<Type>::element *q,
                            const plain_params_t &p, const plain_tile_t &t) {
  ring.next = (plain_slab_t){t.begin / Keys * Keys, 0, false};
  ring.at = 1;
  load_queries<Type>(q, p, t);
  load_slab<Type, Keys>(ring.memory, ring.next, p, t);
  ring.next = slab_after<Keys>(ring.next, p, t);
}

#endif
