/* execute_keys.c: pass-KV. On the CPU keys and values come in chunks, whose states are merged as
 * they come; on a device they are put together, a group of heads at a time, and attended at once.
 */
#include "execute.h"
#include "plan_parts.h"

/* The runs of this rank's own rows. */
static void keep_own_runs(skv__job_t *job, int32_t rank) {
  if (job->round_robin)
    return;
  while (job->run_count && job->runs->owner != rank) {
    job->runs++;
    job->run_count--;
  }
  for (int64_t i = 0; i < job->run_count; i++)
    if (job->runs[i].owner != rank)
      job->run_count = i;
}

/* ---- in chunks ---- */

static skv_status_t stream_keys(skv_plan_t *plan, skv__bank_t *bank, const skv__site_t *site) {
  const skv__workspace_t *w = &plan->workspace;
  skv__job_t all = bank->job;
  keep_own_runs(&bank->job, plan->rank);
  SKV_TRY(skv__stream_run(&plan->stream, bank, site->inputs, plan->k_tokens,
                          site->workspace + w->scratch, site->workspace + w->stream, &plan->times,
                          &plan->context->error));
  bank->job = all;
  return SKV_OK;
}

/* ---- put together ---- */

static unsigned char *buffer_of(const skv_plan_t *plan, const skv__site_t *site, int64_t group) {
  return site->workspace + plan->workspace.stream +
         group % plan->assembly.buffers * plan->assembly.buffer_bytes;
}

/* Groups of pass-KV, in order, on the second lane. A buffer is filled once it has been attended. */
static skv_status_t fetch(skv_plan_t *plan, const skv__site_t *site, int64_t group) {
  const skv__assembly_t *assembly = &plan->assembly;
  int32_t index = (int32_t)(group % assembly->buffers);
  double begin = skv__comm_now();
  if (group >= assembly->buffers)
    SKV_TRY(skv__lanes_follow(&site->lanes, SKV__EVENT_ATTENDED + index, site->lanes.second));
  SKV_TRY(skv__assembly_fetch(assembly, &site->lanes, site->inputs, plan->k_tokens, group,
                              buffer_of(plan, site, group)));
  plan->times.communicate_seconds += skv__comm_now() - begin;
  return skv__lanes_mark(&site->lanes, SKV__EVENT_ARRIVED + index, site->lanes.second);
}

/* What own rows do with a group's keys: `finish` given, they are done with these heads; else their
 * states of the node go to the slot. */
static skv_status_t use_group(skv_plan_t *plan, skv__bank_t *bank, const skv__site_t *site,
                              int64_t group, skv__job_node_t node, int32_t slot,
                              const skv__finish_t *finish) {
  void *scratch = site->workspace + plan->workspace.scratch;
  skv__job_t job = bank->job;
  skv__head_range_t heads = skv__assembly_heads(&plan->assembly, group);
  keep_own_runs(&job, plan->rank);
  job.kv_head_begin = heads.begin;
  job.kv_head_end = heads.end;
  skv__assembly_tensors(&plan->assembly, group, buffer_of(plan, site, group), &job.k, &job.v);
  if (!finish)
    return skv__bank_evaluate_own(bank, &job, node, slot, scratch, NULL, NULL, site->lanes.error);
  job.nodes = &node;
  job.node_count = 1;
  return job.run_count
             ? bank->kernel->attend(&job, finish, scratch, bank->stream, site->lanes.error)
             : SKV_OK;
}

/* The next group comes while one is attended. */
static skv_status_t use_groups(skv_plan_t *plan, skv__bank_t *bank, const skv__site_t *site,
                               int32_t slot, const skv__finish_t *finish) {
  const skv__assembly_t *assembly = &plan->assembly;
  skv__job_node_t tree = {0, plan->shard.blocks, 0};
  SKV_TRY(fetch(plan, site, 0));
  for (int64_t group = 0; group < assembly->groups; group++) {
    int32_t index = (int32_t)(group % assembly->buffers);
    if (group + 1 < assembly->groups)
      SKV_TRY(fetch(plan, site, group + 1));
    SKV_TRY(skv__lanes_follow(&site->lanes, SKV__EVENT_ARRIVED + index, site->lanes.main));
    SKV_TRY(skv__tick(plan, site, SKV__TICK_BEGIN));
    SKV_TRY(use_group(plan, bank, site, group, tree, slot, finish));
    SKV_TRY(skv__tick(plan, site, SKV__TICK_END));
    SKV_TRY(skv__lanes_mark(&site->lanes, SKV__EVENT_ATTENDED + index, site->lanes.main));
  }
  return SKV_OK;
}

/* An observer is told of each block before it is merged; there is one group of all heads. */
static skv_status_t use_blocks(skv_plan_t *plan, skv__bank_t *bank, const skv__site_t *site) {
  SKV_TRY(fetch(plan, site, 0));
  SKV_TRY(skv__lanes_follow(&site->lanes, SKV__EVENT_ARRIVED, site->lanes.main));
  for (int64_t block = 0; block < plan->shard.blocks; block++) {
    skv__node_t node = {block, block + 1};
    skv__job_node_t work = {block, block + 1, block * plan->problem.block_tokens};
    int32_t slot = SKV__NO_SLOT;
    if (skv__bank_stores(bank, node, plan->rank)) {
      slot = skv__bank_acquire(bank);
      SKV_TRY(use_group(plan, bank, site, 0, work, slot, NULL));
    }
    skv__bank_report_leaf(bank, plan->rank, node, slot);
    skv__bank_insert(bank, plan->rank, node, slot);
  }
  return SKV_OK;
}

/* Rows can be finished as they are attended: nobody wants their states, and they stay here. */
static bool finishes_at_once(const skv_plan_t *plan, const skv__finish_t *finish) {
  return plan->context->kernel->attend && !finish->bits && !plan->options.observer &&
         plan->options.results == SKV_RESULTS_OWNER &&
         plan->options.row_owner == SKV_ROWS_BY_POSITION;
}

/* Leaves the root in the bank's set of this rank; *over: or its rows are finished. */
static skv_status_t assemble_keys(skv_plan_t *plan, skv__bank_t *bank, const skv__site_t *site,
                                  bool *over) {
  skv__node_t tree = {0, plan->shard.blocks};
  int32_t slot = SKV__NO_SLOT;
  *over = false;
  if (!bank->used_blocks)
    return SKV_OK;
  SKV_TRY(skv__lanes_fork(&site->lanes));
  if (plan->options.observer)
    return use_blocks(plan, bank, site);
  if (finishes_at_once(plan, site->finish)) {
    *over = true;
    SKV_TRY(use_groups(plan, bank, site, slot, site->finish));
    return skv__lanes_join(&site->lanes);
  }
  if (skv__bank_stores(bank, tree, plan->rank))
    slot = skv__bank_acquire(bank);
  SKV_TRY(use_groups(plan, bank, site, slot, NULL));
  skv__bank_insert(bank, plan->rank, tree, slot);
  return SKV_OK;
}

skv_status_t skv__pass_keys(skv_plan_t *plan, const skv__site_t *site) {
  skv__bank_t *bank = &plan->bank[0];
  bool over = false;
  skv__begin_pass(plan, bank, &plan->rows, 0, site);
  SKV_TRY(site->lanes.streams ? assemble_keys(plan, bank, site, &over)
                              : stream_keys(plan, bank, site));
  if (over)
    return SKV_OK;
  SKV_TRY(skv__begin_exchange(plan, bank, site));
  SKV_TRY(skv__end_exchange(plan, site));
  return skv__lanes_join(&site->lanes);
}
