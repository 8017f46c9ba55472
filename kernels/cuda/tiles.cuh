/* tiles.cuh: what the roles of the sm_90a prefill kernel share: parameters, tile shapes, the layout
 * of shared memory, row tiles and the rings that tiles of K and V go through. */
#ifndef SKV_CUDA_TILES_CUH
#define SKV_CUDA_TILES_CUH

#include "kernels/cuda/softmax.cuh"
#include "kernels/cuda/tables.h"

/* One node. Its first key is key 0 here, in whatever counts keys or tiles of keys. */
typedef struct prefill_params {
  CUtensorMap q, k, v;
  skv__tables_t tables;
  bool states;          /* are written, in fp32; else what `finish` says */
  skv__finish_t finish; /* out_dtype in any case */
  bool quick;           /* O is fp32 or of the inputs' type, and can be stored 16 bytes at a time */
  int64_t node_begin, node_keys;
  int32_t token_offset; /* of the node, along the token axis of k and v */
  int64_t left_tokens, right_tokens;
  int32_t q_heads, head_begin, heads; /* heads to do: [head_begin, head_begin + heads) */
  int32_t group;                      /* query heads of a KV head */
  int32_t band;                       /* heads that are worked on together */
  uint32_t tiles, ctas;               /* row tiles in all, and the grid's size */
  int32_t value_head_dim;
  int32_t leaf_tiles, block_tiles;
  int32_t slots; /* images of a warpgroup in `images` */
  skv__logits_t logits;
  uint32_t *next_tile, *leavers;
  uint8_t *images; /* [CTA][warpgroup][slot]: see fold.cuh */
} prefill_params_t;

__host__ __device__ constexpr int slabs_of(int dim) {
  return (dim + 63) / 64;
}

/* Rows by keys of a tile, stages of K and V, and registers of a thread. `Dim` and `ValueDim` are
 * what head_dim and value_head_dim are padded to. `Blocks`: the state of a block at hand has room
 * in shared memory. The CTA's registers are those it is launched with: raising more than is lowered
 * would wait for ever. */
template <int Dim, int ValueDim, int Consumers, int Stages, bool Blocks> struct tile_shape {
  static constexpr int kDim = Dim, kValueDim = ValueDim;
  static constexpr int kConsumers = Consumers, kRows = 64 * Consumers;
  static constexpr int kKeys = (int)skv__tile_keys(Dim), kStages = Stages;
  static constexpr bool kBlocks = Blocks;
  /* Steps of 16 columns of Q that a consumer has in registers: where tiles are of 64 keys, scores
   * ask shared memory for as much as it gives. */
  static constexpr int kHeld = Dim == 256 ? 8 : 0;
  /* Whether leaves are folded while scores are multiplied: where registers have room for both. */
  static constexpr bool kEarly = Consumers == 2 && ValueDim <= 128;
  static constexpr int kThreads = 128 * (1 + Consumers);
  static constexpr int kLaunchedRegisters = Consumers == 3 ? 128 : 168;
  static constexpr int kProducerRegisters = Consumers == 3 ? 32 : 24;
  static constexpr int kConsumerRegisters = Consumers == 3 ? 160 : 240;
  static_assert(kProducerRegisters + Consumers * kConsumerRegisters <=
                    (1 + Consumers) * kLaunchedRegisters,
                "registers");
};
typedef tile_shape<64, 64, 3, 3, true> shape_64;
typedef tile_shape<96, 96, 2, 2, true> shape_96;
typedef tile_shape<128, 128, 2, 2, true> shape_128;
typedef tile_shape<192, 128, 2, 4, false> shape_192_128;
typedef tile_shape<192, 192, 2, 3, false> shape_192;
typedef tile_shape<256, 256, 2, 2, false> shape_256;

/* A row tile: kRows queries of one head, and the key tiles that some of them see. */
typedef struct row_tile {
  int32_t run, q_begin;         /* q_begin counts from the run's first query */
  int32_t head, kv_head;        /* of those to do; -1: no more row tiles */
  int32_t sequence, token;      /* of the first row in Q */
  int32_t k_length;             /* keys of the node that the sequence has */
  int32_t low, high;            /* keys that the first row would see of an endless node */
  int32_t seen_begin, seen_end; /* keys outside are seen by no row */
  int32_t tile_begin, tile_end;
} row_tile_t;

/* The state of a warpgroup's 64 rows, as its threads hold it. */
template <int ValueDim> struct state_image {
  float2 rows[64]; /* (e, l) */
  float4 o[ValueDim / 8][128];
};

template <typename Shape> struct prefill_shared {
  uint8_t q[slabs_of(Shape::kDim) * Shape::kRows * 128];
  uint8_t k[Shape::kStages][slabs_of(Shape::kDim) * Shape::kKeys * 128];
  uint8_t v[Shape::kStages][slabs_of(Shape::kValueDim) * Shape::kKeys * 128];
  state_image<Shape::kValueDim> block[Shape::kBlocks ? Shape::kConsumers : 0]; /* at hand */
  uint64_t q_full, q_empty, v_here;
  uint32_t v_parity; /* of the producer's next wait for v_here */
  uint64_t k_full[Shape::kStages], k_empty[Shape::kStages];
  uint64_t v_full[Shape::kStages], v_empty[Shape::kStages];
  /* The n-th of the CTA is in [n % 3]: while consumers still write rows of one, they may multiply
   * the next, and the producer finds the one after. */
  row_tile_t row_tiles[3];
  uint32_t taken[4 * Shape::kConsumers]; /* n of a warp: not in a register for all that time */
};

typedef struct ring {
  uint32_t stage, parity;
} ring_t;

/* The stage of a ring that its n-th tile is in, and the parity of waiting for it. */
template <typename Shape> SKV_DEVICE ring_t ring_of(uint32_t n) {
  constexpr uint32_t kStages = Shape::kStages;
  return (ring_t){n % kStages, n / kStages & 1};
}

#endif
