/* tiles.cuh: what the roles of the sm_90a prefill kernel share: parameters, tile shapes, the layout
 * of shared memory, row tiles and the rings that tiles of K and V go through. */
#ifndef SKV_CUDA_TILES_CUH
#define SKV_CUDA_TILES_CUH

#include "kernels/cuda/softmax.cuh"

typedef struct prefill_params {
  CUtensorMap q, k, v;
  void *o;
  int64_t o_stride[3]; /* sequence, token, head */
  float *lse;
  int64_t lse_stride[3];
  const int64_t *q_lengths, *k_lengths, *q_start;
  int64_t left_tokens, right_tokens;
  int32_t q_heads, group;  /* group: query heads of a KV head */
  int32_t row_tiles, band; /* row tiles of a head; heads that are worked on together */
  int32_t tiles;           /* in all */
  int32_t leaf_tiles, block_tiles;
  int32_t stack_levels;
  float c; /* scale log2(e) */
  uint32_t *next_tile, *leavers;
  float4 *stack; /* [CTA][warpgroup][level][1 + head_dim / 8][128] */
} prefill_params_t;

/* Rows by keys of a tile, stages of K and V, and registers of a thread, by head_dim. The CTA's
 * registers are those it is launched with: raising more than is lowered would wait for ever. */
template <int Consumers, int Keys, int Stages, int Producer, int Consumer, int Launched>
struct tile_shape {
  static constexpr int kConsumers = Consumers, kRows = 64 * Consumers, kKeys = Keys;
  static constexpr int kStages = Stages, kThreads = 128 * (1 + Consumers);
  static constexpr int kProducerRegisters = Producer, kConsumerRegisters = Consumer;
  static_assert(Producer + Consumers * Consumer <= (1 + Consumers) * Launched, "registers");
};
template <int Dim> struct prefill_shape;
template <> struct prefill_shape<64> : tile_shape<3, 128, 3, 32, 160, 128> {
  static constexpr bool kBlocks = true; /* blocks of several leaves: their states fit */
};
template <> struct prefill_shape<128> : tile_shape<2, 128, 2, 24, 240, 168> {
  static constexpr bool kBlocks = true;
};
template <> struct prefill_shape<256> : tile_shape<2, 64, 2, 24, 240, 168> {
  static constexpr bool kBlocks = false;
};

template <int Dim> struct prefill_shared {
  typedef prefill_shape<Dim> shape;
  static constexpr int kTileBytes = shape::kKeys * Dim * 2;
  uint8_t q[shape::kRows * Dim * 2];
  uint8_t k[shape::kStages][kTileBytes];
  uint8_t v[shape::kStages][kTileBytes];
  /* O of the block at hand, as the threads hold it */
  float4 block[shape::kBlocks ? shape::kConsumers : 1][shape::kBlocks ? Dim / 8 : 1][128];
  float2 block_rows[shape::kConsumers][64]; /* its (e, l), by row */
  uint64_t q_full, q_empty, v_here;
  uint64_t k_full[shape::kStages], k_empty[shape::kStages];
  uint64_t v_full[shape::kStages], v_empty[shape::kStages];
  int32_t taken[shape::kConsumers]; /* the row tile that a warpgroup is at */
  /* valid from q_full to q_empty: */
  int32_t tile;      /* -1: no more */
  int32_t k_length;  /* keys of the sequence */
  int32_t low, high; /* keys that the tile's first row would see of an endless sequence */
};

/* A row tile: kRows queries of one head, and the key tiles that some of them see. */
typedef struct row_tile {
  int32_t sequence, head, q_begin;
  int32_t q_length, k_length;
  int32_t low, high; /* keys that the first row would see of an endless sequence */
  int32_t tile_begin, tile_end;
} row_tile_t;

SKV_DEVICE int32_t clamp_token(int64_t token, int64_t most) {
  return (int32_t)(token < 0 ? 0 : token < most ? token : most);
}

/* Row r of a tile sees `low` + r and `high` + r: both stay far from where int32 ends. */
SKV_DEVICE int32_t saturate(int64_t token) {
  const int64_t most = INT32_MAX - 4096;
  return (int32_t)(token < -most ? -most : token < most ? token : most);
}

/* Longest first within a band of heads whose keys and values share the L2 cache. */
template <int Rows, int Keys>
SKV_DEVICE row_tile_t row_tile_at(const prefill_params_t &p, int32_t index) {
  int32_t a_sequence = p.row_tiles * p.q_heads, a_band = p.row_tiles * p.band;
  row_tile_t t;
  t.sequence = index / a_sequence;
  int32_t rest = index % a_sequence, band = rest / a_band;
  rest %= a_band;
  t.head = band * p.band + rest % p.band;
  t.q_begin = (p.row_tiles - 1 - rest / p.band) * Rows;
  t.q_length = (int32_t)p.q_lengths[t.sequence];
  int64_t k_length = p.k_lengths[t.sequence], position = p.q_start[t.sequence] + t.q_begin;
  t.k_length = (int32_t)k_length;
  t.low = saturate(position - p.left_tokens);
  t.high = saturate(position + p.right_tokens + 1);
  int32_t rows = t.q_length - t.q_begin < Rows ? t.q_length - t.q_begin : Rows;
  t.tile_begin = clamp_token(position - p.left_tokens, k_length) / Keys;
  t.tile_end = (clamp_token(position + rows + p.right_tokens, k_length) + Keys - 1) / Keys;
  if (rows <= 0)
    t.tile_end = t.tile_begin;
  return t;
}

typedef struct ring {
  uint32_t stage, parity;
} ring_t;

/* The stage of a ring that its n-th tile is in, and the parity of waiting for it. */
template <int Dim> SKV_DEVICE ring_t ring_of(uint32_t n) {
  constexpr uint32_t kStages = prefill_shape<Dim>::kStages;
  return (ring_t){n % kStages, n / kStages & 1};
}

#endif
