/* test_extremes.c: plans of sizes at the limits of what the header allows: a plan, or a refusal,
 * and soon; never a crash, an overflow, or hours of work. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "comm/comm.h"
#include "kit.h"

static skv_problem_t small_problem(void) {
  skv_problem_t problem;
  skv_problem_init(&problem, sizeof problem, 2, 1, 4);
  problem.q_tokens = problem.kv_capacity_tokens = 200;
  problem.leaf_tokens = problem.block_tokens = 64;
  return problem;
}

typedef struct extreme {
  skv_problem_t problem;
  skv_plan_options_t options;
  skv_status_t wanted;
} extreme_t;

static int plan_extreme(int32_t rank, skv_context_t *context, void *user) {
  const extreme_t *extreme = user;
  skv_plan_t *plan;
  skv_plan_info_t info = {.struct_bytes = sizeof info};
  double begin = skv__comm_now();
  skv_status_t status = skv_plan_create(&plan, context, &extreme->problem, &extreme->options);
  if (status == SKV_OK && (skv_plan_info(plan, &info) != SKV_OK || info.workspace_bytes <= 0 ||
                           info.sent_bytes < 0 || info.passes < 1))
    return 99;
  skv_plan_destroy(plan);
  if (status != extreme->wanted || skv__comm_now() - begin > 20) {
    fprintf(stderr, "rank %d: %s, %s\n", (int)rank, skv_status_name(status),
            skv_context_error(context));
    return 98;
  }
  return 0;
}

static void observe(void *user, const skv_node_event_t *event) {
  (void)user, (void)event;
}

Test(extremes, are_planned_or_refused) {
  const int64_t far = INT64_C(1) << 48, long_capacity = INT64_C(1) << 40;
#define COMMA ,
#define EXTREME(STATUS, OPTIONS, CHANGE)                                                           \
  do {                                                                                             \
    skv_plan_options_t options = {.struct_bytes = sizeof options, OPTIONS};                        \
    extreme_t extreme = {small_problem(), options, STATUS};                                        \
    skv_problem_t *p = &extreme.problem;                                                           \
    CHANGE;                                                                                        \
    for (int32_t ranks = 1; ranks <= 3; ranks += 2)                                                \
      cr_expect_eq(kit_run_ranks(ranks, 1, NULL, 0, plan_extreme, &extreme), 0, "%d ranks: %s",    \
                   (int)ranks, #CHANGE);                                                           \
  } while (0)
  /* 64 heads of a block's bytes are 2^64 */
  EXTREME(SKV_OK, .direction = SKV_PASS_KV,
          (p->block_tokens = far, p->q_heads = p->kv_heads = 64, p->head_dim = 128,
           p->value_head_dim = 128));
  EXTREME(SKV_OK, .direction = SKV_PASS_Q, (p->block_tokens = far, p->kv_capacity_tokens = far));
  EXTREME(SKV_OK, .direction = SKV_PASS_Q, p->q_tokens = far);
  EXTREME(SKV_MEMORY, .direction = SKV_PASS_KV,
          (p->q_tokens = far, p->q_heads = 4, p->value_head_dim = 256));
  EXTREME(SKV_OK, .workspace_bytes = INT64_MAX, p->q_tokens = long_capacity);
  EXTREME(SKV_OK, .direction = SKV_PASS_Q, p->kv_capacity_tokens = long_capacity);
  EXTREME(
      SKV_MEMORY, .direction = SKV_PASS_KV,
      (p->kv_capacity_tokens = long_capacity, p->q_heads = p->kv_heads = 64, p->head_dim = 128));
  EXTREME(SKV_INVALID, .layout = SKV_BLOCKS COMMA.layout_run_blocks = 1,
          p->kv_capacity_tokens = long_capacity);
  EXTREME(SKV_OK, .layout = SKV_BLOCKS COMMA.layout_run_blocks = INT64_MAX,
          p->kv_capacity_tokens = 200);
  EXTREME(SKV_INVALID, .observer = observe, p->kv_capacity_tokens = long_capacity);
#undef EXTREME
#undef COMMA
}
