/* tile_pack.h: keys are turned, values cut into panels; both become fp32. Places of keys that are
 * not packed keep what they held: scores there are replaced before they are used. */

static void pack_key_columns(float *keys, const skv__tile_source_t *source, int64_t key,
                             int64_t count, int64_t d_begin) {
  const int64_t panel = source->dim * SKV__PANEL;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t d = d_begin; d < source->dim; ++d)
      keys[(key + i) / SKV__PANEL * panel + d * SKV__PANEL + (key + i) % SKV__PANEL] = skv__load(
          source->dtype, source->data + (key + i - source->begin) * source->stride_bytes, d);
}

#ifdef SKV__TURN
/* Eight whole keys, as far as they can be turned; returns the first element that is left. */
static inline __attribute__((always_inline)) int64_t
turn_keys(float *to, const skv_dtype_t dtype, const char *from, int64_t stride_bytes, int64_t dim) {
  const skv__eight_t eight = {from, {stride_bytes, 2 * stride_bytes, 4 * stride_bytes}};
  const int columns = skv__turn_columns(dtype);
  int64_t d = 0;
#pragma GCC unroll 2
  for (; d + columns <= dim; d += columns) {
    __m256 column[SKV__TURN];
    skv__turn(column, dtype, &eight, d);
#pragma GCC unroll 8
    for (int i = 0; i < columns; ++i)
      _mm256_storeu_ps(to + (d + i) * SKV__PANEL, column[i]);
  }
  return d;
}
#endif

static void pack_keys(float *keys, const skv__tile_source_t *source) {
  int64_t key = source->begin;
#ifdef SKV__TURN
  const int64_t panel = source->dim * SKV__PANEL, stride = source->stride_bytes;
  int64_t aligned = (key + SKV__TURN - 1) / SKV__TURN * SKV__TURN;
  if (aligned > source->end)
    aligned = source->end;
  pack_key_columns(keys, source, key, aligned - key, 0);
  for (key = aligned; key + SKV__TURN <= source->end; key += SKV__TURN) {
    const char *from = source->data + (key - source->begin) * stride;
    float *to = keys + key / SKV__PANEL * panel + key % SKV__PANEL;
    int64_t whole = source->dtype == SKV_FP32 ? turn_keys(to, SKV_FP32, from, stride, source->dim)
                    : source->dtype == SKV_FP16
                        ? turn_keys(to, SKV_FP16, from, stride, source->dim)
                        : turn_keys(to, SKV_BF16, from, stride, source->dim);
    pack_key_columns(keys, source, key, SKV__TURN, whole);
  }
#endif
  pack_key_columns(keys, source, key, source->end - key, 0);
}

static inline __attribute__((always_inline)) void
widen_values(float *values, const skv__tile_source_t *source, const skv_dtype_t dtype) {
  for (int64_t key = source->begin; key < source->end; ++key) {
    const char *from = source->data + (key - source->begin) * source->stride_bytes;
    float *to = values + key * SKV__PANEL;
    int64_t n = 0;
    for (; n + SKV__PANEL <= source->dim; n += SKV__PANEL, to += SKV__VALUE_PANEL)
      for (int i = 0; i < SKV__PANEL; i += LANES)
        lanes_store(to + i, lanes_widen(dtype, from, n + i));
    if (n < source->dim)
      for (int i = 0; i < SKV__PANEL; ++i)
        to[i] = n + i < source->dim ? skv__load(dtype, from, n + i) : 0.0f;
  }
}

static void pack_values(float *values, const skv__tile_source_t *source) {
  if (source->dtype == SKV_FP32)
    widen_values(values, source, SKV_FP32);
  else if (source->dtype == SKV_FP16)
    widen_values(values, source, SKV_FP16);
  else
    widen_values(values, source, SKV_BF16);
}
