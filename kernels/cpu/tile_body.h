/* tile_body.h: one version of skv__tile_t. Included once per instruction set, after its lanes and
 * with TILE naming the table to define. */
#include <string.h>

#include "kernels/convert.h"
#include "kernels/cpu/tile.h"

#include "kernels/cpu/tile_pack.h"
#include "kernels/cpu/tile_product.h"
#include "kernels/cpu/tile_softmax.h"
#include "kernels/cpu/tile_thin.h"

/* Position as an offset into the tile. */
static int tile_offset(const skv__tile_rows_t *tile, int64_t position) {
  int64_t offset = position - tile->key_begin;
  return offset < 0 ? 0 : offset > SKV__TILE_KEYS ? SKV__TILE_KEYS : (int)offset;
}

typedef struct span {
  int begin, end;
} span_t;

/* Keys of the tile that some row sees. Others are not touched, so that nothing there can matter. */
static span_t seen_keys(const skv__tile_rows_t *tile) {
  span_t seen = {SKV__TILE_KEYS, 0};
  for (int64_t r = 0; r < tile->rows; ++r) {
    int begin = tile_offset(tile, tile->first[r]), end = tile_offset(tile, tile->end[r]);
    if (begin < end) {
      seen.begin = begin < seen.begin ? begin : seen.begin;
      seen.end = end > seen.end ? end : seen.end;
    }
  }
  return seen;
}

static void score(const skv__tile_rows_t *tile, int64_t begin, int64_t end) {
  int64_t first = begin / SKV__PANEL, panel = tile->head_dim * SKV__PANEL;
  product_t scores = {.a = tile->q,
                      .a_step = tile->head_dim,
                      .b = tile->keys + first * panel,
                      .b_step = SKV__PANEL,
                      .b_panel = panel,
                      .c = tile->scores + first * SKV__PANEL,
                      .c_step = SKV__TILE_KEYS,
                      .k = tile->head_dim,
                      .from_zero = true,
                      .ahead = tile->ahead};
  product(&scores, tile->rows,
          (end + SKV__PANEL - 1) / SKV__PANEL * SKV__PANEL - first * SKV__PANEL);
}

static void weigh(const skv__tile_rows_t *tile) {
  for (int64_t r = 0; r < tile->rows; ++r) {
    float *row_scores = tile->scores + r * SKV__TILE_KEYS;
    int begin = tile_offset(tile, tile->first[r]), end = tile_offset(tile, tile->end[r]);
    if (begin < end)
      row_weights(tile, r, row_scores, begin, end);
    else
      memset(row_scores, 0, SKV__TILE_KEYS * sizeof *row_scores);
  }
}

static void add_values(const skv__tile_rows_t *tile, int64_t begin, int64_t end) {
  span_t seen = seen_keys(tile);
  begin = begin < seen.begin ? seen.begin : begin;
  end = end < seen.end ? end : seen.end;
  if (begin >= end)
    return;
  int64_t columns = tile->value_panels * SKV__PANEL;
  product_t values = {.a = tile->scores + begin,
                      .a_step = SKV__TILE_KEYS,
                      .b = tile->values + begin * SKV__PANEL,
                      .b_step = SKV__PANEL,
                      .b_panel = SKV__VALUE_PANEL,
                      .c = tile->o,
                      .c_step = columns,
                      .k = end - begin,
                      .ahead = tile->ahead_after_scores};
  product(&values, tile->rows, columns);
}

static void attend(const skv__tile_rows_t *tile) {
  for (int64_t row = 0; row < tile->rows; row += SKV__TILE_ROWS) {
    int64_t left = tile->rows - row;
    skv__tile_rows_t some = *tile;
    some.rows = left < SKV__TILE_ROWS ? left : SKV__TILE_ROWS;
    some.q += row * tile->head_dim;
    some.first += row, some.end += row;
    some.o += row * tile->value_panels * SKV__PANEL;
    some.e += row, some.l += row * SKV__PANEL;
    span_t seen = seen_keys(&some);
    if (seen.begin >= seen.end)
      continue;
    score(&some, seen.begin, seen.end);
    weigh(&some);
    add_values(&some, 0, SKV__TILE_KEYS);
  }
}

static float sum_lanes(const float *l) {
  float sum[SKV__PANEL / 2];
  for (int i = 0; i < 8; ++i)
    sum[i] = l[i] + l[i + 8];
  for (int half = 4; half > 0; half /= 2)
    for (int i = 0; i < half; ++i)
      sum[i] += sum[i + half];
  return sum[0];
}

static void end_leaf(skv__states_t into, bool merge, float *o, const float *e, const float *l,
                     int64_t rows, int64_t value_head_dim) {
  for (int64_t r = 0; r < rows; ++r) {
    float *row_o = o + r * into.stride, *to = into.o + r * into.stride;
    float mass = sum_lanes(l + r * SKV__PANEL);
    float row_l = skv__leaf_value(mass), row_e = skv__leaf_exponent(e[r], mass);
    for (int64_t n = 0; n < value_head_dim; ++n)
      row_o[n] = skv__leaf_value(row_o[n]);
    if (merge) {
      skv__merge_row(to, &into.e[r], &into.l[r], row_o, row_e, row_l, value_head_dim);
    } else {
      memcpy(to, row_o, (size_t)value_head_dim * sizeof *to);
      into.e[r] = row_e;
      into.l[r] = row_l;
    }
  }
}

static void merge(skv__states_t into, skv__states_t right, int64_t rows, int64_t value_head_dim) {
  for (int64_t r = 0; r < rows; ++r)
    skv__merge_row(into.o + r * into.stride, &into.e[r], &into.l[r], right.o + r * right.stride,
                   right.e[r], right.l[r], value_head_dim);
}

const skv__tile_t TILE = {.pack_keys = pack_keys,
                          .pack_values = pack_values,
                          .score = score,
                          .weigh = weigh,
                          .add_values = add_values,
#ifdef SKV__TURN
                          .score_thin = score_thin,
                          .add_thin = add_thin,
#endif
                          .attend = attend,
                          .end_leaf = end_leaf,
                          .merge = merge};
