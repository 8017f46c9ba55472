/* test_execute.c: whole problems through plan and execute: the fp64 oracle, and one answer. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "solve.h"

static const char *const reduce_words[] = {"auto", "gather",    "scatter",
                                           "tree", "butterfly", "ring"};

/* A case whose tree has several blocks per rank: leaves of 64, blocks of 64. */
static kit_case_t *small_case(int64_t q_tokens, int64_t k_tokens, bool causal, uint64_t seed) {
  skv_problem_t problem;
  skv_problem_init(&problem, sizeof problem, 4, 2, 24);
  problem.q_tokens = q_tokens;
  problem.kv_capacity_tokens = k_tokens;
  problem.causal = causal;
  problem.leaf_tokens = problem.block_tokens = 64;
  return kit_case_create(&problem, NULL, NULL, true, seed);
}

static void expect_same(const kit_case_t *test, const kit_way_t *way, const kit_answer_t *wanted) {
  char text[256];
  kit_way_describe(way, text, sizeof text);
  kit_answer_t *answer = kit_answer_create(test);
  cr_expect(kit_solve(test, way, answer), "%s fails", text);
  answer->bits = way->without_bits ? wanted->bits : answer->bits;
  cr_expect(kit_answer_same(answer, wanted), "%s gives other bits", text);
  kit_answer_free(answer);
}

static void expect_right(const kit_case_t *test, const kit_answer_t *answer) {
  char text[512], what[512];
  kit_case_describe(test, what, sizeof what);
  cr_expect(kit_check(test, answer->o, answer->lse, text, sizeof text), "%s: %s", what, text);
}

static void all_paths(const kit_case_t *test, kit_way_t way, const kit_answer_t *wanted) {
  way.options.direction = SKV_PASS_Q;
  for (int reduce = SKV_GATHER; reduce <= SKV_RING; reduce++) {
    way.options.reduce = (skv_reduce_t)reduce;
    expect_same(test, &way, wanted);
  }
  way.options.direction = SKV_PASS_KV;
  way.options.reduce = SKV_RING;
  expect_same(test, &way, wanted);
  way.options.reduce = SKV_GATHER;
  expect_same(test, &way, wanted);
  if (!way.wiring)
    return;
  way.without_bits = true; /* rows are then finished as they are attended */
  expect_same(test, &way, wanted);
  way.options.reduce = SKV_RING;
  expect_same(test, &way, wanted);
}

static void all_layouts(const kit_case_t *test, kit_way_t way, const kit_answer_t *wanted) {
  way.options.layout = SKV_CONTIGUOUS;
  all_paths(test, way, wanted);
  way.options.layout = SKV_ZIGZAG;
  all_paths(test, way, wanted);
  way.options.layout = SKV_BLOCKS;
  for (way.options.layout_run_blocks = 1; way.options.layout_run_blocks <= 2;
       way.options.layout_run_blocks++)
    all_paths(test, way, wanted);
}

static void one_answer(kit_case_t *test, skv_row_owner_t rows) {
  kit_way_t one = {.options = {.row_owner = rows}};
  kit_answer_t *wanted = kit_answer_create(test);
  cr_assert(kit_solve(test, &one, wanted));
  expect_right(test, wanted);
  for (int32_t ranks = 1; ranks <= 8; ranks++)
    all_layouts(test, (kit_way_t){.ranks = ranks, .options = {.row_owner = rows}}, wanted);
  /* The smallest workspace makes the most passes. */
  for (int wiring = KIT_ORDERED; wiring <= KIT_POLLED; wiring++)
    for (int32_t ranks = 1; ranks <= 5; ranks += 1 + ranks / 3)
      all_layouts(test,
                  (kit_way_t){.ranks = ranks,
                              .wiring = (kit_wiring_t)wiring,
                              .delay_seed = (uint64_t)ranks,
                              .options = {.row_owner = rows, .workspace_bytes = ranks % 2}},
                  wanted);
  kit_answer_free(wanted);
  kit_case_free(test);
}

Test(execute, prefill_is_one_answer_for_ranks_layouts_and_paths) {
  one_answer(small_case(61, 700, true, 1), SKV_ROWS_BY_POSITION);
}

Test(execute, decode_is_one_answer_for_ranks_layouts_and_paths) {
  one_answer(small_case(1, 701, false, 2), SKV_ROWS_ROUND_ROBIN);
}

Test(execute, more_ranks_than_blocks) {
  one_answer(small_case(9, 100, true, 3), SKV_ROWS_BY_POSITION);
}

Test(execute, more_queries_than_keys) {
  one_answer(small_case(150, 130, false, 4), SKV_ROWS_BY_POSITION);
}

Test(execute, no_keys_at_all) {
  one_answer(small_case(5, 0, false, 5), SKV_ROWS_BY_POSITION);
}

Test(execute, no_queries_at_all) {
  one_answer(small_case(0, 200, false, 6), SKV_ROWS_BY_POSITION);
}

Test(execute, results_can_go_to_root_or_all) {
  kit_case_t *test = small_case(40, 500, true, 7);
  kit_answer_t *wanted = kit_answer_create(test);
  cr_assert(kit_solve(test, &(kit_way_t){0}, wanted));
  for (int results = SKV_RESULTS_ROOT; results <= SKV_RESULTS_ALL; results++)
    for (int32_t ranks = 2; ranks <= 5; ranks++)
      all_paths(test, (kit_way_t){.ranks = ranks, .options = {.results = (skv_results_t)results}},
                wanted);
  kit_answer_free(wanted);
  kit_case_free(test);
}

Test(execute, many_small_passes_and_delays_change_nothing) {
  kit_case_t *test = small_case(90, 640, true, 8);
  kit_answer_t *wanted = kit_answer_create(test);
  cr_assert(kit_solve(test, &(kit_way_t){0}, wanted));
  for (uint64_t seed = 1; seed <= 5; seed++)
    all_paths(
        test,
        (kit_way_t){
            .ranks = 3, .threads = 2, .delay_seed = seed, .options = {.workspace_bytes = 65536}},
        wanted);
  kit_answer_free(wanted);
  kit_case_free(test);
}

/* Ranks with different frontiers must still cut the rows alike. */
Test(execute, passes_are_cut_alike_on_all_ranks) {
  kit_case_t *test = small_case(640, 640, true, 9);
  kit_answer_t *wanted = kit_answer_create(test);
  cr_assert(kit_solve(test, &(kit_way_t){0}, wanted));
  for (int64_t workspace = 262144; workspace <= 2097152; workspace *= 2)
    for (int32_t ranks = 3; ranks <= 7; ranks += 2)
      all_paths(test, (kit_way_t){.ranks = ranks, .options = {.workspace_bytes = workspace}},
                wanted);
  kit_answer_free(wanted);
  kit_case_free(test);
}

/* The negative control: merging as partials arrive must be seen by the comparison. */
Test(execute, free_order_differs) {
  int different = 0;
  for (uint64_t seed = 1; seed <= 4; seed++) {
    kit_case_t *test = small_case(40, 1200, false, seed);
    kit_answer_t *pinned = kit_answer_create(test), *freely = kit_answer_create(test);
    cr_assert(kit_solve(test, &(kit_way_t){.ranks = 3}, pinned));
    test->problem.order = SKV_ORDER_FREE;
    for (int reduce = SKV_GATHER; reduce <= SKV_RING; reduce++) {
      kit_way_t way = {.ranks = 3,
                       .options = {.direction = SKV_PASS_Q, .reduce = (skv_reduce_t)reduce}};
      cr_assert(kit_solve(test, &way, freely), "%s", reduce_words[reduce]);
      expect_right(test, freely);
      different += !kit_answer_same(pinned, freely);
    }
    kit_answer_free(pinned);
    kit_answer_free(freely);
    kit_case_free(test);
  }
  cr_expect(different > 0, "the free order gave the pinned bits in all 20 runs");
}

/* 500 random problems against the oracle, each also on a few ranks by a path of its own. */
Test(execute, random_problems) {
  for (uint64_t seed = 1; seed <= 500; seed++) {
    kit_case_t *test = kit_case_random(seed);
    kit_answer_t *wanted = kit_answer_create(test);
    skv_row_owner_t rows = seed % 3 ? SKV_ROWS_BY_POSITION : SKV_ROWS_ROUND_ROBIN;
    cr_assert(kit_solve(test, &(kit_way_t){.options = {.row_owner = rows}}, wanted));
    expect_right(test, wanted);
    kit_way_t way = {.ranks = (int32_t)(seed % 7) + 2,
                     .options = {.row_owner = rows,
                                 .layout = (skv_layout_kind_t)(seed % 3),
                                 .layout_run_blocks = 1,
                                 .direction = seed % 4 ? SKV_PASS_Q : SKV_PASS_KV}};
    way.options.reduce = seed % 4 ? (skv_reduce_t)(seed % 5 + 1) : seed % 8 ? SKV_RING : SKV_GATHER;
    expect_same(test, &way, wanted);
    kit_answer_free(wanted);
    kit_case_free(test);
  }
}

/* Ranks are threads. */
typedef struct seen {
  atomic_int leaves, merges, wrong;
} seen_t;

static void see(void *user, const skv_node_event_t *event) {
  seen_t *seen = user;
  size_t floats = (size_t)(event->rows * (event->value_head_dim + 2));
  (event->split ? &seen->merges : &seen->leaves)[0]++;
  seen->wrong += event->out_digest != XXH64(event->state, floats * sizeof(float), 0);
}

/* 8 blocks: of each rank's rows, every block is seen once and every merge once. */
Test(execute, observers_see_every_node_on_devices_too) {
  kit_case_t *test = small_case(40, 500, true, 12);
  kit_answer_t *wanted = kit_answer_create(test);
  cr_assert(kit_solve(test, &(kit_way_t){0}, wanted));
  for (int wiring = KIT_NO_DEVICE; wiring <= KIT_POLLED; wiring++)
    for (int direction = SKV_PASS_Q; direction <= SKV_PASS_KV; direction++) {
      seen_t seen = {0};
      kit_way_t way = {.ranks = 2,
                       .wiring = (kit_wiring_t)wiring,
                       .options = {.direction = (skv_direction_t)direction,
                                   .row_owner = SKV_ROWS_ROUND_ROBIN,
                                   .observer = see,
                                   .observer_user = &seen}};
      expect_same(test, &way, wanted);
      cr_expect_eq(seen.leaves, 2 * 8, "wiring %d direction %d: %d", wiring, direction,
                   (int)seen.leaves);
      cr_expect_eq(seen.merges, 2 * 7);
      cr_expect_eq(seen.wrong, 0);
    }
  kit_answer_free(wanted);
  kit_case_free(test);
}

/* Rank 1 is in other work from its first node on, until rank 0 has given up. */
typedef struct lost {
  kit_case_t *test;
  kit_world_t *wires;
  atomic_int given_up;
  skv_status_t status[2];
  char text[256];
} lost_t;

static void stay(void *user, const skv_node_event_t *event) {
  lost_t *lost = user;
  (void)event;
  while (lost && !lost->given_up)
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static skv_status_t execute_on(kit_device_t *device, const lost_t *lost, int32_t rank,
                               skv_plan_t *plan) {
  const kit_case_t *test = lost->test;
  kit_answer_t *answer = kit_answer_create(test);
  skv_plan_info_t info = {.struct_bytes = sizeof info};
  skv_plan_info(plan, &info);
  void *workspace = aligned_alloc(64, (size_t)info.workspace_bytes);
  skv_inputs_t inputs = kit_case_inputs(test);
  kit_own_keys(test, plan, rank, &inputs);
  skv_outputs_t outputs = {.struct_bytes = sizeof outputs, .o = inputs.q};
  outputs.o.data = answer->o;
  kit_way_t way = {0};
  skv_status_t status = kit_execute(test, &way, plan, &inputs, &outputs, workspace,
                                    (size_t)info.workspace_bytes, kit_device_stream(device));
  kit_device_close(device);
  free(workspace);
  kit_poisoned_free(inputs.k.data);
  kit_poisoned_free(inputs.v.data);
  kit_answer_free(answer);
  return status;
}

static int lose_a_rank(int32_t rank, skv_context_t *context, void *user) {
  lost_t *lost = user;
  skv_plan_options_t options = {.struct_bytes = sizeof options,
                                .reduce = SKV_SCATTER,
                                .row_owner = SKV_ROWS_ROUND_ROBIN,
                                .observer = stay,
                                .observer_user = rank ? lost : NULL};
  skv_plan_t *plan;
  context->comm->timeout_seconds = 0.3;
  kit_device_t *device = kit_device_open(context, KIT_ORDERED, lost->wires, 1);
  cr_assert_eq(skv_plan_create(&plan, context, &lost->test->problem, &options), SKV_OK);
  lost->status[rank] = execute_on(device, lost, rank, plan);
  if (rank == 0) {
    snprintf(lost->text, sizeof lost->text, "%s", skv_context_error(context));
    lost->given_up = 1;
  }
  skv_plan_destroy(plan);
  return 0;
}

Test(execute, an_observer_does_not_wait_for_ever_for_a_lost_rank) {
  lost_t lost = {.test = small_case(40, 500, true, 13), .wires = kit_world_create(2, 1)};
  kit_run_ranks(2, 1, NULL, 1, lose_a_rank, &lost);
  cr_expect_eq(lost.status[0], SKV_TIMEOUT, "%s", skv_status_name(lost.status[0]));
  cr_expect(strstr(lost.text, "no sign of life of rank 1"), "%s", lost.text);
  kit_world_destroy(lost.wires);
  kit_case_free(lost.test);
}
