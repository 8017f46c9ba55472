/* tile_thin.h: scores of few rows. Keys are turned in registers and used at once: each is read once
 * and never written, since decode is bound by how fast keys can be read. */

#ifdef SKV__TURN
enum {
  MOST_TURNS = 2,
  LINE_FLOATS = 16 /* read of some keys before the next ones: a cache line of fp32 */
};

/* The tile's rows (`rows` of them) against `turns` times eight keys. Enough chains to hide their
 * latency, few enough for registers. */
static inline __attribute__((always_inline)) void
score_turns(const skv__tile_rows_t *tile, const skv_dtype_t dtype, const char *from,
            int64_t stride_bytes, int64_t key, const int rows, const int turns) {
  const int64_t dim = tile->head_dim;
  const float *q = tile->q;
  __m256 sum[MOST_TURNS][SKV__THIN_ROWS];
#pragma GCC unroll 16
  for (int t = 0; t < turns; ++t)
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
      sum[t][r] = _mm256_setzero_ps();
  for (int64_t begin = 0; begin < dim; begin += LINE_FLOATS) {
    const int64_t end = begin + LINE_FLOATS < dim ? begin + LINE_FLOATS : dim;
#pragma GCC unroll 16
    for (int t = 0; t < turns; ++t) {
      skv__fetch(tile->ahead);
      for (int64_t d = begin; d < end; d += SKV__TURN_COLUMNS) {
        __m256 column[SKV__TURN_COLUMNS];
        skv__turn(column, dtype, from + t * SKV__TURN_ROWS * stride_bytes, stride_bytes, d);
#pragma GCC unroll 16
        for (int i = 0; i < SKV__TURN_COLUMNS; ++i)
#pragma GCC unroll 16
          for (int r = 0; r < rows; ++r)
            sum[t][r] = _mm256_fmadd_ps(_mm256_set1_ps(q[r * dim + d + i]), column[i], sum[t][r]);
      }
    }
  }
  float *to = tile->scores + key;
#pragma GCC unroll 16
  for (int t = 0; t < turns; ++t)
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
      _mm256_storeu_ps(to + r * SKV__TILE_KEYS + t * SKV__TURN_ROWS, sum[t][r]);
}

/* All whole eights of keys [key, end); returns the first key that is left. */
static inline __attribute__((always_inline)) int64_t
score_eights(const skv__tile_rows_t *tile, const int rows, const skv_dtype_t dtype,
             const skv__tile_source_t *source) {
  const int turns = MOST_TURNS;
  const int64_t stride = source->stride_bytes;
  const char *from = source->data;
  int64_t key = source->begin;
  for (; key + turns * SKV__TURN_ROWS <= source->end; key += turns * SKV__TURN_ROWS) {
    score_turns(tile, dtype, from, stride, key, rows, turns);
    from += turns * SKV__TURN_ROWS * stride;
  }
  for (; key + SKV__TURN_ROWS <= source->end; key += SKV__TURN_ROWS) {
    score_turns(tile, dtype, from, stride, key, rows, 1);
    from += SKV__TURN_ROWS * stride;
  }
  return key;
}

#define SCORE(ROWS, DTYPE)                                                                         \
  case ROWS * 4 + DTYPE:                                                                           \
    return score_eights(tile, ROWS, DTYPE, source);

static int64_t score_any(const skv__tile_rows_t *tile, const skv__tile_source_t *source) {
  switch (tile->rows * 4 + source->dtype) {
    SCORE(1, SKV_FP32)
    SCORE(2, SKV_FP32)
    SCORE(3, SKV_FP32)
    SCORE(4, SKV_FP32)
    SCORE(1, SKV_FP16)
    SCORE(2, SKV_FP16)
    SCORE(3, SKV_FP16)
    SCORE(4, SKV_FP16)
    SCORE(1, SKV_BF16)
    SCORE(2, SKV_BF16)
    SCORE(3, SKV_BF16)
    SCORE(4, SKV_BF16)
  default:
    return source->begin;
  }
}
#endif

/* The keys behind the last whole eight, and all of them without turning. */
static void score_keys(const skv__tile_rows_t *tile, const skv__tile_source_t *source,
                       int64_t key) {
  for (; key < source->end; ++key) {
    const char *from = source->data + (key - source->begin) * source->stride_bytes;
    for (int64_t r = 0; r < tile->rows; ++r) {
      const float *q = tile->q + r * tile->head_dim;
      float sum = 0.0f;
      for (int64_t d = 0; d < tile->head_dim; ++d)
        sum = skv__fma(q[d], skv__load(source->dtype, from, d), sum);
      tile->scores[r * SKV__TILE_KEYS + key] = sum;
    }
  }
}

static void score_thin(const skv__tile_rows_t *tile, const skv__tile_source_t *source) {
  int64_t key = source->begin;
#ifdef SKV__TURN
  const int64_t step = SKV__TURN_ROWS * LINE_FLOATS;
  skv__ahead_spread(tile->ahead, (source->end - source->begin) * tile->head_dim / step);
  if (tile->head_dim % SKV__TURN_COLUMNS == 0)
    key = score_any(tile, source);
#endif
  score_keys(tile, source, key);
}
