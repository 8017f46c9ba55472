#include "solve.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct job {
  const kit_case_t *test;
  const kit_way_t *way;
  kit_answer_t *answer;
  pthread_mutex_t lock;
  kit_world_t *wires; /* of ranks with devices, or NULL */
} job_t;

static int64_t element_bytes(skv_dtype_t dtype) {
  return dtype == SKV_FP32 ? 4 : 2;
}

static int64_t rows_of(const skv_problem_t *p) {
  return p->batch * p->q_tokens * p->q_heads;
}

kit_answer_t *kit_answer_create(const kit_case_t *test) {
  const skv_problem_t *p = &test->problem;
  kit_answer_t *answer = calloc(1, sizeof *answer);
  answer->o_bytes = (size_t)(rows_of(p) * p->value_head_dim * element_bytes(p->out_dtype));
  answer->lse_bytes = (size_t)rows_of(p) * sizeof(float);
  answer->o = kit_poisoned(answer->o_bytes);
  answer->lse = kit_poisoned(answer->lse_bytes);
  return answer;
}

void kit_answer_free(kit_answer_t *answer) {
  kit_poisoned_free(answer->o);
  kit_poisoned_free(answer->lse);
  free(answer);
}

bool kit_answer_same(const kit_answer_t *a, const kit_answer_t *b) {
  return a->bits == b->bits && memcmp(a->o, b->o, a->o_bytes) == 0 &&
         memcmp(a->lse, b->lse, a->lse_bytes) == 0;
}

void kit_way_describe(const kit_way_t *way, char *text, size_t text_bytes) {
  const skv_plan_options_t *o = &way->options;
  snprintf(text, text_bytes,
           "ranks %d threads %d chunk %lld wiring %d kernel %s layout %d/%lld direction %d "
           "reduce %d results %d rows %d workspace %lld",
           (int)way->ranks, (int)way->threads, (long long)way->chunk_queries, (int)way->wiring,
           way->kernel ? way->kernel : "best", (int)o->layout, (long long)o->layout_run_blocks,
           (int)o->direction, (int)o->reduce, (int)o->results, (int)o->row_owner,
           (long long)o->workspace_bytes);
}

/* The rank's own keys, copied out of the case: dense [batch][owned][heads][dim]. */
static void *copy_owned(const skv_problem_t *p, const void *all, int64_t dim,
                        const skv_interval_t *intervals, size_t count, int64_t owned) {
  int64_t token_bytes = p->kv_heads * dim * element_bytes(p->dtype);
  char *mine = kit_poisoned((size_t)(p->batch * owned * token_bytes)), *to = mine;
  for (int64_t sequence = 0; sequence < p->batch; sequence++)
    for (size_t i = 0; i < count; i++) {
      int64_t tokens = intervals[i].end - intervals[i].begin;
      memcpy(to,
             (const char *)all +
                 (sequence * p->kv_capacity_tokens + intervals[i].begin) * token_bytes,
             (size_t)(tokens * token_bytes));
      to += tokens * token_bytes;
    }
  return mine;
}

static skv_tensor_t dense(void *data, int64_t tokens, int64_t heads, int64_t dim) {
  return (skv_tensor_t){data, {tokens * heads * dim, heads * dim, dim, 1}};
}

static skv_outputs_t outputs_for(const job_t *job, int32_t rank, uint64_t *bits) {
  const skv_problem_t *p = &job->test->problem;
  bool writes = rank == 0 || job->way->options.results == SKV_RESULTS_OWNER;
  skv_outputs_t outputs = {.struct_bytes = sizeof outputs,
                           .bits = job->way->without_bits ? NULL : bits};
  outputs.o = dense(writes ? job->answer->o : kit_poisoned(job->answer->o_bytes), p->q_tokens,
                    p->q_heads, p->value_head_dim);
  outputs.lse = writes ? job->answer->lse : NULL;
  outputs.lse_stride[0] = p->q_tokens * p->q_heads;
  outputs.lse_stride[1] = p->q_heads;
  outputs.lse_stride[2] = 1;
  return outputs;
}

/* Queries [first, first + count) of every sequence, as a prefill in chunks would ask for them. */
static skv_status_t execute_chunk(const skv_problem_t *p, skv_plan_t *plan, skv_inputs_t inputs,
                                  skv_outputs_t outputs, int64_t first, int64_t count,
                                  void *workspace, size_t workspace_bytes, void *stream) {
  int64_t *lengths = calloc((size_t)p->batch, 3 * sizeof *lengths);
  int64_t *q_tokens = lengths, *k_tokens = lengths + p->batch, *q_start = k_tokens + p->batch;
  for (int64_t s = 0; s < p->batch; s++) {
    int64_t queries = inputs.q_tokens ? inputs.q_tokens[s] : p->q_tokens;
    int64_t keys = inputs.k_tokens ? inputs.k_tokens[s] : p->kv_capacity_tokens;
    q_tokens[s] = queries - first < count ? queries - first : count;
    q_tokens[s] = q_tokens[s] > 0 ? q_tokens[s] : 0;
    q_start[s] = (inputs.q_start ? inputs.q_start[s] : keys - queries) + first;
    int64_t seen = q_start[s] + q_tokens[s] > 0 ? q_start[s] + q_tokens[s] : 0;
    k_tokens[s] = p->causal && seen < keys ? seen : keys;
  }
  inputs.q_tokens = q_tokens;
  inputs.k_tokens = k_tokens;
  inputs.q_start = q_start;
  inputs.q.data = (char *)inputs.q.data + first * inputs.q.stride[1] * element_bytes(p->dtype);
  outputs.o.data =
      (char *)outputs.o.data + first * outputs.o.stride[1] * element_bytes(p->out_dtype);
  outputs.lse = outputs.lse ? outputs.lse + first * outputs.lse_stride[1] : NULL;
  skv_status_t status = skv_execute(plan, &inputs, &outputs, workspace, workspace_bytes, stream);
  free(lengths);
  return status;
}

skv_status_t kit_execute(const kit_case_t *test, const kit_way_t *way, skv_plan_t *plan,
                         const skv_inputs_t *inputs, const skv_outputs_t *outputs, void *workspace,
                         size_t workspace_bytes, void *stream) {
  int64_t chunk = way->chunk_queries, queries = test->problem.q_tokens;
  if (!chunk)
    return skv_execute(plan, inputs, outputs, workspace, workspace_bytes, stream);
  for (int64_t first = 0; first < queries; first += chunk) {
    skv_status_t status = execute_chunk(&test->problem, plan, *inputs, *outputs, first, chunk,
                                        workspace, workspace_bytes, stream);
    if (status != SKV_OK)
      return status;
  }
  return SKV_OK;
}

static skv_status_t execute(job_t *job, int32_t rank, skv_plan_t *plan, skv_inputs_t *inputs,
                            kit_device_t *device) {
  skv_plan_info_t info = {.struct_bytes = sizeof info};
  uint64_t bits = 0;
  if (skv_plan_info(plan, &info) != SKV_OK)
    return SKV_INTERNAL;
  char *workspace = kit_poisoned((size_t)info.workspace_bytes + 64);
  void *aligned = workspace + (64 - (uintptr_t)workspace % 64) % 64;
  skv_outputs_t outputs = outputs_for(job, rank, &bits);
  skv_status_t status =
      kit_execute(job->test, job->way, plan, inputs, &outputs, aligned,
                  (size_t)info.workspace_bytes, device ? kit_device_stream(device) : NULL);
  if (device) { /* also after a failure: no work may be left */
    skv_status_t late = kit_device_wait(device);
    status = status == SKV_OK ? late : status;
  }
  pthread_mutex_lock(&job->lock);
  job->answer->bits += bits;
  pthread_mutex_unlock(&job->lock);
  if (!kit_guards_intact(workspace) || !kit_guards_intact(inputs->k.data) ||
      !kit_guards_intact(inputs->v.data)) {
    fprintf(stderr, "rank %d wrote past a buffer\n", (int)rank);
    status = SKV_INTERNAL;
  }
  kit_poisoned_free(workspace);
  if (outputs.o.data != job->answer->o)
    kit_poisoned_free(outputs.o.data);
  return status;
}

void kit_own_keys(const kit_case_t *test, const skv_plan_t *plan, int32_t rank,
                  skv_inputs_t *inputs) {
  const skv_problem_t *p = &test->problem;
  size_t count = 0;
  skv_plan_key_intervals(plan, rank, NULL, &count);
  skv_interval_t *intervals = calloc(count + 1, sizeof *intervals);
  skv_plan_key_intervals(plan, rank, intervals, &count);
  int64_t owned = 0;
  for (size_t i = 0; i < count; i++)
    owned += intervals[i].end - intervals[i].begin;
  inputs->k = dense(copy_owned(p, test->k, p->head_dim, intervals, count, owned), owned,
                    p->kv_heads, p->head_dim);
  inputs->v = dense(copy_owned(p, test->v, p->value_head_dim, intervals, count, owned), owned,
                    p->kv_heads, p->value_head_dim);
  free(intervals);
}

static skv_status_t run(job_t *job, int32_t rank, skv_plan_t *plan, kit_device_t *device) {
  skv_inputs_t inputs = kit_case_inputs(job->test);
  kit_own_keys(job->test, plan, rank, &inputs);
  skv_status_t status = execute(job, rank, plan, &inputs, device);
  kit_poisoned_free(inputs.k.data);
  kit_poisoned_free(inputs.v.data);
  return status;
}

static int body(int32_t rank, skv_context_t *context, void *user) {
  job_t *job = user;
  skv_plan_options_t options = job->way->options;
  options.struct_bytes = sizeof options;
  skv_plan_t *plan;
  skv_problem_t problem = job->test->problem;
  if (job->way->chunk_queries)
    problem.q_tokens = job->way->chunk_queries;
  kit_device_t *device =
      job->wires ? kit_device_open(context, job->way->wiring, job->wires, job->way->delay_seed)
                 : NULL;
  skv_status_t status = skv_plan_create(&plan, context, &problem, &options);
  if (status == SKV_OK)
    status = run(job, rank, plan, device);
  if (status != SKV_OK)
    fprintf(stderr, "rank %d: %s: %s\n", (int)rank, skv_status_name(status),
            skv_context_error(context));
  skv_plan_destroy(plan);
  if (device)
    kit_device_close(device);
  return (int)status;
}

bool kit_solve(const kit_case_t *test, const kit_way_t *way, kit_answer_t *answer) {
  job_t job = {test, way, answer, PTHREAD_MUTEX_INITIALIZER, NULL};
  answer->bits = 0;
  int32_t ranks = way->ranks ? way->ranks : 1;
  if (way->wiring)
    job.wires = kit_world_create(ranks, way->delay_seed);
  int result = kit_run_ranks(ranks, way->threads ? way->threads : 1, way->kernel, way->delay_seed,
                             body, &job);
  if (job.wires)
    kit_world_destroy(job.wires);
  if (!kit_guards_intact(answer->o) || !kit_guards_intact(answer->lse)) {
    fprintf(stderr, "a write past the outputs\n");
    return false;
  }
  return result == 0;
}
