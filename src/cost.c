/* cost.c: see cost.h for the formulas. Doubles, but only + - * /, so that every rank computes the
 * same ones. */
#include "cost.h"

/* Slices that stand for all of them: plans for thousands of ranks stay instant. */
#define SAMPLED_SLICES 8

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t greatest(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static double larger(double a, double b) {
  return a > b ? a : b;
}

skv__machine_t skv__machine_typical(void) {
  return (skv__machine_t){.alpha_seconds = 2e-6,
                          .bytes_per_second = 5e9,
                          .flop_per_second = 5e10,
                          .merge_bytes_per_second = 8e9,
                          .read_bytes_per_second = 1e10};
}

static double state_bytes(const skv_problem_t *problem) {
  return 4.0 * (double)(problem->value_head_dim + 2);
}

/* Of K and V together, all sequences. */
static double token_bytes(const skv_problem_t *problem) {
  double element_bytes = problem->dtype == SKV_FP32 ? 4 : 2;
  return ((double)problem->batch * (double)problem->kv_heads) *
         (double)(problem->head_dim + problem->value_head_dim) * element_bytes;
}

/* Sum over positions p in `positions` of how many keys of `keys` lie below p + reach. */
static double keys_below(skv_interval_t positions, skv_interval_t keys, int64_t reach) {
  int64_t none = keys.begin - reach, all = keys.end - reach; /* p <= none: 0 keys; p >= all: all */
  int64_t first = greatest(positions.begin, none), last = least(positions.end, all);
  int64_t full = positions.end - greatest(positions.begin, all);
  double sum = full > 0 ? (double)full * (double)(keys.end - keys.begin) : 0;
  if (first < last)
    sum += (double)(last - first) * ((double)(first - none) + (double)(last - 1 - none)) / 2;
  return sum;
}

/* (query, key) pairs that the mask lets see each other, of one sequence and one head. */
static double visible_pairs(const skv_problem_t *problem, skv_interval_t positions,
                            skv_interval_t keys) {
  int64_t beyond = problem->kv_capacity_tokens + problem->q_tokens;
  int64_t left = problem->window_left_tokens, right = problem->window_right_tokens;
  left = left == SKV_UNBOUNDED ? beyond : least(left, beyond);
  right = problem->causal ? 0 : right == SKV_UNBOUNDED ? beyond : least(right, beyond);
  return keys_below(positions, keys, right + 1) - keys_below(positions, keys, -left);
}

static skv_interval_t all_queries(const skv_problem_t *problem) {
  return (skv_interval_t){problem->kv_capacity_tokens - problem->q_tokens,
                          problem->kv_capacity_tokens};
}

/* Pairs that fall to a rank: its keys with all queries (pass-Q), or all keys with its queries. Even
 * shares where the layout or the row owner deals round-robin. */
static double rank_pairs(const skv_problem_t *problem, const skv__shard_t *shard,
                         skv_row_owner_t row_owner, skv_direction_t direction, int32_t rank) {
  skv_interval_t queries = all_queries(problem), keys = {0, problem->kv_capacity_tokens};
  bool by_position = direction == SKV_PASS_Q || row_owner == SKV_ROWS_BY_POSITION;
  if (shard->layout.kind == SKV_BLOCKS || !by_position)
    return visible_pairs(problem, queries, keys) / shard->ranks;
  skv__node_t owned[2];
  int64_t count = skv__shard_intervals(shard, rank, owned);
  double pairs = 0;
  for (int64_t index = 0; index < count; ++index) {
    skv_interval_t tokens = {owned[index].begin * problem->block_tokens,
                             least(owned[index].end * problem->block_tokens, keys.end)};
    skv_interval_t own_queries = {greatest(tokens.begin, queries.begin), tokens.end};
    if (direction == SKV_PASS_Q)
      pairs += visible_pairs(problem, queries, tokens);
    else if (own_queries.begin < own_queries.end)
      pairs += visible_pairs(problem, own_queries, keys);
  }
  return pairs;
}

static int64_t largest_shard_tokens(const skv_problem_t *problem, const skv__shard_t *shard) {
  int64_t blocks = 0;
  for (int32_t rank = 0; rank < shard->ranks; ++rank)
    blocks = greatest(blocks, skv__shard_blocks(shard, rank));
  return least(blocks * problem->block_tokens, problem->kv_capacity_tokens);
}

static double compute_seconds(const skv__machine_t *machine, const skv_problem_t *problem,
                              const skv__shard_t *shard, skv_row_owner_t row_owner,
                              skv_direction_t direction) {
  double most = 0;
  for (int32_t rank = 0; rank < shard->ranks; ++rank)
    most = larger(most, rank_pairs(problem, shard, row_owner, direction, rank));
  double flop = 2 * most * ((double)problem->batch * (double)problem->q_heads) *
                (double)(problem->head_dim + problem->value_head_dim);
  double tokens = direction == SKV_PASS_Q ? (double)largest_shard_tokens(problem, shard)
                                          : (double)problem->kv_capacity_tokens;
  return larger(flop / machine->flop_per_second,
                tokens * token_bytes(problem) / machine->read_bytes_per_second);
}

/* Transfer and merge of pass-Q. */
static void cost_states(const skv__machine_t *machine, const skv_problem_t *problem, int32_t ranks,
                        int32_t rounds, const skv__traffic_t *traffic, skv__cost_t *cost) {
  double slice_rows =
      (double)problem->batch * (double)problem->q_tokens * (double)problem->q_heads / (double)ranks;
  double received = (double)traffic->max_rank_received, one = (double)traffic->max_slice_received;
  double busiest = larger(received, (double)traffic->max_rank_node_states);
  if (slice_rows == 0)
    return;
  double messages = busiest, moved_rows = busiest * slice_rows, merged_rows = received * slice_rows;
  if (slice_rows < 1) { /* slices of one row, or none */
    messages = larger(busiest * slice_rows, one);
    moved_rows = larger(moved_rows, one);
    merged_rows = larger(merged_rows, one);
  }
  cost->transfer_seconds = machine->alpha_seconds * (rounds + messages) +
                           moved_rows * state_bytes(problem) / machine->bytes_per_second;
  cost->merge_seconds = 3 * merged_rows * state_bytes(problem) / machine->merge_bytes_per_second;
}

bool skv__cost_predict(const skv__machine_t *machine, const skv_problem_t *problem,
                       const skv__shard_t *shard, skv_row_owner_t row_owner,
                       skv_direction_t direction, skv_reduce_t reduce, skv__cost_t *cost) {
  *cost = (skv__cost_t){0};
  cost->compute_seconds = compute_seconds(machine, problem, shard, row_owner, direction);
  if (direction == SKV_PASS_Q) {
    skv__traffic_t traffic;
    if (!skv__schedule_traffic(shard, reduce, SAMPLED_SLICES, &traffic))
      return false;
    cost_states(machine, problem, shard->ranks, skv__schedule_rounds(reduce, shard->ranks),
                &traffic, cost);
  } else {
    double shard_bytes = (double)largest_shard_tokens(problem, shard) * token_bytes(problem);
    cost->transfer_seconds = (double)(shard->ranks - 1) *
                             (2 * machine->alpha_seconds + shard_bytes / machine->bytes_per_second);
  }
  cost->seconds = cost->compute_seconds + cost->transfer_seconds + cost->merge_seconds;
  return true;
}

bool skv__cost_choose(const skv__machine_t *machine, const skv_problem_t *problem,
                      const skv__shard_t *shard, skv_row_owner_t row_owner,
                      skv_direction_t *direction, skv_reduce_t *reduce, skv__cost_t *cost) {
  static const struct {
    skv_direction_t direction;
    skv_reduce_t reduce;
    bool only_when_asked;
  } candidates[] = {
      {SKV_PASS_Q, SKV_SCATTER, false}, {SKV_PASS_Q, SKV_BUTTERFLY, false},
      {SKV_PASS_Q, SKV_TREE, false},    {SKV_PASS_Q, SKV_GATHER, false},
      {SKV_PASS_Q, SKV_RING, true},     {SKV_PASS_KV, SKV_RING, false},
      {SKV_PASS_KV, SKV_GATHER, false},
  };
  int best = -1;
  for (int index = 0; index < (int)(sizeof candidates / sizeof *candidates); ++index) {
    skv__cost_t predicted;
    if ((*direction != SKV_DIRECTION_AUTO && *direction != candidates[index].direction) ||
        (*reduce != SKV_REDUCE_AUTO && *reduce != candidates[index].reduce) ||
        (*reduce == SKV_REDUCE_AUTO && candidates[index].only_when_asked))
      continue;
    if (!skv__cost_predict(machine, problem, shard, row_owner, candidates[index].direction,
                           candidates[index].reduce, &predicted))
      return false;
    if (best < 0 || predicted.seconds < cost->seconds) {
      best = index;
      *cost = predicted;
    }
  }
  if (best < 0) /* a pair that does not exist: pass-KV with a reduction of states */
    return false;
  *direction = candidates[best].direction;
  *reduce = candidates[best].reduce;
  return true;
}
