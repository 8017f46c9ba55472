/* cut.c: choosing tasks. Many rows: one KV head and a few hundred rows a task. Few rows (decode):
 * all KV heads together, so that keys are read as they lie, and nodes cut into parts. */
#include "kernels/cpu/cut.h"

enum {
  TASKS_A_THREAD = 4,
  LEAST_ROWS = 96 /* tasks are not made smaller than this to have more of them */
};

static int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
static int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static int64_t run_rows(const skv__cut_t *cut, const skv__run_t *run) {
  return run->q_count * (cut->job->q_heads / cut->job->kv_heads);
}

static int64_t job_heads(const skv__cut_t *cut) {
  return cut->job->kv_head_end - cut->job->kv_head_begin;
}

/* Tasks of a run for each unit. */
static int64_t run_tiles(const skv__cut_t *cut, const skv__run_t *run) {
  return ceil_divide(run_rows(cut, run), cut->rows) * ceil_divide(job_heads(cut), cut->heads);
}

int64_t skv__cut_run_tasks(const skv__cut_t *cut, const skv__run_t *run) {
  return run_tiles(cut, run) * cut->units;
}

static int64_t all_tasks(const skv__cut_t *cut) {
  int64_t tasks = 0;
  for (int64_t i = 0; i < cut->job->run_count; ++i)
    tasks += skv__cut_run_tasks(cut, &cut->job->runs[i]);
  return tasks;
}

skv__parts_t skv__cut_parts(const skv__cut_t *cut, const skv__job_node_t *node) {
  const int64_t tokens = cut->job->block_tokens * cut->part_blocks;
  const int64_t start = node->begin * cut->job->block_tokens;
  skv__parts_t parts = {0, ceil_divide(node->end - node->begin, cut->part_blocks)};
  parts.begin = smaller(parts.end, larger(0, (cut->key_begin - start) / tokens));
  parts.end = smaller(parts.end, ceil_divide(larger(0, cut->key_end - start), tokens));
  parts.end = larger(parts.begin, parts.end);
  return parts;
}

static int64_t count_units(const skv__cut_t *cut) {
  if (cut->part_blocks == 0)
    return cut->job->node_count;
  int64_t units = 0;
  for (int64_t i = 0; i < cut->job->node_count; ++i) {
    skv__parts_t parts = skv__cut_parts(cut, &cut->job->nodes[i]);
    units += parts.end - parts.begin;
  }
  return units;
}

/* What any row of the job may see; how many rows there are, and the most of one head in a run. */
static int64_t survey(skv__cut_t *cut) {
  const skv__job_t *job = cut->job;
  int64_t most = 0;
  cut->key_begin = INT64_MAX;
  for (int64_t i = 0; i < job->run_count; ++i) {
    const skv__run_t *run = &job->runs[i];
    int64_t position = job->q_start[run->sequence] + run->q_begin;
    int64_t last = position + run->q_count - 1;
    cut->key_begin = smaller(cut->key_begin, larger(0, position - job->left_tokens));
    cut->key_end =
        larger(cut->key_end, smaller(job->k_tokens[run->sequence], last + job->right_tokens + 1));
    cut->total_rows += run_rows(cut, run) * job_heads(cut);
    most = larger(most, run_rows(cut, run));
  }
  return most;
}

static size_t unit_bytes(const skv__cut_t *cut) {
  return (size_t)(cut->total_rows * (skv__padded_values(cut->job) + 2)) * sizeof(float);
}

/* Cut nodes finer until there are enough tasks or the memory for parts is used up. */
static void choose_parts(skv__cut_t *cut, int64_t wanted, size_t part_bytes) {
  int64_t longest = 1;
  for (int64_t i = 0; i < cut->job->node_count; ++i)
    longest = larger(longest, cut->job->nodes[i].end - cut->job->nodes[i].begin);
  skv__cut_t best = *cut;
  skv__cut_t trial = *cut;
  trial.part_blocks = 1;
  while (trial.part_blocks < longest)
    trial.part_blocks *= 2;
  for (trial.part_blocks /= 2; trial.part_blocks > 0; trial.part_blocks /= 2) {
    trial.units = count_units(&trial);
    if ((size_t)trial.units * unit_bytes(cut) > part_bytes)
      break;
    best = trial;
    if (all_tasks(&trial) >= wanted)
      break;
  }
  *cut = best;
}

void skv__cut_choose(skv__cut_t *cut, const skv__job_t *job, int32_t threads, int64_t most_rows,
                     size_t part_bytes) {
  const int64_t wanted = threads > 1 ? (int64_t)threads * TASKS_A_THREAD : 1;
  *cut = (skv__cut_t){.job = job, .units = job->node_count, .heads = 1};
  int64_t rows = larger(1, survey(cut));
  cut->rows = smaller(rows, most_rows);
  if (rows < SKV__FEW_ROWS)
    cut->heads = larger(1, smaller(job_heads(cut), smaller(most_rows, SKV__SHARED_ROWS) / rows));
  while (all_tasks(cut) < wanted && cut->rows > LEAST_ROWS)
    cut->rows = larger(LEAST_ROWS, cut->rows / 2);
  if (all_tasks(cut) < wanted)
    choose_parts(cut, wanted, part_bytes);
  while (all_tasks(cut) < wanted && cut->heads > 1)
    cut->heads = ceil_divide(cut->heads, 2);
}

/* The unit's node and, when nodes are cut, its blocks. */
static void place_unit(const skv__cut_t *cut, skv__task_t *task, int64_t unit) {
  const skv__job_node_t *node = cut->job->nodes;
  if (cut->part_blocks == 0) {
    task->node = node + unit;
    task->block_begin = task->node->begin;
    task->block_end = task->node->end;
    return;
  }
  skv__parts_t parts = skv__cut_parts(cut, node);
  while (unit >= parts.end - parts.begin) {
    unit -= parts.end - parts.begin;
    parts = skv__cut_parts(cut, ++node);
  }
  task->node = node;
  task->block_begin = node->begin + (parts.begin + unit) * cut->part_blocks;
  task->block_end = smaller(node->end, task->block_begin + cut->part_blocks);
}

/* Rows from the last to the first: under a causal mask the long tasks come early. */
skv__task_t skv__cut_task(const skv__cut_t *cut, const skv__run_t *run, int64_t index,
                          int64_t *unit) {
  const skv__job_t *job = cut->job;
  skv__task_t task = {.job = job, .run = run};
  *unit = index % cut->units;
  index /= cut->units;
  int64_t rows = run_rows(cut, run), row_tiles = ceil_divide(rows, cut->rows);
  task.row_begin = (row_tiles - 1 - index % row_tiles) * cut->rows;
  task.row_end = smaller(rows, task.row_begin + cut->rows);
  task.head_begin = job->kv_head_begin + index / row_tiles * cut->heads;
  task.head_end = smaller(job->kv_head_end, task.head_begin + cut->heads);
  place_unit(cut, &task, *unit);
  return task;
}

skv__states_t skv__cut_states(const skv__cut_t *cut, float *parts, int64_t unit) {
  int64_t stride = skv__padded_values(cut->job);
  float *o = parts + unit * cut->total_rows * (stride + 2);
  float *e = o + cut->total_rows * stride;
  return (skv__states_t){.o = o, .e = e, .l = e + cut->total_rows, .stride = stride};
}
