/* decode.cuh: attention of few queries on sm_90a. A CTA streams the K and V of its units through
 * shared memory. One warp copies tiles of K, one tiles of V. Four score warps take turns at tiles:
 * scores, softmax, and on to the next with the rows' exponents, a token that goes from tile to
 * tile. Four value warps follow, each with a quarter of V's columns: weights times values, and
 * where a leaf ends they climb (decode_climb.cuh).
 *
 * Where there are few leaves, a cluster of CTAs shares one: each scores a part of its tiles and
 * sends the weights to all; each multiplies its part of V's columns. Then a tile does not wait for
 * the one before it: it weighs its keys by the exponents of the leaf's first tile. In the rare case
 * that some tile needs others, all hear of it, and the token goes round. */
#ifndef SKV_CUDA_DECODE_CUH
#define SKV_CUDA_DECODE_CUH

#include "kernels/cuda/decode_score.cuh"
#include "kernels/cuda/decode_value.cuh"

/* ---- copying ---- */

/* A box for each slab of a tile. Lane 0 does it while the others wait: registers that are shared by
 * the warp hold the addresses. */
template <int Slabs, int Columns, int SlabBytes>
SKV_DEVICE void copy_tile(uint8_t *to, const CUtensorMap *map, uint64_t *full, int32_t column,
                          int32_t token, const decode_item_t &item) {
  if (lane_index() == 0) {
    const uint64_t policy = read_once_policy();
    barrier_expect(full, Slabs * SlabBytes);
#pragma unroll
    for (int slab = 0; slab < Slabs; ++slab)
      tensor_load_by(policy, to + slab * SlabBytes, map, full, column + slab * Columns, token,
                     item.kv_head, item.sequence);
  }
  __syncwarp();
}

template <class Shape>
SKV_DEVICE void copy_keys(decode_shared<Shape> *s, const decode_params_t &p) {
  uint32_t mine = 0; /* tiles that this CTA has copied */
  decode_walk_t walk = walk_begin(p, my_part<Shape>());
  while (walk_next<Shape>(p, &walk)) {
    int32_t begin = walk.tile_begin, end = walk.tile_end;
    if (Shape::kSpread) {
      const int32_t each = (int32_t)tiles_each<Shape>(walk);
      begin = min(begin + (int32_t)cluster_rank() * each, end), end = min(begin + each, end);
    }
#pragma unroll 1
    for (int32_t tile = begin; tile < end; ++tile) {
      nth<Shape::kKeyStages> k(mine++);
      barrier_wait(&s->k_empty[k.place], k.parity ^ 1);
      copy_tile<Shape::kDim / 64, 64, Shape::kKeys * 128>(s->k[k.place], &p.k, &s->k_full[k.place],
                                                          0, p.token_offset + tile * Shape::kKeys,
                                                          walk.item);
    }
    if (Shape::kSpread)
      break; /* a cluster has one unit */
  }
}

template <class Shape>
SKV_DEVICE void copy_values(decode_shared<Shape> *s, const decode_params_t &p) {
  constexpr int kColumns = Shape::kPitch / 2;
  const int32_t first = my_columns<Shape>() * Shape::kMine;
  uint32_t tiles = 0;
  decode_walk_t walk = walk_begin(p, my_part<Shape>());
  while (walk_next<Shape>(p, &walk)) {
#pragma unroll 1
    for (int32_t tile = walk.tile_begin; tile < walk.tile_end; ++tile) {
      nth<Shape::kValueStages> v(tiles++);
      barrier_wait(&s->v_empty[v.place], v.parity ^ 1);
      copy_tile<Shape::kMine / kColumns, kColumns, Shape::kKeys * Shape::kPitch>(
          s->v[v.place], &p.v, &s->v_full[v.place], first, p.token_offset + tile * Shape::kKeys,
          walk.item);
    }
    if (Shape::kSpread)
      break;
  }
}

/* ---- the kernel ---- */

/* A copying warp makes the barriers of its own ring, and need not wait for anybody. */
template <int Stages>
SKV_DEVICE void make_ring(uint64_t (&full)[Stages], uint64_t (&empty)[Stages], uint32_t users) {
  if (lane_index() == 0) {
#pragma unroll
    for (int i = 0; i < Stages; ++i)
      barrier_init(&full[i], 1), barrier_init(&empty[i], arrivals_of(users));
    barrier_init_fence();
    proxy_fence();
  }
  __syncwarp();
}

/* The others, by one warp. */
template <class Shape> SKV_DEVICE void make_barriers(decode_shared<Shape> *s) {
  static_assert(Shape::kEntries <= 32, "a lane each");
  const uint32_t i = lane_index();
  if (i < Shape::kEntries) {
    barrier_init(&s->entry_full[i], Shape::kSpread ? 1 : arrivals_of(Shape::kRowTiles));
    barrier_init(&s->entry_empty[i], arrivals_of(Shape::kValueWarps));
  }
  if (i < Shape::kScoreWarps) {
    barrier_init(&s->token_full[i], Shape::kSpread ? 1 : arrivals_of(1));
    if (Shape::kSpread && cluster_rank() == 0 && i == 0)
      barrier_arrive(&s->token_full[i]); /* the first tile needs no token */
    else if (Shape::kSpread)
      barrier_expect(&s->token_full[i], 512); /* once: a warp has one tile of a shared leaf */
  }
  if (i == 0) {
    barrier_init(&s->verdict_full, 1), barrier_init(&s->guess_full, 1);
    barrier_expect(&s->guess_full, 512);
  }
  __syncwarp();
  if (!Shape::kSpread)
    for (int r = 0; r < Shape::kRowTiles; ++r)
      arrive_all(&s->token_full[r]); /* as above */
  barrier_init_fence();
}

template <class Shape>
SKV_DEVICE void copying_warp(decode_shared<Shape> *s, const decode_params_t &p, uint32_t warp) {
  if (!Shape::kSpread)
    registers_lower<40>();
  if (warp == 0)
    make_ring(s->k_full, s->k_empty, Shape::kRowTiles);
  if (warp == 1)
    make_ring(s->v_full, s->v_empty, Shape::kValueWarps);
  named_arrive(1, Shape::kThreads);
  if (Shape::kSpread)
    cluster_arrive();
  if (warp == 0)
    copy_keys(s, p);
  if (warp == 1)
    copy_values(s, p);
  __syncwarp();
  if (Shape::kSpread)
    cluster_wait();
}

template <class Shape>
SKV_DEVICE void computing_warp(decode_shared<Shape> *s, const decode_params_t &p, uint32_t warp) {
  if (warp == 0)
    make_barriers(s);
  named_sync(1, Shape::kThreads);
  if (Shape::kSpread) { /* when all have come, their barriers are ready */
    cluster_arrive();
    cluster_wait();
  }
  if (warp < Shape::kScoreWarps) {
    if (!Shape::kSpread)
      registers_raise<Shape::kScoreRegisters>();
    score_warp(s, p, warp);
  } else {
    if (!Shape::kSpread)
      registers_raise<Shape::kValueRegisters>();
    value_warp(s, p, warp - Shape::kScoreWarps);
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    decode(const __grid_constant__ decode_params_t p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  decode_shared<Shape> *s = (decode_shared<Shape> *)memory;
  const uint32_t warp = threadIdx.x / 32;
  if (warp < Shape::kCopyWarps)
    copying_warp(s, p, warp);
  else
    computing_warp(s, p, warp - Shape::kCopyWarps);
  __syncwarp();
  if (Shape::kSpread) { /* shared memory stays while others may send to it */
    cluster_arrive();
    cluster_wait();
  }
}

#endif
