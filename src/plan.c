#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "cost.h"
#include "plan_parts.h"

static skv_status_t check_options(const skv_plan_options_t *o, skv__error_t *error) {
  if (o->struct_bytes != sizeof *o)
    return skv__fail(error, SKV_INVALID,
                     "plan options: struct_bytes is %zu, not sizeof(skv_plan_options_t), %zu",
                     o->struct_bytes, sizeof *o);
  if ((unsigned)o->layout > SKV_BLOCKS || (unsigned)o->direction > SKV_PASS_KV ||
      (unsigned)o->reduce > SKV_RING || (unsigned)o->results > SKV_RESULTS_ALL ||
      (unsigned)o->row_owner > SKV_ROWS_ROUND_ROBIN || (unsigned)o->path > SKV_PATH_MESSAGES)
    return skv__fail(
        error, SKV_INVALID,
        "plan options: a layout, direction, reduce, results, row_owner or path that is none");
  if (o->layout == SKV_BLOCKS && o->layout_run_blocks < 1)
    return skv__fail(error, SKV_INVALID, "plan options: layout_run_blocks is %lld: give 1 or more",
                     (long long)o->layout_run_blocks);
  if (o->direction == SKV_PASS_KV && o->reduce != SKV_REDUCE_AUTO && o->reduce != SKV_RING &&
      o->reduce != SKV_GATHER)
    return skv__fail(error, SKV_INVALID,
                     "pass-KV moves keys by ring or gather, not by scatter, tree or butterfly");
  if (o->workspace_bytes < 0)
    return skv__fail(error, SKV_INVALID, "plan options: workspace_bytes is %lld",
                     (long long)o->workspace_bytes);
  return o->machine ? skv__machine_check(o->machine, error) : SKV_OK;
}

static uint64_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* All ranks get the first failure of any, or hear what they were given differently. */
static skv_status_t agree(skv_plan_t *plan, skv_status_t status, const char *text) {
  const skv_problem_t *p = &plan->problem;
  const skv_plan_options_t *o = &plan->options;
  const skv__fact_t facts[] = {
      {"batch", (uint64_t)p->batch},
      {"q_tokens", (uint64_t)p->q_tokens},
      {"kv_capacity_tokens", (uint64_t)p->kv_capacity_tokens},
      {"q_heads", (uint64_t)p->q_heads},
      {"kv_heads", (uint64_t)p->kv_heads},
      {"head_dim", (uint64_t)p->head_dim},
      {"value_head_dim", (uint64_t)p->value_head_dim},
      {"dtype", p->dtype},
      {"out_dtype", p->out_dtype},
      {"scale", bits_of(p->scale)},
      {"causal", (uint64_t)p->causal},
      {"window_left_tokens", (uint64_t)p->window_left_tokens},
      {"window_right_tokens", (uint64_t)p->window_right_tokens},
      {"softcap", bits_of(p->softcap)},
      {"leaf_tokens", (uint64_t)p->leaf_tokens},
      {"block_tokens", (uint64_t)p->block_tokens},
      {"order", p->order},
      {"order id", status == SKV_OK ? skv_order_id(plan->context, p) : 0},
      {"layout", o->layout},
      {"layout_run_blocks", (uint64_t)o->layout_run_blocks},
      {"direction", o->direction},
      {"reduce", o->reduce},
      {"results", o->results},
      {"row_owner", o->row_owner},
      {"path", o->path},
      {"partial", (uint64_t)o->partial},
      {"workspace_bytes", (uint64_t)o->workspace_bytes},
      {"observer", o->observer != NULL},
      {"machine", o->machine ? skv__machine_digest(o->machine) : 0},
  };
  return skv__comm_agree(plan->context->comm, facts, sizeof facts / sizeof *facts, status, text);
}

static skv_status_t take_arguments(skv_plan_t *plan, const skv_problem_t *problem,
                                   const skv_plan_options_t *options, skv__error_t *error) {
  SKV_TRY(skv__problem_check(problem, error));
  plan->problem = *problem;
  if (options) {
    SKV_TRY(check_options(options, error));
    plan->options = *options;
  }
  const skv__kernel_t *kernel = plan->context->kernel;
  plan->held_tokens = problem->kv_capacity_tokens; /* until the keys are shared out */
  skv__job_t shape;
  skv__plan_shape(plan, &shape);
  return kernel->supports(&shape, error) ? SKV_OK : SKV_UNSUPPORTED;
}

/* Cut the rows into passes by the rank that needs the most slots. */
static skv_status_t share_most_slots(skv_plan_t *plan, int32_t *most) {
  skv__comm_t *comm = plan->context->comm;
  int64_t mine = plan->slots, *all = plan->full_rows; /* not in use yet */
  SKV_TRY(skv__comm_gather(comm, &mine, sizeof mine, all, "plan sizes"));
  *most = plan->slots;
  for (int32_t rank = 0; plan->rank == 0 && rank < plan->ranks; rank++)
    *most = all[rank] > *most ? (int32_t)all[rank] : *most;
  return skv__comm_broadcast(comm, most, sizeof *most, "plan sizes");
}

/* Every rank comes through each step, or all stop at it. */
static skv_status_t build(skv_plan_t *plan) {
  skv__comm_t *comm = plan->context->comm;
  skv__error_t mine = {0};
  int32_t most_slots;
  skv_status_t status = skv__plan_cast(plan, &mine);
  SKV_TRY(skv__comm_agree(comm, NULL, 0, status, mine.text));
  SKV_TRY(share_most_slots(plan, &most_slots));
  status = skv__plan_size(plan, most_slots, &mine);
  SKV_TRY(skv__comm_agree(comm, NULL, 0, status, mine.text));
  return skv__plan_open_window(plan);
}

skv_status_t skv_plan_create(skv_plan_t **plan, skv_context_t *context,
                             const skv_problem_t *problem, const skv_plan_options_t *options) {
  if (!plan || !context)
    return SKV_INVALID;
  *plan = NULL;
  if (!context->agreed) /* its error text tells why */
    return SKV_INVALID;
  skv__error_clear(&context->error);
  skv__error_t mine = {0};
  skv_plan_t *made = calloc(1, sizeof *made);
  if (!made) /* the others are told */
    return skv__comm_agree(context->comm, NULL, 0, SKV_MEMORY, "out of memory for a plan");
  made->context = context;
  made->rank = context->comm->rank;
  made->ranks = context->comm->ranks;
  made->options = (skv_plan_options_t){.struct_bytes = sizeof made->options};
  skv_status_t status = take_arguments(made, problem, options, &mine);
  status = agree(made, status, mine.text);
  if (status == SKV_OK)
    status = build(made);
  made->options.machine = NULL; /* the caller's again */
  if (status != SKV_OK)
    skv_plan_destroy(made);
  else
    *plan = made;
  return status;
}

void skv_plan_destroy(skv_plan_t *plan) {
  if (!plan)
    return;
  skv__plan_close_window(plan);
  if (plan->resources)
    plan->context->kernel->close(plan->resources);
  for (int32_t i = 0; i < 2; i++)
    skv__bank_close(&plan->bank[i]);
  skv__exchange_close(&plan->exchange);
  skv__stream_close(&plan->stream);
  skv__assembly_close(&plan->assembly);
  skv__rehearsal_free(&plan->rehearsal);
  free(plan->intervals);
  free(plan->work);
  free(plan->full_rows);
  free(plan->q_tokens);
  free(plan->k_tokens);
  free(plan->q_start);
  free(plan);
}

skv_status_t skv_plan_key_intervals(const skv_plan_t *plan, int32_t rank, skv_interval_t *intervals,
                                    size_t *count) {
  if (!plan || !count || rank < 0 || rank >= plan->ranks)
    return SKV_INVALID;
  size_t room = intervals ? *count : 0;
  int64_t capacity = plan->problem.kv_capacity_tokens, block_tokens = plan->problem.block_tokens;
  size_t found = 0;
  int64_t held = skv__shard_intervals(&plan->shard, rank, plan->intervals);
  for (int64_t i = 0; i < held; i++) {
    int64_t begin = plan->intervals[i].begin * block_tokens,
            end = plan->intervals[i].end * block_tokens;
    end = end < capacity ? end : capacity;
    if (begin >= end)
      continue;
    if (found < room)
      intervals[found] = (skv_interval_t){begin, end};
    found++;
  }
  *count = found;
  return SKV_OK;
}

skv_status_t skv_plan_info(const skv_plan_t *plan, skv_plan_info_t *info) {
  if (!plan || !info || info->struct_bytes != sizeof *info)
    return SKV_INVALID;
  *info = (skv_plan_info_t){.struct_bytes = sizeof *info,
                            .direction = plan->options.direction,
                            .reduce = plan->options.reduce,
                            .path = plan->options.path,
                            .blocks = plan->shard.blocks,
                            .frontier_nodes = plan->frontier_nodes,
                            .rounds = plan->rehearsal.rounds,
                            .passes = plan->full_passes,
                            .sent_bytes = skv__plan_sent_bytes(plan),
                            .workspace_bytes = plan->workspace.total,
                            .pending_bytes = plan->banks * plan->slots * plan->bank[0].slot_bytes};
  return SKV_OK;
}

skv_status_t skv_plan_times(const skv_plan_t *plan, skv_times_t *times) {
  if (!plan || !times || times->struct_bytes != sizeof *times)
    return SKV_INVALID;
  *times = plan->times;
  return SKV_OK;
}

void skv__plan_clock(const skv_plan_t *plan, skv_times_t *times) {
  const skv__streams_t *streams = plan->context->kernel->streams;
  double computed = 0, total = 0;
  if (plan->ranks > 1 && streams && streams->times)
    streams->times(plan->resources, &computed, &total);
  if (total <= 0)
    return;
  times->compute_seconds = computed;
  times->wait_seconds = total > computed ? total - computed : 0;
}
