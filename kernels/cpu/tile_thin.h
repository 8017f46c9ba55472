/* tile_thin.h: few rows (decode), bound by how fast keys and values can be read. They are read
 * where they lie, once, token by token for all heads of a task; keys are turned in registers. Lanes
 * are KV heads, of one token where there are eight: lane j is head j mod lane_heads of token
 * j / lane_heads. */

#ifdef SKV__TURN
enum {
  STEPS = 2, /* eights of keys, or tokens of values, at once: more chains, and fewer loads of O */
  CHUNK = SKV__THIN_CHUNK
};

/* Eight lanes: the same heads of one or more tokens. */
typedef struct bundle {
  int64_t heads, tokens; /* of both: 8 lanes */
  skv__eight_t keys;
  int64_t stride;   /* bytes from these tokens to the next ones */
  const float *q;   /* [chunks][head_dim][rows][8] */
  float *scores;    /* of the first head and token */
  int64_t place[8]; /* of each lane's score, from there */
} bundle_t;

/* Rows from `row` against `steps` times eight keys. */
static inline __attribute__((always_inline)) void score_lanes(const skv__tile_rows_t *tile,
                                                              const bundle_t *bundle, int64_t row,
                                                              const skv_dtype_t dtype,
                                                              const int rows, const int steps) {
  __m256 sum[STEPS][CHUNK];
#pragma GCC unroll 2
  for (int s = 0; s < steps; ++s)
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
      sum[s][r] = _mm256_setzero_ps();
  const int columns = skv__turn_columns(dtype);
  const float *q = bundle->q + row * tile->head_dim * 8;
  for (int64_t d = 0; d < tile->head_dim; d += columns, q += columns * rows * 8) {
    skv__fetch(tile->ahead);
#pragma GCC unroll 2
    for (int s = 0; s < steps; ++s) {
      skv__eight_t eight = bundle->keys;
      eight.from += s * bundle->stride;
      const float *again = q; /* not kept from step to step: registers are few */
      __asm__ volatile("" : "+r"(again));
      __m256 column[SKV__TURN];
      skv__turn(column, dtype, &eight, d);
#pragma GCC unroll 8
      for (int i = 0; i < columns; ++i)
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r)
          sum[s][r] =
              _mm256_fmadd_ps(column[i], _mm256_loadu_ps(again + (i * rows + r) * 8), sum[s][r]);
    }
  }
  float *to = bundle->scores + row * SKV__TILE_KEYS;
  for (int s = 0; s < steps; ++s)
    for (int r = 0; r < rows; ++r) {
      float score[8];
      _mm256_storeu_ps(score, sum[s][r]);
      for (int lane = 0; lane < 8; ++lane)
        to[bundle->place[lane] + r * SKV__TILE_KEYS + s * bundle->tokens] = score[lane];
    }
}

#define SCORE(ROWS, DTYPE)                                                                         \
  case ROWS * 4 + DTYPE:                                                                           \
    if (steps == STEPS)                                                                            \
      score_lanes(tile, bundle, row, DTYPE, ROWS, STEPS);                                          \
    else                                                                                           \
      score_lanes(tile, bundle, row, DTYPE, ROWS, 1);                                              \
    break;
#define ALL_ROWS(CASE, DTYPE) CASE(1, DTYPE) CASE(2, DTYPE) CASE(3, DTYPE) CASE(4, DTYPE)
#define ALL(CASE) ALL_ROWS(CASE, SKV_FP32) ALL_ROWS(CASE, SKV_FP16) ALL_ROWS(CASE, SKV_BF16)

static int64_t chunk_rows(const skv__tile_rows_t *tile, int64_t row) {
  return tile->rows - row < CHUNK ? tile->rows - row : CHUNK;
}

/* One key, when there are not enough tokens for all lanes. */
static void score_key(const skv__tile_rows_t *tile, const bundle_t *bundle, skv_dtype_t dtype) {
  for (int64_t row = 0; row < tile->rows; ++row) {
    const int64_t chunk = row - row % CHUNK, rows = chunk_rows(tile, chunk);
    const float *q = bundle->q + chunk * tile->head_dim * 8 + row % CHUNK * 8;
    for (int64_t h = 0; h < bundle->heads; ++h) {
      float sum = 0.0f;
      for (int64_t d = 0; d < tile->head_dim; ++d)
        sum = skv__fma(q[d * rows * 8 + h],
                       skv__load(dtype, skv__eight_row(&bundle->keys, (int)h), d), sum);
      bundle->scores[bundle->place[h] + row * SKV__TILE_KEYS] = sum;
    }
  }
}

/* The bundle's next `tokens` tokens. */
static void score_bundle(const skv__tile_rows_t *tile, bundle_t *bundle, skv_dtype_t dtype,
                         int64_t tokens) {
  for (int64_t steps; tokens >= bundle->tokens; tokens -= steps * bundle->tokens) {
    steps = tokens >= STEPS * bundle->tokens ? STEPS : 1;
    for (int64_t row = 0; row < tile->rows; row += CHUNK)
      switch (chunk_rows(tile, row) * 4 + dtype) {
        ALL(SCORE)
      default:
        break;
      }
    bundle->keys.from += steps * bundle->stride;
    bundle->scores += steps * bundle->tokens;
  }
  for (; tokens > 0; --tokens) {
    score_key(tile, bundle, dtype);
    bundle->keys.from += bundle->stride / bundle->tokens;
    ++bundle->scores;
  }
}

/* Heads from `head`, as many as share lanes. */
static bundle_t head_bundle(const skv__tile_rows_t *tile, const skv__tile_source_t *source,
                            int64_t head) {
  const int64_t heads = skv__lane_heads(source->heads - head), tokens = 8 / heads;
  const int64_t head_scores = tile->rows * SKV__TILE_KEYS;
  bundle_t bundle = {.heads = heads,
                     .tokens = tokens,
                     .keys.from = source->data + head * source->head_bytes,
                     .stride = tokens * source->stride_bytes,
                     .scores = tile->scores + head * head_scores + source->begin};
  for (int i = 0; i < 3; ++i)
    bundle.keys.step[i] =
        1 << i < heads ? source->head_bytes << i : source->stride_bytes * ((1 << i) / heads);
  for (int lane = 0; lane < 8; ++lane)
    bundle.place[lane] = lane % heads * head_scores + lane / heads;
  return bundle;
}

static void score_thin(const skv__tile_rows_t *tile, const skv__tile_source_t *source) {
  bundle_t bundles[SKV__TILE_KEYS / 8];
  const float *q = tile->q;
  int64_t count = 0, step = STEPS;
  for (int64_t head = 0; head < source->heads; head += bundles[count++].heads) {
    bundles[count] = head_bundle(tile, source, head);
    bundles[count].q = q;
    step = STEPS * bundles[count].tokens; /* of the last, who has the most */
    q += tile->head_dim * tile->rows * 8;
  }
  const int64_t chunks = (tile->rows + CHUNK - 1) / CHUNK, tokens = source->end - source->begin;
  skv__ahead_spread(tile->ahead, tokens * source->heads / (8 * STEPS) * chunks *
                                     (tile->head_dim / skv__turn_columns(source->dtype)));
  for (int64_t token = 0; token < tokens; token += step)
    for (int64_t i = 0; i < count; ++i)
      score_bundle(tile, &bundles[i], source->dtype, tokens - token < step ? tokens - token : step);
}

/* `rows` rows of each head, from the head's row `row`, take in `tokens` values. */
static inline __attribute__((always_inline)) void
add_tokens(const skv__tile_rows_t *tile, const skv__tile_source_t *source, int64_t key, int64_t row,
           const skv_dtype_t dtype, const int rows, const int tokens) {
  const int64_t columns = tile->value_panels * SKV__PANEL, stride = source->stride_bytes;
  const char *values = source->data + (key - source->begin) * stride;
  const float *weights = tile->scores + row * SKV__TILE_KEYS + key;
  float *o = tile->o + row * columns;
  for (int64_t head = 0; head < source->heads; ++head) {
    skv__fetch(tile->ahead_after_scores);
    lanes_t weight[STEPS][CHUNK];
#pragma GCC unroll 2
    for (int t = 0; t < tokens; ++t)
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r)
        weight[t][r] = lanes_all(weights[r * SKV__TILE_KEYS + t]);
#pragma GCC unroll 2
    for (int64_t n = 0; n < columns; n += LANES) {
      lanes_t sum[CHUNK];
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r)
        sum[r] = lanes_load(o + r * columns + n);
#pragma GCC unroll 2
      for (int t = 0; t < tokens; ++t) {
        lanes_t value = lanes_widen(dtype, values + t * stride, n);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r)
          sum[r] = lanes_fma(weight[t][r], value, sum[r]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r)
        lanes_store(o + r * columns + n, sum[r]);
    }
    values += source->head_bytes;
    weights += tile->rows * SKV__TILE_KEYS;
    o += tile->rows * columns;
  }
}

#define ADD(ROWS, DTYPE)                                                                           \
  case ROWS * 4 + DTYPE:                                                                           \
    if (tokens == STEPS)                                                                           \
      add_tokens(tile, source, key, row, DTYPE, ROWS, STEPS);                                      \
    else                                                                                           \
      add_tokens(tile, source, key, row, DTYPE, ROWS, 1);                                          \
    break;

static void add_thin(const skv__tile_rows_t *tile, const skv__tile_source_t *source) {
  const int64_t chunks = (tile->rows + CHUNK - 1) / CHUNK;
  skv__ahead_spread(tile->ahead_after_scores,
                    (source->end - source->begin) / STEPS * source->heads * chunks);
  for (int64_t key = source->begin, tokens; key < source->end; key += tokens) {
    tokens = key + STEPS <= source->end ? STEPS : 1;
    for (int64_t row = 0; row < tile->rows; row += CHUNK)
      switch (chunk_rows(tile, row) * 4 + source->dtype) {
        ALL(ADD)
      default:
        break;
      }
  }
}
#endif
