/* tile_softmax.h: from scores to weights, row by row. The same operations as kernels/state.h. */

static inline lanes_t lanes_exp2(lanes_t x) {
  const lanes_t magic = lanes_all(SKV__EXP2_MAGIC);
  lanes_t shifted = lanes_add(x, magic);
  lanes_t f = lanes_subtract(x, lanes_subtract(shifted, magic));
  lanes_t p = lanes_fma(lanes_all(SKV__EXP2_C6), f, lanes_all(SKV__EXP2_C5));
  p = lanes_fma(p, f, lanes_all(SKV__EXP2_C4));
  p = lanes_fma(p, f, lanes_all(SKV__EXP2_C3));
  p = lanes_fma(p, f, lanes_all(SKV__EXP2_C2));
  p = lanes_fma(p, f, lanes_all(SKV__EXP2_C1));
  p = lanes_fma(p, f, lanes_all(1.0f));
  p = lanes_multiply(p, lanes_power(shifted));
  return lanes_below(x, lanes_all(SKV__EXP2_LOWEST), lanes_all(0.0f), p);
}

static inline lanes_t lanes_tanh(lanes_t x) {
  lanes_t sign = lanes_sign(x);
  lanes_t a = lanes_flip(x, sign);
  lanes_t square = lanes_multiply(a, a);
  lanes_t p = lanes_fma(lanes_all(SKV__TANH_C4), square, lanes_all(SKV__TANH_C3));
  p = lanes_fma(p, square, lanes_all(SKV__TANH_C2));
  p = lanes_fma(p, square, lanes_all(SKV__TANH_C1));
  p = lanes_fma(p, square, lanes_all(SKV__TANH_C0));
  lanes_t near = lanes_fma(lanes_multiply(a, square), p, a);
  lanes_t t = lanes_exp2(lanes_multiply(a, lanes_all(SKV__TANH_EXP2_SCALE)));
  const lanes_t one = lanes_all(1.0f);
  lanes_t far = lanes_subtract(one, lanes_divide(lanes_add(t, t), lanes_add(one, t)));
  return lanes_flip(lanes_below(a, lanes_all(SKV__TANH_SMALL), near, far), sign);
}

/* A row's exponent rose: its accumulators follow by an exact power of two. */
static void rescale(const skv__tile_rows_t *tile, int64_t row, float e) {
  lanes_t factor = lanes_all(skv__rescale(tile->e[row], e));
  int64_t columns = tile->value_panels * SKV__PANEL;
  float *o = tile->o + row * columns, *l = tile->l + row * SKV__PANEL;
  for (int64_t n = 0; n < columns; n += LANES)
    lanes_store(o + n, lanes_multiply(lanes_load(o + n), factor));
  for (int n = 0; n < SKV__PANEL; n += LANES)
    lanes_store(l + n, lanes_multiply(lanes_load(l + n), factor));
  tile->e[row] = e;
}

/* The row's 64 scores, capped if asked, and -inf where the row does not see. */
static inline lanes_t row_logits(lanes_t *u, const skv__tile_rows_t *tile, const float *scores,
                                 int begin, int end) {
  enum { VECTORS = SKV__TILE_KEYS / LANES };
  for (int n = 0; n < VECTORS; ++n)
    u[n] = lanes_load(scores + n * LANES);
  if (tile->tanh_scale != 0.0f)
    for (int n = 0; n < VECTORS; ++n)
      u[n] = lanes_tanh(lanes_multiply(u[n], lanes_all(tile->tanh_scale)));
  if (begin > 0 || end < SKV__TILE_KEYS)
    for (int n = 0; n < VECTORS; ++n)
      u[n] = lanes_visible(u[n], begin - n * LANES, end - n * LANES);
  lanes_t most = lanes_all(skv__empty_exponent());
  for (int n = 0; n < VECTORS; ++n)
    most = lanes_max(u[n], most); /* drops NaN: the weights carry it */
  return most;
}

/* Scores of one row become weights; its e, l and O follow. The row sees [begin, end) of the tile.
 */
static void row_weights(const skv__tile_rows_t *tile, int64_t row, float *scores, int begin,
                        int end) {
  enum { VECTORS = SKV__TILE_KEYS / LANES };
  lanes_t u[VECTORS];
  float most = lanes_largest(row_logits(u, tile, scores, begin, end));
  float t = skv__exponent(most * tile->log2_scale);
  float e = tile->e[row];
  if (t > e) { /* rare, and no select: the processor goes on before it knows the maximum */
    rescale(tile, row, t);
    e = t;
  }
  /* A row that has only seen logits of -inf: they weigh nothing. */
  lanes_t minus_e = lanes_all(skv__is_empty(e) ? 0.0f : -e);
  lanes_t scale = lanes_all(tile->log2_scale);
  float *l = tile->l + row * SKV__PANEL;
  lanes_t sum[SKV__PANEL / LANES];
  for (int n = 0; n < SKV__PANEL / LANES; ++n)
    sum[n] = lanes_load(l + n * LANES);
  for (int n = 0; n < VECTORS; ++n) {
    lanes_t weight = lanes_exp2(lanes_fma(u[n], scale, minus_e));
    lanes_store(scores + n * LANES, weight);
    sum[n % (SKV__PANEL / LANES)] = lanes_add(sum[n % (SKV__PANEL / LANES)], weight);
  }
  for (int n = 0; n < SKV__PANEL / LANES; ++n)
    lanes_store(l + n * LANES, sum[n]);
}
