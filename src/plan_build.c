#include <stdlib.h>

#include "plan_parts.h"

#define DEFAULT_TARGET_BYTES (INT64_C(64) << 20)
/* Passes of a GPU are larger: a launch of few rows does not fill it, and its memory is. */
#define DEVICE_TARGET_BYTES (INT64_C(1) << 30)
#define MOST_BYTES                                                                                 \
  (INT64_C(1) << 60) /* of a part of the workspace, so that sums do not overflow                   \
                      */
enum {
  STREAM_SHARE = 16,       /* of the target, for one chunk of a pass-KV stream: it holds five */
  LEAST_PASS_QUERIES = 64, /* of all owners together: fewer would read the keys too often */
  /* Planning walks through the nodes of all ranks once for each slice, and inserts them into sorted
   * sets: beyond these it would take minutes, and 32 bits would not count them. */
  MOST_OBSERVED_BLOCKS = 1 << 24,
  MOST_NODE_STATES = 1 << 28
};

static int64_t max_of(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
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

static bool passes_kv(const skv_plan_t *plan) {
  return plan->options.direction == SKV_PASS_KV;
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
                      .roots = passes_kv(plan)};
  return skv__rehearse(&plan->rehearsal, &cast, passes_kv(plan) ? result_hops : reduce_hops, plan,
                       skv__schedule_hop_bound(plan->ranks), error);
}

/* ---- sizes ---- */

/* Most nodes in a set while this rank's own work is inserted, one node after another. */
static skv_status_t own_peak(const skv_plan_t *plan, int32_t *peak, skv__error_t *error) {
  skv__pending_t set = {.blocks = plan->shard.blocks,
                        .free_order = plan->problem.order == SKV_ORDER_FREE,
                        .capacity = plan->work_count + 1,
                        .held = malloc(((size_t)plan->work_count + 1) * sizeof(skv__held_t))};
  *peak = 0;
  if (!set.held)
    return skv__fail(error, SKV_MEMORY, "out of memory while sizing pending sets");
  for (int32_t i = 0; i < plan->work_count; i++) {
    skv__pending_insert(&set, (skv__node_t){plan->work[i].begin, plan->work[i].end}, 0, NULL, NULL);
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

/* Slots that a bank of this rank needs, and how many nodes its sets may hold. */
static skv_status_t count_slots(skv_plan_t *plan, skv__error_t *error) {
  if (passes_kv(plan)) {
    plan->banks = 1;
    plan->slots = plan->stream.slots + plan->rehearsal.peak_slots;
    plan->set_capacity = plan->stream.set_capacity + plan->rehearsal.peak_nodes;
    return SKV_OK;
  }
  int32_t peak;
  SKV_TRY(own_peak(plan, &peak, error));
  int64_t at_start = plan->ranks * (plan->options.observer ? peak + 1 : (int64_t)plan->work_count);
  plan->banks = plan->ranks > 1 ? 2 : 1;
  plan->slots = (int32_t)max_of(at_start, plan->rehearsal.peak_slots) + 1;
  plan->set_capacity = (peak > plan->rehearsal.peak_nodes ? peak : plan->rehearsal.peak_nodes) + 2;
  return SKV_OK;
}

static int64_t target_bytes(const skv_plan_t *plan) {
  if (plan->options.workspace_bytes)
    return plan->options.workspace_bytes;
  return plan->context->kernel->streams ? DEVICE_TARGET_BYTES : DEFAULT_TARGET_BYTES;
}

/* Rows of a pass: all ranks must cut alike, so the rank with the most slots decides. */
static void size_pass(skv_plan_t *plan, int32_t most_slots) {
  const skv_problem_t *p = &plan->problem;
  int64_t all = max_of(1, most_owned(plan, 0, plan->ranks)), owned = all;
  if (passes_kv(plan)) {
    if (plan->options.results == SKV_RESULTS_OWNER)
      owned = most_owned(plan, plan->rank, plan->rank + 1);
    plan->rows.pass_queries = all;
    plan->slice_rows_bound = owned * p->q_heads;
    return;
  }
  int64_t slot_bytes = target_bytes(plan) / plan->banks / most_slots;
  int64_t queries = slot_bytes / ((p->value_head_dim + 2) * (int64_t)sizeof(float)) / p->q_heads;
  queries = max_of(queries, (LEAST_PASS_QUERIES + plan->ranks - 1) / plan->ranks);
  plan->rows.pass_queries = min_of(queries, all);
  plan->slice_rows_bound = plan->rows.pass_queries * p->q_heads;
}

static int64_t take(int64_t *total, int64_t bytes) {
  int64_t begin = *total;
  *total += (bytes + 63) / 64 * 64;
  return begin;
}

static void lay_out_workspace(skv_plan_t *plan, int64_t slot_bytes) {
  skv__job_t shape;
  skv__plan_shape(plan, &shape);
  skv__workspace_t *w = &plan->workspace;
  for (int32_t i = 0; i < plan->banks; i++)
    w->bank[i] = take(&w->total, plan->slots * slot_bytes);
  w->scratch = take(&w->total,
                    (int64_t)plan->context->kernel->scratch_bytes(&shape, plan->context->threads));
  w->stream = take(&w->total, passes_kv(plan) ? skv__stream_bytes(&plan->stream) : 0);
}

/* ---- memory ---- */

static skv_status_t open_banks(skv_plan_t *plan, int64_t slot_bytes, skv__error_t *error) {
  for (int32_t i = 0; i < plan->banks; i++) {
    plan->bank[i] = (skv__bank_t){.kernel = plan->context->kernel,
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

static skv_status_t open_stream(skv_plan_t *plan, skv__node_t *const *nodes, const int32_t *counts,
                                skv__error_t *error) {
  plan->stream = (skv__stream_t){.comm = plan->context->wire,
                                 .problem = &plan->problem,
                                 .reduce = plan->options.reduce,
                                 .rank = plan->rank,
                                 .ranks = plan->ranks};
  /* An observer is told of single blocks: no chunk may hold more. */
  return skv__stream_open(&plan->stream, &plan->shard, nodes, counts,
                          plan->options.observer ? 1 : target_bytes(plan) / STREAM_SHARE, error);
}

/* Nodes of all ranks, hops, streams: what a rank needs, before any size is known. */
static skv_status_t cast_parts(skv_plan_t *plan, skv__node_t **nodes, int32_t *counts,
                               skv__error_t *error) {
  for (int32_t rank = 0; rank < plan->ranks; rank++)
    SKV_TRY(skv__plan_work(&plan->shard, rank, plan->options.observer != NULL, &nodes[rank],
                           &counts[rank], error));
  SKV_TRY(check_node_states(counts, plan->ranks, error));
  plan->frontier_nodes = skv__shard_frontier(&plan->shard, plan->rank, NULL);
  if (!place_work(plan, nodes[plan->rank], counts[plan->rank]))
    return skv__fail(error, SKV_MEMORY, "out of memory for %d nodes", (int)counts[plan->rank]);
  SKV_TRY(rehearse(plan, nodes, counts, error));
  if (passes_kv(plan))
    SKV_TRY(open_stream(plan, nodes, counts, error));
  return count_slots(plan, error);
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

skv_status_t skv__plan_size(skv_plan_t *plan, int32_t most_slots, skv__error_t *error) {
  const skv__kernel_t *kernel = plan->context->kernel;
  size_pass(plan, most_slots);
  plan->most_runs = /* each has a query */
      min_of(skv__rows_run_bound(&plan->shard, plan->problem.batch, plan->options.row_owner),
             plan->problem.batch * plan->problem.q_tokens);
  int64_t slot_bytes = skv__slice_bytes(plan->slice_rows_bound, plan->problem.value_head_dim);
  if (slot_bytes > MOST_BYTES / plan->banks / plan->slots ||
      skv__stream_bytes(&plan->stream) > MOST_BYTES)
    return skv__fail(error, SKV_MEMORY,
                     "%d states of %lld bytes, or buffers for blocks of %lld keys: no memory holds "
                     "that",
                     (int)plan->slots, (long long)slot_bytes,
                     (long long)plan->problem.block_tokens);
  lay_out_workspace(plan, slot_bytes);
  count_full_size(plan);
  SKV_TRY(open_banks(plan, slot_bytes, error));
  skv__job_t shape;
  skv__plan_shape(plan, &shape);
  if (kernel->open)
    SKV_TRY(kernel->open(&shape, &plan->resources, error));
  plan->exchange = (skv__exchange_t){.comm = plan->context->wire,
                                     .rehearsal = &plan->rehearsal,
                                     .results = plan->options.results,
                                     .error = &plan->context->error};
  return skv__exchange_open(&plan->exchange, error);
}

int64_t skv__plan_sent_bytes(const skv_plan_t *plan) {
  if (passes_kv(plan))
    return skv__stream_sent_bytes(&plan->stream);
  double floats = 0; /* exact up to 2^53; no overflow beyond */
  for (int32_t i = 0; i < plan->rehearsal.move_count; i++) {
    const skv__move_t *move = &plan->rehearsal.moves[i];
    if (move->sends)
      floats += (double)(move->node_count * (plan->problem.value_head_dim + 2)) *
                (double)plan->full_rows[move->slice];
  }
  return skv__whole_bytes(floats * sizeof(float));
}
