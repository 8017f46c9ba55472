/* plan_size.c: rows of a pass, slots, workspace and memory. */
#include <stdlib.h>

#include "plan_parts.h"

#define DEFAULT_TARGET_BYTES (INT64_C(64) << 20)
/* Passes of a GPU are larger: a launch of few rows does not fill it, and its memory is. */
#define DEVICE_TARGET_BYTES (INT64_C(1) << 30)
#define MOST_BYTES                                                                                 \
  (INT64_C(1) << 60) /* of a part of the workspace, so that sums do not overflow                   \
                      */
enum {
  LEAST_PASS_QUERIES = 64 /* of all owners together: fewer would read the keys too often */
};

static int64_t max_of(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* Most nodes in a set while `count` nodes of ascending position are inserted: those of this rank's
 * work, or without it all blocks. */
static skv_status_t own_peak(const skv_plan_t *plan, const skv__job_node_t *work, int64_t count,
                             int32_t *peak, skv__error_t *error) {
  int64_t capacity = work ? count : SKV__FRONTIER_MAX; /* blocks merge as they come */
  skv__pending_t set = {.blocks = plan->shard.blocks,
                        .free_order = plan->problem.order == SKV_ORDER_FREE,
                        .capacity = (int32_t)capacity + 1,
                        .held = malloc(((size_t)capacity + 1) * sizeof(skv__held_t))};
  *peak = 0;
  if (!set.held)
    return skv__fail(error, SKV_MEMORY, "out of memory while sizing pending sets");
  for (int64_t i = 0; i < count; i++) {
    skv__node_t node = work ? (skv__node_t){work[i].begin, work[i].end} : (skv__node_t){i, i + 1};
    skv__pending_insert(&set, node, 0, NULL, NULL);
    *peak = set.count > *peak ? set.count : *peak;
  }
  free(set.held);
  return SKV_OK;
}

static int64_t most_owned(const skv_plan_t *plan, int32_t first, int32_t end) {
  const skv_problem_t *p = &plan->problem;
  if (plan->options.row_owner == SKV_ROWS_ROUND_ROBIN)
    return (p->batch * p->q_tokens + plan->ranks - 1) / plan->ranks;
  int64_t most = 0;
  for (int32_t owner = first; owner < end; owner++)
    most = max_of(
        most, skv__rows_owned_bound(&plan->shard, p->block_tokens, p->batch, p->q_tokens, owner));
  return most;
}

/* Pass-KV on a device: a root, or what waits while an observer is told of blocks. */
static skv_status_t count_root_slots(skv_plan_t *plan, skv__error_t *error) {
  int32_t peak = 1;
  if (plan->options.observer)
    SKV_TRY(own_peak(plan, NULL, plan->shard.blocks, &peak, error));
  plan->banks = 1;
  plan->slots =
      (int32_t)max_of(peak + (plan->options.observer != NULL), plan->rehearsal.peak_slots);
  plan->set_capacity = (int32_t)max_of(peak, plan->rehearsal.peak_nodes) + 2;
  return SKV_OK;
}

/* Slots that a bank of this rank needs, and how many nodes its sets may hold. */
skv_status_t skv__plan_count_slots(skv_plan_t *plan, skv__error_t *error) {
  if (skv__plan_passes_kv(plan) && skv__plan_assembles(plan))
    return count_root_slots(plan, error);
  if (skv__plan_passes_kv(plan)) {
    plan->banks = 1;
    plan->slots = plan->stream.slots + plan->rehearsal.peak_slots;
    plan->set_capacity = plan->stream.set_capacity + plan->rehearsal.peak_nodes;
    return SKV_OK;
  }
  int32_t peak;
  SKV_TRY(own_peak(plan, plan->work, plan->work_count, &peak, error));
  int64_t at_start = plan->ranks * (plan->options.observer ? peak + 1 : (int64_t)plan->work_count);
  plan->banks = plan->ranks > 1 ? 2 : 1;
  plan->slots = (int32_t)max_of(at_start, plan->rehearsal.peak_slots) + 1;
  plan->set_capacity = (peak > plan->rehearsal.peak_nodes ? peak : plan->rehearsal.peak_nodes) + 2;
  return SKV_OK;
}

int64_t skv__plan_target_bytes(const skv_plan_t *plan) {
  if (plan->options.workspace_bytes)
    return plan->options.workspace_bytes;
  return plan->context->kernel->streams ? DEVICE_TARGET_BYTES : DEFAULT_TARGET_BYTES;
}

/* Rows of a pass: all ranks must cut alike, so the rank with the most slots decides. */
static void size_pass(skv_plan_t *plan, int32_t most_slots) {
  const skv_problem_t *p = &plan->problem;
  int64_t all = max_of(1, most_owned(plan, 0, plan->ranks)), owned = all;
  if (skv__plan_passes_kv(plan)) {
    if (plan->options.results == SKV_RESULTS_OWNER)
      owned = most_owned(plan, plan->rank, plan->rank + 1);
    plan->rows.pass_queries = all;
    plan->slice_rows_bound = owned * p->q_heads;
    return;
  }
  int64_t slot_bytes = skv__plan_target_bytes(plan) / plan->banks / most_slots;
  int64_t queries = slot_bytes / ((p->value_head_dim + 2) * (int64_t)sizeof(float)) / p->q_heads;
  queries = max_of(queries, (LEAST_PASS_QUERIES + plan->ranks - 1) / plan->ranks);
  plan->rows.pass_queries = min_of(queries, all);
  plan->slice_rows_bound = plan->rows.pass_queries * p->q_heads;
}

/* Of buffers for keys and values that travel. */
static int64_t keys_bytes(const skv_plan_t *plan) {
  if (!skv__plan_passes_kv(plan))
    return 0;
  return skv__plan_assembles(plan) ? skv__assembly_bytes(&plan->assembly)
                                   : skv__stream_bytes(&plan->stream);
}

static int64_t take(int64_t *total, int64_t bytes) {
  int64_t begin = *total;
  *total += (bytes + 63) / 64 * 64;
  return begin;
}

void skv__plan_lay_out(skv_plan_t *plan) {
  int64_t slot_bytes = skv__slice_bytes(plan->slice_rows_bound, plan->problem.value_head_dim);
  skv__job_t shape;
  skv__plan_shape(plan, &shape);
  skv__workspace_t *w = &plan->workspace;
  *w = (skv__workspace_t){0};
  for (int32_t i = 0; i < plan->banks && !plan->direct.calls; i++)
    w->bank[i] = take(&w->total, plan->slots * slot_bytes);
  w->scratch = take(&w->total,
                    (int64_t)plan->context->kernel->scratch_bytes(&shape, plan->context->threads));
  w->stream = take(&w->total, keys_bytes(plan));
}

static skv_status_t open_banks(skv_plan_t *plan, int64_t slot_bytes, skv__error_t *error) {
  for (int32_t i = 0; i < plan->banks; i++) {
    plan->bank[i] = (skv__bank_t){.kernel = plan->context->kernel,
                                  .context = plan->context,
                                  .threads = plan->context->threads,
                                  .rank = plan->rank,
                                  .ranks = plan->ranks,
                                  .slot_bytes = slot_bytes,
                                  .slots = plan->slots,
                                  .set_capacity = plan->set_capacity,
                                  .observer = plan->options.observer,
                                  .observer_user = plan->options.observer_user};
    SKV_TRY(skv__bank_open(&plan->bank[i], plan->work_count, plan->most_runs, error));
  }
  return SKV_OK;
}

/* What skv_plan_info tells is for full size: all queries, all keys. */
static void count_full_size(skv_plan_t *plan) {
  const skv_problem_t *p = &plan->problem;
  for (int64_t sequence = 0; sequence < p->batch; sequence++) {
    plan->q_tokens[sequence] = p->q_tokens;
    plan->q_start[sequence] = p->kv_capacity_tokens - p->q_tokens;
  }
  plan->full_passes = skv__rows_passes(&plan->rows);
  for (int32_t owner = 0; owner < plan->ranks; owner++)
    plan->full_rows[owner] =
        plan->options.row_owner == SKV_ROWS_ROUND_ROBIN
            ? (p->batch * p->q_tokens * p->q_heads - owner + plan->ranks - 1) / plan->ranks
            : skv__rows_owned_queries(&plan->rows, owner) * p->q_heads;
}

skv_status_t skv__plan_size(skv_plan_t *plan, int32_t most_slots, skv__error_t *error) {
  const skv__kernel_t *kernel = plan->context->kernel;
  size_pass(plan, most_slots);
  plan->most_runs = /* each has a query */
      min_of(skv__rows_run_bound(&plan->shard, plan->problem.batch, plan->options.row_owner),
             plan->problem.batch * plan->problem.q_tokens);
  int64_t slot_bytes = skv__slice_bytes(plan->slice_rows_bound, plan->problem.value_head_dim);
  if (slot_bytes > MOST_BYTES / plan->banks / plan->slots || keys_bytes(plan) > MOST_BYTES)
    return skv__fail(error, SKV_MEMORY,
                     "%d states of %lld bytes, or buffers for blocks of %lld keys: no memory holds "
                     "that",
                     (int)plan->slots, (long long)slot_bytes,
                     (long long)plan->problem.block_tokens);
  plan->bank_bytes = most_slots * slot_bytes; /* banks lie at the same place on all ranks */
  skv__plan_lay_out(plan);
  count_full_size(plan);
  SKV_TRY(open_banks(plan, slot_bytes, error));
  skv__job_t shape;
  skv__plan_shape(plan, &shape);
  if (kernel->open)
    SKV_TRY(kernel->open(&shape, &plan->resources, error));
  plan->exchange = (skv__exchange_t){.comm = plan->context->wire,
                                     .rehearsal = &plan->rehearsal,
                                     .direct = plan->direct.calls ? &plan->direct : NULL,
                                     .results = plan->options.results,
                                     .error = &plan->context->error};
  return skv__exchange_open(&plan->exchange, error);
}

int64_t skv__plan_sent_bytes(const skv_plan_t *plan) {
  if (skv__plan_passes_kv(plan))
    return skv__plan_assembles(plan) ? skv__whole_bytes(skv__assembly_sent_bytes(&plan->assembly))
                                     : skv__stream_sent_bytes(&plan->stream);
  double floats = 0; /* exact up to 2^53; no overflow beyond */
  for (int32_t i = 0; i < plan->rehearsal.move_count; i++) {
    const skv__move_t *move = &plan->rehearsal.moves[i];
    if (move->sends)
      floats += (double)(move->node_count * (plan->problem.value_head_dim + 2)) *
                (double)plan->full_rows[move->slice];
  }
  return skv__whole_bytes(floats * sizeof(float));
}
