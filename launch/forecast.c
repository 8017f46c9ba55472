/* forecast.c: see forecast.h. Needs no MPI: plans are made with nobody to talk to. */
#include "launch/forecast.h"

#include <stdlib.h>

#include "launch/shape.h"
#include "launch/tune.h"
#include "plan_parts.h"

enum { RANKS_MAX = 1 << 20, SAMPLED_SLICES = 8, SAMPLED_RANKS = 2 };

const skv__path_t skv__paths[SKV__PATHS] = {{SKV_PASS_Q, SKV_SCATTER}, {SKV_PASS_Q, SKV_BUTTERFLY},
                                            {SKV_PASS_Q, SKV_TREE},    {SKV_PASS_Q, SKV_GATHER},
                                            {SKV_PASS_Q, SKV_RING},    {SKV_PASS_KV, SKV_RING},
                                            {SKV_PASS_KV, SKV_GATHER}};

static void count_shards(skv__forecast_t *forecast) {
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
static skv_status_t cast_plan(skv_plan_t **plan, skv_context_t *context,
                              const skv__forecast_t *forecast, int32_t rank, skv__error_t *error) {
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
static skv_status_t build_plan(skv__forecast_t *forecast, skv__error_t *error) {
  int32_t ranks = forecast->shard.ranks, most_slots = 0;
  int32_t stride = ranks > SKV__RANKS_LISTED ? ranks / SAMPLED_RANKS : 1;
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

static skv_status_t predict(skv__forecast_t *forecast, skv__error_t *error) {
  const skv_problem_t *problem = &forecast->problem;
  skv_plan_options_t *options = &forecast->options;
  const skv_machine_t *machine = &forecast->machine;
  bool done = true;
  for (int i = 0; i < SKV__PATHS && done; ++i)
    done = skv__cost_predict(machine, problem, &forecast->shard, options->row_owner,
                             skv__paths[i].direction, skv__paths[i].reduce, &forecast->costs[i]);
  if (options->direction == SKV_PASS_KV && options->reduce != SKV_REDUCE_AUTO &&
      options->reduce != SKV_RING && options->reduce != SKV_GATHER)
    return skv__fail(error, SKV_INVALID, "pass-kv knows ring and gather, not %s",
                     skv__reduce_word(options->reduce));
  done = done && skv__cost_choose(machine, problem, &forecast->shard, options->row_owner,
                                  &options->direction, &options->reduce, &forecast->chosen);
  skv__shard_t whole = forecast->shard;
  whole.ranks = 1;
  skv__cost_t alone = {0};
  done = done && skv__cost_predict(machine, problem, &whole, options->row_owner, SKV_PASS_Q,
                                   SKV_SCATTER, &alone);
  forecast->one_rank_seconds = alone.compute_seconds;
  if (done && options->direction == SKV_PASS_Q)
    done = skv__schedule_traffic(&forecast->shard, options->reduce,
                                 forecast->shard.ranks > SAMPLED_SLICES ? SAMPLED_SLICES : 0, 0,
                                 &forecast->traffic);
  return done ? SKV_OK : skv__fail(error, SKV_MEMORY, "no memory to simulate the reductions");
}

static skv_status_t take_machine(skv__forecast_t *forecast, const skv__plan_request_t *options,
                                 skv__error_t *error) {
  forecast->machine =
      skv__machine_typical(options->machine == 1 ? SKV_BACKEND_CUDA : SKV_BACKEND_CPU);
  forecast->machine_source = options->machine == 1 ? "typical Hopper GPUs" : "a typical host";
  if (options->job.tune) {
    SKV_TRY(skv__tune_read(options->job.tune, &forecast->machine, error));
    forecast->machine_source = options->job.tune;
  }
  if (options->node_ranks >= 0)
    forecast->machine.node_ranks =
        (int32_t)(options->node_ranks < RANKS_MAX ? options->node_ranks : RANKS_MAX);
  return SKV_OK;
}

skv_status_t skv__forecast_make(skv__forecast_t *forecast, const skv__plan_request_t *options,
                                skv__error_t *error) {
  const skv__job_options_t *job = &options->job;
  int64_t ranks = options->ranks;
  skv__shape_t shape;
  SKV_TRY(take_machine(forecast, options, error));
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

double skv__forecast_efficiency(const skv__forecast_t *forecast) {
  double seconds = forecast->chosen.seconds * forecast->shard.ranks;
  return seconds > 0 ? forecast->one_rank_seconds / seconds : 1;
}
