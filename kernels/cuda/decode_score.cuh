/* decode_score.cuh: the score warps of the decode kernel: scores, softmax, and weights to the value
 * warps. */
#ifndef SKV_CUDA_DECODE_SCORE_CUH
#define SKV_CUDA_DECODE_SCORE_CUH

#include "kernels/cuda/decode_shape.cuh"

/* ---- scores ---- */

/* Keys [low, high) that a lane's two rows see go to shared memory: few tiles need them. Returns
 * those that all rows of the warp see. */
template <class Shape>
SKV_DEVICE decode_keys_t find_seen(int4 *seen, const decode_params_t &p, const decode_item_t &item,
                                   int32_t row_begin) {
  int32_t low[2], high[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    int32_t row = row_begin + (int32_t)lane_index() / 4 + 8 * h;
    int64_t position = item.position + row / p.group;
    int64_t begin = position - p.left_tokens, end = position + p.right_tokens + 1;
    if (row >= item.rows) /* no row: no mask, so that it never keeps the warp */
      begin = 0, end = item.k_end;
    low[h] = (int32_t)(begin < 0 ? 0 : begin < item.k_end ? begin : item.k_end);
    high[h] = (int32_t)(end < 0 ? 0 : end < item.k_end ? end : item.k_end);
  }
  *seen = make_int4(low[0], low[1], high[0], high[1]);
  return (decode_keys_t){__reduce_max_sync(0xffffffff, max(low[0], low[1])),
                         __reduce_min_sync(0xffffffff, min(high[0], high[1]))};
}

/* Rows of Q as the products' A operand; rows and columns that do not exist are 0. */
template <class Shape>
SKV_DEVICE void load_queries(uint32_t (&q)[Shape::kDim / 16][4], const decode_params_t &p,
                             const decode_item_t &item, int32_t row_begin) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    int32_t row = row_begin + (int32_t)lane_index() / 4 + 8 * h;
    int32_t head = (p.kv_head_begin + item.kv_head) * p.group + row % p.group;
    const uint16_t *from = p.q + item.sequence * p.q_stride[0] +
                           (item.q_begin + row / p.group) * p.q_stride[1] + head * p.q_stride[2];
#pragma unroll
    for (int i = 0; i < Shape::kDim / 8; ++i) {
      int32_t column = 8 * i + 2 * (int32_t)(lane_index() % 4);
      bool there = h < Shape::kRows && row < item.rows && column < p.head_dim;
      q[i / 2][i % 2 * 2 + h] = there ? *(const uint32_t *)(from + column) : 0;
    }
  }
}

/* Matrices are loaded four at a time, and four ahead of their products: the compiler keeps the
 * order that is written here. */
template <class Shape>
SKV_DEVICE void multiply_keys(float (&scores)[Shape::kKeys / 2],
                              const uint32_t (&q)[Shape::kDim / 16][4], const uint8_t *k) {
  constexpr int kGroups = Shape::kKeys / 32, kSteps = Shape::kDim / 32 * kGroups;
  const uint32_t row = lane_index() % 8, chunk = lane_index() / 8;
  const uint8_t *from[2] = {k + row * 128 + (chunk ^ row) * 16,
                            k + row * 128 + ((chunk + 4) ^ row) * 16};
  uint32_t m[2][4][4];
#pragma unroll
  for (int i = 0; i < Shape::kKeys / 2; ++i)
    scores[i] = 0.0f;
#pragma unroll
  for (int step = 0; step <= kSteps; ++step) { /* 32 columns of Q, 32 keys */
    const int i = step / kGroups, before = (step - 1) / kGroups;
    if (step < kSteps)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        load_matrices(m[step % 2][j],
                      from[i % 2] + i / 2 * Shape::kKeys * 128 + (step % kGroups * 4 + j) * 1024);
    if (step > 0)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t(&keys)[4] = m[(step - 1) % 2][j];
        float *to = scores + 4 * ((step - 1) % kGroups * 4 + j);
        mma<typename Shape::Type>(to, q[2 * before], keys[0], keys[1]);
        mma<typename Shape::Type>(to, q[2 * before + 1], keys[2], keys[3]);
      }
  }
}

/* ---- from scores to weights ---- */

SKV_DEVICE uint4 bits_of(float x, float y, float z, float w) {
  return make_uint4(__float_as_uint(x), __float_as_uint(y), __float_as_uint(z), __float_as_uint(w));
}

/* Tile `n` of the leaf (a cluster's) or of all (a CTA's) is done: on to the next one's warp. */
template <class Shape>
SKV_DEVICE void pass_token(decode_shared<Shape> *s, const decode_walk_t &walk, const rows_t &rows,
                           uint32_t n, uint32_t row_tile) {
  const uint32_t next = n + 1, lane = lane_index();
  if (Shape::kSpread) {
    const uint32_t each = tiles_each<Shape>(walk);
    const uint32_t warp = next % each % Shape::kScoreWarps, rank = next / each;
    if (next < (uint32_t)(walk.tile_end - walk.tile_begin))
      peer_store(peer_address(&s->token[warp][lane], rank), bits_of(rows.e[0], rows.e[1], 0, 0),
                 peer_address(&s->token_full[warp], rank));
  } else if (Shape::kTurns > 1) {
    const uint32_t warp = next % Shape::kTurns * Shape::kRowTiles + row_tile;
    s->token[warp][lane] = make_float4(rows.e[0], rows.e[1], 0.0f, 0.0f);
    arrive_all(&s->token_full[warp]);
  }
}

/* The exponents after the tile before. `uses`: how often the warp has had the token. */
template <class Shape>
SKV_DEVICE void take_token(decode_shared<Shape> *s, rows_t *rows, uint32_t warp, uint32_t uses) {
  barrier_wait(&s->token_full[warp], uses & 1);
  const float4 token = s->token[warp][lane_index()];
  rows->e[0] = token.x, rows->e[1] = token.y;
}

/* Bytes that a lane sends of an entry, in a cluster: lanes of rows that do not exist send none. */
template <class Shape> constexpr uint32_t kSentBytes = 16 * (Shape::kKeys / 32 + 1);

template <class Shape>
SKV_DEVICE void send_entry(decode_shared<Shape> *s, const decode_item_t &item,
                           const uint32_t (&weights)[Shape::kKeys / 4], const rows_t &rows,
                           const float (&factor)[4], uint32_t n, uint32_t row_tile) {
  const uint32_t lane = lane_index();
  nth<Shape::kEntries> at(n);
  entry<Shape> *to = &s->entries[at.place][row_tile];
  if constexpr (Shape::kSpread) {
    for (uint32_t rank = 0; rank < Shape::kCtas && (int32_t)lane < 4 * item.rows; ++rank) {
      const uint32_t base = peer_address(&to->weights[0][lane], rank);
      const uint32_t full = peer_address(&s->entry_full[at.place], rank);
#pragma unroll
      for (int i = 0; i < Shape::kKeys / 32; ++i)
        peer_store(
            base + 512 * i,
            make_uint4(weights[8 * i], weights[8 * i + 2], weights[8 * i + 4], weights[8 * i + 6]),
            full);
      peer_store(base + 512 * (Shape::kKeys / 32), bits_of(factor[0], rows.l[0], rows.e[0], 0),
                 full);
    }
    __syncwarp();
  } else {
    barrier_wait(&s->entry_full[at.place], at.parity ^ 1); /* as in score_warp */
    barrier_wait(&s->entry_empty[at.place], at.parity ^ 1);
    if constexpr (Shape::kRows == 1) {
#pragma unroll
      for (int i = 0; i < Shape::kKeys / 32; ++i)
        to->weights[i][lane] =
            make_uint4(weights[8 * i], weights[8 * i + 2], weights[8 * i + 4], weights[8 * i + 6]);
      to->mass[lane] = make_float4(factor[0], rows.l[0], rows.e[0], 0.0f);
    } else {
#pragma unroll
      for (int i = 0; i < Shape::kKeys / 16; ++i)
        to->weights[i][lane] =
            make_uint4(weights[4 * i], weights[4 * i + 1], weights[4 * i + 2], weights[4 * i + 3]);
      to->mass[lane] = make_float4(factor[0], factor[2], rows.l[0], rows.l[1]);
      to->e[lane] = make_float4(rows.e[0], rows.e[1], 0.0f, 0.0f);
    }
    arrive_all(&s->entry_full[at.place]);
  }
}

/* In a cluster: weights by the exponents of the leaf's first tile, and whether all tiles of the
 * leaf fit those. All warps of the cluster get the same answer. */
template <class Shape>
SKV_DEVICE bool soften_by_guess(decode_shared<Shape> *s, const decode_walk_t &walk,
                                const float (&scores)[Shape::kKeys / 2],
                                uint32_t (&weights)[Shape::kKeys / 4], rows_t *rows, float c,
                                uint32_t n) {
  const uint32_t lane = lane_index(), tiles = (uint32_t)(walk.tile_end - walk.tile_begin);
  bool fits = true;
  if (n == 0) {
    for (uint32_t rank = 0; rank < Shape::kCtas; ++rank)
      peer_store(peer_address(&s->guess[lane], rank), bits_of(rows->e[0], rows->e[1], 0, 0),
                 peer_address(&s->guess_full, rank));
  } else {
    barrier_wait(&s->guess_full, 0);
    const float4 guess = s->guess[lane];
    const float bias[2] = {bias_of(guess.x), 0.0f};
    weigh_keys<typename Shape::Type, Shape::kKeys, 1>(weights, rows->l, scores, bias, c);
    rows->e[0] = guess.x;
    fits = rows->l[0] < WEIGHTS_MOST && !skv__is_empty(guess.x);
  }
  fits = __all_sync(0xffffffff, fits);
  if (lane < Shape::kCtas)
    peer_store(peer_address(&s->verdict[n], lane), make_uint4(fits, 0, 0, 0),
               peer_address(&s->verdict_full, lane));
  barrier_wait(&s->verdict_full, 0);
  return __all_sync(0xffffffff, lane >= tiles || s->verdict[lane % Shape::kSpreadTiles].x);
}

/* Scores of tile n become weights. In `rows` are the exponents after the tile then, and the tile's
 * own masses. */
template <class Shape>
SKV_DEVICE void soften_tile(decode_shared<Shape> *s, const decode_walk_t &walk,
                            const float (&scores)[Shape::kKeys / 2],
                            uint32_t (&weights)[Shape::kKeys / 4], rows_t *rows, float (&factor)[4],
                            float c, bool fresh, uint32_t n, uint32_t warp, uint32_t uses) {
  typedef typename Shape::Type Type;
  factor[0] = factor[1] = factor[2] = factor[3] = 1.0f;
  if (fresh) {
    *rows = rows_empty();
    softmax_tile<Type, Shape::kKeys, Shape::kRows>(weights, scores, rows, factor, c, true);
  }
  if (Shape::kSpread) {
    if (soften_by_guess<Shape>(s, walk, scores, weights, rows, c, n))
      return;
  }
  rows_t before = *rows;
  if (Shape::kTurns > 1)
    take_token(s, &before, warp, uses);
  if (!fresh) {
    *rows = before;
    rows->l[0] = rows->l[1] = 0.0f;
    softmax_tile<Type, Shape::kKeys, Shape::kRows>(weights, scores, rows, factor, c, false);
  }
  pass_token<Shape>(s, walk, *rows, n, warp % Shape::kRowTiles);
}

template <class Shape>
SKV_DEVICE void score_warp(decode_shared<Shape> *s, const decode_params_t &p, uint32_t warp) {
  constexpr int kKeys = Shape::kKeys;
  const uint32_t row_tile = warp % Shape::kRowTiles, turn = warp / Shape::kRowTiles;
  uint32_t q[Shape::kDim / 16][4];
  uint32_t tiles = 0;   /* of the leaf (a cluster's), of all (a CTA's) */
  decode_keys_t common; /* to all rows of the warp */
  rows_t rows;
  decode_walk_t walk = walk_begin(p, my_part<Shape>());
  while (walk_next<Shape>(p, &walk)) {
    if (walk.new_item) {
      int32_t row_begin = 16 * (int32_t)row_tile;
      load_queries<Shape>(q, p, walk.item, row_begin);
      common = find_seen<Shape>(&s->seen[warp][lane_index()], p, walk.item, row_begin);
    }
    const uint32_t each = tiles_each<Shape>(walk);
    if (Shape::kSpread && warp == 0) {
      const uint32_t count = (uint32_t)(walk.tile_end - walk.tile_begin);
      if (lane_index() < count)
        barrier_expect(&s->entry_full[lane_index()], kSentBytes<Shape> * 4 * walk.item.rows);
      if (lane_index() == 0)
        barrier_expect(&s->verdict_full, 16 * count);
      __syncwarp();
    }
    for (int32_t tile = walk.tile_begin; tile < walk.tile_end; ++tile) {
      const uint32_t n = tiles++;
      uint32_t mine = n; /* tiles of this CTA before it */
      if (Shape::kSpread) {
        if (n / each != cluster_rank())
          continue;
        mine = n % each;
      }
      if (mine % Shape::kTurns != turn)
        continue;
      nth<Shape::kKeyStages> k(mine);
      float scores[kKeys / 2], factor[4];
      uint32_t weights[kKeys / 4];
      /* Turns leave out phases of a barrier, and a wait tells only odd from even: so first for what
       * cannot run ahead of this warp, here that the tile before in this place was used. */
      barrier_wait(&s->k_empty[k.place], k.parity ^ 1);
      barrier_wait(&s->k_full[k.place], k.parity);
      multiply_keys<Shape>(scores, q, s->k[k.place]);
      if (p.logits.k != 0.0f)
        cap_scores(scores, p.logits.k);
      const int32_t key = tile * kKeys;
      if (common.begin > key || common.end < key + kKeys) {
        const int4 seen = s->seen[warp][lane_index()];
        const int32_t low[2] = {seen.x, seen.y}, high[2] = {seen.z, seen.w};
        mask_scores<kKeys>(scores, key + 2 * (int32_t)(lane_index() % 4), low, high);
      }
      /* Not right after the products: the compiler then puts the arrival before those that still
       * wait for their matrices, and a tile was overwritten while it was read, once in 10^6. */
      arrive_all(&s->k_empty[k.place]);
      soften_tile<Shape>(s, walk, scores, weights, &rows, factor, p.logits.c,
                         tile == walk.tile_begin, n, warp, mine / Shape::kTurns);
      send_entry<Shape>(s, walk.item, weights, rows, factor, n, row_tile);
    }
    if (Shape::kSpread)
      break;
  }
}

#endif
