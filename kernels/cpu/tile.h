/* tile.h: the work on one tile of 64 keys, compiled once per instruction set from tile_body.h. All
 * versions give the same bits: each is the sequence of docs/numerics.md with more or fewer lanes.
 *
 * Buffers, fp32, 64-byte aligned:
 *   keys    [64 / 16 panels][head_dim][16]       K transposed: lanes over keys
 *   values  [value_panels][SKV__VALUE_PANEL]     [64][16] each
 *   scores  [rows][64]                           become weights
 *   O       [rows][16 * value_panels], l [rows][16 lanes], e [rows]
 */
#ifndef SKV_CPU_TILE_H
#define SKV_CPU_TILE_H

#include <stddef.h>

#include "kernels/job.h"

enum {
  SKV__TILE_KEYS = 64,
  SKV__PANEL = 16,     /* columns that lie together in packed keys and values; also lanes of l */
  SKV__THIN_ROWS = 8,  /* of a head: up to here keys and values are used where they lie */
  SKV__THIN_CHUNK = 4, /* of those rows: at once */
  SKV__TILE_ROWS = 48, /* rows whose scores are held at once: a multiple of 6, 8 and 12 */
  SKV__VALUE_PANEL = SKV__TILE_KEYS * SKV__PANEL + SKV__PANEL /* no two panels share cache sets */
};

/* States of some rows: O [rows][stride], e [rows], l [rows]. */
typedef struct skv__states {
  float *o, *e, *l;
  int64_t stride;
} skv__states_t;

/* Memory that will be wanted soon: rows of `row_bytes`. Fetching it between other work keeps memory
 * busy meanwhile; hardware does not guess rows that lie a page apart. */
typedef struct skv__ahead {
  const char *row;
  int64_t stride_bytes, row_bytes, rows;
  int64_t offset; /* in the row */
  int64_t share;  /* lines to fetch during one call */
  int64_t lines;  /* to fetch at a time, by the called */
} skv__ahead_t;

/* Some rows of one KV head against one tile of keys. */
typedef struct skv__tile_rows {
  int64_t rows, head_dim;
  const float *q;             /* [rows][head_dim] */
  const int64_t *first, *end; /* [rows] absolute positions that each row sees */
  int64_t key_begin;          /* absolute position of the tile */
  const float *keys, *values;
  int64_t value_panels;
  float *scores;
  float *o, *e, *l;
  float tanh_scale;                 /* 0: no softcap */
  float log2_scale;                 /* c of docs/numerics.md */
  skv__ahead_t *ahead;              /* or NULL: fetched during scores */
  skv__ahead_t *ahead_after_scores; /* or NULL: fetched while values are added */
} skv__tile_rows_t;

/* Where keys or values lie, and which of the tile's 64 are packed: [begin, end). Others are not
 * read. */
typedef struct skv__tile_source {
  skv_dtype_t dtype;
  const char *data; /* of key `begin` */
  int64_t stride_bytes, dim;
  int64_t begin, end;
  int64_t heads, head_bytes; /* thin: KV heads, and from one to the next */
} skv__tile_source_t;

typedef struct skv__tile {
  void (*pack_keys)(float *keys, const skv__tile_source_t *source);
  void (*pack_values)(float *values, const skv__tile_source_t *source);
  /* Scores against keys [begin, end) of the tile; a few beside them may be overwritten. */
  void (*score)(const skv__tile_rows_t *tile, int64_t begin, int64_t end);
  /* The same for at most SKV__THIN_ROWS rows of each of source->heads heads, from keys where they
   * lie. head_dim is a multiple of 8. q is [bundles of skv__lane_heads heads][chunks of
   * SKV__THIN_CHUNK rows][head_dim][rows][8]: lane j is head j mod heads of the bundle. NULL where
   * there is no such way. */
  void (*score_thin)(const skv__tile_rows_t *tile, const skv__tile_source_t *source);
  /* Scores become weights; e, l and O follow their maxima. */
  void (*weigh)(const skv__tile_rows_t *tile);
  /* O takes in keys [begin, end) of the tile, as far as some row sees them. */
  void (*add_values)(const skv__tile_rows_t *tile, int64_t begin, int64_t end);
  /* The same for rows as score_thin has them, from values where they lie, in whole panels. */
  void (*add_thin)(const skv__tile_rows_t *tile, const skv__tile_source_t *source);
  /* All three, for any number of rows and the whole tile. */
  void (*attend)(const skv__tile_rows_t *tile);
  /* End a leaf: its accumulators (o, e, l [rows][16]) become states, written to `into` or merged
   * behind what is there. */
  void (*end_leaf)(skv__states_t into, bool merge, float *o, const float *e, const float *l,
                   int64_t rows, int64_t value_head_dim);
  /* into = merge(into, right), row by row. */
  void (*merge)(skv__states_t into, skv__states_t right, int64_t rows, int64_t value_head_dim);
} skv__tile_t;

extern const skv__tile_t skv__tile_portable;
#if defined(__x86_64__)
extern const skv__tile_t skv__tile_avx2, skv__tile_avx512;
#endif

/* Of `left` KV heads, how many share eight lanes: a power of two. */
static inline int64_t skv__lane_heads(int64_t left) {
  return left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* The lines of a call come evenly over its `steps`: more at once than the hardware can wait for
 * would stop everything. */
static inline void skv__ahead_spread(skv__ahead_t *ahead, int64_t steps) {
  if (ahead)
    ahead->lines = steps < 1 ? ahead->share : (ahead->share + steps - 1) / steps;
}

static inline void skv__fetch(skv__ahead_t *ahead) {
  if (ahead == NULL || ahead->rows <= 0)
    return;
  const char *from = ahead->row + ahead->offset;
  int64_t bytes = ahead->row_bytes - ahead->offset, wanted = ahead->lines * 64;
  bytes = bytes < wanted ? bytes : wanted;
  for (const char *end = from + bytes; from < end; from += 64)
    __builtin_prefetch(from, 0, 2);
  ahead->offset += bytes;
  if (ahead->offset >= ahead->row_bytes) {
    ahead->offset = 0;
    ahead->row += ahead->stride_bytes;
    --ahead->rows;
    /* Rows mostly lie a page apart: the address is translated before it is needed. */
    __builtin_prefetch((const void *)((uintptr_t)ahead->row + 8 * (uintptr_t)ahead->stride_bytes),
                       0, 2);
  }
}

#endif
