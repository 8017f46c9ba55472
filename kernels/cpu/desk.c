/* desk.c: how one thread's memory is divided. */
#include "kernels/cpu/task.h"

enum {
  MOST_ROWS = 768, /* packing a tile costs a few per cent of work on this many rows */
  ROW_MULTIPLE = 12
};

static size_t aligned(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

/* Takes `count` elements of `size` bytes off the memory; NULL memory only counts. */
static void *take(char **memory, size_t *used, int64_t count, size_t size) {
  void *taken = *memory ? *memory + *used : NULL;
  *used += aligned((size_t)count * size);
  return taken;
}

static size_t divide(skv__desk_t *desk, const skv__job_t *job, char *memory) {
  const int64_t values = skv__padded_values(job), rows = desk->most_rows;
  size_t used = 0;
  desk->keys = take(&memory, &used, SKV__TILE_KEYS * job->head_dim, sizeof(float));
  desk->values = take(&memory, &used, values / SKV__PANEL * SKV__VALUE_PANEL, sizeof(float));
  desk->scores = take(&memory, &used, SKV__TILE_KEYS * SKV__SHARED_ROWS, sizeof(float));
  desk->q = take(&memory, &used, rows * job->head_dim, sizeof(float));
  desk->first = take(&memory, &used, rows, sizeof(int64_t));
  desk->end = take(&memory, &used, rows, sizeof(int64_t));
  desk->o = take(&memory, &used, rows * values, sizeof(float));
  desk->e = take(&memory, &used, rows, sizeof(float));
  desk->l = take(&memory, &used, rows * SKV__PANEL, sizeof(float));
  desk->states = take(&memory, &used, desk->slots * rows * (values + 2), sizeof(float));
  return used;
}

void skv__desk_layout(skv__desk_t *desk, const skv__job_t *job, int64_t node_blocks, char *memory,
                      size_t bytes) {
  desk->slots = 1;
  for (int64_t blocks = 1; blocks < node_blocks; blocks *= 2)
    ++desk->slots;
  desk->most_rows = MOST_ROWS;
  while (desk->most_rows > 1 && divide(desk, job, NULL) > bytes)
    desk->most_rows -= desk->most_rows > ROW_MULTIPLE ? ROW_MULTIPLE : 1;
  divide(desk, job, memory);
}
