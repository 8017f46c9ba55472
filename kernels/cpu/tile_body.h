/* tile_body.h: one version of skv__tile_t. Included once per instruction set, after its lanes and
 * with TILE naming the table to define. */
#include <string.h>

#include "kernels/convert.h"
#include "kernels/cpu/tile.h"

#include "kernels/cpu/tile_pack.h"
#include "kernels/cpu/tile_product.h"
#include "kernels/cpu/tile_softmax.h"

/* Position as an offset into the tile. */
static int tile_offset(const skv__tile_rows_t *tile, int64_t position) {
  int64_t offset = position - tile->key_begin;
  return offset < 0 ? 0 : offset > SKV__TILE_KEYS ? SKV__TILE_KEYS : (int)offset;
}

/* At most SKV__TILE_ROWS rows. Keys that none of them sees are not touched, so that nothing there
 * can matter. */
static void attend_rows(const skv__tile_rows_t *tile, int64_t first_row, int64_t rows) {
  int begin = SKV__TILE_KEYS, end = 0;
  for (int64_t r = first_row; r < first_row + rows; ++r) {
    int row_begin = tile_offset(tile, tile->first[r]), row_end = tile_offset(tile, tile->end[r]);
    if (row_begin < row_end) {
      begin = row_begin < begin ? row_begin : begin;
      end = row_end > end ? row_end : end;
    }
  }
  if (begin >= end)
    return;
  int panel_begin = begin / SKV__PANEL, panel_end = (end + SKV__PANEL - 1) / SKV__PANEL;
  int64_t panel = tile->head_dim * SKV__PANEL;
  product_t scores = {.a = tile->q + first_row * tile->head_dim,
                      .a_step = tile->head_dim,
                      .b = tile->keys + panel_begin * panel,
                      .b_step = SKV__PANEL,
                      .b_panel = panel,
                      .c = tile->scores + panel_begin * SKV__PANEL,
                      .c_step = SKV__TILE_KEYS,
                      .k = tile->head_dim,
                      .from_zero = true};
  product(&scores, rows, (panel_end - panel_begin) * SKV__PANEL);
  for (int64_t r = 0; r < rows; ++r) {
    float *row_scores = tile->scores + r * SKV__TILE_KEYS;
    int row_begin = tile_offset(tile, tile->first[first_row + r]);
    int row_end = tile_offset(tile, tile->end[first_row + r]);
    if (row_begin < row_end)
      row_weights(tile, first_row + r, row_scores, row_begin, row_end);
    else
      memset(row_scores, 0, SKV__TILE_KEYS * sizeof *row_scores);
  }
  int64_t columns = tile->value_panels * SKV__PANEL;
  product_t values = {.a = tile->scores + begin,
                      .a_step = SKV__TILE_KEYS,
                      .b = tile->values + begin * tile->value_step,
                      .b_step = tile->value_step,
                      .b_panel = tile->value_panel,
                      .c = tile->o + first_row * columns,
                      .c_step = columns,
                      .k = end - begin};
  product(&values, rows, columns);
}

static void attend(const skv__tile_rows_t *tile) {
  for (int64_t row = 0; row < tile->rows; row += SKV__TILE_ROWS) {
    int64_t left = tile->rows - row;
    attend_rows(tile, row, left < SKV__TILE_ROWS ? left : SKV__TILE_ROWS);
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
                          .attend = attend,
                          .end_leaf = end_leaf,
                          .merge = merge};
