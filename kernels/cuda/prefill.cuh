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

#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/produce.cuh"

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
  rows_t ended = me->rows;
  if (NewLeaf)
    me->rows = rows_empty();
  soften<Type, Dim>(s, p, me, tile, masked, NewLeaf);
  if (NewLeaf) /* after the softmax: weights take fewer registers than scores */
    end_leaf<Dim>(s, p, me->o, ended, &me->pending, tile);
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
    s->taken[my_warpgroup()] = index; /* not in a register for all that time */
    attend_rows<Type, Dim, Pinned>(s, p, &me, index);
    if (Pinned)
      end_rows<Dim>(s, p, me.o, &me.rows, &me.pending);
    else
      leaf_end(&me.rows);
    index = s->taken[my_warpgroup()];
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
