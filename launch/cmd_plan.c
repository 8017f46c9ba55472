/* cmd_plan.c: splitkv plan: what a run would do, from integers alone. Needs no MPI. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "launch/exit_codes.h"
#include "launch/forecast.h"
#include "launch/plan_dot.h"
#include "launch/report.h"

static void print_ranks(const skv__forecast_t *forecast) {
  const skv__shard_t *shard = &forecast->shard;
  skv__node_t *intervals =
      malloc((size_t)(skv__shard_interval_bound(shard) + 1) * sizeof *intervals);
  if (!intervals || shard->ranks > SKV__RANKS_LISTED) {
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

static void print_machine(const skv_machine_t *machine, const char *source, int32_t ranks) {
  printf("\npredicted for ranks of %s, links of %s and %s a round",
         skv__rate_text(machine->flop_per_second, "FLOP").text,
         skv__rate_text(machine->bytes_per_second, "B").text,
         skv__seconds_text(machine->round_seconds).text);
  if (machine->node_ranks > 0 && machine->node_ranks < ranks)
    printf(", %s and %s between nodes of %d ranks",
           skv__rate_text(machine->far_bytes_per_second, "B").text,
           skv__seconds_text(machine->far_round_seconds).text, (int)machine->node_ranks);
  printf(" (%s)\n", source);
}

static void print_text(const skv__forecast_t *forecast) {
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
  print_machine(&forecast->machine, forecast->machine_source, shard->ranks);
  printf("path                    compute     transfer        merge          sum\n");
  for (int i = 0; i < SKV__PATHS; ++i) {
    const skv__cost_t *cost = &forecast->costs[i];
    bool chosen = skv__paths[i].direction == forecast->options.direction &&
                  skv__paths[i].reduce == forecast->options.reduce;
    printf("%-7s %-9s %12s %12s %12s %12s%s\n", skv__direction_word(skv__paths[i].direction),
           skv__reduce_word(skv__paths[i].reduce), skv__seconds_text(cost->compute_seconds).text,
           skv__seconds_text(cost->transfer_seconds).text,
           skv__seconds_text(cost->merge_seconds).text, skv__seconds_text(cost->seconds).text,
           chosen ? "  <- chosen" : "");
  }
  printf("%s%.1f %% of ideal: one rank would take %s\n",
         forecast->machine.overlaps ? "exchange beside compute; " : "",
         100 * skv__forecast_efficiency(forecast),
         skv__seconds_text(forecast->one_rank_seconds).text);
}

static cJSON *costs_of(const skv__forecast_t *forecast) {
  cJSON *list = cJSON_CreateArray();
  for (int i = 0; i < SKV__PATHS; ++i) {
    cJSON *entry = cJSON_CreateObject();
    cJSON_AddStringToObject(entry, "direction", skv__direction_word(skv__paths[i].direction));
    cJSON_AddStringToObject(entry, "reduce", skv__reduce_word(skv__paths[i].reduce));
    cJSON_AddNumberToObject(entry, "compute_seconds", forecast->costs[i].compute_seconds);
    cJSON_AddNumberToObject(entry, "transfer_seconds", forecast->costs[i].transfer_seconds);
    cJSON_AddNumberToObject(entry, "merge_seconds", forecast->costs[i].merge_seconds);
    cJSON_AddNumberToObject(entry, "seconds", forecast->costs[i].seconds);
    cJSON_AddItemToArray(list, entry);
  }
  return list;
}

static int print_json(const skv__forecast_t *forecast) {
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
                 {"far_share", forecast->traffic.far_share},
                 {"compute_seconds", forecast->chosen.compute_seconds},
                 {"transfer_seconds", forecast->chosen.transfer_seconds},
                 {"merge_seconds", forecast->chosen.merge_seconds},
                 {"seconds", forecast->chosen.seconds},
                 {"one_rank_seconds", forecast->one_rank_seconds},
                 {"efficiency", skv__forecast_efficiency(forecast)}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i)
    cJSON_AddNumberToObject(object, numbers[i].name, numbers[i].value);
  cJSON_AddStringToObject(object, "layout", skv__layout_word(forecast->shard.layout.kind));
  cJSON_AddStringToObject(object, "direction", skv__direction_word(forecast->options.direction));
  cJSON_AddStringToObject(object, "reduce", skv__reduce_word(forecast->options.reduce));
  cJSON_AddItemToObject(object, "predicted", costs_of(forecast));
  return skv__print_json(object);
}

static int show(const skv__plan_request_t *options) {
  skv__forecast_t forecast = {0};
  skv__error_t error = {0};
  if (skv__forecast_make(&forecast, options, &error) != SKV_OK) {
    skv__complain(&error);
    return error.status == SKV_INVALID ? SKV__EXIT_USAGE : skv__exit_code(error.status);
  }
  if (options->dot &&
      skv__plan_dot(options->dot, &forecast.shard, forecast.problem.block_tokens, &error) != SKV_OK)
    return skv__complain(&error);
  if (options->job.json)
    return print_json(&forecast);
  print_text(&forecast);
  return SKV__EXIT_OK;
}

int skv__cmd_plan(int argc, const char **argv) {
  skv__plan_request_t options = {.job = skv__job_defaults(false), .ranks = 1, .node_ranks = -1};
  skv__job_options_t *job = &options.job;
  skv__option_t table[SKV__JOB_TABLE_MAX];
  job->shape = "llama3-8b";
  job->batch = 1;
  job->dtype = SKV_FP32;
  const skv__option_t own[] = {
      {"ranks", SKV__SIZE, &options.ranks, "N", "as if under mpirun -np N (1)", 1},
      {"decode", SKV__FLAG, &job->decode, "", "one query, rows dealt round-robin", 0},
      {"machine", SKV__CHOICE, &options.machine, "cpu|gpu",
       "whose typical figures, where no --tuned gives measured ones", 0},
      {"node-ranks", SKV__SIZE, &options.node_ranks, "N",
       "ranks of a node (gpu: 8; 0: all ranks are on one)", 0},
      {"dot", SKV__TEXT, &options.dot, "FILE", "a picture of the merge tree, for Graphviz", 0},
      {"json", SKV__FLAG, &job->json, "", "one JSON object on stdout", 0}};
  int32_t count = 0;
  for (size_t i = 0; i < sizeof own / sizeof *own; ++i)
    table[count++] = own[i];
  count += skv__job_table(job, SKV__JOB_SHAPE | SKV__JOB_PROBLEM | SKV__JOB_PLAN, table + count);
  skv__arguments_t arguments = {0};
  int code = skv__options_parse("plan", table, count, &arguments, argc, argv);
  if (code < 0 && job->tokens < 0) {
    fprintf(stderr, "splitkv: plan needs --tokens N; see splitkv plan --help\n");
    code = SKV__EXIT_USAGE;
  }
  if (code < 0)
    code = show(&options);
  skv__arguments_free(&arguments);
  return code;
}
