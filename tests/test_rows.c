/* test_rows.c: every row has one owner, one place and one pass. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/job.h"
#include "rows.h"

enum { HEADS = 3, BLOCK = 4 };

typedef struct seen {
  int64_t owner, pass, index;
} seen_t;

/* Marks where each row goes; fails on a second visit. */
static void mark_pass(const skv__rows_t *rows, int64_t pass, skv__run_t *runs, int64_t *slice_rows,
                      seen_t *seen, const int64_t *first_row) {
  skv__job_t job = {.q_heads = HEADS,
                    .ranks = rows->shard->ranks,
                    .round_robin = rows->owner == SKV_ROWS_ROUND_ROBIN};
  int64_t count = skv__rows_pass(rows, pass, runs, slice_rows);
  cr_assert(count <= skv__rows_run_bound(rows->shard, rows->batch, rows->owner));
  for (int64_t r = 0; r < count; r++)
    for (int64_t q = runs[r].q_begin; q < runs[r].q_begin + runs[r].q_count; q++)
      for (int64_t head = 0; head < HEADS; head++) {
        skv__place_t place = skv__job_place(&job, &runs[r], q, head);
        seen_t *row = &seen[first_row[runs[r].sequence] + q * HEADS + head];
        cr_assert_eq(row->owner, -1, "a row is in two runs");
        cr_assert(place.index >= 0 && place.index < slice_rows[place.owner],
                  "a row lies outside its slice");
        *row = (seen_t){place.owner, pass, place.index};
      }
}

static void check_rows(skv__rows_t *rows) {
  int64_t total = 0, *first_row = calloc((size_t)rows->batch, sizeof *first_row);
  for (int64_t s = 0; s < rows->batch; s++) {
    first_row[s] = total;
    total += rows->q_tokens[s] * HEADS;
  }
  seen_t *seen = malloc(((size_t)total + 1) * sizeof *seen);
  for (int64_t i = 0; i < total; i++)
    seen[i].owner = -1;
  rows->intervals =
      calloc((size_t)skv__shard_interval_bound(rows->shard) + 1, sizeof *rows->intervals);
  skv__run_t *runs =
      calloc((size_t)skv__rows_run_bound(rows->shard, rows->batch, rows->owner) + 1, sizeof *runs);
  int64_t *slice_rows = calloc((size_t)rows->shard->ranks, sizeof *slice_rows), in_slices = 0;
  int64_t passes = skv__rows_passes(rows);
  for (int64_t pass = 0; pass < passes; pass++) {
    mark_pass(rows, pass, runs, slice_rows, seen, first_row);
    for (int32_t owner = 0; owner < rows->shard->ranks; owner++) {
      cr_assert(slice_rows[owner] <= rows->pass_queries * HEADS);
      in_slices += slice_rows[owner];
    }
  }
  cr_expect_eq(in_slices, total, "slices hold %lld rows of %lld", (long long)in_slices,
               (long long)total);
  for (int64_t s = 0; s < rows->batch; s++)
    for (int64_t q = 0; q < rows->q_tokens[s]; q++) {
      int64_t position = rows->q_start[s] + q;
      bool inside = position >= 0 && position < rows->shard->blocks * BLOCK;
      for (int64_t head = 0; head < HEADS; head++) {
        const seen_t *row = &seen[first_row[s] + q * HEADS + head];
        cr_assert_neq(row->owner, -1, "a row has no owner");
        if (rows->owner == SKV_ROWS_BY_POSITION && inside)
          cr_assert_eq(row->owner, skv__shard_owner(rows->shard, position / BLOCK));
        if (rows->owner == SKV_ROWS_ROUND_ROBIN)
          cr_assert_eq(row->owner, (first_row[s] + q * HEADS + head) % rows->shard->ranks);
      }
    }
  for (int32_t owner = 0; owner < rows->shard->ranks; owner++) {
    int64_t most = 0;
    for (int64_t s = 0; s < rows->batch; s++)
      most = rows->q_tokens[s] > most ? rows->q_tokens[s] : most;
    cr_expect(skv__rows_owned_queries(rows, owner) <=
              skv__rows_owned_bound(rows->shard, BLOCK, rows->batch, most, owner));
  }
  free(first_row);
  free(seen);
  free(runs);
  free(slice_rows);
  free(rows->intervals);
}

Test(rows, every_row_has_one_owner_and_one_place) {
  static const int64_t q_tokens[] = {0, 1, 7, 40}, q_start[] = {0, 35, -3, 10};
  static const skv__layout_t layouts[] = {
      {SKV_CONTIGUOUS, 0}, {SKV_ZIGZAG, 0}, {SKV_BLOCKS, 1}, {SKV_BLOCKS, 3}};
  for (int32_t ranks = 1; ranks <= 9; ranks++)
    for (int64_t blocks = 1; blocks <= 13; blocks += 3)
      for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++)
        for (int owner = SKV_ROWS_BY_POSITION; owner <= SKV_ROWS_ROUND_ROBIN; owner++)
          for (int64_t pass_queries = 1; pass_queries <= 16; pass_queries *= 4) {
            skv__shard_t shard = {blocks, ranks, layouts[l]};
            skv__rows_t rows = {.owner = (skv_row_owner_t)owner,
                                .batch = 4,
                                .q_heads = HEADS,
                                .block_tokens = BLOCK,
                                .shard = &shard,
                                .q_tokens = q_tokens,
                                .q_start = q_start,
                                .pass_queries = pass_queries * (owner ? ranks : 1)};
            check_rows(&rows);
          }
}
