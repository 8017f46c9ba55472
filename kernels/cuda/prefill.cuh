/* prefill.cuh: attention of many queries on sm_90a. One producer warp copies tiles of Q, K and V to
 * shared memory; two or three consumer warpgroups of 64 rows each multiply and take turns at
 * issuing products, so that the softmax of one hides behind the products of the others. CTAs stay
 * and take row tiles from a counter, longest first.
 *
 * A consumer walks its keys left to right in tiles of `kKeys`. The state of the leaf at hand is in
 * registers. Where a leaf ends, it is folded into the block's state in shared memory; where a block
 * ends, states of pending nodes on a stack in global memory are merged as the canonical tree says.
 */
#ifndef SKV_CUDA_PREFILL_CUH
#define SKV_CUDA_PREFILL_CUH

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

/* ---- the producer ---- */

typedef struct ring {
  uint32_t stage, parity;
} ring_t;

/* The stage of a ring that its n-th tile is in, and the parity of waiting for it. */
template <int Dim> SKV_DEVICE ring_t ring_of(uint32_t n) {
  constexpr uint32_t kStages = prefill_shape<Dim>::kStages;
  return (ring_t){n % kStages, n / kStages & 1};
}

template <int Dim, int Tokens>
SKV_DEVICE void load_tile(uint8_t *to, const CUtensorMap *map, uint64_t *full, int32_t token,
                          int32_t head, int32_t sequence) {
  barrier_expect(full, Tokens * Dim * 2);
#pragma unroll
  for (int slab = 0; slab < Dim / 64; ++slab)
    tensor_load(to + slab * Tokens * 128, map, full, 64 * slab, token, head, sequence);
}

/* The last tile of V: rows past the sequence's length may hold anything, and become 0, because a
 * weight of 0 does not hide a NaN. By the whole warp. */
template <int Dim>
SKV_DEVICE void load_last_values(prefill_shared<Dim> *s, ring_t ring, uint32_t *here_parity,
                                 const prefill_params_t &p, const row_tile_t &t, int32_t token) {
  typedef prefill_shape<Dim> shape;
  uint8_t *v = s->v[ring.stage];
  if (threadIdx.x == 0)
    load_tile<Dim, shape::kKeys>(v, &p.v, &s->v_here, token, t.head / p.group, t.sequence);
  barrier_wait(&s->v_here, *here_parity);
  *here_parity ^= 1;
  for (int32_t at = (t.k_length - token) * 8 + threadIdx.x; at < shape::kKeys * 8; at += 32)
#pragma unroll
    for (int slab = 0; slab < Dim / 64; ++slab)
      *(uint4 *)(v + slab * shape::kKeys * 128 + at * 16) = make_uint4(0, 0, 0, 0);
  proxy_fence();
  __syncwarp();
  if (threadIdx.x == 0)
    barrier_arrive(&s->v_full[ring.stage]);
}

template <int Dim> SKV_DEVICE void produce(prefill_shared<Dim> *s, const prefill_params_t &p) {
  typedef prefill_shape<Dim> shape;
  uint32_t tiles = 0;                     /* of K, loaded so far */
  uint32_t q_parity = 1, here_parity = 0; /* waiting for parity 1 of an unused buffer returns */
  for (;;) {
    int32_t index = 0;
    if (threadIdx.x == 0)
      index = (int32_t)atomicAdd(p.next_tile, 1);
    index = __shfl_sync(0xffffffff, index, 0);
    bool more = index < p.tiles;
    row_tile_t t = {};
    if (more)
      t = row_tile_at<shape::kRows, shape::kKeys>(p, index);
    barrier_wait(&s->q_empty, q_parity);
    q_parity ^= 1;
    if (threadIdx.x == 0) {
      s->tile = more ? index : -1;
      s->k_length = t.k_length, s->low = t.low, s->high = t.high;
      if (more && t.tile_begin < t.tile_end)
        load_tile<Dim, shape::kRows>(s->q, &p.q, &s->q_full, t.q_begin, t.head, t.sequence);
      else
        barrier_arrive(&s->q_full);
    }
    if (!more)
      return;
    /* K is one tile ahead: consumers multiply a tile of K together with the tile of V before it. */
    for (int32_t tile = t.tile_begin; tile <= t.tile_end; ++tile) {
      if (tile < t.tile_end) {
        ring_t ring = ring_of<Dim>(tiles++);
        barrier_wait(&s->k_empty[ring.stage], ring.parity ^ 1);
        if (threadIdx.x == 0)
          load_tile<Dim, shape::kKeys>(s->k[ring.stage], &p.k, &s->k_full[ring.stage],
                                       tile * shape::kKeys, t.head / p.group, t.sequence);
      }
      if (tile == t.tile_begin)
        continue;
      /* the tile of V before it: K's last but one, or its last when K has ended */
      ring_t ring = ring_of<Dim>(tiles - (tile < t.tile_end ? 2 : 1));
      int32_t token = (tile - 1) * shape::kKeys;
      barrier_wait(&s->v_empty[ring.stage], ring.parity ^ 1);
      if (token + shape::kKeys > t.k_length)
        load_last_values<Dim>(s, ring, &here_parity, p, t, token);
      else if (threadIdx.x == 0)
        load_tile<Dim, shape::kKeys>(s->v[ring.stage], &p.v, &s->v_full[ring.stage], token,
                                     t.head / p.group, t.sequence);
      __syncwarp();
    }
  }
}

/* ---- a consumer's products ---- */

/* s = Q K^T for 64 rows and a tile of K; q and k are low words of descriptors. */
template <typename Type, int Dim, int Keys>
SKV_DEVICE void issue_scores(float (&s)[Keys / 2], uint32_t q, uint32_t k) {
  constexpr int kRows = prefill_shape<Dim>::kRows;
#pragma unroll
  for (int step = 0; step < Dim / 16; ++step)
    wgmma<Type, Keys>::ss(s, descriptor(q + step / 4 * (kRows * 8) + step % 4 * 2),
                          descriptor(k + step / 4 * (Keys * 8) + step % 4 * 2), step > 0);
}

/* o = P V, added to what o is when `keep`. */
template <typename Type, int Dim, int Keys>
SKV_DEVICE void issue_values(float (&o)[Dim / 2], const uint32_t (&p)[Keys / 4], uint32_t v,
                             int keep) {
#pragma unroll
  for (int step = 0; step < Keys / 16; ++step)
    wgmma<Type, Dim>::rs(o, p + 4 * step, descriptor(v + 128 * step), step > 0 ? 1 : keep);
}

/* ---- the state of a block, and pending nodes ---- */

SKV_DEVICE uint32_t my_warpgroup(void) {
  return threadIdx.x / 128 - 1;
}
/* The first of the thread's two rows among its warpgroup's; the other is 8 below. */
SKV_DEVICE uint32_t my_row(void) {
  return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
}

/* What a consumer warpgroup has of its 64 rows besides the leaf at hand. */
typedef struct pending {
  bool block_started; /* leaves of this block have ended: block and block_rows hold their state */
  uint32_t levels;    /* which levels of the stack hold a node */
} pending_t;

SKV_DEVICE void put_rows(float2 *to, const rows_t &rows) {
  to[my_row()] = make_float2(rows.e[0], rows.l[0]);
  to[my_row() + 8] = make_float2(rows.e[1], rows.l[1]);
}
SKV_DEVICE rows_t get_rows(const float2 *from) {
  float2 a = from[my_row()], b = from[my_row() + 8];
  return (rows_t){{a.x, b.x}, {a.y, b.y}};
}

/* o = merge(left, o). `left` is [Count / 4][128]. */
template <int Count>
SKV_DEVICE void merge_left(float (&o)[Count], const float4 *left, const float (&wl)[2],
                           const float (&wr)[2]) {
  const uint32_t thread = threadIdx.x % 128;
  bool plain = !__any_sync(0xffffffff, wl[0] != 1.0f || wl[1] != 1.0f);
#pragma unroll
  for (int i = 0; i < Count / 4; ++i) {
    float4 l = left[i * 128 + thread];
    if (!plain)
      l.x *= wl[0], l.y *= wl[0], l.z *= wl[1], l.w *= wl[1];
    o[4 * i] = __fmaf_rn(o[4 * i], wr[0], l.x);
    o[4 * i + 1] = __fmaf_rn(o[4 * i + 1], wr[0], l.y);
    o[4 * i + 2] = __fmaf_rn(o[4 * i + 2], wr[1], l.z);
    o[4 * i + 3] = __fmaf_rn(o[4 * i + 3], wr[1], l.w);
  }
}

template <int Count> SKV_DEVICE void store_image(float4 *to, const float (&o)[Count]) {
#pragma unroll
  for (int i = 0; i < Count / 4; ++i)
    to[i * 128 + threadIdx.x % 128] =
        make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
}

template <int Dim> SKV_DEVICE float4 *stack_slot(const prefill_params_t &p, int32_t level) {
  int64_t group = (int64_t)blockIdx.x * prefill_shape<Dim>::kConsumers + my_warpgroup();
  return p.stack + (group * p.stack_levels + level) * (1 + Dim / 8) * 128;
}

template <int Dim>
SKV_DEVICE void pop_node(const prefill_params_t &p, float (&o)[Dim / 2], rows_t *rows,
                         int32_t level) {
  const float4 *slot = stack_slot<Dim>(p, level);
  float4 head = slot[threadIdx.x % 128];
  rows_t left = {{head.x, head.y}, {head.z, head.w}};
  float wl[2], wr[2];
  merge_rows(&left, rows, wl, wr);
  merge_left(o, slot + 128, wl, wr);
}

template <int Dim>
SKV_DEVICE void push_node(const prefill_params_t &p, const float (&o)[Dim / 2], const rows_t *rows,
                          int32_t level) {
  float4 *slot = stack_slot<Dim>(p, level);
  slot[threadIdx.x % 128] = make_float4(rows->e[0], rows->e[1], rows->l[0], rows->l[1]);
  store_image(slot + 128, o);
}

/* o and rows = merge(block at hand, them). */
template <int Dim>
SKV_DEVICE void merge_block(prefill_shared<Dim> *s, float (&o)[Dim / 2], rows_t *rows) {
  rows_t left = get_rows(s->block_rows[my_warpgroup()]);
  float wl[2], wr[2];
  merge_rows(&left, rows, wl, wr);
  merge_left(o, &s->block[my_warpgroup()][0][0], wl, wr);
}

/* The leaf that ends before key tile `tile` becomes part of its block, and a block that ends there
 * part of the tree. */
template <int Dim>
SKV_DEVICE void end_leaf(prefill_shared<Dim> *s, const prefill_params_t &p, float (&o)[Dim / 2],
                         rows_t *leaf, pending_t *pending, int32_t tile) {
  rows_t rows = *leaf;
  *leaf = rows_empty();
  leaf_end(&rows);
  if (prefill_shape<Dim>::kBlocks && pending->block_started) {
    merge_block<Dim>(s, o, &rows);
  } else {
#pragma unroll
    for (int i = 0; i < Dim / 2; ++i)
      o[i] += 0.0f;
  }
  pending->block_started = prefill_shape<Dim>::kBlocks && tile % p.block_tiles != 0;
  if (pending->block_started) {
    put_rows(s->block_rows[my_warpgroup()], rows);
    store_image(&s->block[my_warpgroup()][0][0], o);
    return;
  }
  int32_t index = tile / p.block_tiles - 1, level = 0;
  for (; index >> level & 1; ++level)
    if (pending->levels >> level & 1) {
      pop_node<Dim>(p, o, &rows, level);
      pending->levels &= ~(1u << level);
    }
  push_node<Dim>(p, o, &rows, level);
  pending->levels |= 1u << level;
}

/* The last leaf, its block, and the pending nodes from the right: the root. */
template <int Dim>
SKV_DEVICE void end_rows(prefill_shared<Dim> *s, const prefill_params_t &p, float (&o)[Dim / 2],
                         rows_t *rows, pending_t *pending) {
  leaf_end(rows);
  if (prefill_shape<Dim>::kBlocks && pending->block_started)
    merge_block<Dim>(s, o, rows);
  for (int32_t level = 0; pending->levels >> level; ++level)
    if (pending->levels >> level & 1)
      pop_node<Dim>(p, o, rows, level);
}

/* ---- results ---- */

/* o = o / l as skv__state_output rounds it. With r the nearest to 1 / l, two corrections give the
 * nearest to o / l while no intermediate result leaves the normal range. */
template <int Count> SKV_DEVICE void divide_rows(float (&o)[Count], const rows_t &rows) {
  bool plain = true;
#pragma unroll
  for (int r = 0; r < 2; ++r)
    plain &= rows.l[r] > 0x1p-40f && rows.l[r] < 0x1p40f && !skv__is_empty(rows.e[r]);
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    o[i] += 0.0f;
    plain &= fabsf(o[i]) > 0x1p-60f && fabsf(o[i]) < 0x1p60f;
  }
  if (__all_sync(0xffffffff, plain)) {
    float inverse[2] = {__frcp_rn(rows.l[0]), __frcp_rn(rows.l[1])};
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      float l = rows.l[i / 2 % 2], r = inverse[i / 2 % 2], q = o[i] * r;
      q = __fmaf_rn(__fmaf_rn(-q, l, o[i]), r, q);
      o[i] = __fmaf_rn(__fmaf_rn(-q, l, o[i]), r, q);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < Count; ++i)
    o[i] = skv__state_output(rows.e[i / 2 % 2], rows.l[i / 2 % 2], o[i]);
}

template <typename Type, int Dim>
SKV_DEVICE void write_rows(const prefill_params_t &p, const row_tile_t &t, float (&o)[Dim / 2],
                           const rows_t &rows) {
  const int32_t row = 64 * (int32_t)my_warpgroup() + (int32_t)my_row();
  divide_rows(o, rows);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    int32_t query = t.q_begin + row + 8 * r;
    if (query >= t.q_length)
      continue;
    uint16_t *out = (uint16_t *)p.o + t.sequence * p.o_stride[0] + query * p.o_stride[1] +
                    t.head * p.o_stride[2] + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < Dim / 8; ++i)
      *(uint32_t *)(out + 8 * i) = pack<Type>(o[4 * i + 2 * r], o[4 * i + 2 * r + 1]);
    if (p.lse && threadIdx.x % 4 == 0)
      p.lse[t.sequence * p.lse_stride[0] + query * p.lse_stride[1] + t.head * p.lse_stride[2]] =
          skv__state_lse(rows.e[r], rows.l[r]);
  }
}

/* ---- a consumer ---- */

/* Where a consumer warpgroup is. */
template <int Dim> struct consumer {
  uint32_t q;     /* descriptor of the warpgroup's rows of Q */
  uint32_t tiles; /* of K that were used so far: the next one's stage and parity follow */
  rows_t rows;
  pending_t pending;
  int32_t keep;        /* 0: the next products of weights and values start a leaf */
  uint32_t k, v;       /* descriptors of the next tile of K and of the tile of V before it, */
  bool k_here, v_here; /* which have arrived */
  uint32_t my_turn, next_turn; /* named barriers */
  float o[Dim / 2], scores[prefill_shape<Dim>::kKeys / 2];
  uint32_t weights[prefill_shape<Dim>::kKeys / 4];
};

SKV_DEVICE void arrive_as_warp(uint64_t *barrier) {
  if (threadIdx.x % 32 == 0)
    barrier_arrive(barrier);
}

/* Looks early where the next products' tiles are and whether they have arrived, so that the turn
 * need not wait for the answers. */
template <int Dim> SKV_DEVICE void look_ahead(prefill_shared<Dim> *s, consumer<Dim> *me) {
  ring_t k_ring = ring_of<Dim>(me->tiles), v_ring = ring_of<Dim>(me->tiles - 1);
  me->v = settled(descriptor_columns(s->v[v_ring.stage], prefill_shape<Dim>::kKeys * 128));
  me->k = settled(descriptor_rows(s->k[k_ring.stage]));
  me->v_here = barrier_test(&s->v_full[v_ring.stage], v_ring.parity);
  me->k_here = barrier_test(&s->k_full[k_ring.stage], k_ring.parity);
}

/* Scores of a tile become weights. */
template <typename Type, int Dim>
SKV_DEVICE void soften(prefill_shared<Dim> *s, const prefill_params_t &p, consumer<Dim> *me,
                       int32_t tile, bool masked, bool fresh) {
  constexpr int kKeys = prefill_shape<Dim>::kKeys;
  if (masked) {
    int32_t row = 64 * (int32_t)my_warpgroup() + (int32_t)my_row();
    int32_t low[2] = {max(s->low + row, 0), max(s->low + row + 8, 0)};
    int32_t high[2] = {min(s->high + row, s->k_length), min(s->high + row + 8, s->k_length)};
    mask_scores<kKeys>(me->scores, tile * kKeys + 2 * (int32_t)(threadIdx.x % 4), low, high);
  }
  softmax_tile<Type, kKeys>(me->weights, me->scores, &me->rows, me->o, p.c, fresh);
}

/* The first tile of a row tile: no values to multiply yet. */
template <typename Type, int Dim>
SKV_DEVICE void first_tile(prefill_shared<Dim> *s, const prefill_params_t &p, consumer<Dim> *me,
                           int32_t tile) {
  typedef prefill_shape<Dim> shape;
  ring_t k_ring = ring_of<Dim>(me->tiles++);
  barrier_wait(&s->k_full[k_ring.stage], k_ring.parity);
  wgmma_pin(me->scores);
  wgmma_begin();
  issue_scores<Type, Dim, shape::kKeys>(me->scores, me->q, descriptor_rows(s->k[k_ring.stage]));
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(me->scores);
  arrive_as_warp(&s->k_empty[k_ring.stage]);
  look_ahead(s, me);
  soften<Type, Dim>(s, p, me, tile, true, true);
}

/* In the warpgroup's turn: values of the tile before `tile`, and scores of `tile`. Outside of it,
 * while others multiply: the softmax of `tile`, and before it, if `tile` begins a leaf, the end of
 * the leaf before. */
template <typename Type, int Dim, bool NewLeaf>
SKV_DEVICE void next_tile(prefill_shared<Dim> *s, const prefill_params_t &p, consumer<Dim> *me,
                          int32_t tile, bool masked) {
  typedef prefill_shape<Dim> shape;
  constexpr uint32_t kTurn = 256; /* threads that meet: one warpgroup waits, one has its turn */
  ring_t k_ring = ring_of<Dim>(me->tiles), v_ring = ring_of<Dim>(me->tiles - 1);
  if (!me->v_here)
    barrier_wait(&s->v_full[v_ring.stage], v_ring.parity);
  if (!me->k_here)
    barrier_wait(&s->k_full[k_ring.stage], k_ring.parity);
  named_sync(me->my_turn, kTurn);
  wgmma_pin(me->scores);
  wgmma_pin(me->weights);
  wgmma_pin(me->o);
  wgmma_begin();
  issue_values<Type, Dim, shape::kKeys>(me->o, me->weights, me->v, me->keep);
  issue_scores<Type, Dim, shape::kKeys>(me->scores, me->q, me->k);
  wgmma_commit();
  named_arrive(me->next_turn, kTurn);
  wgmma_wait<0>();
  wgmma_pin(me->scores);
  wgmma_pin(me->o);
  arrive_as_warp(&s->k_empty[k_ring.stage]);
  arrive_as_warp(&s->v_empty[v_ring.stage]);
  ++me->tiles;
  me->keep = !NewLeaf;
  look_ahead(s, me);
  if (NewLeaf)
    end_leaf<Dim>(s, p, me->o, &me->rows, &me->pending, tile);
  soften<Type, Dim>(s, p, me, tile, masked, NewLeaf);
}

template <typename Type, int Dim>
SKV_DEVICE void last_values(prefill_shared<Dim> *s, consumer<Dim> *me) {
  ring_t v_ring = ring_of<Dim>(me->tiles - 1);
  barrier_wait(&s->v_full[v_ring.stage], v_ring.parity);
  wgmma_pin(me->weights);
  wgmma_pin(me->o);
  wgmma_begin();
  issue_values<Type, Dim, prefill_shape<Dim>::kKeys>(me->o, me->weights, me->v, me->keep);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(me->o);
  arrive_as_warp(&s->v_empty[v_ring.stage]);
}

template <typename Type, int Dim, bool Pinned>
SKV_DEVICE void attend_rows(prefill_shared<Dim> *s, const prefill_params_t &p, consumer<Dim> *me,
                            int32_t index) {
  typedef prefill_shape<Dim> shape;
  constexpr int kKeys = shape::kKeys;
  row_tile_t t = row_tile_at<shape::kRows, kKeys>(p, index);
  me->rows = rows_empty();
  me->pending.block_started = false, me->pending.levels = 0;
  me->keep = 0;
#pragma unroll
  for (int i = 0; i < Dim / 2; ++i)
    me->o[i] = 0.0f;
  if (t.tile_begin == t.tile_end) {
    arrive_as_warp(&s->q_empty);
    return;
  }
  /* tiles whose keys all of the warpgroup's rows see need no mask */
  int32_t row = 64 * (int32_t)my_warpgroup();
  int32_t common_low = max(t.low + row + 63, 0);
  int32_t common_high = min(max(t.high + row, 0), t.k_length);
  int32_t plain_begin = (common_low + kKeys - 1) / kKeys, plain_end = common_high / kKeys;
  first_tile<Type, Dim>(s, p, me, t.tile_begin);
  plain_end = min(plain_end, t.tile_end);
  int32_t leaf_end = Pinned ? (t.tile_begin / p.leaf_tiles + 1) * p.leaf_tiles : t.tile_end;
  for (int32_t tile = t.tile_begin + 1; tile < t.tile_end;) {
    if (tile >= plain_begin)
      for (int32_t end = min(plain_end, leaf_end); tile < end; ++tile)
        next_tile<Type, Dim, false>(s, p, me, tile, false);
    bool masked = tile < plain_begin || tile >= plain_end;
    if (Pinned && tile == leaf_end && tile < t.tile_end) {
      next_tile<Type, Dim, true>(s, p, me, tile++, masked);
      leaf_end += p.leaf_tiles;
    } else if (tile < t.tile_end) {
      next_tile<Type, Dim, false>(s, p, me, tile++, masked);
    }
  }
  arrive_as_warp(&s->q_empty);
  last_values<Type, Dim>(s, me);
}

template <typename Type, int Dim, bool Pinned>
SKV_DEVICE void consume(prefill_shared<Dim> *s, const prefill_params_t &p) {
  typedef prefill_shape<Dim> shape;
  consumer<Dim> me;
  me.q = uniform(descriptor_rows(s->q + my_warpgroup() * 64 * 128));
  me.tiles = 0;
  me.my_turn = settled(1 + my_warpgroup());
  me.next_turn = settled(1 + (my_warpgroup() + 1) % shape::kConsumers);
  uint32_t q_parity = 0;
  if (my_warpgroup() == shape::kConsumers - 1)
    named_arrive(1, 256);
  for (;;) {
    barrier_wait(&s->q_full, q_parity);
    q_parity ^= 1;
    int32_t index = s->tile;
    if (index < 0)
      break;
    attend_rows<Type, Dim, Pinned>(s, p, &me, index);
    if (Pinned)
      end_rows<Dim>(s, p, me.o, &me.rows, &me.pending);
    else
      leaf_end(&me.rows);
    write_rows<Type, Dim>(p, row_tile_at<shape::kRows, shape::kKeys>(p, index), me.o, me.rows);
  }
  if (my_warpgroup() == 0)
    named_sync(1, 256); /* takes the last turn that was given */
}

/* ---- the kernel ---- */

template <typename Type, int Dim, bool Pinned>
__global__ void __launch_bounds__(prefill_shape<Dim>::kThreads, 1)
    prefill(const __grid_constant__ prefill_params_t p) {
  typedef prefill_shape<Dim> shape;
  extern __shared__ __align__(1024) uint8_t memory[];
  prefill_shared<Dim> *s = (prefill_shared<Dim> *)memory;
  if (threadIdx.x == 0) {
    tensor_prefetch(&p.q), tensor_prefetch(&p.k), tensor_prefetch(&p.v);
    barrier_init(&s->q_full, 1), barrier_init(&s->q_empty, 4 * shape::kConsumers),
        barrier_init(&s->v_here, 1);
    for (int stage = 0; stage < shape::kStages; ++stage) {
      barrier_init(&s->k_full[stage], 1), barrier_init(&s->k_empty[stage], 4 * shape::kConsumers);
      barrier_init(&s->v_full[stage], 1), barrier_init(&s->v_empty[stage], 4 * shape::kConsumers);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    registers_lower<shape::kProducerRegisters>();
    if (threadIdx.x < 32)
      produce<Dim>(s, p);
  } else {
    registers_raise<shape::kConsumerRegisters>();
    consume<Type, Dim, Pinned>(s, p);
  }
  /* The last CTA to leave puts the counters back for the next launch. */
  if (threadIdx.x == 0 && atomicAdd(p.leavers, 1) == gridDim.x - 1)
    *p.next_tile = 0, *p.leavers = 0;
}

#endif
