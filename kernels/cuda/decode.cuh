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

#include "kernels/cuda/decode_climb.cuh"
#include "kernels/cuda/decode_score.cuh"

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
  constexpr int kColumns = Shape::kPitch / 2, kMine = Shape::kDim / Shape::kCtas;
  const int32_t first = Shape::kSpread ? (int32_t)cluster_rank() * kMine : 0;
  uint32_t tiles = 0;
  decode_walk_t walk = walk_begin(p, my_part<Shape>());
  while (walk_next<Shape>(p, &walk)) {
    for (int32_t tile = walk.tile_begin; tile < walk.tile_end; ++tile) {
      nth<Shape::kValueStages> v(tiles++);
      barrier_wait(&s->v_empty[v.place], v.parity ^ 1);
      copy_tile<kMine / kColumns, kColumns, Shape::kKeys * Shape::kPitch>(
          s->v[v.place], &p.v, &s->v_full[v.place], first, p.token_offset + tile * Shape::kKeys,
          walk.item);
    }
    if (Shape::kSpread)
      break;
  }
}

/* ---- values ---- */

/* Keys that no row sees may hold anything, and a weight of 0 does not hide a NaN: the warp's
 * columns of those outside [from, to) become 0. */
template <class Shape>
SKV_DEVICE void clear_values(uint8_t *slab, uint32_t chunk, int32_t from, int32_t to) {
  constexpr int kChunks = Shape::kColumns / 8;
  for (int32_t i = (int32_t)lane_index(); i < Shape::kKeys * kChunks; i += 32) {
    const int32_t key = i / kChunks;
    const uint32_t at = (uint32_t)key * Shape::kPitch + (chunk + (uint32_t)(i % kChunks)) * 16;
    if (key < from || key >= to)
      *(uint4 *)(slab + (at ^ (at >> 7 & (Shape::kPitch / 16 - 1)) << 4)) = make_uint4(0, 0, 0, 0);
  }
  __syncwarp();
}

/* A operand `i` of a tile's products. */
template <class Shape>
SKV_DEVICE void get_weights(uint32_t (&weights)[4], const entry_of<Shape, false> &from, int i) {
  const uint4 four = from.weights[i][lane_index()];
  weights[0] = four.x, weights[1] = four.y, weights[2] = four.z, weights[3] = four.w;
}
template <class Shape>
SKV_DEVICE void get_weights(uint32_t (&weights)[4], const entry_of<Shape, true> &from, int i) {
  const uint2 two = ((const uint2 *)&from.weights[i / 2][lane_index()])[i % 2];
  weights[0] = two.x, weights[2] = two.y;
  weights[1] = weights[3] = 0;
}

template <class Shape>
SKV_DEVICE void multiply_values(part<Shape> *state, const entry<Shape> *entries,
                                const uint8_t *slab, uint32_t chunk) {
  const uint32_t lane = lane_index();
  uint32_t from[Shape::kColumns / 16]; /* of the first 16 keys: offsets of the lane's matrix rows */
#pragma unroll
  for (int j = 0; j < Shape::kColumns / 16; ++j) {
    uint32_t at = (lane % 16) * Shape::kPitch + (chunk + 2 * j + lane / 16) * 16;
    from[j] = at ^ (at >> 7 & (Shape::kPitch / 16 - 1)) << 4;
  }
#pragma unroll 4
  for (int i = 0; i < Shape::kKeys / 16; ++i) {
    uint32_t weights[Shape::kRowTiles][4];
#pragma unroll
    for (int r = 0; r < Shape::kRowTiles; ++r)
      get_weights(weights[r], entries[r], i);
#pragma unroll
    for (int j = 0; j < Shape::kColumns / 16; ++j) {
      uint32_t m[4];
      load_transposed(m, slab + from[j] + i * 16 * Shape::kPitch);
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        mma<typename Shape::Type>(state->o[r] + 8 * j, weights[r], m[0], m[1]);
        mma<typename Shape::Type>(state->o[r] + 8 * j + 4, weights[r], m[2], m[3]);
      }
    }
  }
}

/* To the tile's exponents and masses. */
template <class Shape>
SKV_DEVICE void advance_rows(part<Shape> *state, const entry<Shape> *entries) {
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    const float4 mass = entries[r].mass[lane_index()];
    float factor[2] = {mass.x, 1.0f};
    rows_t &rows = state->rows[r];
    if constexpr (Shape::kSpread) {
      rows.e[0] = mass.z, rows.l[0] *= mass.x, rows.l[0] += mass.y;
    } else {
      const float4 e = entries[r].e[lane_index()];
      factor[1] = mass.y;
      rows.e[0] = e.x, rows.l[0] *= mass.x, rows.l[0] += mass.z;
      rows.e[1] = e.y, rows.l[1] *= mass.y, rows.l[1] += mass.w;
    }
    if (__any_sync(0xffffffff, factor[0] != 1.0f || factor[1] != 1.0f))
#pragma unroll
      for (int i = 0; i < Shape::kColumns / 2; ++i)
        state->o[r][i] *= factor[i / 2 % 2];
  }
}

/* What skv__leaf_exponent and skv__leaf_value say. */
template <class Shape> SKV_DEVICE void end_part(part<Shape> *state) {
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    leaf_end(&state->rows[r]);
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 2; ++i)
      state->o[r][i] = skv__leaf_value(state->o[r][i]);
  }
}

template <class Shape>
SKV_DEVICE void value_warp(decode_shared<Shape> *s, const decode_params_t &p, uint32_t warp) {
  constexpr int kKeys = Shape::kKeys;
  const uint32_t column = warp * Shape::kColumns; /* of the CTA's */
  const uint32_t slab = column / (Shape::kPitch / 2) * (kKeys * Shape::kPitch);
  const uint32_t chunk = column % (Shape::kPitch / 2) / 8;
  const int32_t slice =
      (int32_t)((Shape::kSpread ? cluster_rank() : 0) * Shape::kValueWarps + warp);
  uint32_t tiles = 0;
  part<Shape> state;
  decode_walk_t walk = walk_begin(p, my_part<Shape>());
  while (walk_next<Shape>(p, &walk)) {
    empty_part(&state);
    for (int32_t tile = walk.tile_begin; tile < walk.tile_end; ++tile, ++tiles) {
      nth<Shape::kEntries> at(tiles);
      nth<Shape::kValueStages> v(tiles);
      const entry<Shape> *entries = s->entries[at.place];
      const int32_t from = walk.item.key_begin - tile * kKeys,
                    to = walk.item.key_end - tile * kKeys;
      const bool partly = from > 0 || to < kKeys;
      barrier_wait(&s->v_full[v.place], v.parity);
      if (partly)
        clear_values<Shape>(s->v[v.place] + slab, chunk, from, to);
      barrier_wait(&s->entry_full[at.place], at.parity);
      advance_rows(&state, entries);
      multiply_values(&state, entries, s->v[v.place] + slab, chunk);
      if (partly)
        proxy_fence();
      arrive_once(&s->v_empty[v.place]);
      arrive_once(&s->entry_empty[at.place]);
    }
    end_part(&state);
    climb(p, walk, slice, &state);
    if (Shape::kSpread) { /* nothing that peers sent may be under way when the CTA ends */
      if (tiles)
        barrier_wait(&s->guess_full, 0), barrier_wait(&s->verdict_full, 0);
      break;
    }
  }
}

/* ---- the kernel ---- */

/* By the first warp, a lane for each place of the rings. */
template <class Shape> SKV_DEVICE void make_barriers(decode_shared<Shape> *s) {
  static_assert(Shape::kValueStages <= 32 && Shape::kEntries <= 32, "a lane each");
  const uint32_t i = threadIdx.x;
  if (i < Shape::kKeyStages)
    barrier_init(&s->k_full[i], 1), barrier_init(&s->k_empty[i], Shape::kRowTiles);
  if (i < Shape::kValueStages)
    barrier_init(&s->v_full[i], 1), barrier_init(&s->v_empty[i], Shape::kValueWarps);
  if (i < Shape::kEntries) {
    barrier_init(&s->entry_full[i], Shape::kRowTiles);
    barrier_init(&s->entry_empty[i], Shape::kValueWarps);
  }
  if (i < Shape::kScoreWarps) {
    barrier_init(&s->token_full[i], 1);
    if (Shape::kSpread ? cluster_rank() == 0 && i == 0 : i < Shape::kRowTiles)
      barrier_arrive(&s->token_full[i]); /* the first tile needs no token */
    else if (Shape::kSpread)
      barrier_expect(&s->token_full[i], 512); /* once: a warp has one tile of a shared leaf */
  }
  if (i == 0) {
    barrier_init(&s->verdict_full, 1), barrier_init(&s->guess_full, 1);
    barrier_expect(&s->guess_full, 512);
  }
  barrier_init_fence();
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    decode(const __grid_constant__ decode_params_t p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  decode_shared<Shape> *s = (decode_shared<Shape> *)memory;
  const uint32_t warp = threadIdx.x / 32;
  if (threadIdx.x == 0)
    tensor_prefetch(&p.k), tensor_prefetch(&p.v);
  if (warp == 0)
    make_barriers(s);
  __syncthreads();
  if (Shape::kSpread)
    cluster_arrive(); /* when all have, their barriers are ready */
  if (warp < Shape::kCopyWarps) {
    if (!Shape::kSpread)
      registers_lower<40>();
    if (warp == 0)
      copy_keys(s, p);
    if (warp == 1)
      copy_values(s, p);
    __syncwarp();
    if (Shape::kSpread)
      cluster_wait();
  } else {
    if (Shape::kSpread)
      cluster_wait();
    if (warp < Shape::kCopyWarps + Shape::kScoreWarps) {
      if (!Shape::kSpread)
        registers_raise<Shape::kScoreRegisters>();
      score_warp(s, p, warp - Shape::kCopyWarps);
    } else {
      if (!Shape::kSpread)
        registers_raise<Shape::kValueRegisters>();
      value_warp(s, p, warp - Shape::kCopyWarps - Shape::kScoreWarps);
    }
  }
  __syncwarp();
  if (Shape::kSpread) { /* shared memory stays while others may send to it */
    cluster_arrive();
    cluster_wait();
  }
}

#endif
