/* steps.c: how a job is cut into executes, and whose the rows of an execute are. */
#include <stdlib.h>

#include "launch/attention.h"

int64_t skv__step_count(const skv__job_options_t *job, const skv__job_extents_t *extents) {
  if (job->chunk < 0 || extents->q_tokens == 0)
    return 1;
  return (extents->q_tokens - 1) / job->chunk + 1;
}

skv__step_t skv__step_at(const skv__job_options_t *job, const skv__job_extents_t *extents,
                         int64_t index) {
  int64_t chunk = job->chunk < 0 ? extents->q_tokens : job->chunk;
  skv__step_t step = {.q_begin = index * chunk, .k_tokens = extents->k_tokens};
  int64_t left = extents->q_tokens - step.q_begin;
  step.q_count = left < chunk ? left : chunk;
  step.q_start = extents->k_tokens - extents->q_tokens + step.q_begin;
  int64_t seen = step.q_start + step.q_count;
  if (job->causal && seen < step.k_tokens)
    step.k_tokens = seen > 0 ? seen : 0;
  return step;
}

skv__row_span_t skv__row_span(const skv__row_range_t *range, int64_t q_tokens, int64_t q_heads) {
  return (skv__row_span_t){
      (range->sequence * q_tokens + range->q_begin) * q_heads + range->head_begin,
      (range->q_end - range->q_begin - 1) * q_heads + range->head_end - range->head_begin};
}

/* Round-robin runs: each row has an owner of its own. */
static skv_status_t visit_dealt(const skv_plan_t *plan, const skv__run_t *run, int64_t q_offset,
                                int32_t rank, skv__row_visitor_t visit, void *user,
                                skv__error_t *error) {
  skv__job_t places = {.q_heads = plan->problem.q_heads, .ranks = plan->ranks, .round_robin = true};
  for (int64_t query = run->q_begin; query < run->q_begin + run->q_count; ++query)
    for (int64_t head = 0; head < places.q_heads; ++head)
      if (skv__job_place(&places, run, query, head).owner == rank) {
        skv__row_range_t row = {run->sequence, q_offset + query, q_offset + query + 1, head,
                                head + 1};
        SKV_TRY(visit(user, &row, error));
      }
  return SKV_OK;
}

static skv_status_t visit_owned(const skv__rows_t *rows, const skv_plan_t *plan,
                                const skv__step_t *step, int32_t rank, skv__row_visitor_t visit,
                                void *user, skv__error_t *error) {
  int64_t bound = skv__rows_run_bound(rows->shard, rows->batch, rows->owner);
  skv__run_t *runs = malloc((size_t)(bound > 0 ? bound : 1) * sizeof *runs);
  int64_t *slice_rows = malloc((size_t)plan->ranks * sizeof *slice_rows);
  skv_status_t status = SKV_OK;
  if (!runs || !slice_rows)
    status = skv__fail(error, SKV_MEMORY, "no memory for the list of rows");
  int64_t count = status == SKV_OK ? skv__rows_pass(rows, 0, runs, slice_rows) : 0;
  for (int64_t i = 0; i < count && status == SKV_OK; ++i) {
    const skv__run_t *run = &runs[i];
    int64_t first = step->q_begin + run->q_begin;
    skv__row_range_t range = {run->sequence, first, first + run->q_count, 0, rows->q_heads};
    if (rows->owner == SKV_ROWS_ROUND_ROBIN)
      status = visit_dealt(plan, run, step->q_begin, rank, visit, user, error);
    else if (run->owner == rank)
      status = visit(user, &range, error);
  }
  free(slice_rows);
  free(runs);
  return status;
}

skv_status_t skv__visit_rows(const skv_plan_t *plan, const skv__step_t *step, int32_t rank,
                             skv__row_visitor_t visit, void *user, skv__error_t *error) {
  const skv_problem_t *problem = &plan->problem;
  if (rank == SKV__NO_ROWS || step->q_count == 0)
    return SKV_OK;
  if (rank == SKV__ALL_ROWS) {
    for (int64_t sequence = 0; sequence < problem->batch; ++sequence) {
      skv__row_range_t range = {sequence, step->q_begin, step->q_begin + step->q_count, 0,
                                problem->q_heads};
      SKV_TRY(visit(user, &range, error));
    }
    return SKV_OK;
  }
  int64_t *lengths = malloc((size_t)problem->batch * 2 * sizeof *lengths);
  skv__node_t *intervals =
      malloc((size_t)(skv__shard_interval_bound(&plan->shard) + 1) * sizeof *intervals);
  skv_status_t status = SKV_OK;
  if (!lengths || !intervals) {
    status = skv__fail(error, SKV_MEMORY, "no memory for the list of rows");
  } else {
    for (int64_t sequence = 0; sequence < problem->batch; ++sequence) {
      lengths[sequence] = step->q_count;
      lengths[problem->batch + sequence] = step->q_start;
    }
    skv__rows_t rows = {.owner = plan->options.row_owner,
                        .batch = problem->batch,
                        .q_heads = problem->q_heads,
                        .block_tokens = problem->block_tokens,
                        .shard = &plan->shard,
                        .q_tokens = lengths,
                        .q_start = lengths + problem->batch,
                        .pass_queries = step->q_count * problem->batch,
                        .intervals = intervals};
    status = visit_owned(&rows, plan, step, rank, visit, user, error);
  }
  free(intervals);
  free(lengths);
  return status;
}
