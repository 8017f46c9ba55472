/* The cost model: its work against counting, its transfers by hand, and what `auto` makes of it. */
#include <math.h>

#include "check.h"
#include "cost.h"

static skv_problem_t problem_of(int64_t queries, int64_t keys, int causal, int64_t left,
                                int64_t right) {
  return (skv_problem_t){.batch = 1,
                         .q_tokens = queries,
                         .kv_capacity_tokens = keys,
                         .q_heads = 32,
                         .kv_heads = 8,
                         .head_dim = 128,
                         .value_head_dim = 128,
                         .dtype = SKV_BF16,
                         .scale = 1,
                         .causal = causal,
                         .window_left_tokens = left,
                         .window_right_tokens = right,
                         .leaf_tokens = 64,
                         .block_tokens = 64};
}

/* Only the arithmetic of scores counts. */
static skv_machine_t machine_of(double message_seconds, double bytes_per_second,
                                double flop_per_second, double merge_bytes_per_second) {
  skv_machine_t machine = skv__machine_typical(SKV_BACKEND_CPU);
  machine.round_seconds = machine.message_seconds = message_seconds;
  machine.bytes_per_second = bytes_per_second;
  machine.flop_per_second = flop_per_second;
  machine.merge_bytes_per_second = merge_bytes_per_second;
  machine.read_bytes_per_second = 1e30;
  return machine;
}

static skv_machine_t counting_machine(void) {
  return machine_of(1e-6, 1e9, 2.0 * 32 * 256, 1e9);
}

static double counted_pairs(const skv_problem_t *problem) {
  double pairs = 0;
  for (int64_t query = 0; query < problem->q_tokens; ++query)
    for (int64_t key = 0; key < problem->kv_capacity_tokens; ++key) {
      int64_t position = problem->kv_capacity_tokens - problem->q_tokens + query;
      bool left = problem->window_left_tokens < 0 || key >= position - problem->window_left_tokens;
      bool right = problem->causal ? key <= position
                                   : problem->window_right_tokens < 0 ||
                                         key <= position + problem->window_right_tokens;
      pairs += left && right;
    }
  return pairs;
}

Test(cost, work_is_the_visible_pairs) {
  const int64_t tokens[][2] = {{0, 100}, {1, 0}, {5, 2}, {2, 5}, {100, 100}, {37, 300}, {300, 37}};
  const int64_t sides[] = {-1, 0, 1, 17, 1000};
  skv_machine_t machine = counting_machine();
  for (int index = 0; index < 7; ++index)
    for (int left = 0; left < 5; ++left)
      for (int right = 0; right < 5; ++right)
        for (int causal = 0; causal <= 1; ++causal) {
          skv_problem_t problem =
              problem_of(tokens[index][0], tokens[index][1], causal, sides[left], sides[right]);
          skv__shard_t shard = {(tokens[index][1] + 63) / 64, 1, {SKV_CONTIGUOUS, 0}};
          skv__cost_t cost;
          CHECK(skv__cost_predict(&machine, &problem, &shard, SKV_ROWS_BY_POSITION, SKV_PASS_Q,
                                  SKV_SCATTER, &cost));
          CHECK(fabs(cost.compute_seconds - counted_pairs(&problem)) < 1e-9,
                "%ld x %ld: %g, not %g", tokens[index][0], tokens[index][1], cost.compute_seconds,
                counted_pairs(&problem));
          CHECK(cost.transfer_seconds == 0 && cost.merge_seconds == 0);
        }
}

/* Four aligned ranks, full mask: work divides by 4; zigzag divides causal work evenly too. */
Test(cost, work_is_shared) {
  skv_machine_t machine = counting_machine();
  skv_problem_t full = problem_of(4096, 4096, 0, -1, -1),
                causal = problem_of(4096, 4096, 1, -1, -1);
  skv__shard_t contiguous = {64, 4, {SKV_CONTIGUOUS, 0}}, zigzag = {64, 4, {SKV_ZIGZAG, 0}};
  skv__cost_t cost;
  for (int direction = SKV_PASS_Q; direction <= SKV_PASS_KV; ++direction) {
    skv_direction_t way = (skv_direction_t)direction;
    skv__cost_predict(&machine, &full, &contiguous, SKV_ROWS_BY_POSITION, way, SKV_GATHER, &cost);
    cr_assert_float_eq(cost.compute_seconds, 4096.0 * 1024, 1e-6);
    skv__cost_predict(&machine, &causal, &zigzag, SKV_ROWS_BY_POSITION, way, SKV_GATHER, &cost);
    cr_assert_float_eq(cost.compute_seconds, 4096.0 * 4097 / 8, 1e-6);
    skv__cost_predict(&machine, &causal, &contiguous, SKV_ROWS_BY_POSITION, way, SKV_GATHER, &cost);
    cr_assert_float_eq(cost.compute_seconds, 1024.0 * 3072 + 1024.0 * 1025 / 2, 1e-6);
  }
}

Test(cost, transfers_by_hand) {
  skv_machine_t machine = machine_of(1, 520, 1e30, 1e30); /* a second a message, a state, a merge */
  skv_problem_t problem = problem_of(1, 4096, 1, -1, -1); /* 32 rows: 8 a slice on 4 ranks */
  skv__shard_t shard = {64, 4, {SKV_CONTIGUOUS, 0}};
  skv__cost_t cost;
  skv__cost_predict(&machine, &problem, &shard, SKV_ROWS_ROUND_ROBIN, SKV_PASS_Q, SKV_SCATTER,
                    &cost);
  cr_assert_float_eq(cost.transfer_seconds, (1 + 3) + 3 * 8, 1e-9);
  skv__cost_predict(&machine, &problem, &shard, SKV_ROWS_ROUND_ROBIN, SKV_PASS_Q, SKV_GATHER,
                    &cost);
  cr_assert_float_eq(cost.transfer_seconds, (2 + 12) + 12 * 8, 1e-9);
  skv__cost_predict(&machine, &problem, &shard, SKV_ROWS_ROUND_ROBIN, SKV_PASS_KV, SKV_RING, &cost);
  cr_assert_float_eq(cost.transfer_seconds, 3 * (2 + 1024 * 8 * 256 * 2 / 520.0), 1e-6);
}

/* Far links ten times as slow. Two nodes of two ranks: scatter sends 2 of 3 messages to the other
 * node; every ring step waits for the hop between nodes, a gather takes 2 of 3 shards from there.
 */
Test(cost, nodes_by_hand) {
  skv_machine_t machine = machine_of(1, 520, 1e30, 1e30);
  machine.far_round_seconds = machine.far_message_seconds = 10;
  machine.far_bytes_per_second = 52;
  machine.node_ranks = 2;
  skv_problem_t problem = problem_of(1, 4096, 1, -1, -1);
  skv__shard_t shard = {64, 4, {SKV_CONTIGUOUS, 0}};
  skv__cost_t cost;
  double shard_seconds = 1024 * 8 * 256 * 2 / 520.0;
  skv__cost_predict(&machine, &problem, &shard, SKV_ROWS_ROUND_ROBIN, SKV_PASS_Q, SKV_SCATTER,
                    &cost);
  cr_assert_float_eq(cost.transfer_seconds, 10 + (1 + 20) + 8 * (1 + 20), 1e-9);
  skv__cost_predict(&machine, &problem, &shard, SKV_ROWS_ROUND_ROBIN, SKV_PASS_KV, SKV_RING, &cost);
  cr_assert_float_eq(cost.transfer_seconds, 3 * 10 * (2 + shard_seconds), 1e-6);
  skv__cost_predict(&machine, &problem, &shard, SKV_ROWS_ROUND_ROBIN, SKV_PASS_KV, SKV_GATHER,
                    &cost);
  cr_assert_float_eq(cost.transfer_seconds, (1 + 20) * (2 + shard_seconds), 1e-6);
}

/* 8 KV heads travel one after the other: all but the first beside the work on the one before. */
Test(cost, overlap_hides_all_but_one_part) {
  skv_machine_t machine = machine_of(0, 1e9, 1e12, 1e30);
  skv_problem_t problem = problem_of(4096, 4096, 0, -1, -1);
  skv__shard_t shard = {64, 4, {SKV_CONTIGUOUS, 0}};
  skv__cost_t sum, beside;
  machine.prefill_seconds = 1e-3;
  skv__cost_predict(&machine, &problem, &shard, SKV_ROWS_BY_POSITION, SKV_PASS_KV, SKV_RING, &sum);
  machine.overlaps = 1;
  skv__cost_predict(&machine, &problem, &shard, SKV_ROWS_BY_POSITION, SKV_PASS_KV, SKV_RING,
                    &beside);
  cr_assert_float_eq(sum.seconds, sum.compute_seconds + sum.transfer_seconds, 1e-12);
  cr_assert_float_eq(sum.compute_seconds, 4096.0 * 1024 * 32 * 512 / 1e12 + 8e-3, 1e-9);
  cr_assert(sum.compute_seconds > sum.transfer_seconds);
  cr_assert_float_eq(beside.seconds, sum.compute_seconds + sum.transfer_seconds / 8, 1e-12);
}

Test(cost, figures_are_checked) {
  skv_machine_t machine = skv__machine_typical(SKV_BACKEND_CUDA);
  skv__error_t error = {0};
  cr_assert(skv__machine_check(&machine, &error) == SKV_OK);
  machine.bytes_per_second = 0;
  cr_assert(skv__machine_check(&machine, &error) == SKV_INVALID);
  cr_assert_str_eq(error.text, "machine: bytes_per_second is 0: give a number above 0");
  machine = skv__machine_typical(SKV_BACKEND_CPU);
  uint64_t digest = skv__machine_digest(&machine);
  machine.round_seconds = NAN;
  cr_assert(skv__machine_check(&machine, &error) == SKV_INVALID);
  cr_assert(skv__machine_digest(&machine) != digest);
  machine = skv__machine_typical(SKV_BACKEND_CPU);
  machine.overlaps = 2;
  cr_assert(skv__machine_check(&machine, &error) == SKV_INVALID);
  machine.struct_bytes = 8;
  cr_assert(skv__machine_check(&machine, &error) == SKV_INVALID);
}

typedef struct choice {
  skv_direction_t direction;
  skv_reduce_t reduce;
} choice_t;

static choice_t choose(int64_t queries, int64_t keys, int causal, int32_t ranks,
                       skv__layout_t layout, skv_row_owner_t row_owner) {
  skv_machine_t machine = skv__machine_typical(SKV_BACKEND_CPU);
  skv_problem_t problem = problem_of(queries, keys, causal, -1, -1);
  skv__shard_t shard = {(keys + 63) / 64, ranks, layout};
  choice_t choice = {SKV_DIRECTION_AUTO, SKV_REDUCE_AUTO};
  skv__cost_t cost;
  CHECK(skv__cost_choose(&machine, &problem, &shard, row_owner, &choice.direction, &choice.reduce,
                         &cost));
  return choice;
}

/* Full masks: with causal ones, the evenness of the work may decide instead of the bytes. */
Test(cost, auto_passes_kv_for_long_prefill_and_states_for_decode) {
  const skv__layout_t layouts[] = {{SKV_CONTIGUOUS, 0}, {SKV_ZIGZAG, 0}, {SKV_BLOCKS, 4}};
  for (int layout = 0; layout < 3; ++layout)
    for (int32_t ranks = 2; ranks <= 33; ++ranks) {
      choice_t prefill = choose(65536, 65536, 0, ranks, layouts[layout], SKV_ROWS_BY_POSITION);
      CHECK(prefill.direction == SKV_PASS_KV && prefill.reduce == SKV_RING, "%d ranks", ranks);
      choice_t decode = choose(1, 65536, 1, ranks, layouts[layout], SKV_ROWS_ROUND_ROBIN);
      CHECK(decode.direction == SKV_PASS_Q, "%d ranks", ranks);
      CHECK(decode.reduce == SKV_SCATTER || decode.reduce == SKV_BUTTERFLY, "%d ranks: %d", ranks,
            decode.reduce);
    }
  for (int32_t ranks = 2; ranks <= 32; ranks *= 2) {
    CHECK(choose(65536, 65536, 1, ranks, layouts[1], SKV_ROWS_BY_POSITION).direction ==
          SKV_PASS_KV);
    CHECK(choose(512, 65536, 0, ranks, layouts[0], SKV_ROWS_ROUND_ROBIN).direction == SKV_PASS_Q);
  }
}

Test(cost, what_is_given_stays) {
  skv_machine_t machine = skv__machine_typical(SKV_BACKEND_CPU);
  skv_problem_t problem = problem_of(1, 65536, 1, -1, -1);
  skv__shard_t shard = {1024, 5, {SKV_CONTIGUOUS, 0}};
  skv__cost_t cost;
  for (int reduce = SKV_GATHER; reduce <= SKV_RING; ++reduce) {
    skv_direction_t direction = SKV_PASS_Q;
    skv_reduce_t given = (skv_reduce_t)reduce;
    cr_assert(skv__cost_choose(&machine, &problem, &shard, SKV_ROWS_ROUND_ROBIN, &direction, &given,
                               &cost));
    cr_assert(direction == SKV_PASS_Q && given == (skv_reduce_t)reduce);
  }
  skv_direction_t direction = SKV_PASS_KV;
  skv_reduce_t reduce = SKV_TREE;
  cr_assert_not(skv__cost_choose(&machine, &problem, &shard, SKV_ROWS_ROUND_ROBIN, &direction,
                                 &reduce, &cost));
  reduce = SKV_REDUCE_AUTO;
  cr_assert(skv__cost_choose(&machine, &problem, &shard, SKV_ROWS_ROUND_ROBIN, &direction, &reduce,
                             &cost));
  cr_assert(direction == SKV_PASS_KV && reduce == SKV_RING);
}

/* Thousands of ranks are planned at once: this test runs under the usual limit. */
Test(cost, auto_for_thousands_of_ranks) {
  for (int32_t ranks = 1000; ranks <= 4096; ranks += 1548) {
    choice_t decode =
        choose(1, 1 << 20, 1, ranks, (skv__layout_t){SKV_ZIGZAG, 0}, SKV_ROWS_ROUND_ROBIN);
    CHECK(decode.direction == SKV_PASS_Q);
    choice_t prefill =
        choose(1 << 20, 1 << 20, 0, ranks, (skv__layout_t){SKV_ZIGZAG, 0}, SKV_ROWS_BY_POSITION);
    CHECK(prefill.direction == SKV_PASS_KV);
  }
}
