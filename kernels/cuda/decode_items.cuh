/* decode_items.cuh: the work of the sm_90a decode kernel. A unit is a leaf of an item; an item is a
 * group of rows of one run and KV head, with the leaves that rows of the run see. Units are
 * numbered through: run, row group, KV head, leaf. A CTA (or a cluster) takes units [begin, end).
 *
 * Keys, tiles, leaves and blocks count from the begin of the job's node. */
#ifndef SKV_CUDA_DECODE_ITEMS_CUH
#define SKV_CUDA_DECODE_ITEMS_CUH

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/softmax.cuh"
#include "kernels/cuda/tables.h"

typedef struct decode_params {
  CUtensorMap k, v;
  const uint16_t *q;
  int64_t q_stride[3]; /* sequence, token, head */
  int32_t q_heads, group, head_dim, value_head_dim;
  int32_t kv_heads, kv_head_begin; /* heads of the job */
  skv__logits_t logits;
  int64_t left_tokens, right_tokens;
  int64_t node_begin, node_keys; /* absolute position of the node's first key; keys it can have */
  int32_t token_offset;          /* of that key in K and V */
  int32_t leaf_keys, block_leaves, group_rows;
  int32_t share, larger; /* units of a CTA (a cluster); that many of the first have one more */
  skv__tables_t tables;
  bool states; /* results are states, to places; else O and LSE */
  void *o;     /* or NULL */
  skv_dtype_t out_dtype;
  int64_t o_stride[3];
  float *lse; /* or NULL */
  int64_t lse_stride[3];
  uint32_t *counters; /* [unit][slice][2]: arrivals, at a block's first leaf: of leaves in it; of
                         children, whose right one it begins, in the node */
  float4 *slots;      /* [unit][slice]: states, as a warp holds them */
} decode_params_t;

typedef struct decode_keys {
  int32_t begin, end;
} decode_keys_t;

/* Keys that queries at positions [first, last] of a sequence see in the node. */
static __host__ __device__ __forceinline__ decode_keys_t decode_keys_of(const decode_params_t &p,
                                                                        int64_t first, int64_t last,
                                                                        int64_t k_tokens) {
  int64_t begin = first - p.left_tokens - p.node_begin, end = last + p.right_tokens + 1;
  end = (end < k_tokens ? end : k_tokens) - p.node_begin;
  begin = begin > 0 ? begin : 0;
  end = end < p.node_keys ? end : p.node_keys;
  return end > begin ? (decode_keys_t){(int32_t)begin, (int32_t)end} : (decode_keys_t){0, 0};
}

/* Leaves [begin, end) that rows of the run see; one at least, which may be EMPTY. */
static __host__ __device__ __forceinline__ decode_keys_t
decode_leaves_of(const decode_params_t &p, const skv__device_run_t &run) {
  decode_keys_t keys =
      decode_keys_of(p, run.position, run.position + run.q_count - 1, run.k_tokens);
  int32_t begin = keys.begin / p.leaf_keys, end = (keys.end + p.leaf_keys - 1) / p.leaf_keys;
  return (decode_keys_t){begin, end > begin ? end : begin + 1};
}

static __host__ __device__ __forceinline__ int32_t decode_units_of(const decode_params_t &p,
                                                                   const skv__device_run_t &run) {
  decode_keys_t leaves = decode_leaves_of(p, run);
  int32_t groups = ((int32_t)run.q_count * p.group + p.group_rows - 1) / p.group_rows;
  return groups * p.kv_heads * (leaves.end - leaves.begin);
}

typedef struct decode_item {
  int32_t unit;       /* of leaf `first` */
  int32_t first, end; /* leaves */
  int32_t run, sequence, kv_head;
  int32_t row_begin, rows;    /* of the run's rows of this KV head; rows past `rows` do not exist */
  int32_t key_begin, key_end; /* that some row of the item sees, and their tiles */
  int32_t tile_begin, tile_end;
  int32_t k_end;    /* keys of the sequence in the node */
  int64_t position; /* of the run's first query, from the node's begin */
} decode_item_t;

SKV_DEVICE uint32_t lane_index(void) {
  return threadIdx.x % 32;
}

/* The run that a unit belongs to, and its first unit. By a whole warp. */
SKV_DEVICE int32_t run_of_unit(const decode_params_t &p, int32_t unit, int32_t *run_begin) {
  int32_t before = 0;
  *run_begin = 0;
  if (p.tables.run_count == 1)
    return 0;
  for (int64_t base = 0;; base += 32) {
    int64_t index = base + lane_index();
    int32_t units =
        index < p.tables.run_count ? decode_units_of(p, skv__run_at(p.tables, index)) : 0;
    int32_t sum = units;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      int32_t other = __shfl_up_sync(0xffffffff, sum, distance);
      sum += (int32_t)lane_index() >= distance ? other : 0;
    }
    uint32_t beyond = __ballot_sync(0xffffffff, before + sum > unit);
    if (beyond) {
      int lane = __ffs((int)beyond) - 1;
      *run_begin = before + __shfl_sync(0xffffffff, sum - units, lane);
      return (int32_t)base + lane;
    }
    before += __shfl_sync(0xffffffff, sum, 31);
  }
}

template <int Keys> SKV_DEVICE decode_item_t item_of_unit(const decode_params_t &p, int32_t unit) {
  int32_t run_begin;
  decode_item_t item;
  item.run = run_of_unit(p, unit, &run_begin);
  const skv__device_run_t &run = skv__run_at(p.tables, item.run);
  decode_keys_t leaves = decode_leaves_of(p, run);
  int32_t count = leaves.end - leaves.begin, index = (unit - run_begin) / count;
  item.unit = run_begin + index * count;
  item.first = leaves.begin, item.end = leaves.end;
  item.sequence = (int32_t)run.sequence;
  item.kv_head = index % p.kv_heads;
  item.row_begin = index / p.kv_heads * p.group_rows;
  item.rows = (int32_t)(run.q_count * p.group);
  item.position = run.position - p.node_begin;
  int32_t last_row = min(item.row_begin + p.group_rows, item.rows) - 1;
  decode_keys_t keys = decode_keys_of(p, run.position + item.row_begin / p.group,
                                      run.position + last_row / p.group, run.k_tokens);
  item.key_begin = keys.begin, item.key_end = keys.end;
  item.tile_begin = keys.begin / Keys;
  item.tile_end = (keys.end + Keys - 1) / Keys;
  int64_t k_end = run.k_tokens - p.node_begin;
  item.k_end = (int32_t)(k_end < 0 ? 0 : k_end < p.node_keys ? k_end : p.node_keys);
  return item;
}

/* A walk over the units of a CTA, which all its warps do alike. */
typedef struct decode_walk {
  int32_t begin, end, unit; /* of the CTA; the one at hand */
  int32_t leaf, tile_begin, tile_end;
  bool new_item;
  decode_item_t item;
} decode_walk_t;

SKV_DEVICE decode_walk_t walk_begin(const decode_params_t &p, int32_t cta) {
  decode_walk_t walk;
  walk.begin = cta * p.share + min(cta, p.larger);
  walk.end = walk.begin + p.share + (cta < p.larger);
  walk.unit = walk.begin - 1;
  walk.item.unit = walk.item.first = walk.item.end = 0;
  return walk;
}

/* The next unit; false when there is none. */
template <class Shape> SKV_DEVICE bool walk_next(const decode_params_t &p, decode_walk_t *walk) {
  if (++walk->unit >= walk->end)
    return false;
  decode_item_t *item = &walk->item;
  walk->new_item = walk->unit == walk->begin || walk->unit >= item->unit + item->end - item->first;
  if (walk->new_item)
    *item = item_of_unit<Shape::kKeys>(p, walk->unit);
  walk->leaf = item->first + walk->unit - item->unit;
  const int32_t tiles = p.leaf_keys / Shape::kKeys;
  walk->tile_begin = max(walk->leaf * tiles, item->tile_begin);
  walk->tile_end = max(min((walk->leaf + 1) * tiles, item->tile_end), walk->tile_begin);
  return true;
}

#endif
