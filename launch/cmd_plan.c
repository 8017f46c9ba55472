/* cmd_plan.c: splitkv plan: what a run would do, from integers alone. Needs no MPI. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cost.h"
#include "launch/exit_codes.h"
#include "launch/job_options.h"
#include "launch/plan_dot.h"
#include "launch/report.h"
#include "launch/shape.h"
#include "plan_parts.h"

enum { RANKS_LISTED = 16, RANKS_MAX = 1 << 20, SAMPLED_SLICES = 8, SAMPLED_RANKS = 2, CHOICES = 7 };

static const struct {
  skv_direction_t direction;
  skv_reduce_t reduce;
} choices[CHOICES] = {{SKV_PASS_Q, SKV_SCATTER}, {SKV_PASS_Q, SKV_BUTTERFLY},
                      {SKV_PASS_Q, SKV_TREE},    {SKV_PASS_Q, SKV_GATHER},
                      {SKV_PASS_Q, SKV_RING},    {SKV_PASS_KV, SKV_RING},
                      {SKV_PASS_KV, SKV_GATHER}};

typedef struct forecast {
  skv_problem_t problem;
  skv_plan_options_t options; /* direction and reduce as chosen */
  skv__shard_t shard;
  skv__cost_t chosen, costs[CHOICES];
  skv__traffic_t traffic; /* pass-Q */
  int64_t least_blocks, most_blocks, most_frontier;
  double mean_frontier;
  skv_plan_info_t info; /* of rank 0 */
} forecast_t;

static void count_shards(forecast_t *forecast) {
  const skv__shard_t *shard = &forecast->shard;
  forecast->least_blocks = shard->blocks;
  for (int32_t rank = 0; rank < shard->ranks; ++rank) {
    int64_t blocks = skv__shard_blocks(shard, rank);
    int64_t frontier = skv__shard_frontier(shard, rank, NULL);
    if (blocks < forecast->least_blocks)
      forecast->least_blocks = blocks;
    if (blocks > forecast->most_blocks)
      forecast->most_blocks = blocks;
    if (frontier > forecast->most_frontier)
      forecast->most_frontier = frontier;
    forecast->mean_frontier += (double)frontier / shard->ranks;
  }
}

/* What a rank's plan decides before ranks talk, made without anybody to talk to. */
static skv_status_t cast_plan(skv_plan_t **plan, skv_context_t *context, const forecast_t *forecast,
                              int32_t rank, skv__error_t *error) {
  *plan = calloc(1, sizeof **plan);
  if (!*plan)
    return skv__fail(error, SKV_MEMORY, "no memory for a plan");
  (*plan)->context = context;
  (*plan)->rank = rank;
  (*plan)->ranks = forecast->shard.ranks;
  (*plan)->problem = forecast->problem;
  (*plan)->options = forecast->options;
  skv__job_t shape;
  skv__plan_shape(*plan, &shape);
  if (!context->kernel->supports(&shape, error))
    return SKV_UNSUPPORTED;
  return skv__plan_cast(*plan, error);
}

/* The plan of rank 0, sized by the slots of every rank, or of a few among very many. */
static skv_status_t build_plan(forecast_t *forecast, skv__error_t *error) {
  int32_t ranks = forecast->shard.ranks, most_slots = 0;
  int32_t stride = ranks > RANKS_LISTED ? ranks / SAMPLED_RANKS : 1;
  skv_context_t context = {.kernel = skv__kernel_pick(SKV_BACKEND_CPU, NULL, error), .threads = 1};
  skv_plan_t *first = NULL;
  skv_status_t status = context.kernel ? SKV_OK : error->status;
  for (int32_t rank = 0; rank < ranks && status == SKV_OK; rank += stride) {
    skv_plan_t *plan;
    status = cast_plan(&plan, &context, forecast, rank, error);
    if (status == SKV_OK && plan->slots > most_slots)
      most_slots = plan->slots;
    if (rank == 0)
      first = plan;
    else
      skv_plan_destroy(plan);
  }
  if (status == SKV_OK)
    status = skv__plan_size(first, most_slots, error);
  forecast->info.struct_bytes = sizeof forecast->info;
  if (status == SKV_OK)
    status = skv_plan_info(first, &forecast->info);
  skv_plan_destroy(first);
  return status;
}

static skv_status_t predict(forecast_t *forecast, skv__error_t *error) {
  const skv_problem_t *problem = &forecast->problem;
  skv_plan_options_t *options = &forecast->options;
  skv_machine_t machine = skv__machine_typical(SKV_BACKEND_CPU);
  bool done = true;
  for (int i = 0; i < CHOICES && done; ++i)
    done = skv__cost_predict(&machine, problem, &forecast->shard, options->row_owner,
                             choices[i].direction, choices[i].reduce, &forecast->costs[i]);
  if (options->direction == SKV_PASS_KV && options->reduce != SKV_REDUCE_AUTO &&
      options->reduce != SKV_RING && options->reduce != SKV_GATHER)
    return skv__fail(error, SKV_INVALID, "pass-kv knows ring and gather, not %s",
                     skv__reduce_word(options->reduce));
  done = done && skv__cost_choose(&machine, problem, &forecast->shard, options->row_owner,
                                  &options->direction, &options->reduce, &forecast->chosen);
  if (done && options->direction == SKV_PASS_Q)
    done = skv__schedule_traffic(&forecast->shard, options->reduce,
                                 forecast->shard.ranks > SAMPLED_SLICES ? SAMPLED_SLICES : 0, 0,
                                 &forecast->traffic);
  return done ? SKV_OK : skv__fail(error, SKV_MEMORY, "no memory to simulate the reductions");
}

static skv_status_t make_forecast(forecast_t *forecast, const skv__job_options_t *job,
                                  int64_t ranks, skv__error_t *error) {
  skv__shape_t shape;
  SKV_TRY(skv__shape_parse(job->shape, &shape, error));
  skv__job_extents_t extents = {.batch = job->batch,
                                .q_tokens = job->queries >= 0 ? job->queries
                                            : job->decode     ? 1
                                                              : job->tokens,
                                .k_tokens = job->tokens,
                                .capacity_tokens = job->capacity >= 0 ? job->capacity : job->tokens,
                                .q_heads = shape.q_heads,
                                .kv_heads = shape.kv_heads,
                                .head_dim = shape.head_dim,
                                .value_head_dim = shape.value_head_dim,
                                .dtype = (skv_dtype_t)job->dtype};
  if (ranks > RANKS_MAX)
    return skv__fail(error, SKV_INVALID, "--ranks: at most %d", RANKS_MAX);
  SKV_TRY(skv__job_problem(job, &extents, &forecast->problem, error));
  SKV_TRY(skv__problem_check(&forecast->problem, error));
  SKV_TRY(skv__job_plan_options(job, &forecast->options, error));
  int64_t blocks = skv__problem_blocks(&forecast->problem);
  forecast->shard =
      (skv__shard_t){.blocks = blocks > 0 ? blocks : 1,
                     .ranks = (int32_t)ranks,
                     .layout = {forecast->options.layout, forecast->options.layout_run_blocks}};
  SKV_TRY(skv__shard_check(&forecast->shard, error));
  count_shards(forecast);
  SKV_TRY(predict(forecast, error));
  return build_plan(forecast, error);
}

static void print_ranks(const forecast_t *forecast) {
  const skv__shard_t *shard = &forecast->shard;
  skv__node_t *intervals =
      malloc((size_t)(skv__shard_interval_bound(shard) + 1) * sizeof *intervals);
  if (!intervals || shard->ranks > RANKS_LISTED) {
    free(intervals);
    return;
  }
  printf("\nrank  blocks  frontier  keys\n");
  for (int32_t rank = 0; rank < shard->ranks; ++rank) {
    int64_t count = skv__shard_intervals(shard, rank, intervals), shown = count < 4 ? count : 4;
    printf("%4d %7" PRId64 " %9" PRId64 " ", (int)rank, skv__shard_blocks(shard, rank),
           skv__shard_frontier(shard, rank, NULL));
    for (int64_t i = 0; i < shown; ++i) {
      int64_t end = intervals[i].end * forecast->problem.block_tokens;
      if (end > forecast->problem.kv_capacity_tokens)
        end = forecast->problem.kv_capacity_tokens;
      printf(" [%" PRId64 ", %" PRId64 ")", intervals[i].begin * forecast->problem.block_tokens,
             end);
    }
    printf("%s\n", count > shown ? " ..." : "");
  }
  free(intervals);
}

static void print_text(const forecast_t *forecast) {
  const skv_problem_t *p = &forecast->problem;
  const skv__shard_t *shard = &forecast->shard;
  printf("work       %" PRId64 " sequence%s, %" PRId64 " queries, capacity %" PRId64
         " keys, %" PRId64 "/%" PRId64 " heads of %" PRId64 ", %s%s\n",
         p->batch, p->batch == 1 ? "" : "s", p->q_tokens, p->kv_capacity_tokens, p->q_heads,
         p->kv_heads, p->head_dim, skv__dtype_word(p->dtype), p->causal ? ", causal" : "");
  printf("shards     %s: %" PRId64 " blocks of %" PRId64 " keys on %d rank%s, %" PRId64
         " to %" PRId64 " each\n",
         skv__layout_word(shard->layout.kind), shard->blocks, p->block_tokens, (int)shard->ranks,
         shard->ranks == 1 ? "" : "s", forecast->least_blocks, forecast->most_blocks);
  printf("frontier   %" PRId64 " nodes at most, %.2f on average\n", forecast->most_frontier,
         forecast->mean_frontier);
  printf("path       %s, %s: %" PRId64 " rounds a pass, %" PRId64 " passes\n",
         skv__direction_word(forecast->options.direction),
         skv__reduce_word(forecast->options.reduce), forecast->info.rounds, forecast->info.passes);
  if (forecast->options.direction == SKV_PASS_Q && shard->ranks > 1)
    printf("traffic    %.2f times the node-states of free order; %" PRId64
           " states pending at most\n",
           forecast->traffic.per_row, forecast->traffic.max_pending);
  printf("rank 0     sends %s, workspace %s (%s of it pending states)\n",
         skv__bytes_text((double)forecast->info.sent_bytes).text,
         skv__bytes_text((double)forecast->info.workspace_bytes).text,
         skv__bytes_text((double)forecast->info.pending_bytes).text);
  print_ranks(forecast);
  skv_machine_t machine = skv__machine_typical(SKV_BACKEND_CPU);
  printf("\npredicted for ranks of %s, links of %s and %s a message\n",
         skv__rate_text(machine.flop_per_second, "FLOP").text,
         skv__rate_text(machine.bytes_per_second, "B").text,
         skv__seconds_text(machine.round_seconds).text);
  printf("path                    compute     transfer        merge          sum\n");
  for (int i = 0; i < CHOICES; ++i) {
    const skv__cost_t *cost = &forecast->costs[i];
    bool chosen = choices[i].direction == forecast->options.direction &&
                  choices[i].reduce == forecast->options.reduce;
    printf("%-7s %-9s %12s %12s %12s %12s%s\n", skv__direction_word(choices[i].direction),
           skv__reduce_word(choices[i].reduce), skv__seconds_text(cost->compute_seconds).text,
           skv__seconds_text(cost->transfer_seconds).text,
           skv__seconds_text(cost->merge_seconds).text, skv__seconds_text(cost->seconds).text,
           chosen ? "  <- chosen" : "");
  }
}

static cJSON *costs_of(const forecast_t *forecast) {
  cJSON *list = cJSON_CreateArray();
  for (int i = 0; i < CHOICES; ++i) {
    cJSON *entry = cJSON_CreateObject();
    cJSON_AddStringToObject(entry, "direction", skv__direction_word(choices[i].direction));
    cJSON_AddStringToObject(entry, "reduce", skv__reduce_word(choices[i].reduce));
    cJSON_AddNumberToObject(entry, "compute_seconds", forecast->costs[i].compute_seconds);
    cJSON_AddNumberToObject(entry, "transfer_seconds", forecast->costs[i].transfer_seconds);
    cJSON_AddNumberToObject(entry, "merge_seconds", forecast->costs[i].merge_seconds);
    cJSON_AddNumberToObject(entry, "seconds", forecast->costs[i].seconds);
    cJSON_AddItemToArray(list, entry);
  }
  return list;
}

static int print_json(const forecast_t *forecast) {
  cJSON *object = cJSON_CreateObject();
  const struct {
    const char *name;
    double value;
  } numbers[] = {{"ranks", forecast->shard.ranks},
                 {"blocks", (double)forecast->shard.blocks},
                 {"block_tokens", (double)forecast->problem.block_tokens},
                 {"least_blocks", (double)forecast->least_blocks},
                 {"most_blocks", (double)forecast->most_blocks},
                 {"frontier_most", (double)forecast->most_frontier},
                 {"frontier_mean", forecast->mean_frontier},
                 {"rounds", (double)forecast->info.rounds},
                 {"passes", (double)forecast->info.passes},
                 {"node_states_per_row", forecast->traffic.per_row},
                 {"pending_states", (double)forecast->traffic.max_pending},
                 {"sent_bytes", (double)forecast->info.sent_bytes},
                 {"workspace_bytes", (double)forecast->info.workspace_bytes},
                 {"pending_bytes", (double)forecast->info.pending_bytes},
                 {"seconds", forecast->chosen.seconds}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i)
    cJSON_AddNumberToObject(object, numbers[i].name, numbers[i].value);
  cJSON_AddStringToObject(object, "layout", skv__layout_word(forecast->shard.layout.kind));
  cJSON_AddStringToObject(object, "direction", skv__direction_word(forecast->options.direction));
  cJSON_AddStringToObject(object, "reduce", skv__reduce_word(forecast->options.reduce));
  cJSON_AddItemToObject(object, "predicted", costs_of(forecast));
  return skv__print_json(object);
}

static int show(const skv__job_options_t *job, int64_t ranks, const char *dot) {
  forecast_t forecast = {0};
  skv__error_t error = {0};
  if (make_forecast(&forecast, job, ranks, &error) != SKV_OK) {
    skv__complain(&error);
    return error.status == SKV_INVALID ? SKV__EXIT_USAGE : skv__exit_code(error.status);
  }
  if (dot && skv__plan_dot(dot, &forecast.shard, forecast.problem.block_tokens, &error) != SKV_OK)
    return skv__complain(&error);
  if (job->json)
    return print_json(&forecast);
  print_text(&forecast);
  return SKV__EXIT_OK;
}

int skv__cmd_plan(int argc, const char **argv) {
  skv__job_options_t job = skv__job_defaults(false);
  int64_t ranks = 1;
  const char *dot = NULL;
  skv__option_t table[SKV__JOB_TABLE_MAX];
  job.shape = "llama3-8b";
  job.batch = 1;
  job.dtype = SKV_FP32;
  const skv__option_t own[] = {
      {"ranks", SKV__SIZE, &ranks, "N", "as if under mpirun -np N (1)", 1},
      {"decode", SKV__FLAG, &job.decode, "", "one query, rows dealt round-robin", 0},
      {"dot", SKV__TEXT, &dot, "FILE", "a picture of the merge tree, for Graphviz", 0},
      {"json", SKV__FLAG, &job.json, "", "one JSON object on stdout", 0}};
  int32_t count = 0;
  for (size_t i = 0; i < sizeof own / sizeof *own; ++i)
    table[count++] = own[i];
  count += skv__job_table(&job, SKV__JOB_SHAPE | SKV__JOB_PROBLEM | SKV__JOB_PLAN, table + count);
  skv__arguments_t arguments = {0};
  int code = skv__options_parse("plan", table, count, &arguments, argc, argv);
  if (code < 0 && job.tokens < 0) {
    fprintf(stderr, "splitkv: plan needs --tokens N; see splitkv plan --help\n");
    code = SKV__EXIT_USAGE;
  }
  if (code < 0)
    code = show(&job, ranks, dot);
  skv__arguments_free(&arguments);
  return code;
}
