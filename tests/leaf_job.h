/* leaf_job.h: a kit case through one kernel, without plan and ranks: nodes and runs cut as asked,
 * slices between guard bytes, states merged along the tree, rows finished. */
#ifndef LEAF_JOB_H
#define LEAF_JOB_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/kernel.h"
#include "kit/kit.h"
#include "pending.h"

typedef struct leaf_way {
  const char *kernel;
  int32_t threads;
  int64_t node_cut;     /* blocks [0, cut) and the rest are evaluated as frontiers; 0: one node */
  int64_t query_cut;    /* queries of one run, at most; 0: all */
  int32_t ranks;        /* > 1: rows round-robin over so many slices */
  int64_t extra_blocks; /* empty blocks behind the capacity */
} leaf_way_t;

typedef struct leaf_result {
  int64_t rows;
  void *o; /* of out_dtype, between guards */
  float *lse;
  uint64_t bits;
  bool intact; /* no guard byte touched */
} leaf_result_t;

typedef struct leaf_work {
  skv__job_t job;
  skv__run_t runs[256];
  skv__job_node_t nodes[SKV__FRONTIER_MAX];
  skv__node_t frontier[SKV__FRONTIER_MAX];
  int64_t slice_rows[8], q_start[64];
  float *slices[SKV__FRONTIER_MAX * 8];
  const skv__kernel_t *kernel;
  int32_t owner;
} leaf_work_t;

static inline int64_t leaf_blocks(const kit_case_t *test) {
  const skv_problem_t *p = &test->problem;
  return (p->kv_capacity_tokens + p->block_tokens - 1) / p->block_tokens;
}

/* The position of query 0 of sequence s. */
static inline int64_t leaf_start(const kit_case_t *test, int64_t s) {
  return test->q_start ? test->q_start[s] : test->k_tokens[s] - test->q_tokens[s];
}

static inline void leaf_shape(leaf_work_t *work, const kit_case_t *test) {
  const skv_problem_t *p = &test->problem;
  const skv_inputs_t inputs = kit_case_inputs(test);
  for (int64_t s = 0; s < p->batch; ++s)
    work->q_start[s] = leaf_start(test, s);
  const int64_t unbounded = INT64_MAX / 4;
  work->job = (skv__job_t){
      .q_heads = p->q_heads,
      .kv_heads = p->kv_heads,
      .head_dim = p->head_dim,
      .value_head_dim = p->value_head_dim,
      .dtype = p->dtype,
      .scale = p->scale,
      .softcap = p->softcap,
      .leaf_tokens = p->leaf_tokens,
      .block_tokens = p->block_tokens,
      .left_tokens = p->window_left_tokens < 0 ? unbounded : p->window_left_tokens,
      .right_tokens = p->causal                    ? 0
                      : p->window_right_tokens < 0 ? unbounded
                                                   : p->window_right_tokens,
      .k_tokens = test->k_tokens,
      .q_start = work->q_start,
      .q = inputs.q,
      .k = inputs.k,
      .v = inputs.v,
      .kv_head_end = p->kv_heads,
  };
}

static inline void leaf_runs(leaf_work_t *work, const kit_case_t *test, const leaf_way_t *way) {
  int64_t row = 0, count = 0;
  for (int64_t s = 0; s < test->problem.batch; ++s) {
    int64_t queries = test->q_tokens[s], step = way->query_cut ? way->query_cut : queries;
    for (int64_t q = 0; q < queries; q += step) {
      int64_t some = queries - q < step ? queries - q : step;
      work->runs[count++] =
          (skv__run_t){.sequence = s, .q_begin = q, .q_count = some, .row_begin = row};
      row += some * test->problem.q_heads;
    }
  }
  work->job.runs = work->runs;
  work->job.run_count = count;
  work->job.ranks = way->ranks > 1 ? way->ranks : 1;
  work->job.round_robin = way->ranks > 1;
  work->job.slice_rows = work->slice_rows;
  for (int32_t o = 0; o < work->job.ranks; ++o)
    work->slice_rows[o] = (row - o + work->job.ranks - 1) / work->job.ranks;
}

static inline void leaf_nodes(leaf_work_t *work, const kit_case_t *test, const leaf_way_t *way) {
  int64_t blocks = leaf_blocks(test) + way->extra_blocks;
  int64_t cut = way->node_cut < blocks ? way->node_cut : blocks;
  int32_t count = cut ? skv__order_frontier(blocks, 0, cut, work->frontier) : 0;
  count += skv__order_frontier(blocks, cut, blocks, work->frontier + count);
  for (int32_t n = 0; n < count; ++n)
    work->nodes[n] =
        (skv__job_node_t){.begin = work->frontier[n].begin,
                          .end = work->frontier[n].end,
                          .token_offset = work->frontier[n].begin * test->problem.block_tokens};
  work->job.nodes = work->nodes;
  work->job.node_count = count;
  for (int32_t i = 0; i < count * work->job.ranks; ++i)
    work->slices[i] = kit_poisoned((size_t)skv__slice_bytes(work->slice_rows[i % work->job.ranks],
                                                            test->problem.value_head_dim));
  work->job.slices = work->slices;
}

static inline void leaf_merge(void *user, skv__held_t left, skv__held_t right) {
  leaf_work_t *work = user;
  int64_t ranks = work->job.ranks;
  work->kernel->merge(work->slices[left.slot * ranks + work->owner],
                      work->slices[right.slot * ranks + work->owner], work->slice_rows[work->owner],
                      work->job.value_head_dim, 2, NULL);
}

/* The owner's root: which node's slice holds it in the end. */
static inline const float *leaf_root(leaf_work_t *work, const kit_case_t *test,
                                     const leaf_way_t *way, int32_t owner) {
  skv__held_t held[SKV__FRONTIER_MAX];
  skv__pending_t pending = {
      .blocks = leaf_blocks(test) + way->extra_blocks, .capacity = SKV__FRONTIER_MAX, .held = held};
  work->owner = owner;
  for (int32_t n = (int32_t)work->job.node_count - 1; n >= 0; --n)
    skv__pending_insert(&pending, work->frontier[n], n, leaf_merge, work);
  cr_assert(skv__pending_complete(&pending));
  return work->slices[held[0].slot * work->job.ranks + owner];
}

static inline void leaf_finish(leaf_work_t *work, const kit_case_t *test, const leaf_way_t *way,
                               leaf_result_t *result) {
  const skv_problem_t *p = &test->problem;
  skv__finish_t finish = {.o = {result->o,
                                {p->q_tokens * p->q_heads * p->value_head_dim,
                                 p->q_heads * p->value_head_dim, p->value_head_dim, 1}},
                          .out_dtype = p->out_dtype,
                          .lse = result->lse,
                          .lse_stride = {p->q_tokens * p->q_heads, p->q_heads, 1},
                          .sinks = test->sinks,
                          .bits = &result->bits};
  for (int32_t owner = 0; owner < work->job.ranks; ++owner)
    if (work->slice_rows[owner] > 0)
      work->kernel->finish(&work->job, owner, leaf_root(work, test, way, owner), &finish,
                           way->threads, NULL, NULL);
}

/* Whether EMPTY states are written as (-inf, 0, 0). Before any merge. */
static inline bool leaf_empty_is_zero(const leaf_work_t *work) {
  const int64_t dim = work->job.value_head_dim;
  for (int64_t i = 0; i < work->job.node_count * work->job.ranks; ++i) {
    const int64_t rows = work->slice_rows[i % work->job.ranks];
    const float *o = work->slices[i], *e = o + rows * dim, *l = e + rows;
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t d = 0; e[row] == -INFINITY && d < dim; ++d)
        if (o[row * dim + d] != 0.0f || l[row] != 0.0f)
          return false;
  }
  return true;
}

static inline skv_status_t leaf_no_poll(void *user) {
  ++*(int64_t *)user;
  return SKV_OK;
}

static inline leaf_result_t leaf_run(const kit_case_t *test, const leaf_way_t *way) {
  const skv_problem_t *p = &test->problem;
  leaf_work_t *work = calloc(1, sizeof *work);
  skv__error_t error = {0};
  leaf_result_t result = {.rows = p->batch * p->q_tokens * p->q_heads, .intact = true};
  result.o =
      kit_poisoned((size_t)(result.rows * p->value_head_dim * skv__dtype_bytes(p->out_dtype)));
  result.lse = kit_poisoned((size_t)result.rows * sizeof *result.lse);
  work->kernel = skv__kernel_pick(SKV_BACKEND_CPU, way->kernel, &error);
  cr_assert(work->kernel, "%s", error.text);
  leaf_shape(work, test);
  leaf_runs(work, test, way);
  leaf_nodes(work, test, way);
  cr_assert(work->kernel->supports(&work->job, &error), "%s", error.text);
  size_t scratch_bytes = work->kernel->scratch_bytes(&work->job, way->threads);
  void *scratch = kit_poisoned(scratch_bytes);
  int64_t polls = 0;
  cr_assert_eq(
      work->kernel->evaluate(&work->job, scratch, way->threads, leaf_no_poll, &polls, NULL, &error),
      SKV_OK, "%s", error.text);
  cr_assert(leaf_empty_is_zero(work));
  leaf_finish(work, test, way, &result);
  result.intact =
      kit_guards_intact(scratch) && kit_guards_intact(result.o) && kit_guards_intact(result.lse);
  kit_poisoned_free(scratch);
  for (int64_t i = 0; i < work->job.node_count * work->job.ranks; ++i) {
    result.intact = result.intact && kit_guards_intact(work->slices[i]);
    kit_poisoned_free(work->slices[i]);
  }
  free(work);
  return result;
}

static inline void leaf_free(leaf_result_t *result) {
  kit_poisoned_free(result->o);
  kit_poisoned_free(result->lse);
}

#endif
