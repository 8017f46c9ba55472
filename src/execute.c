#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "execute.h"
#include "plan_parts.h"

/* ---- arguments ---- */

static skv_status_t check_tensor(const skv_tensor_t *tensor, const char *name, bool needed,
                                 skv__error_t *error) {
  if (tensor->stride[3] != 1)
    return skv__fail(error, SKV_INVALID,
                     "the innermost stride of %s is %lld: only 1 is supported, make a dense copy",
                     name, (long long)tensor->stride[3]);
  if (needed && !tensor->data)
    return skv__fail(error, SKV_INVALID, "%s has no data", name);
  return SKV_OK;
}

/* Does this rank hold a key that exists? */
static bool holds_keys(const skv_plan_t *plan, int64_t used_blocks) {
  return plan->work_count && plan->work[0].begin < used_blocks;
}

static int64_t used_blocks(const skv_plan_t *plan) {
  int64_t most = 0;
  for (int64_t sequence = 0; sequence < plan->problem.batch; sequence++)
    most = plan->k_tokens[sequence] > most ? plan->k_tokens[sequence] : most;
  return (most + plan->problem.block_tokens - 1) / plan->problem.block_tokens;
}

static skv_status_t take_lengths(skv_plan_t *plan, const skv_inputs_t *inputs, int64_t *queries,
                                 skv__error_t *error) {
  const skv_problem_t *p = &plan->problem;
  *queries = 0;
  for (int64_t s = 0; s < p->batch; s++) {
    int64_t q_tokens = inputs->q_tokens ? inputs->q_tokens[s] : p->q_tokens;
    int64_t k_tokens = inputs->k_tokens ? inputs->k_tokens[s] : p->kv_capacity_tokens;
    if (q_tokens < 0 || q_tokens > p->q_tokens)
      return skv__fail(error, SKV_INVALID,
                       "sequence %lld has %lld queries: the plan allows 0 to %lld", (long long)s,
                       (long long)q_tokens, (long long)p->q_tokens);
    if (k_tokens < 0 || k_tokens > p->kv_capacity_tokens)
      return skv__fail(error, SKV_INVALID,
                       "sequence %lld has %lld keys: the plan's capacity is %lld", (long long)s,
                       (long long)k_tokens, (long long)p->kv_capacity_tokens);
    int64_t q_start = inputs->q_start ? inputs->q_start[s] : k_tokens - q_tokens;
    if (q_start < -SKV__FAR / 2 || q_start > SKV__FAR / 2)
      return skv__fail(error, SKV_INVALID, "sequence %lld starts at position %lld: out of range",
                       (long long)s, (long long)q_start);
    plan->q_tokens[s] = q_tokens;
    plan->k_tokens[s] = k_tokens;
    plan->q_start[s] = q_start;
    *queries += q_tokens;
  }
  return SKV_OK;
}

static skv_status_t check_arguments(skv_plan_t *plan, const skv_inputs_t *inputs,
                                    const skv_outputs_t *outputs, const void *workspace,
                                    size_t workspace_bytes, skv__error_t *error) {
  int64_t queries;
  if (!inputs || inputs->struct_bytes != sizeof *inputs || !outputs ||
      outputs->struct_bytes != sizeof *outputs)
    return skv__fail(error, SKV_INVALID,
                     "inputs or outputs: struct_bytes is not the size of the struct");
  SKV_TRY(take_lengths(plan, inputs, &queries, error));
  bool keys = holds_keys(plan, used_blocks(plan));
  SKV_TRY(check_tensor(&inputs->q, "q", queries > 0, error));
  SKV_TRY(check_tensor(&inputs->k, "k", keys && queries > 0, error));
  SKV_TRY(check_tensor(&inputs->v, "v", keys && queries > 0, error));
  SKV_TRY(check_tensor(&outputs->o, "o", queries > 0, error));
  if (!workspace || workspace_bytes < (size_t)plan->workspace.total || (uintptr_t)workspace % 64)
    return skv__fail(error, SKV_MEMORY,
                     "the workspace has %zu bytes at %p: %lld bytes aligned to 64 are needed",
                     workspace_bytes, workspace, (long long)plan->workspace.total);
  return SKV_OK;
}

/* Lengths and positions decide who sends what, and each rank adds sinks to rows of its own: the
 * ranks must have the same. */
static skv_status_t agree(skv_plan_t *plan, const float *sinks, skv_status_t status,
                          const char *text) {
  size_t bytes = (size_t)plan->problem.batch * sizeof(int64_t);
  size_t sink_bytes = (size_t)plan->problem.q_heads * sizeof *sinks;
  skv__fact_t facts[] = {{"q_tokens", XXH64(plan->q_tokens, bytes, 0)},
                         {"k_tokens", XXH64(plan->k_tokens, bytes, 0)},
                         {"q_start", XXH64(plan->q_start, bytes, 0)},
                         {"sinks", sinks ? XXH64(sinks, sink_bytes, 0) : 0}};
  return skv__comm_agree(plan->context->comm, facts, sizeof facts / sizeof *facts, status, text);
}

/* ---- passes ---- */

static unsigned char *memory_of(const skv_plan_t *plan, int64_t bank, const skv__site_t *site) {
  const skv__window_t *window = plan->direct.window;
  return window ? window->memory[plan->rank] + bank * plan->bank_bytes
                : site->workspace + plan->workspace.bank[bank];
}

void skv__begin_pass(skv_plan_t *plan, skv__bank_t *bank, const skv__rows_t *rows, int64_t pass,
                     const skv__site_t *site) {
  const skv_inputs_t *inputs = site->inputs;
  skv__plan_shape(plan, &bank->job);
  bank->stream = site->lanes.main;
  bank->pass = pass;
  bank->used_blocks = used_blocks(plan);
  bank->job.k_tokens = plan->k_tokens;
  bank->job.q_start = plan->q_start;
  bank->job.q = inputs->q;
  bank->job.k = inputs->k;
  bank->job.v = inputs->v;
  bank->job.runs = bank->runs;
  bank->job.run_count = skv__rows_pass(rows, pass, bank->runs, bank->slice_rows);
  bank->job.slice_rows = bank->slice_rows;
  skv__bank_reset(bank, plan->shard.blocks, plan->problem.order == SKV_ORDER_FREE,
                  memory_of(plan, bank - plan->bank, site));
}

skv_status_t skv__tick(const skv_plan_t *plan, const skv__site_t *site, skv__tick_t tick) {
  const skv__streams_t *streams = plan->context->kernel->streams;
  if (!plan->clocked || plan->ranks == 1 || !streams || !streams->tick)
    return SKV_OK;
  return streams->tick(plan->resources, tick, site->lanes.main, site->lanes.error);
}

/* While one pass is evaluated, the exchange of the pass before goes on. */
static skv_status_t poll_exchange(void *user) {
  skv_plan_t *plan = user;
  bool moved;
  double begin = skv__comm_now();
  SKV_TRY(skv__comm_pulse(plan->context->comm));
  skv_status_t status = skv__exchange_advance(&plan->exchange, &moved);
  plan->times.communicate_seconds += skv__comm_now() - begin;
  return status;
}

static skv_status_t evaluate_pass(skv_plan_t *plan, skv__bank_t *bank, void *scratch) {
  skv__error_t *error = &plan->context->error;
  /* An observer is told of each block before it is merged, so that blocks are evaluated one by one.
   */
  int32_t group = plan->options.observer ? 1 : plan->work_count;
  double begin = skv__comm_now(), polled = plan->times.communicate_seconds;
  for (int32_t done = 0; done < plan->work_count; done += group)
    SKV_TRY(
        skv__bank_evaluate(bank, plan->work + done, group, scratch, poll_exchange, plan, error));
  plan->times.compute_seconds +=
      skv__comm_now() - begin - (plan->times.communicate_seconds - polled);
  return SKV_OK;
}

skv_status_t skv__begin_exchange(skv_plan_t *plan, skv__bank_t *bank, const skv__site_t *site) {
  bool moved;
  double begin = skv__comm_now();
  SKV_TRY(skv__lanes_fork(&site->lanes));
  bank->stream = site->lanes.second;
  SKV_TRY(skv__exchange_begin(&plan->exchange, bank, site->finish));
  /* Where streams keep the order all of it is enqueued here, before the next evaluation. */
  skv_status_t status = skv__exchange_advance(&plan->exchange, &moved);
  plan->times.communicate_seconds += skv__comm_now() - begin;
  return status;
}

skv_status_t skv__end_exchange(skv_plan_t *plan, const skv__site_t *site) {
  double begin = skv__comm_now(), waited = plan->times.wait_seconds;
  const skv__bank_t *bank = plan->exchange.bank;
  SKV_TRY(skv__exchange_end(&plan->exchange, &plan->times.wait_seconds));
  plan->times.communicate_seconds += skv__comm_now() - begin - (plan->times.wait_seconds - waited);
  return skv__lanes_mark(&site->lanes, SKV__EVENT_BANK + (bank != plan->bank), site->lanes.second);
}

static skv_status_t pass_queries(skv_plan_t *plan, skv__site_t *site) {
  unsigned char *scratch = site->workspace + plan->workspace.scratch;
  int64_t passes = skv__rows_passes(&plan->rows);
  if (passes == 1) /* nothing overlaps, and going from stream to stream takes microseconds */
    site->lanes = skv__lanes(plan->context->kernel, NULL, 1, site->lanes.main, site->lanes.error);
  for (int64_t pass = 0; pass < passes; pass++) {
    int32_t index = (int32_t)(pass % plan->banks);
    skv__bank_t *bank = &plan->bank[index];
    skv__begin_pass(plan, bank, &plan->rows, pass, site);
    if (pass >= plan->banks)
      SKV_TRY(skv__lanes_follow(&site->lanes, SKV__EVENT_BANK + index, site->lanes.main));
    SKV_TRY(skv__tick(plan, site, SKV__TICK_BEGIN));
    SKV_TRY(evaluate_pass(plan, bank, scratch));
    SKV_TRY(skv__tick(plan, site, SKV__TICK_END));
    if (pass > 0)
      SKV_TRY(skv__end_exchange(plan, site));
    SKV_TRY(skv__begin_exchange(plan, bank, site));
  }
  if (passes == 0)
    return SKV_OK;
  SKV_TRY(skv__end_exchange(plan, site));
  return skv__lanes_join(&site->lanes);
}

/* One rank: its only node is the whole tree, and all rows are one pass. */
static skv_status_t attend(skv_plan_t *plan, const skv__site_t *site) {
  skv__bank_t *bank = &plan->bank[0];
  skv__rows_t rows = plan->rows;
  rows.pass_queries = plan->problem.batch * plan->problem.q_tokens;
  double begin = skv__comm_now();
  skv__begin_pass(plan, bank, &rows, 0, site);
  bank->job.nodes = plan->work;
  bank->job.node_count = 1;
  if (bank->job.run_count)
    SKV_TRY(plan->context->kernel->attend(&bank->job, site->finish,
                                          site->workspace + plan->workspace.scratch,
                                          site->lanes.main, &plan->context->error));
  plan->times.compute_seconds = skv__comm_now() - begin;
  return SKV_OK;
}

/* A kernel is loaded when it is first launched, and CUDA may then wait for what is in flight, for
 * messages too that never come. So nothing is while a plan is new: once with digests and once
 * without, as they have kernels of their own. */
static void load_in_peace(skv_plan_t *plan) {
  plan->context->wire->settles = plan->executes < 2;
  plan->executes += plan->executes < 2;
}

skv_status_t skv_execute(skv_plan_t *plan, const skv_inputs_t *inputs, const skv_outputs_t *outputs,
                         void *workspace, size_t workspace_bytes, void *stream) {
  if (!plan)
    return SKV_INVALID;
  skv__error_t mine = {0};
  skv__error_clear(&plan->context->error);
  plan->times = (skv_times_t){.struct_bytes = sizeof plan->times};
  skv_status_t status = check_arguments(plan, inputs, outputs, workspace, workspace_bytes, &mine);
  const float *sinks = status == SKV_OK && !plan->options.partial ? inputs->sinks : NULL;
  SKV_TRY(agree(plan, sinks, status, mine.text));
  skv__finish_t finish = {.o = outputs->o,
                          .out_dtype = plan->problem.out_dtype,
                          .lse = outputs->lse,
                          .sinks = sinks,
                          .bits = outputs->bits};
  memcpy(finish.lse_stride, outputs->lse_stride, sizeof finish.lse_stride);
  skv__site_t site = {inputs, &finish, workspace,
                      skv__lanes(plan->context->kernel, plan->resources, plan->ranks, stream,
                                 &plan->context->error)};
  if (plan->ranks == 1 && !finish.bits && !plan->options.observer && plan->context->kernel->attend)
    return attend(plan, &site);
  load_in_peace(plan);
  SKV_TRY(skv__tick(plan, &site, SKV__TICK_START));
  SKV_TRY(plan->options.direction == SKV_PASS_KV ? skv__pass_keys(plan, &site)
                                                 : pass_queries(plan, &site));
  return skv__tick(plan, &site, SKV__TICK_OVER);
}
