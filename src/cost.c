/* cost.c: see cost.h for the formulas. Doubles, but only + - * /, so that every rank computes the
 * same ones. */
#include "cost.h"

/* Slices that stand for all of them: plans for thousands of ranks stay instant. */
#define SAMPLED_SLICES 8
/* Up to so many rows that share a KV head, a GPU takes its kernel for decode. */
#define DECODE_ROWS 64
#define PASS_BYTES (32.0 * 1048576)
#define MOST_PARTS 64.0

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t greatest(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static double larger(double a, double b) {
  return a > b ? a : b;
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

static double compute_seconds(const skv_machine_t *machine, const skv_problem_t *problem,
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

static double all_rows(const skv_problem_t *problem) {
  return (double)problem->batch * (double)problem->q_tokens * (double)problem->q_heads;
}

/* Evaluations that a rank makes one after the other, each followed by what it gives to send. */
static double parts_of(const skv_problem_t *problem, skv_direction_t direction) {
  double parts = direction == SKV_PASS_KV ? (double)problem->kv_heads
                                          : all_rows(problem) * state_bytes(problem) / PASS_BYTES;
  return parts < 1 ? 1 : parts < MOST_PARTS ? parts : MOST_PARTS;
}

static double besides_seconds(const skv_machine_t *machine, const skv_problem_t *problem) {
  int64_t rows = problem->q_tokens * (problem->q_heads / problem->kv_heads);
  return rows <= DECODE_ROWS ? machine->decode_seconds : machine->prefill_seconds;
}

static double mixed(double near, double far, double far_share) {
  return near * (1 - far_share) + far * far_share;
}

/* Transfer and merge of pass-Q. */
static void cost_states(const skv_machine_t *machine, const skv_problem_t *problem, int32_t ranks,
                        int32_t rounds, const skv__traffic_t *traffic, skv__cost_t *cost) {
  double slice_rows = all_rows(problem) / (double)ranks, far = traffic->far_share;
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
  cost->transfer_seconds =
      (far > 0 ? machine->far_round_seconds : machine->round_seconds) * rounds +
      mixed(machine->message_seconds, machine->far_message_seconds, far) * messages +
      moved_rows * state_bytes(problem) *
          mixed(1 / machine->bytes_per_second, 1 / machine->far_bytes_per_second, far);
  cost->merge_seconds = 3 * merged_rows * state_bytes(problem) / machine->merge_bytes_per_second;
}

/* Transfer of pass-KV. */
static double keys_seconds(const skv_machine_t *machine, const skv_problem_t *problem,
                           const skv__shard_t *shard, skv_reduce_t reduce) {
  int64_t steps = shard->ranks - 1, far_steps = 0;
  double bytes = (double)largest_shard_tokens(problem, shard) * token_bytes(problem);
  if (machine->node_ranks > 0 && machine->node_ranks < shard->ranks)
    far_steps = reduce == SKV_RING ? steps : shard->ranks - machine->node_ranks;
  double near =
      machine->round_seconds + machine->message_seconds + bytes / machine->bytes_per_second;
  double far = machine->far_round_seconds + machine->far_message_seconds +
               bytes / machine->far_bytes_per_second;
  return (double)(steps - far_steps) * near + (double)far_steps * far;
}

bool skv__cost_predict(const skv_machine_t *machine, const skv_problem_t *problem,
                       const skv__shard_t *shard, skv_row_owner_t row_owner,
                       skv_direction_t direction, skv_reduce_t reduce, skv__cost_t *cost) {
  double parts = parts_of(problem, direction);
  *cost = (skv__cost_t){0};
  cost->compute_seconds = compute_seconds(machine, problem, shard, row_owner, direction) +
                          parts * besides_seconds(machine, problem);
  if (direction == SKV_PASS_Q) {
    skv__traffic_t traffic;
    if (!skv__schedule_traffic(shard, reduce, SAMPLED_SLICES, machine->node_ranks, &traffic))
      return false;
    cost_states(machine, problem, shard->ranks, skv__schedule_rounds(reduce, shard->ranks),
                &traffic, cost);
  } else {
    cost->transfer_seconds = keys_seconds(machine, problem, shard, reduce);
  }
  double compute = cost->compute_seconds, rest = cost->transfer_seconds + cost->merge_seconds;
  cost->seconds = compute + rest;
  if (machine->overlaps)
    cost->seconds = larger(compute, rest) + (compute < rest ? compute : rest) / parts;
  return true;
}

bool skv__cost_choose(const skv_machine_t *machine, const skv_problem_t *problem,
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
