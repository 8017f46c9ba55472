/* prefill.cuh: attention of many queries on sm_90a. One producer warp copies tiles of Q, K and V to
 * shared memory; two or three consumer warpgroups of 64 rows each multiply and take turns at
 * issuing products, so that the softmax of one hides behind the products of the others. CTAs stay
 * and take row tiles from a counter, longest first.
 *
 * A consumer walks its keys left to right in tiles of `kKeys`. The state of the leaf at hand is in
 * registers. Where a leaf ends, it is folded into the block's state; where a block ends, states of
 * pending nodes on a stack in global memory are merged as the canonical tree says. */
#ifndef SKV_CUDA_PREFILL_CUH
#define SKV_CUDA_PREFILL_CUH

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/produce.cuh"
#include "kernels/cuda/results.cuh"

/* ---- a consumer's products ---- */

/* s = Q K^T for 64 rows and a tile of K; q and k are low words of descriptors, `held` the first
 * steps of Q. The later ones' descriptors are computed here, where they need registers for a
 * moment. */
template <typename Type, typename Shape>
SKV_DEVICE void issue_scores(float (&s)[Shape::kKeys / 2],
                             const uint32_t (&held)[Shape::kHeld + 1][4], uint32_t q, uint32_t k) {
  constexpr int kSlab = Shape::kKeys * 8;
  if (Shape::kHeld)
    q = settled(q);
#pragma unroll
  for (int step = 0; step < Shape::kHeld; ++step)
    wgmma<Type, Shape::kKeys>::rs_rows(s, held[step],
                                       descriptor(k + step / 4 * kSlab + step % 4 * 2), step > 0);
#pragma unroll
  for (int step = Shape::kHeld; step < Shape::kDim / 16; ++step)
    wgmma<Type, Shape::kKeys>::ss(s, descriptor(q + step / 4 * (Shape::kRows * 8) + step % 4 * 2),
                                  descriptor(k + step / 4 * kSlab + step % 4 * 2), step > 0);
}

/* o = P V, added to what o is when `keep`. */
template <typename Type, typename Shape>
SKV_DEVICE void issue_values(float (&o)[Shape::kValueDim / 2],
                             const uint32_t (&p)[Shape::kKeys / 4], uint32_t v, int keep) {
#pragma unroll
  for (int step = 0; step < Shape::kKeys / 16; ++step)
    wgmma<Type, Shape::kValueDim>::rs(o, p + 4 * step, descriptor(v + 128 * step),
                                      step > 0 ? 1 : keep);
}

/* ---- a consumer ---- */

/* Free: one endless leaf. Capped: pinned, and scores are under a softcap. */
typedef enum prefill_mode { MODE_FREE, MODE_PINNED, MODE_CAPPED } prefill_mode_t;

/* Where a consumer warpgroup is. */
template <typename Shape> struct consumer {
  uint32_t q;     /* descriptor of the warpgroup's rows of Q */
  uint32_t tiles; /* of K that were used so far: the next one's stage and parity follow */
  rows_t rows;
  pending_t pending;
  int32_t keep;        /* 0: the next products of weights and values start a leaf */
  uint32_t k, v;       /* descriptors of the next tile of K and of the tile of V before it, */
  bool k_here, v_here; /* which have arrived */
  uint32_t my_turn, next_turn; /* named barriers */
  float o[Shape::kValueDim / 2], scores[Shape::kKeys / 2];
  uint32_t held[Shape::kHeld + 1][4]; /* the first steps of Q */
  uint32_t weights[Shape::kKeys / 4];
};

/* n of the warp's row tile. */
template <typename Shape> SKV_DEVICE uint32_t taken(const prefill_shared<Shape> *s) {
  return s->taken[threadIdx.x / 32 - 4];
}
template <typename Shape> SKV_DEVICE void take(prefill_shared<Shape> *s, uint32_t n) {
  __syncwarp();
  s->taken[threadIdx.x / 32 - 4] = n;
  __syncwarp();
}
template <typename Shape> SKV_DEVICE const row_tile_t &my_row_tile(const prefill_shared<Shape> *s) {
  return s->row_tiles[taken(s) % 3];
}

SKV_DEVICE void arrive_as_warp(uint64_t *barrier) {
  if (threadIdx.x % 32 == 0)
    barrier_arrive(barrier);
}

/* Looks early where the next products' tiles are and whether they have arrived, so that the turn
 * need not wait for the answers. */
template <typename Shape>
SKV_DEVICE void look_ahead(prefill_shared<Shape> *s, consumer<Shape> *me) {
  ring_t k_ring = ring_of<Shape>(me->tiles), v_ring = ring_of<Shape>(me->tiles - 1);
  me->v = settled(descriptor_columns(s->v[v_ring.stage], Shape::kKeys * 128));
  me->k = settled(descriptor_rows(s->k[k_ring.stage]));
  me->v_here = barrier_test(&s->v_full[v_ring.stage], v_ring.parity);
  me->k_here = barrier_test(&s->k_full[k_ring.stage], k_ring.parity);
}

/* Scores of a tile become weights. */
template <typename Type, typename Shape, prefill_mode_t Mode>
SKV_DEVICE void soften(const prefill_shared<Shape> *s, const prefill_params_t &p,
                       consumer<Shape> *me, int32_t tile, bool masked, bool fresh) {
  constexpr int kKeys = Shape::kKeys;
  if (Mode == MODE_CAPPED)
    cap_scores(me->scores, p.logits.k);
  if (masked) {
    const row_tile_t &t = my_row_tile(s);
    int32_t row = 64 * (int32_t)my_warpgroup() + (int32_t)my_row(), k_length = t.k_length;
    int32_t low[2] = {max(t.low + row, 0), max(t.low + row + 8, 0)};
    int32_t high[2] = {min(t.high + row, k_length), min(t.high + row + 8, k_length)};
    mask_scores<kKeys>(me->scores, tile * kKeys + 2 * (int32_t)(threadIdx.x % 4), low, high);
  }
  softmax_tile<Type, kKeys>(me->weights, me->scores, &me->rows, me->o, p.logits.c, fresh);
}

/* Before products that overwrite the scores. Where Q is held, their old values must not take
 * registers; elsewhere there are enough, and the loop is 1 % faster if it keeps its own. */
template <typename Shape> SKV_DEVICE void replace_scores(consumer<Shape> *me) {
  if (Shape::kHeld)
    wgmma_forget(me->scores);
  else
    wgmma_pin(me->scores);
}

/* The first steps of the warp's 16 rows of Q. */
template <typename Shape>
SKV_DEVICE void hold_queries(const prefill_shared<Shape> *s, consumer<Shape> *me) {
  const uint32_t thread = settled(threadIdx.x), lane = thread % 32;
  const uint32_t row = thread / 32 * 16 - 64 + lane % 16;
#pragma unroll
  for (int step = 0; step < Shape::kHeld; ++step) {
    uint32_t chunk = (uint32_t)step % 4 * 2 + lane / 16;
    load_matrices(me->held[step],
                  s->q + step / 4 * (Shape::kRows * 128) + row * 128 + ((chunk ^ row % 8) * 16));
  }
}

/* The first tile of a row tile: no values to multiply yet. */
template <typename Type, typename Shape, prefill_mode_t Mode>
SKV_DEVICE void first_tile(prefill_shared<Shape> *s, const prefill_params_t &p, consumer<Shape> *me,
                           int32_t tile, bool masked) {
  ring_t k_ring = ring_of<Shape>(me->tiles++);
  hold_queries(s, me);
  barrier_wait(&s->k_full[k_ring.stage], k_ring.parity);
  replace_scores(me);
  wgmma_begin();
  issue_scores<Type, Shape>(me->scores, me->held, me->q, descriptor_rows(s->k[k_ring.stage]));
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(me->scores);
  arrive_as_warp(&s->k_empty[k_ring.stage]);
  look_ahead(s, me);
  soften<Type, Shape, Mode>(s, p, me, tile, masked, true);
}

/* In the warpgroup's turn: values of the tile before `tile`, and scores of `tile`. Outside of it,
 * while others multiply: the softmax of `tile`, and, if `tile` begins a leaf, the end of the leaf
 * before: while the scores are still multiplied if registers allow, else after the softmax. `q` is
 * me->q. */
template <typename Type, typename Shape, prefill_mode_t Mode, bool NewLeaf>
SKV_DEVICE void next_tile(prefill_shared<Shape> *s, const prefill_params_t &p, consumer<Shape> *me,
                          uint32_t q, int32_t tile, bool masked) {
  constexpr uint32_t kTurn = 256; /* threads that meet: one warpgroup waits, one has its turn */
  ring_t k_ring = ring_of<Shape>(me->tiles), v_ring = ring_of<Shape>(me->tiles - 1);
  if (!me->v_here)
    barrier_wait(&s->v_full[v_ring.stage], v_ring.parity);
  if (!me->k_here)
    barrier_wait(&s->k_full[k_ring.stage], k_ring.parity);
  named_sync(me->my_turn, kTurn);
  replace_scores(me);
  wgmma_pin(me->weights);
  wgmma_pin(me->o);
  wgmma_begin();
  issue_values<Type, Shape>(me->o, me->weights, me->v, me->keep);
  if (NewLeaf && Shape::kEarly)
    wgmma_commit();
  issue_scores<Type, Shape>(me->scores, me->held, q, me->k);
  wgmma_commit();
  named_arrive(me->next_turn, kTurn);
  rows_t ended = me->rows;
  if (NewLeaf)
    me->rows = rows_empty();
  if (NewLeaf && Shape::kEarly) { /* while scores are multiplied */
    wgmma_wait<1>();
    wgmma_pin(me->o);
    arrive_as_warp(&s->v_empty[v_ring.stage]);
    end_leaf(s, p, me->o, ended, &me->pending, tile);
  }
  wgmma_wait<0>();
  wgmma_pin(me->scores);
  wgmma_pin(me->o);
  arrive_as_warp(&s->k_empty[k_ring.stage]);
  if (!NewLeaf || !Shape::kEarly)
    arrive_as_warp(&s->v_empty[v_ring.stage]);
  ++me->tiles;
  me->keep = !NewLeaf;
  look_ahead(s, me);
  soften<Type, Shape, Mode>(s, p, me, tile, masked, NewLeaf);
  if (NewLeaf && !Shape::kEarly) { /* after the softmax: weights take fewer registers than scores */
    end_leaf(s, p, me->o, ended, &me->pending, tile);
    hold_queries(s, me); /* not kept meanwhile */
  }
}

template <typename Type, typename Shape>
SKV_DEVICE void last_values(prefill_shared<Shape> *s, consumer<Shape> *me) {
  ring_t v_ring = ring_of<Shape>(me->tiles - 1);
  barrier_wait(&s->v_full[v_ring.stage], v_ring.parity);
  wgmma_pin(me->weights);
  wgmma_pin(me->o);
  wgmma_begin();
  issue_values<Type, Shape>(me->o, me->weights, me->v, me->keep);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(me->o);
  arrive_as_warp(&s->v_empty[v_ring.stage]);
}

template <typename Type, typename Shape, prefill_mode_t Mode>
SKV_DEVICE void attend_rows(prefill_shared<Shape> *s, const prefill_params_t &p,
                            consumer<Shape> *me) {
  constexpr int kKeys = Shape::kKeys;
  constexpr bool kPinned = Mode != MODE_FREE;
  const row_tile_t &t = my_row_tile(s);
  const int32_t tile_begin = t.tile_begin, tile_end = t.tile_end;
  me->rows = rows_empty();
  me->pending.block_started = false, me->pending.levels = 0;
  me->keep = 0;
#pragma unroll
  for (int i = 0; i < Shape::kValueDim / 2; ++i)
    me->o[i] = 0.0f;
  if (tile_begin == tile_end) {
    arrive_as_warp(&s->q_empty);
    return;
  }
  /* tiles whose keys all of the warpgroup's rows see need no mask */
  int32_t row = 64 * (int32_t)my_warpgroup();
  int32_t common_low = max(t.low + row + 63, 0);
  int32_t common_high = min(max(t.high + row, 0), t.k_length);
  int32_t plain_begin = (common_low + kKeys - 1) / kKeys;
  int32_t plain_end = min(common_high / kKeys, tile_end);
  first_tile<Type, Shape, Mode>(s, p, me, tile_begin,
                                tile_begin < plain_begin || tile_begin >= plain_end);
  int32_t leaf_end = kPinned ? (tile_begin / p.leaf_tiles + 1) * p.leaf_tiles : tile_end;
  for (int32_t tile = tile_begin + 1; tile < tile_end;) {
    /* Once more, and for the loop below alone: what is alive where leaves end, too, is moved out of
     * uniform registers, and back for every product. */
    const uint32_t q = uniform(me->q);
    if (tile >= plain_begin)
      for (int32_t end = min(plain_end, leaf_end); tile < end; ++tile)
        next_tile<Type, Shape, Mode, false>(s, p, me, q, tile, false);
    bool masked = tile < plain_begin || tile >= plain_end;
    if (kPinned && tile == leaf_end && tile < tile_end) {
      next_tile<Type, Shape, Mode, true>(s, p, me, me->q, tile++, masked);
      leaf_end += p.leaf_tiles;
    } else if (tile < tile_end) {
      next_tile<Type, Shape, Mode, false>(s, p, me, me->q, tile++, masked);
    }
  }
  arrive_as_warp(&s->q_empty);
  last_values<Type, Shape>(s, me);
}

template <typename Type, typename Shape, prefill_mode_t Mode>
SKV_DEVICE void consume(prefill_shared<Shape> *s, const prefill_params_t &p) {
  consumer<Shape> me;
  me.q = uniform(descriptor_rows(s->q + my_warpgroup() * 64 * 128));
  me.tiles = 0;
  me.my_turn = settled(1 + my_warpgroup());
  me.next_turn = settled(1 + (my_warpgroup() + 1) % Shape::kConsumers);
  if (my_warpgroup() == Shape::kConsumers - 1)
    named_arrive(1, 256);
  take(s, 0);
  for (;;) {
    barrier_wait(&s->q_full, taken(s) & 1);
    if (my_row_tile(s).head < 0)
      break;
    attend_rows<Type, Shape, Mode>(s, p, &me);
    if (Mode == MODE_FREE)
      leaf_end(&me.rows);
    else
      end_rows(s, p, me.o, &me.rows, &me.pending);
    write_rows<Type, Shape>(p, my_row_tile(s), me.o, me.rows);
    take(s, taken(s) + 1);
  }
  if (my_warpgroup() == 0)
    named_sync(1, 256); /* takes the last turn that was given */
}

/* ---- the kernel ---- */

template <typename Type, typename Shape, prefill_mode_t Mode>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    prefill(const __grid_constant__ prefill_params_t p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  prefill_shared<Shape> *s = (prefill_shared<Shape> *)memory;
  if (threadIdx.x < 32) { /* the first row tile has the CTA's number: no need to ask for one */
    find_row_tile<Shape>(&s->row_tiles[0], p, blockIdx.x);
  } else if (threadIdx.x == 32) {
    tensor_prefetch(&p.q), tensor_prefetch(&p.k), tensor_prefetch(&p.v);
    barrier_init(&s->q_full, 1), barrier_init(&s->q_empty, 4 * Shape::kConsumers),
        barrier_init(&s->v_here, 1);
    s->v_parity = 0;
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      barrier_init(&s->k_full[stage], 1), barrier_init(&s->k_empty[stage], 4 * Shape::kConsumers);
      barrier_init(&s->v_full[stage], 1), barrier_init(&s->v_empty[stage], 4 * Shape::kConsumers);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    registers_lower<Shape::kProducerRegisters>();
    if (threadIdx.x < 32)
      produce(s, p);
  } else {
    registers_raise<Shape::kConsumerRegisters>();
    consume<Type, Shape, Mode>(s, p);
  }
  /* The last CTA to leave puts the counters back for the next launch. */
  if (threadIdx.x == 0 && atomicAdd(p.leavers, 1) == p.ctas - 1)
    *p.next_tile = 0, *p.leavers = 0;
}

#endif
