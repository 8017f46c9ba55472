/* shard.c: the layouts. Every layout cuts the blocks into runs and deals the runs to ranks:
 * contiguous deals one run to each rank, zigzag deals runs r and 2P-1-r, and blocks:N deals runs of
 * N blocks round-robin. docs/layouts.md tells why run boundaries are snapped. */
#include "shard.h"

/* Boundaries of even runs are multiples of a power of two, the granule: the largest that leaves at
 * least GRANULES_OF_A_RUN of them to a run, or half of that where the longest run would otherwise
 * exceed the mean by more than MOST_EXCESS_PERCENT. */
#define GRANULES_OF_A_RUN 8
#define MOST_EXCESS_PERCENT 9

/* Lists of intervals and sorted sets of nodes grow with the runs. */
#define MOST_RUNS (1 << 16)

static int64_t ceil_divide(int64_t value, int64_t divisor) {
  return value / divisor + (value % divisor != 0);
}

static int64_t granule_blocks(int64_t blocks, int64_t runs) {
  int64_t most = blocks / (GRANULES_OF_A_RUN * runs);
  if (most < 2)
    return 1;
  int64_t granule = skv__order_split((skv__node_t){0, most + 1});
  int64_t longest = ceil_divide(ceil_divide(blocks, granule), runs) * granule;
  bool uneven = longest * runs - blocks > blocks * MOST_EXCESS_PERCENT / 100;
  return uneven ? granule / 2 : granule;
}

/* Where run `run` of `runs` nearly equal ones begins; run == runs gives the end. */
static int64_t even_run_begin(int64_t blocks, int64_t runs, int64_t run) {
  int64_t granule = granule_blocks(blocks, runs), granules = ceil_divide(blocks, granule);
  /* floor(run * granules / runs), in two parts so that nothing overflows */
  int64_t first = granules / runs * run + granules % runs * run / runs;
  return first == granules ? blocks : first * granule;
}

/* How many even runs the layout has; blocks:N has none. */
static int64_t even_runs(const skv__shard_t *shard) {
  return shard->layout.kind == SKV_ZIGZAG ? 2 * (int64_t)shard->ranks : shard->ranks;
}

/* The turn-th run dealt to `rank`; false when it gets no more. */
static bool dealt_run(const skv__shard_t *shard, int32_t rank, int64_t turn, skv__node_t *run) {
  if (shard->layout.kind == SKV_BLOCKS) {
    int64_t index = turn * shard->ranks + rank, width = shard->layout.run_blocks;
    if (index >= ceil_divide(shard->blocks, width))
      return false;
    run->begin = index * width;
    run->end = shard->blocks - run->begin < width ? shard->blocks : run->begin + width;
    return true;
  }
  if (turn > (shard->layout.kind == SKV_ZIGZAG))
    return false;
  int64_t runs = even_runs(shard), index = turn == 0 ? rank : runs - 1 - rank;
  run->begin = even_run_begin(shard->blocks, runs, index);
  run->end = even_run_begin(shard->blocks, runs, index + 1);
  return true;
}

/* The rank's next maximal interval. *turn starts at 0 and is the iteration's state. */
static bool next_interval(const skv__shard_t *shard, int32_t rank, int64_t *turn,
                          skv__node_t *interval) {
  skv__node_t run;
  *interval = (skv__node_t){0, 0};
  while (dealt_run(shard, rank, *turn, &run)) {
    bool empty = interval->begin == interval->end;
    if (run.begin < run.end && !empty && run.begin != interval->end)
      return true;
    if (run.begin < run.end)
      *interval = (skv__node_t){empty ? run.begin : interval->begin, run.end};
    ++*turn;
  }
  return interval->begin < interval->end;
}

skv_status_t skv__shard_check(const skv__shard_t *shard, skv__error_t *error) {
  if (shard->layout.kind != SKV_BLOCKS ||
      (shard->blocks - 1) / shard->layout.run_blocks < MOST_RUNS)
    return SKV_OK;
  return skv__fail(error, SKV_INVALID,
                   "runs of %lld blocks cut %lld blocks into more than %d runs: give longer runs "
                   "or larger blocks",
                   (long long)shard->layout.run_blocks, (long long)shard->blocks, MOST_RUNS);
}

int64_t skv__shard_interval_bound(const skv__shard_t *shard) {
  if (shard->layout.kind != SKV_BLOCKS)
    return shard->layout.kind == SKV_ZIGZAG ? 2 : 1;
  if (shard->ranks == 1)
    return 1;
  return ceil_divide(ceil_divide(shard->blocks, shard->layout.run_blocks), shard->ranks);
}

int64_t skv__shard_intervals(const skv__shard_t *shard, int32_t rank, skv__node_t *intervals) {
  int64_t count = 0, turn = 0;
  skv__node_t interval;
  while (next_interval(shard, rank, &turn, &interval))
    intervals[count++] = interval;
  return count;
}

int32_t skv__shard_owner(const skv__shard_t *shard, int64_t block) {
  if (shard->layout.kind == SKV_BLOCKS)
    return (int32_t)(block / shard->layout.run_blocks % shard->ranks);
  /* the last run that begins at or before the block: only that one is not empty there */
  int64_t runs = even_runs(shard), low = 0, high = runs;
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (even_run_begin(shard->blocks, runs, middle) <= block)
      low = middle;
    else
      high = middle;
  }
  return (int32_t)(low < shard->ranks ? low : runs - 1 - low);
}

int64_t skv__shard_blocks(const skv__shard_t *shard, int32_t rank) {
  int64_t count = 0, turn = 0;
  skv__node_t interval;
  while (next_interval(shard, rank, &turn, &interval))
    count += interval.end - interval.begin;
  return count;
}

int64_t skv__shard_frontier(const skv__shard_t *shard, int32_t rank, skv__node_t *nodes) {
  int64_t count = 0, turn = 0;
  skv__node_t interval, scratch[SKV__FRONTIER_MAX];
  while (next_interval(shard, rank, &turn, &interval))
    count += skv__order_frontier(shard->blocks, interval.begin, interval.end,
                                 nodes ? nodes + count : scratch);
  return count;
}
