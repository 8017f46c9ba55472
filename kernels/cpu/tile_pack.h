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

static void pack_keys(float *keys, const skv__tile_source_t *source) {
  int64_t key = source->begin;
#ifdef SKV__TRANSPOSE
  const int64_t panel = source->dim * SKV__PANEL;
  const int64_t whole = source->dim - source->dim % SKV__TRANSPOSE;
  for (; key < source->end; key += SKV__TRANSPOSE) {
    int64_t count = source->end - key < SKV__TRANSPOSE ? source->end - key : SKV__TRANSPOSE;
    if (count < SKV__TRANSPOSE || key % SKV__TRANSPOSE != 0) {
      count = SKV__TRANSPOSE - key % SKV__TRANSPOSE;
      count = count < source->end - key ? count : source->end - key;
      pack_key_columns(keys, source, key, count, 0);
      key += count - SKV__TRANSPOSE;
      continue;
    }
    const char *from = source->data + (key - source->begin) * source->stride_bytes;
    float *to = keys + key / SKV__PANEL * panel + key % SKV__PANEL;
    for (int64_t d = 0; d < whole; d += SKV__TRANSPOSE)
      skv__transpose8(to + d * SKV__PANEL, SKV__PANEL, source->dtype, from, source->stride_bytes,
                      d);
    pack_key_columns(keys, source, key, SKV__TRANSPOSE, whole);
  }
#else
  pack_key_columns(keys, source, key, source->end - key, 0);
#endif
}

static void pack_values(float *values, const skv__tile_source_t *source) {
  for (int64_t key = source->begin; key < source->end; ++key) {
    const char *from = source->data + (key - source->begin) * source->stride_bytes;
    float *to = values + key * SKV__PANEL;
    int64_t n = 0;
    for (; n + SKV__PANEL <= source->dim; n += SKV__PANEL, to += SKV__VALUE_PANEL)
      for (int i = 0; i < SKV__PANEL; i += LANES)
        lanes_store(to + i, lanes_widen(source->dtype, from, n + i));
    if (n < source->dim)
      for (int i = 0; i < SKV__PANEL; ++i)
        to[i] = n + i < source->dim ? skv__load(source->dtype, from, n + i) : 0.0f;
  }
}
