#include <stdlib.h>

#include "plan_parts.h"

enum {
  STREAM_SHARE = 16, /* of the target, for one chunk of a pass-KV stream: it holds five */
  /* Planning walks through the nodes of all ranks once for each slice, and inserts them into sorted
   * sets: beyond these it would take minutes, and 32 bits would not count them. */
  MOST_OBSERVED_BLOCKS = 1 << 24,
  MOST_NODE_STATES = 1 << 28
};

static int64_t max_of(int64_t a, int64_t b) {
  return a > b ? a : b;
}

void skv__plan_shape(const skv_plan_t *plan, skv__job_t *job) {
  const skv_problem_t *p = &plan->problem;
  *job = (skv__job_t){.batch = p->batch,
                      .most_q_tokens = p->q_tokens,
                      .most_k_tokens = plan->held_tokens,
                      .most_runs = plan->most_runs,
                      .q_heads = p->q_heads,
                      .kv_heads = p->kv_heads,
                      .head_dim = p->head_dim,
                      .value_head_dim = p->value_head_dim,
                      .dtype = p->dtype,
                      .scale = p->scale,
                      .softcap = p->softcap,
                      .leaf_tokens = p->leaf_tokens,
                      .block_tokens = p->block_tokens,
                      .free_order = p->order == SKV_ORDER_FREE,
                      .left_tokens = skv__problem_left(p),
                      .right_tokens = skv__problem_right(p),
                      .kv_head_end = p->kv_heads,
                      .ranks = plan->ranks,
                      .round_robin = plan->options.row_owner == SKV_ROWS_ROUND_ROBIN,
                      .resources = plan->resources};
}

/* ---- nodes ---- */

static skv_status_t check_nodes(const skv_plan_t *plan, skv__error_t *error) {
  const skv__shard_t *shard = &plan->shard;
  SKV_TRY(skv__shard_check(shard, error));
  if (plan->options.observer && shard->blocks > MOST_OBSERVED_BLOCKS)
    return skv__fail(error, SKV_INVALID,
                     "an observer of %lld blocks: more than %d cannot be planned, give larger ones",
                     (long long)shard->blocks, MOST_OBSERVED_BLOCKS);
  return SKV_OK;
}

static skv_status_t check_node_states(const int32_t *counts, int32_t ranks, skv__error_t *error) {
  int64_t nodes = 0;
  for (int32_t rank = 0; rank < ranks; rank++)
    nodes += counts[rank];
  if (nodes > MOST_NODE_STATES / ranks)
    return skv__fail(error, SKV_MEMORY,
                     "%lld nodes on %d ranks: more than 2^28 node-states cannot be planned, give "
                     "larger blocks",
                     (long long)nodes, (int)ranks);
  return SKV_OK;
}

static skv__node_t *list_blocks(const skv__node_t *nodes, int32_t *count) {
  int64_t blocks = 0;
  for (int32_t i = 0; i < *count; i++)
    blocks += nodes[i].end - nodes[i].begin;
  skv__node_t *list = malloc(((size_t)blocks + 1) * sizeof *list);
  int32_t listed = 0;
  for (int32_t i = 0; list && i < *count; i++)
    for (int64_t block = nodes[i].begin; block < nodes[i].end; block++)
      list[listed++] = (skv__node_t){block, block + 1};
  *count = listed;
  return list;
}

skv_status_t skv__plan_work(const skv__shard_t *shard, int32_t rank, bool blocks,
                            skv__node_t **nodes, int32_t *count, skv__error_t *error) {
  *count = (int32_t)skv__shard_frontier(shard, rank, NULL);
  *nodes = malloc(((size_t)*count + 1) * sizeof **nodes);
  if (*nodes)
    skv__shard_frontier(shard, rank, *nodes);
  if (*nodes && blocks) {
    skv__node_t *list = list_blocks(*nodes, count);
    free(*nodes);
    *nodes = list;
  }
  return *nodes ? SKV_OK
                : skv__fail(error, SKV_MEMORY, "out of memory for the nodes of rank %d", (int)rank);
}

static bool place_work(skv_plan_t *plan, const skv__node_t *nodes, int32_t count) {
  plan->work = malloc(((size_t)count + 1) * sizeof *plan->work);
  plan->work_count = count;
  int64_t offset = 0;
  for (int32_t i = 0; plan->work && i < count; i++) {
    plan->work[i] = (skv__job_node_t){nodes[i].begin, nodes[i].end, offset};
    offset += (nodes[i].end - nodes[i].begin) * plan->problem.block_tokens;
  }
  /* The last block may be cut short by the capacity. */
  int64_t end = count ? nodes[count - 1].end * plan->problem.block_tokens : 0;
  plan->held_tokens = offset - max_of(0, end - plan->problem.kv_capacity_tokens);
  return plan->work != NULL;
}

/* ---- hops ---- */

static int32_t reduce_hops(void *user, int32_t owner, skv__hop_t *hops) {
  const skv_plan_t *plan = user;
  return skv__schedule_hops(plan->options.reduce, plan->options.results, plan->ranks, owner, hops);
}

/* Pass-KV leaves each root at its owner; one owner after another hands its rows out, so that few
 * states wait. */
static int32_t result_hops(void *user, int32_t owner, skv__hop_t *hops) {
  const skv_plan_t *plan = user;
  int32_t count = 0;
  for (int32_t rank = 0; plan->options.results != SKV_RESULTS_OWNER && rank < plan->ranks; rank++)
    if (rank != owner && (rank == 0 || plan->options.results == SKV_RESULTS_ALL))
      hops[count++] = (skv__hop_t){.round = owner, .from = owner, .to = rank, .copies = true};
  return count;
}

static skv_status_t rehearse(skv_plan_t *plan, skv__node_t *const *nodes, const int32_t *counts,
                             skv__error_t *error) {
  skv__cast_t cast = {.blocks = plan->shard.blocks,
                      .ranks = plan->ranks,
                      .rank = plan->rank,
                      .free_order = plan->problem.order == SKV_ORDER_FREE,
                      .start = nodes,
                      .start_count = counts,
                      .roots = skv__plan_passes_kv(plan)};
  return skv__rehearse(&plan->rehearsal, &cast,
                       skv__plan_passes_kv(plan) ? result_hops : reduce_hops, plan,
                       skv__schedule_hop_bound(plan->ranks), error);
}

/* ---- memory ---- */

static skv_status_t allocate(skv_plan_t *plan, skv__error_t *error) {
  size_t batch = (size_t)plan->problem.batch;
  plan->intervals =
      calloc((size_t)skv__shard_interval_bound(&plan->shard) + 1, sizeof *plan->intervals);
  plan->full_rows = calloc((size_t)plan->ranks, sizeof *plan->full_rows);
  plan->q_tokens = calloc(batch, sizeof *plan->q_tokens);
  plan->k_tokens = calloc(batch, sizeof *plan->k_tokens);
  plan->q_start = calloc(batch, sizeof *plan->q_start);
  if (!plan->intervals || !plan->full_rows || !plan->q_tokens || !plan->k_tokens || !plan->q_start)
    return skv__fail(error, SKV_MEMORY, "out of memory for %zu sequences", batch);
  plan->rows = (skv__rows_t){.owner = plan->options.row_owner,
                             .batch = plan->problem.batch,
                             .q_heads = plan->problem.q_heads,
                             .block_tokens = plan->problem.block_tokens,
                             .shard = &plan->shard,
                             .q_tokens = plan->q_tokens,
                             .q_start = plan->q_start,
                             .intervals = plan->intervals};
  return SKV_OK;
}

static skv_status_t open_stream(skv_plan_t *plan, skv__node_t *const *nodes, const int32_t *counts,
                                skv__error_t *error) {
  plan->stream = (skv__stream_t){.comm = plan->context->wire,
                                 .problem = &plan->problem,
                                 .reduce = plan->options.reduce,
                                 .rank = plan->rank,
                                 .ranks = plan->ranks};
  /* An observer is told of single blocks: no chunk may hold more. */
  return skv__stream_open(&plan->stream, &plan->shard, nodes, counts,
                          plan->options.observer ? 1 : skv__plan_target_bytes(plan) / STREAM_SHARE,
                          error);
}

static skv_status_t open_assembly(skv_plan_t *plan, skv__error_t *error) {
  plan->held_tokens = plan->problem.kv_capacity_tokens;
  plan->assembly = (skv__assembly_t){.comm = plan->context->wire,
                                     .problem = &plan->problem,
                                     .reduce = plan->options.reduce,
                                     .rank = plan->rank,
                                     .ranks = plan->ranks};
  /* An observer is told of blocks with all their heads. */
  return skv__assembly_open(&plan->assembly, &plan->shard, skv__plan_target_bytes(plan),
                            plan->options.observer != NULL, error);
}

/* Nodes of all ranks, hops, streams: what a rank needs, before any size is known. */
static skv_status_t cast_parts(skv_plan_t *plan, skv__node_t **nodes, int32_t *counts,
                               skv__error_t *error) {
  for (int32_t rank = 0; rank < plan->ranks; rank++)
    SKV_TRY(skv__plan_work(&plan->shard, rank, plan->options.observer != NULL, &nodes[rank],
                           &counts[rank], error));
  SKV_TRY(check_node_states(counts, plan->ranks, error));
  SKV_TRY(skv__plan_path(plan, nodes, counts, error));
  plan->frontier_nodes = skv__shard_frontier(&plan->shard, plan->rank, NULL);
  if (!place_work(plan, nodes[plan->rank], counts[plan->rank]))
    return skv__fail(error, SKV_MEMORY, "out of memory for %d nodes", (int)counts[plan->rank]);
  SKV_TRY(rehearse(plan, nodes, counts, error));
  if (skv__plan_passes_kv(plan))
    SKV_TRY(skv__plan_assembles(plan) ? open_assembly(plan, error)
                                      : open_stream(plan, nodes, counts, error));
  return skv__plan_count_slots(plan, error);
}

skv_status_t skv__plan_cast(skv_plan_t *plan, skv__error_t *error) {
  plan->shard = (skv__shard_t){
      .blocks = max_of(1, skv__problem_blocks(&plan->problem)), /* the tree has a root */
      .ranks = plan->ranks,
      .layout = {plan->options.layout, plan->options.layout_run_blocks}};
  SKV_TRY(check_nodes(plan, error));
  SKV_TRY(skv__plan_choose(plan, error));
  SKV_TRY(allocate(plan, error));
  skv__node_t **nodes = calloc((size_t)plan->ranks, sizeof *nodes);
  int32_t *counts = calloc((size_t)plan->ranks, sizeof *counts);
  skv_status_t status = nodes && counts ? cast_parts(plan, nodes, counts, error)
                                        : skv__fail(error, SKV_MEMORY, "out of memory for %d ranks",
                                                    (int)plan->ranks);
  for (int32_t rank = 0; nodes && rank < plan->ranks; rank++)
    free(nodes[rank]);
  free(nodes);
  free(counts);
  return status;
}
