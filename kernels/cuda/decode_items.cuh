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

typedef struct decode_keys {
  int32_t begin, end;
} decode_keys_t;

/* What of a run's rows shares a KV head: they see the same keys, or almost. */
typedef struct decode_item {
  int32_t unit; /* of the first piece */
  int32_t run, sequence, kv_head;
  int32_t q_begin, rows;      /* rows: queries and heads of the group */
  int32_t first, end;         /* leaves */
  int32_t key_begin, key_end; /* that some row sees, and their tiles */
  int32_t tile_begin, tile_end;
  decode_keys_t pieces;
  int32_t k_end;    /* keys of the sequence in the node */
  int64_t position; /* of the run's first query, from the node's begin */
} decode_item_t;

enum { DECODE_NEAR_ITEMS = 64, DECODE_CARRIED_ITEMS = 32 };

/* What a CTA needs to begin comes first: all of it is read from memory once. */
typedef struct decode_params {
  CUtensorMap k, v;
  int32_t share, larger; /* units of a CTA (a cluster); that many of the first have one more */
  int32_t token_offset;  /* of the node's first key in K and V */
  int32_t leaf_keys, block_leaves;
  int32_t piece_leaves; /* 1, or a block times a power of two: a piece is one node of the tree */
  int32_t piece_slots;  /* states that may wait while a piece is folded */
  int32_t q_heads, group, head_dim, value_head_dim;
  int32_t kv_heads, kv_head_begin; /* heads of the job */
  skv__logits_t logits;
  const uint16_t *q;
  int64_t q_stride[3]; /* sequence, token, head */
  int64_t left_tokens, right_tokens;
  int64_t runs;
  const decode_item_t *far_items; /* of the runs; NULL: near */
  decode_item_t near_items[DECODE_NEAR_ITEMS];
  skv__tables_t tables;
  int64_t node_begin, node_keys; /* absolute position of the node's first key; keys it can have */
  uint32_t *counters; /* [unit][slice]: arrivals at the node whose second child the unit begins */
  float4 *slots;      /* [unit][slot][slice]: states, as a warp holds them */
  bool states;        /* results are states, to places; else O and LSE */
  void *o;            /* or NULL */
  skv_dtype_t out_dtype;
  int64_t o_stride[3];
  float *lse; /* or NULL */
  int64_t lse_stride[3];
} decode_params_t;

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

/* Pieces that those leaves are in. Each is a unit of work, for each KV head. */
static __host__ __device__ __forceinline__ decode_keys_t decode_pieces_of(const decode_params_t &p,
                                                                          decode_keys_t leaves) {
  return (decode_keys_t){leaves.begin / p.piece_leaves, (leaves.end - 1) / p.piece_leaves + 1};
}

static __host__ __device__ __forceinline__ int32_t decode_units_of(const decode_params_t &p,
                                                                   const skv__device_run_t &run) {
  decode_keys_t pieces = decode_pieces_of(p, decode_leaves_of(p, run));
  return p.kv_heads * (pieces.end - pieces.begin);
}

/* The item of the run's first KV head, whose first unit is `unit`. */
static __host__ __device__ __forceinline__ decode_item_t
decode_item_of(const decode_params_t &p, const skv__device_run_t &run, int32_t index, int32_t unit,
               int32_t tile_keys) {
  const decode_keys_t leaves = decode_leaves_of(p, run);
  const decode_keys_t keys =
      decode_keys_of(p, run.position, run.position + run.q_count - 1, run.k_tokens);
  const int64_t k_end = run.k_tokens - p.node_begin;
  decode_item_t item;
  item.unit = unit;
  item.run = index, item.sequence = (int32_t)run.sequence, item.kv_head = 0;
  item.q_begin = (int32_t)run.q_begin, item.rows = (int32_t)run.q_count * p.group;
  item.first = leaves.begin, item.end = leaves.end;
  item.key_begin = keys.begin, item.key_end = keys.end;
  item.tile_begin = keys.begin / tile_keys;
  item.tile_end = (keys.end + tile_keys - 1) / tile_keys;
  item.pieces = decode_pieces_of(p, leaves);
  item.k_end = (int32_t)(k_end < 0 ? 0 : k_end < p.node_keys ? k_end : p.node_keys);
  item.position = run.position - p.node_begin;
  return item;
}

SKV_DEVICE uint32_t lane_index(void) {
  return threadIdx.x % 32;
}

/* Where the host has put the items of all runs: in the parameters when they are few. */
SKV_DEVICE int32_t item_begin(const decode_params_t &p, int32_t run) {
  return p.far_items ? p.far_items[run].unit : p.near_items[run].unit;
}

SKV_DEVICE decode_item_t item_of_unit(const decode_params_t &p, int32_t unit) {
  int32_t run = 0, end = (int32_t)p.runs;
  while (end - run > 1) {
    const int32_t middle = (run + end) / 2;
    const bool after = unit >= item_begin(p, middle);
    run = after ? middle : run, end = after ? end : middle;
  }
  decode_item_t item;
  if (p.far_items)
    item = p.far_items[run];
  else
    item = p.near_items[run];
  const int32_t count = item.pieces.end - item.pieces.begin;
  item.kv_head = (unit - item.unit) / count;
  item.unit += item.kv_head * count;
  return item;
}

/* A walk over the leaves of a CTA's units, which all its warps do alike. */
typedef struct decode_walk {
  int32_t begin, end, unit;     /* of the CTA; the one at hand */
  int32_t leaf_begin, leaf_end; /* of the unit */
  int32_t leaf, tile_begin, tile_end;
  bool new_item;
  decode_item_t item;
} decode_walk_t;

SKV_DEVICE decode_walk_t walk_begin(const decode_params_t &p, int32_t cta) {
  decode_walk_t walk;
  walk.begin = cta * p.share + min(cta, p.larger);
  walk.end = walk.begin + p.share + (cta < p.larger);
  walk.unit = walk.begin - 1;
  walk.leaf = walk.leaf_end = 0;
  walk.item.unit = walk.item.pieces.begin = walk.item.pieces.end = 0;
  return walk;
}

SKV_DEVICE int32_t walk_piece(const decode_walk_t &walk) {
  return walk.item.pieces.begin + walk.unit - walk.item.unit;
}

/* The next leaf; false when there is none. */
template <class Shape> SKV_DEVICE bool walk_next(const decode_params_t &p, decode_walk_t *walk) {
  decode_item_t *item = &walk->item;
  walk->new_item = false;
  if (++walk->leaf >= walk->leaf_end) {
    if (++walk->unit >= walk->end)
      return false;
    walk->new_item = walk->unit == walk->begin || walk_piece(*walk) >= item->pieces.end;
    if (walk->new_item)
      *item = item_of_unit(p, walk->unit);
    const int32_t piece = walk_piece(*walk);
    walk->leaf = walk->leaf_begin = max(piece * p.piece_leaves, item->first);
    walk->leaf_end = min((piece + 1) * p.piece_leaves, item->end);
  }
  const int32_t tiles = p.leaf_keys / Shape::kKeys;
  walk->tile_begin = max(walk->leaf * tiles, item->tile_begin);
  walk->tile_end = max(min((walk->leaf + 1) * tiles, item->tile_end), walk->tile_begin);
  return true;
}

#endif
