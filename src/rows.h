/* rows.h: which rank owns which row, and how an execute is cut into passes. Pure integers.
 *
 * A row is (sequence, query, head); whole queries stay together. By position: a query belongs to
 * the rank that owns the block of its position; queries at positions outside the capacity are
 * divided evenly, in order. Round-robin: row number r, query-major over the whole batch, belongs to
 * rank r mod ranks. A pass takes the next `pass_queries` queries of every owner (by position), or
 * the next pass_queries * ranks queries of the batch (round-robin).
 */
#ifndef SKV_ROWS_H
#define SKV_ROWS_H

#include "kernels/job.h"
#include "shard.h"

typedef struct skv__rows {
  skv_row_owner_t owner;
  int64_t batch, q_heads, block_tokens;
  const skv__shard_t *shard;
  const int64_t *q_tokens, *q_start; /* [batch] */
  int64_t pass_queries;
  skv__node_t *intervals; /* scratch for one rank's intervals, [skv__shard_interval_bound] */
} skv__rows_t;

/* Queries that `owner` has in all (by position). */
int64_t skv__rows_owned_queries(const skv__rows_t *rows, int32_t owner);
/* Most of them for any lengths within the capacity. */
int64_t skv__rows_owned_bound(const skv__shard_t *shard, int64_t block_tokens, int64_t batch,
                              int64_t q_tokens, int32_t owner);
int64_t skv__rows_passes(const skv__rows_t *rows);
/* Most runs of a pass. */
int64_t skv__rows_run_bound(const skv__shard_t *shard, int64_t batch, skv_row_owner_t owner);
/* The runs of a pass, by owner and sequence, and the rows of each owner's slice [ranks]. Returns
 * how many runs. */
int64_t skv__rows_pass(const skv__rows_t *rows, int64_t pass, skv__run_t *runs,
                       int64_t *slice_rows);

#endif
