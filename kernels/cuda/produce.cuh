/* produce.cuh: the producer warp of the prefill kernel. It takes row tiles from the counter and
 * copies Q, K and V to shared memory, as far ahead as the rings allow. */
#ifndef SKV_CUDA_PRODUCE_CUH
#define SKV_CUDA_PRODUCE_CUH

#include "kernels/cuda/tiles.cuh"

/* ---- row tiles ---- */

SKV_DEVICE int64_t clamp_token(int64_t token, int64_t most) {
  return token < 0 ? 0 : token < most ? token : most;
}

/* Row r of a tile sees `low` + r and `high` + r: both stay far from where int32 ends. */
SKV_DEVICE int32_t saturate(int64_t token) {
  const int64_t most = INT32_MAX - 4096;
  return (int32_t)(token < -most ? -most : token < most ? token : most);
}

template <int Rows> SKV_DEVICE uint32_t row_tiles_of(const skv__device_run_t &run) {
  return (uint32_t)((run.q_count + Rows - 1) / Rows);
}

/* The run that row tile `index` is of, and its number there. Runs are taken from the last: later
 * rows see more keys. By the whole warp. */
template <int Rows>
SKV_DEVICE int32_t run_of_tile(const prefill_params_t &p, uint32_t index, uint32_t *within) {
  const int32_t lane = (int32_t)(threadIdx.x % 32);
  *within = index;
  if (p.tables.run_count == 1)
    return 0;
  for (int64_t top = p.tables.run_count;; top -= 32) {
    int64_t run = top - 1 - lane;
    uint32_t mine = 0;
    if (run >= 0)
      mine = row_tiles_of<Rows>(skv__run_copy(p.tables, run)) * (uint32_t)p.heads;
    uint32_t sum = mine;
    for (int32_t step = 1; step < 32; step *= 2) {
      uint32_t below = __shfl_up_sync(0xffffffff, sum, step);
      sum += lane >= step ? below : 0;
    }
    uint32_t past = __ballot_sync(0xffffffff, index < sum);
    if (past) {
      int32_t owner = __ffs((int)past) - 1;
      *within = __shfl_sync(0xffffffff, index - (sum - mine), owner);
      return (int32_t)(top - 1 - owner);
    }
    index -= __shfl_sync(0xffffffff, sum, 31);
  }
}

/* Row tile `index`, to shared memory. In a run: longest first within a band of heads whose keys and
 * values share the L2 cache. By the whole warp. */
template <typename Shape>
SKV_DEVICE void find_row_tile(row_tile_t *to, const prefill_params_t &p, uint32_t index) {
  uint32_t rest;
  int32_t number = run_of_tile<Shape::kRows>(p, index, &rest);
  if (threadIdx.x != 0)
    return;
  const skv__device_run_t run = skv__run_copy(p.tables, number);
  uint32_t row_tiles = row_tiles_of<Shape::kRows>(run), band = (uint32_t)p.band;
  uint32_t a_band = row_tiles * band, bands = rest / a_band, within = rest - bands * a_band;
  uint32_t tile = within / band, head = bands * band + (within - tile * band);
  int32_t q_begin = (int32_t)(row_tiles - 1 - tile) * Shape::kRows;
  to->run = number, to->q_begin = q_begin;
  to->head = (int32_t)head;
  to->sequence = (int32_t)run.sequence, to->token = (int32_t)run.q_begin + q_begin;
  int64_t position = run.position + q_begin - p.node_begin;
  int64_t low = position - p.left_tokens, high = position + p.right_tokens + 1;
  to->low = saturate(low), to->high = saturate(high);
  int32_t rows = min((int32_t)run.q_count - q_begin, Shape::kRows);
  int64_t k_length = clamp_token(run.k_tokens - p.node_begin, p.node_keys);
  int32_t begin = (int32_t)clamp_token(low, k_length);
  int32_t end = (int32_t)clamp_token(high + rows - 1, k_length);
  to->k_length = (int32_t)k_length, to->seen_begin = begin, to->seen_end = end;
  begin /= Shape::kKeys;
  to->tile_begin = begin, to->tile_end = max(begin, (end + Shape::kKeys - 1) / Shape::kKeys);
}

/* ---- the tile loader ---- */

template <int Dim, int Tokens>
SKV_DEVICE void load_tile(uint8_t *to, const CUtensorMap *map, uint64_t *full, int32_t token,
                          int32_t head, int32_t sequence) {
  barrier_expect(full, slabs_of(Dim) * Tokens * 128);
#pragma unroll
  for (int slab = 0; slab < slabs_of(Dim); ++slab)
    tensor_load(to + slab * Tokens * 128, map, full, 64 * slab, token, head, sequence);
}

/* A tile of V with keys that no row sees: they may hold anything, and become 0, because a weight of
 * 0 does not hide a NaN. By the whole warp. */
template <typename Shape>
SKV_DEVICE void load_edge_values(prefill_shared<Shape> *s, ring_t ring, const prefill_params_t &p,
                                 const row_tile_t &t, int32_t key) {
  constexpr int kKeys = Shape::kKeys;
  uint8_t *v = s->v[ring.stage];
  if (threadIdx.x == 0)
    load_tile<Shape::kValueDim, kKeys>(v, &p.v, &s->v_here, p.token_offset + key, t.kv_head,
                                       t.sequence);
  barrier_wait(&s->v_here, s->v_parity);
#pragma unroll 1
  for (int32_t at = (int32_t)threadIdx.x; at < slabs_of(Shape::kValueDim) * kKeys * 8; at += 32) {
    int32_t row = key + at / 8 % kKeys;
    if (row < t.seen_begin || row >= t.seen_end)
      ((uint4 *)v)[at] = make_uint4(0, 0, 0, 0);
  }
  proxy_fence();
  __syncwarp();
  if (threadIdx.x == 0) {
    s->v_parity ^= 1;
    barrier_arrive(&s->v_full[ring.stage]);
  }
}

/* ---- the warp ---- */

/* The tiles of K and V of row tile `t`; `tiles` counts those of K over all row tiles. K is one tile
 * ahead: consumers multiply a tile of K together with the tile of V before it. */
template <typename Shape>
SKV_DEVICE void produce_keys(prefill_shared<Shape> *s, const prefill_params_t &p,
                             const row_tile_t &t, uint32_t *tiles) {
  constexpr int kKeys = Shape::kKeys;
  for (int32_t tile = t.tile_begin; tile <= t.tile_end; ++tile) {
    if (tile < t.tile_end) {
      ring_t ring = ring_of<Shape>((*tiles)++);
      barrier_wait(&s->k_empty[ring.stage], ring.parity ^ 1);
      if (threadIdx.x == 0)
        load_tile<Shape::kDim, kKeys>(s->k[ring.stage], &p.k, &s->k_full[ring.stage],
                                      p.token_offset + tile * kKeys, t.kv_head, t.sequence);
    }
    if (tile == t.tile_begin)
      continue;
    /* the tile of V before it: K's last but one, or its last when K has ended */
    ring_t ring = ring_of<Shape>(*tiles - (tile < t.tile_end ? 2 : 1));
    int32_t key = (tile - 1) * kKeys;
    barrier_wait(&s->v_empty[ring.stage], ring.parity ^ 1);
    if (key < t.seen_begin || key + kKeys > t.seen_end)
      load_edge_values(s, ring, p, t, key);
    else if (threadIdx.x == 0)
      load_tile<Shape::kValueDim, kKeys>(s->v[ring.stage], &p.v, &s->v_full[ring.stage],
                                         p.token_offset + key, t.kv_head, t.sequence);
    __syncwarp();
  }
}

/* The row tile that the counter gives. By the whole warp. */
template <typename Shape> SKV_DEVICE void take_row_tile(row_tile_t *to, const prefill_params_t &p) {
  uint32_t index = 0;
  if (threadIdx.x == 0)
    index = p.ctas + atomicAdd(p.next_tile, 1);
  index = __shfl_sync(0xffffffff, index, 0);
  if (index < p.tiles)
    find_row_tile<Shape>(to, p, index);
  else if (threadIdx.x == 0)
    to->head = -1, to->tile_begin = to->tile_end = 0;
  __syncwarp();
}

/* The first row tile is there. */
template <typename Shape>
SKV_DEVICE void produce(prefill_shared<Shape> *s, const prefill_params_t &p) {
  uint32_t tiles = 0;
  for (uint32_t n = 0;; ++n) {
    row_tile_t *t = &s->row_tiles[n % 3];
    if (n != 0)
      take_row_tile<Shape>(t, p);
    barrier_wait(&s->q_empty, n & 1 ^ 1); /* of an unused buffer: returns */
    if (threadIdx.x == 0) {
      if (t->tile_begin < t->tile_end)
        load_tile<Shape::kDim, Shape::kRows>(s->q, &p.q, &s->q_full, t->token,
                                             p.head_begin + t->head, t->sequence);
      else
        barrier_arrive(&s->q_full);
    }
    if (t->head < 0)
      return;
    if (threadIdx.x == 0) /* after the loads of Q, which do not need it */
      t->kv_head = t->head / p.group;
    produce_keys(s, p, *t, &tiles);
  }
}

#endif
