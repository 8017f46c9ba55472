/* test_arguments.c: arguments that are wrong, or that differ between ranks: one clear failure, the
 * same on every rank, and a context that works afterwards. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "context.h"
#include "solve.h"

enum { RANKS = 3, TOKENS = 200, ROWS = 2 * TOKENS, DIM = 4 };

static skv_problem_t small_problem(void) {
  skv_problem_t problem;
  skv_problem_init(&problem, sizeof problem, 2, 1, DIM);
  problem.q_tokens = problem.kv_capacity_tokens = TOKENS;
  problem.leaf_tokens = problem.block_tokens = 64;
  return problem;
}

/* One call's arguments, all of them right. */
typedef struct call {
  skv_inputs_t inputs;
  skv_outputs_t outputs;
  int64_t q_tokens, k_tokens, q_start;
  float tensors[ROWS * DIM], o[ROWS * DIM], lse[ROWS], sinks[2];
  void *workspace;
  size_t workspace_bytes;
} call_t;

static call_t *call_create(const skv_plan_t *plan) {
  skv_plan_info_t info = {.struct_bytes = sizeof info};
  cr_assert_eq(skv_plan_info(plan, &info), SKV_OK);
  call_t *call = calloc(1, sizeof *call);
  call->q_tokens = call->k_tokens = TOKENS;
  call->workspace_bytes = (size_t)info.workspace_bytes;
  call->workspace = kit_poisoned(call->workspace_bytes); /* aligned to 64 */
  skv_tensor_t q = {call->tensors, {ROWS * DIM, 2 * DIM, DIM, 1}};
  skv_tensor_t k = {call->tensors, {TOKENS * DIM, DIM, DIM, 1}};
  call->inputs = (skv_inputs_t){.struct_bytes = sizeof call->inputs,
                                .q = q,
                                .k = k,
                                .v = k,
                                .sinks = call->sinks,
                                .q_tokens = &call->q_tokens,
                                .k_tokens = &call->k_tokens,
                                .q_start = &call->q_start};
  call->outputs = (skv_outputs_t){.struct_bytes = sizeof call->outputs,
                                  .o = {call->o, {ROWS * DIM, 2 * DIM, DIM, 1}},
                                  .lse = call->lse,
                                  .lse_stride = {ROWS, 2, 1}};
  memset(call->o, 0x5a, sizeof call->o);
  return call;
}

static void call_free(call_t *call) {
  kit_poisoned_free(call->workspace);
  free(call);
}

static skv_status_t execute(skv_plan_t *plan, call_t *call) {
  return skv_execute(plan, &call->inputs, &call->outputs, call->workspace, call->workspace_bytes,
                     NULL);
}

/* ---- one rank: plans ---- */

static void expect_no_plan(const skv_problem_t *problem, const skv_plan_options_t *options,
                           skv_status_t wanted, const char *word) {
  skv_context_t *context;
  cr_assert_eq(skv_context_create(&context, NULL), SKV_OK);
  skv_problem_t good = small_problem();
  skv_plan_t *plan = (skv_plan_t *)&good, *after;
  skv_status_t status = skv_plan_create(&plan, context, problem, options);
  cr_expect_eq(status, wanted, "%s: %s", word, skv_status_name(status));
  cr_expect_null(plan);
  cr_expect(strstr(skv_context_error(context), word), "\"%s\" does not say \"%s\"",
            skv_context_error(context), word);
  cr_expect_eq(skv_plan_create(&after, context, &good, NULL), SKV_OK, "after \"%s\"", word);
  cr_expect_str_eq(skv_context_error(context), "");
  skv_plan_destroy(after);
  skv_context_destroy(context);
}

Test(arguments, plan_options) {
  skv_problem_t problem = small_problem();
#define REFUSED(WORD, ...)                                                                         \
  expect_no_plan(&problem,                                                                         \
                 &(skv_plan_options_t){.struct_bytes = sizeof(skv_plan_options_t), __VA_ARGS__},   \
                 SKV_INVALID, WORD)
  REFUSED("layout", .layout = (skv_layout_kind_t)3);
  REFUSED("layout", .layout = (skv_layout_kind_t)-1);
  REFUSED("layout_run_blocks is 0", .layout = SKV_BLOCKS);
  REFUSED("layout_run_blocks is -3", .layout = SKV_BLOCKS, .layout_run_blocks = -3);
  REFUSED("direction", .direction = (skv_direction_t)3);
  REFUSED("reduce", .reduce = (skv_reduce_t)6);
  REFUSED("pass-KV moves keys", .direction = SKV_PASS_KV, .reduce = SKV_TREE);
  REFUSED("results", .results = (skv_results_t)3);
  REFUSED("row_owner", .row_owner = (skv_row_owner_t)2);
  REFUSED("workspace_bytes is -1", .workspace_bytes = -1);
#undef REFUSED
  skv_plan_options_t options = {.struct_bytes = sizeof options - 1};
  expect_no_plan(&problem, &options, SKV_INVALID, "struct_bytes");
}

Test(arguments, problems) {
#define REFUSED(WORD, CHANGE)                                                                      \
  do {                                                                                             \
    skv_problem_t problem = small_problem();                                                       \
    problem.CHANGE;                                                                                \
    expect_no_plan(&problem, NULL, SKV_INVALID, WORD);                                             \
  } while (0)
  REFUSED("skv_problem_init", struct_bytes = 0);
  REFUSED("skv_problem_init", struct_bytes += 8);
  REFUSED("batch", batch = (INT64_C(1) << 30) + 1);
  REFUSED("q_tokens", q_tokens = (INT64_C(1) << 48) + 1);
  REFUSED("kv_capacity_tokens", kv_capacity_tokens = INT64_MAX);
  REFUSED("query heads", q_heads = INT64_MAX);
  REFUSED("query heads", q_heads = 0);
  REFUSED("KV heads", kv_heads = -1);
  REFUSED("value_head_dim", value_head_dim = 0);
  REFUSED("dtype 3", dtype = (skv_dtype_t)3);
  REFUSED("out_dtype 7", out_dtype = (skv_dtype_t)7);
  REFUSED("leaf_tokens", leaf_tokens = 0);
  REFUSED("leaf_tokens", leaf_tokens = -64);
  REFUSED("block_tokens", block_tokens = 0);
  REFUSED("block_tokens", block_tokens = INT64_MAX / 64 * 64);
  REFUSED("order", order = (skv_order_t)2);
  REFUSED("causal", causal = 2);
  REFUSED("window", window_left_tokens = INT64_MAX);
  REFUSED("window", window_right_tokens = INT64_MIN);
  REFUSED("softcap", softcap = INFINITY);
#undef REFUSED
  expect_no_plan(NULL, NULL, SKV_INVALID, "skv_problem_init");
}

/* ---- one rank: calls ---- */

typedef void (*spoil_t)(call_t *call);

#define SPOIL(NAME, CHANGE)                                                                        \
  static void NAME(call_t *call) {                                                                 \
    call->CHANGE;                                                                                  \
  }
SPOIL(no_input_struct, inputs.struct_bytes = 0)
SPOIL(no_output_struct, outputs.struct_bytes++)
SPOIL(no_output, outputs.o.data = NULL)
SPOIL(strided_output, outputs.o.stride[3] = 2)
SPOIL(no_queries, inputs.q.data = NULL)
SPOIL(no_keys, inputs.k.data = NULL)
SPOIL(far_start, q_start = INT64_MAX)
SPOIL(far_below, q_start = INT64_MIN)
SPOIL(short_workspace, workspace_bytes--)
static void no_workspace(call_t *call) {
  kit_poisoned_free(call->workspace);
  call->workspace = NULL;
}

Test(arguments, calls) {
  static const struct {
    spoil_t spoil;
    skv_status_t status;
    const char *word;
  } cases[] = {{no_input_struct, SKV_INVALID, "struct_bytes"},
               {no_output_struct, SKV_INVALID, "struct_bytes"},
               {no_output, SKV_INVALID, "o has no data"},
               {strided_output, SKV_INVALID, "innermost stride of o"},
               {no_queries, SKV_INVALID, "q has no data"},
               {no_keys, SKV_INVALID, "k has no data"},
               {far_start, SKV_INVALID, "out of range"},
               {far_below, SKV_INVALID, "out of range"},
               {no_workspace, SKV_MEMORY, "workspace"},
               {short_workspace, SKV_MEMORY, "workspace"}};
  skv_context_t *context;
  skv_plan_t *plan;
  skv_problem_t problem = small_problem();
  cr_assert_eq(skv_context_create(&context, NULL), SKV_OK);
  cr_assert_eq(skv_plan_create(&plan, context, &problem, NULL), SKV_OK);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    call_t *bad = call_create(plan), *good = call_create(plan);
    cases[i].spoil(bad);
    skv_status_t status = execute(plan, bad);
    cr_expect_eq(status, cases[i].status, "%s: %s", cases[i].word, skv_status_name(status));
    cr_expect(strstr(skv_context_error(context), cases[i].word), "\"%s\" does not say \"%s\"",
              skv_context_error(context), cases[i].word);
    for (size_t byte = 0; byte < sizeof bad->o; byte++)
      cr_assert_eq(((unsigned char *)bad->o)[byte], 0x5a, "%s: wrote", cases[i].word);
    cr_expect_eq(execute(plan, good), SKV_OK, "after \"%s\"", cases[i].word);
    call_free(bad);
    call_free(good);
  }
  call_t *call = call_create(plan);
  char *aligned = call->workspace;
  for (int64_t off = 1; off < 64; off++)
    cr_expect_eq(skv_execute(plan, &call->inputs, &call->outputs, aligned + off,
                             call->workspace_bytes, NULL),
                 SKV_MEMORY);
  cr_expect_eq(skv_execute(plan, NULL, &call->outputs, aligned, call->workspace_bytes, NULL),
               SKV_INVALID);
  cr_expect_eq(skv_execute(plan, &call->inputs, NULL, aligned, call->workspace_bytes, NULL),
               SKV_INVALID);
  call_free(call);
  skv_plan_destroy(plan);
  skv_context_destroy(context);
}

Test(arguments, questions) {
  skv_context_t *context;
  skv_plan_t *plan;
  skv_problem_t problem = small_problem();
  skv_plan_info_t info = {.struct_bytes = sizeof info - 8};
  skv_times_t times = {.struct_bytes = 0};
  size_t count = 0;
  cr_assert_eq(skv_context_create(&context, NULL), SKV_OK);
  cr_assert_eq(skv_plan_create(&plan, context, &problem, NULL), SKV_OK);
  cr_expect_eq(skv_plan_info(plan, &info), SKV_INVALID);
  cr_expect_eq(skv_plan_info(plan, NULL), SKV_INVALID);
  cr_expect_eq(skv_plan_info(NULL, &info), SKV_INVALID);
  cr_expect_eq(skv_plan_times(plan, &times), SKV_INVALID);
  cr_expect_eq(skv_plan_times(plan, NULL), SKV_INVALID);
  cr_expect_eq(skv_plan_key_intervals(plan, -1, NULL, &count), SKV_INVALID);
  cr_expect_eq(skv_plan_key_intervals(plan, 1, NULL, &count), SKV_INVALID);
  cr_expect_eq(skv_plan_key_intervals(plan, 0, NULL, NULL), SKV_INVALID);
  cr_expect_eq(skv_execute(NULL, NULL, NULL, NULL, 0, NULL), SKV_INVALID);
  cr_expect_eq(skv_plan_create(NULL, context, &problem, NULL), SKV_INVALID);
  cr_expect_eq(skv_plan_create(&plan, NULL, &problem, NULL), SKV_INVALID);
  skv_plan_destroy(plan);
  skv_plan_destroy(NULL);
  skv_context_destroy(context);
}

/* A context that could not be made carries its text, and no plan. */
Test(arguments, failed_context) {
  skv_context_options_t options = {.struct_bytes = sizeof options, .threads = -1};
  skv_context_t *context;
  skv_plan_t *plan;
  skv_problem_t problem = small_problem();
  cr_assert_eq(skv_context_create(&context, &options), SKV_INVALID);
  cr_expect_eq(skv_plan_create(&plan, context, &problem, NULL), SKV_INVALID);
  cr_expect_null(plan);
  cr_expect(strstr(skv_context_error(context), "threads is -1"));
  skv_context_destroy(context);
  options = (skv_context_options_t){.struct_bytes = sizeof options, .timeout_seconds = 1e300};
  cr_expect_eq(skv_context_create(&context, &options), SKV_INVALID);
  skv_context_destroy(context);
  options = (skv_context_options_t){.struct_bytes = sizeof options, .backend = (skv_backend_t)9};
  cr_expect_eq(skv_context_create(&context, &options), SKV_INVALID);
  skv_context_destroy(context);
}

/* ---- ranks that differ ---- */

static void observe(void *user, const skv_node_event_t *event) {
  (void)user, (void)event;
}

typedef struct difference {
  void (*change)(skv_problem_t *problem, skv_plan_options_t *options);
  const char *word;
} difference_t;

#define CHANGES(X)                                                                                 \
  X(batch, problem->batch = 2)                                                                     \
  X(q_tokens, problem->q_tokens--)                                                                 \
  X(kv_capacity_tokens, problem->kv_capacity_tokens++)                                             \
  X(q_heads, problem->q_heads = 4)                                                                 \
  X(kv_heads, problem->kv_heads = 2)                                                               \
  X(head_dim, problem->head_dim = 5)                                                               \
  X(value_head_dim, problem->value_head_dim = 5)                                                   \
  X(dtype, problem->dtype = SKV_BF16)                                                              \
  X(out_dtype, problem->out_dtype = SKV_FP16)                                                      \
  X(scale, problem->scale *= 1.0000001f)                                                           \
  X(causal, problem->causal = 1)                                                                   \
  X(window_left_tokens, problem->window_left_tokens = 7)                                           \
  X(window_right_tokens, problem->window_right_tokens = 0)                                         \
  X(softcap, problem->softcap = 1)                                                                 \
  X(leaf_tokens, (problem->leaf_tokens = 128, problem->block_tokens = 128))                        \
  X(block_tokens, problem->block_tokens = 128)                                                     \
  X(order, problem->order = SKV_ORDER_FREE)                                                        \
  X(layout, options->layout = SKV_ZIGZAG)                                                          \
  X(layout_run_blocks, options->layout_run_blocks = 9)                                             \
  X(direction, options->direction = SKV_PASS_KV)                                                   \
  X(reduce, options->reduce = SKV_RING)                                                            \
  X(results, options->results = SKV_RESULTS_ALL)                                                   \
  X(row_owner, options->row_owner = SKV_ROWS_ROUND_ROBIN)                                          \
  X(partial, options->partial = 1)                                                                 \
  X(workspace_bytes, options->workspace_bytes = 5000)                                              \
  X(observer, options->observer = observe)

#define X(NAME, CHANGE)                                                                            \
  static void change_##NAME(skv_problem_t *problem, skv_plan_options_t *options) {                 \
    (void)problem, (void)options;                                                                  \
    CHANGE;                                                                                        \
  }
CHANGES(X)
#undef X
#define X(NAME, CHANGE) {change_##NAME, "'" #NAME "' is "},
static const difference_t differences[] = {CHANGES(X)};
#undef X

/* What every rank saw. */
typedef struct seen {
  skv_status_t status[RANKS];
  char text[RANKS][1024];
} seen_t;

static void note(seen_t *seen, int32_t rank, skv_status_t status, const skv_context_t *context) {
  seen->status[rank] = status;
  snprintf(seen->text[rank], sizeof seen->text[rank], "%s", skv_context_error(context));
}

static void expect_alike(const seen_t *seen, skv_status_t wanted, const char *word) {
  for (int32_t rank = 0; rank < RANKS; rank++) {
    cr_expect_eq(seen->status[rank], wanted, "%s: rank %d: %s", word, (int)rank,
                 skv_status_name(seen->status[rank]));
    cr_expect_str_eq(seen->text[rank], seen->text[0]);
    cr_expect(strstr(seen->text[rank], word), "\"%s\" does not say \"%s\"", seen->text[rank], word);
  }
}

static seen_t plans[sizeof differences / sizeof *differences];

static int plan_differently(int32_t rank, skv_context_t *context, void *user) {
  (void)user;
  for (size_t i = 0; i < sizeof differences / sizeof *differences; i++) {
    skv_problem_t problem = small_problem();
    skv_plan_options_t options = {.struct_bytes = sizeof options};
    skv_plan_t *plan;
    if (rank == (int32_t)(i % RANKS))
      differences[i].change(&problem, &options);
    note(&plans[i], rank, skv_plan_create(&plan, context, &problem, &options), context);
    skv_plan_destroy(plan);
  }
  return 0;
}

Test(arguments, plans_that_differ) {
  cr_assert_eq(kit_run_ranks(RANKS, 1, NULL, 0, plan_differently, NULL), 0);
  for (size_t i = 0; i < sizeof differences / sizeof *differences; i++)
    expect_alike(&plans[i], SKV_DISAGREE, differences[i].word);
}

SPOIL(other_queries, q_tokens = 3)
SPOIL(other_keys, k_tokens--)
SPOIL(other_start, q_start = -1)
SPOIL(other_sinks, sinks[1] = 0.5f)
SPOIL(no_sinks, inputs.sinks = NULL)
SPOIL(too_many_keys, k_tokens = TOKENS + 1)

static const struct {
  spoil_t spoil;
  skv_status_t status;
  const char *word;
} calls[] = {{other_queries, SKV_DISAGREE, "'q_tokens' is "},
             {other_keys, SKV_DISAGREE, "'k_tokens' is "},
             {other_start, SKV_DISAGREE, "'q_start' is "},
             {other_sinks, SKV_DISAGREE, "'sinks' is "},
             {no_sinks, SKV_DISAGREE, "'sinks' is "},
             {too_many_keys, SKV_INVALID, "rank 2: sequence 0 has 201 keys"},
             {no_workspace, SKV_MEMORY, "rank 2: the workspace"},
             {no_input_struct, SKV_INVALID, "rank 2: inputs or outputs"}};
static seen_t called[sizeof calls / sizeof *calls];

static int call_differently(int32_t rank, skv_context_t *context, void *user) {
  const skv_plan_options_t *options = user;
  skv_problem_t problem = small_problem();
  skv_plan_t *plan;
  if (skv_plan_create(&plan, context, &problem, options) != SKV_OK)
    return 1;
  int result = 0;
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    call_t *call = call_create(plan), *good = call_create(plan);
    if (rank == 2)
      calls[i].spoil(call);
    note(&called[i], rank, execute(plan, call), context);
    if (execute(plan, good) != SKV_OK)
      result = 2;
    call_free(call);
    call_free(good);
  }
  skv_plan_destroy(plan);
  return result;
}

Test(arguments, calls_that_differ) {
  for (int direction = SKV_PASS_Q; direction <= SKV_PASS_KV; direction++) {
    skv_plan_options_t options = {.struct_bytes = sizeof options,
                                  .direction = (skv_direction_t)direction};
    cr_assert_eq(kit_run_ranks(RANKS, 1, NULL, 0, call_differently, &options), 0);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
      expect_alike(&called[i], calls[i].status, calls[i].word);
  }
}

/* ---- after a timeout ---- */

/* The last rank leaves. The others end in time, and after that everything is refused at once. */
static int lose_a_rank(int32_t rank, skv_context_t *context, void *user) {
  const skv_plan_options_t *options = user;
  skv_problem_t problem = small_problem();
  skv_plan_t *plan, *other;
  context->comm->timeout_seconds = 0.5;
  if (skv_plan_create(&plan, context, &problem, options) != SKV_OK)
    return 1;
  int result = 0;
  if (rank != RANKS - 1) {
    call_t *call = call_create(plan);
    skv_status_t status = execute(plan, call);
    double begin = skv__comm_now();
    if (status != SKV_TIMEOUT)
      result = 2;
    else if (execute(plan, call) == SKV_OK ||
             skv_plan_create(&other, context, &problem, options) == SKV_OK ||
             !*skv_context_error(context))
      result = 3;
    else if (skv__comm_now() - begin > 0.2)
      result = 4;
    call_free(call);
  }
  skv_plan_destroy(plan);
  return result;
}

Test(arguments, after_a_timeout_everything_is_refused) {
  for (int direction = SKV_PASS_Q; direction <= SKV_PASS_KV; direction++) {
    skv_plan_options_t options = {.struct_bytes = sizeof options,
                                  .direction = (skv_direction_t)direction};
    cr_expect_eq(kit_run_ranks(RANKS, 1, NULL, 0, lose_a_rank, &options), 0);
  }
}
