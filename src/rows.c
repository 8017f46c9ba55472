#include "rows.h"

static int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t max_of(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return min_of(max_of(value, low), high);
}

/* Part `index` of `parts` of the range [begin, end). */
static skv__node_t part_of(int64_t begin, int64_t end, int32_t index, int32_t parts) {
  int64_t count = end - begin;
  return (skv__node_t){begin + count * index / parts, begin + count * (index + 1) / parts};
}

/* Calls `visit` for each range of queries of `sequence` that `owner` has, ascending. */
typedef struct skv__range_visitor {
  void (*visit)(struct skv__range_visitor *self, int64_t sequence, skv__node_t queries);
} skv__range_visitor_t;

static void visit_sequence(const skv__rows_t *rows, int64_t sequence, int32_t owner,
                           int64_t intervals, skv__range_visitor_t *visitor) {
  int64_t q_tokens = rows->q_tokens[sequence], q_start = rows->q_start[sequence];
  int64_t first = clamp(-q_start, 0, q_tokens);
  int64_t past = clamp(rows->shard->blocks * rows->block_tokens - q_start, first, q_tokens);
  visitor->visit(visitor, sequence, part_of(0, first, owner, rows->shard->ranks));
  for (int64_t i = 0; i < intervals; i++)
    visitor->visit(
        visitor, sequence,
        (skv__node_t){clamp(rows->intervals[i].begin * rows->block_tokens - q_start, first, past),
                      clamp(rows->intervals[i].end * rows->block_tokens - q_start, first, past)});
  visitor->visit(visitor, sequence, part_of(past, q_tokens, owner, rows->shard->ranks));
}

static void visit_owner(const skv__rows_t *rows, int32_t owner, skv__range_visitor_t *visitor) {
  int64_t intervals = skv__shard_intervals(rows->shard, owner, rows->intervals);
  for (int64_t sequence = 0; sequence < rows->batch; sequence++)
    visit_sequence(rows, sequence, owner, intervals, visitor);
}

typedef struct counter {
  skv__range_visitor_t visitor;
  int64_t queries;
} counter_t;

static void count_range(skv__range_visitor_t *visitor, int64_t sequence, skv__node_t queries) {
  (void)sequence;
  ((counter_t *)visitor)->queries += queries.end - queries.begin;
}

int64_t skv__rows_owned_queries(const skv__rows_t *rows, int32_t owner) {
  counter_t counter = {{count_range}, 0};
  visit_owner(rows, owner, &counter.visitor);
  return counter.queries;
}

int64_t skv__rows_owned_bound(const skv__shard_t *shard, int64_t block_tokens, int64_t batch,
                              int64_t q_tokens, int32_t owner) {
  int64_t inside = skv__shard_blocks(shard, owner) * block_tokens;
  int64_t outside = q_tokens / shard->ranks + 1; /* of the two ends together, each rounded up */
  return batch * min_of(q_tokens, inside + outside + 1);
}

static int64_t batch_queries(const skv__rows_t *rows) {
  int64_t queries = 0;
  for (int64_t sequence = 0; sequence < rows->batch; sequence++)
    queries += rows->q_tokens[sequence];
  return queries;
}

int64_t skv__rows_passes(const skv__rows_t *rows) {
  int64_t most = 0;
  if (rows->owner == SKV_ROWS_ROUND_ROBIN)
    most = (batch_queries(rows) + rows->shard->ranks - 1) / rows->shard->ranks;
  else
    for (int32_t owner = 0; owner < rows->shard->ranks; owner++)
      most = max_of(most, skv__rows_owned_queries(rows, owner));
  return (most + rows->pass_queries - 1) / rows->pass_queries;
}

int64_t skv__rows_run_bound(const skv__shard_t *shard, int64_t batch, skv_row_owner_t owner) {
  if (owner == SKV_ROWS_ROUND_ROBIN)
    return batch;
  return batch * shard->ranks * (skv__shard_interval_bound(shard) + 2);
}

/* Takes the queries numbered [first, end) of what it is shown, as runs. */
typedef struct taker {
  skv__range_visitor_t visitor;
  int64_t seen, first, end; /* query numbers */
  int64_t q_heads;
  int32_t owner;
  skv__run_t *runs;
  int64_t count;
} taker_t;

static void take_range(skv__range_visitor_t *visitor, int64_t sequence, skv__node_t queries) {
  taker_t *taker = (taker_t *)visitor;
  int64_t number = taker->seen;
  taker->seen += queries.end - queries.begin;
  int64_t begin = max_of(number, taker->first), end = min_of(taker->seen, taker->end);
  if (begin >= end)
    return;
  taker->runs[taker->count++] = (skv__run_t){.sequence = sequence,
                                             .q_begin = queries.begin + begin - number,
                                             .q_count = end - begin,
                                             .row_begin = (begin - taker->first) * taker->q_heads,
                                             .owner = taker->owner};
}

static int64_t pass_round_robin(const skv__rows_t *rows, int64_t pass, skv__run_t *runs,
                                int64_t *slice_rows) {
  int32_t ranks = rows->shard->ranks;
  int64_t first = pass * rows->pass_queries * ranks;
  taker_t taker = {{take_range},  0, first, first + rows->pass_queries * ranks,
                   rows->q_heads, 0, runs,  0};
  for (int64_t sequence = 0; sequence < rows->batch; sequence++)
    take_range(&taker.visitor, sequence, (skv__node_t){0, rows->q_tokens[sequence]});
  int64_t total = max_of(0, min_of(taker.seen, taker.end) - first) * rows->q_heads;
  for (int32_t owner = 0; owner < ranks; owner++)
    slice_rows[owner] = (total - owner + ranks - 1) / ranks;
  return taker.count;
}

int64_t skv__rows_pass(const skv__rows_t *rows, int64_t pass, skv__run_t *runs,
                       int64_t *slice_rows) {
  if (rows->owner == SKV_ROWS_ROUND_ROBIN)
    return pass_round_robin(rows, pass, runs, slice_rows);
  int64_t first = pass * rows->pass_queries, count = 0;
  for (int32_t owner = 0; owner < rows->shard->ranks; owner++) {
    taker_t taker = {{take_range},  0,     first, first + rows->pass_queries,
                     rows->q_heads, owner, runs,  count};
    visit_owner(rows, owner, &taker.visitor);
    slice_rows[owner] = max_of(0, min_of(taker.seen, taker.end) - first) * rows->q_heads;
    count = taker.count;
  }
  return count;
}
