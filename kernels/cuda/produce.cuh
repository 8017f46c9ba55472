/* produce.cuh: the producer warp of the prefill kernel. It takes row tiles from the counter and
 * copies Q, K and V to shared memory, as far ahead as the rings allow. */
#ifndef SKV_CUDA_PRODUCE_CUH
#define SKV_CUDA_PRODUCE_CUH

#include "kernels/cuda/tiles.cuh"

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

#endif
