/* task.c: the loops over blocks, leaves and tiles of one task. Recursion follows the canonical
 * tree; parts that no row sees are never entered, since merging EMPTY changes no bit. */
#include "kernels/cpu/task.h"

#include <string.h>

#include "kernels/convert.h"
#include "kernels/state.h"
#include "order.h"

/* About a third of a millisecond of one core. */
static const int64_t poll_work = (int64_t)1 << 23;

skv__states_t skv__desk_states(const skv__desk_t *desk, const skv__job_t *job, int64_t slot) {
  int64_t stride = skv__padded_values(job);
  float *o = desk->states + slot * desk->most_rows * (stride + 2);
  float *e = o + desk->most_rows * stride;
  return (skv__states_t){.o = o, .e = e, .l = e + desk->most_rows, .stride = stride};
}

static int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

/* Copies q as fp32 and notes what each row sees. Rows of one head follow those of the one before.
 */
static void load_rows(skv__task_t *task, skv__desk_t *desk) {
  const skv__job_t *job = task->job;
  const int64_t group = job->q_heads / job->kv_heads, dim = job->head_dim;
  const int64_t sequence = task->run->sequence, keys = job->k_tokens[sequence];
  float *to = desk->q;
  int64_t row = 0;
  task->key_begin = INT64_MAX;
  task->key_end = 0;
  for (int64_t head = task->head_begin; head < task->head_end; ++head)
    for (int64_t r = task->row_begin; r < task->row_end; ++r, ++row, to += dim) {
      int64_t query = task->run->q_begin + r / group, q_head = head * group + r % group;
      int64_t at =
          sequence * job->q.stride[0] + query * job->q.stride[1] + q_head * job->q.stride[2];
      for (int64_t d = 0; d < dim; ++d)
        to[d] = skv__load(job->dtype, job->q.data, at + d);
      int64_t position = job->q_start[sequence] + query;
      desk->first[row] = clamp(position - job->left_tokens, 0, keys);
      desk->end[row] = clamp(position + job->right_tokens + 1, 0, keys);
      if (desk->first[row] >= desk->end[row])
        continue;
      if (desk->first[row] < task->key_begin)
        task->key_begin = desk->first[row];
      if (desk->end[row] > task->key_end)
        task->key_end = desk->end[row];
    }
}

/* Lets communication progress now and then. False: stop. */
static bool may_go_on(skv__desk_t *desk) {
  skv__progress_t *progress = desk->progress;
  if (desk->polls && desk->work >= poll_work) {
    desk->work = 0;
    skv_status_t status = progress->poll(progress->user);
    if (status != SKV_OK)
      atomic_store_explicit(&progress->status, (int)status, memory_order_relaxed);
  }
  return atomic_load_explicit(&progress->status, memory_order_relaxed) == SKV_OK;
}

/* Keys [begin, end) of one leaf into the desk's accumulators. */
static void attend_leaf(const skv__task_t *task, skv__desk_t *desk, int64_t begin, int64_t end) {
  const int64_t rows = skv__task_rows(task);
  memset(desk->o, 0, (size_t)(rows * skv__padded_values(task->job)) * sizeof *desk->o);
  memset(desk->l, 0, (size_t)(rows * SKV__PANEL) * sizeof *desk->l);
  for (int64_t row = 0; row < rows; ++row)
    desk->e[row] = skv__empty_exponent();
  for (int64_t tile = begin / SKV__TILE_KEYS * SKV__TILE_KEYS; tile < end; tile += SKV__TILE_KEYS) {
    if (!may_go_on(desk))
      return;
    int64_t from = tile < begin ? begin : tile;
    int64_t to = tile + SKV__TILE_KEYS < end ? tile + SKV__TILE_KEYS : end;
    skv__task_attend(task, desk, tile, from, to);
    desk->work += rows * (to - from) * (task->job->head_dim + task->job->value_head_dim);
  }
}

/* One block into `slot`: its leaves folded left to right. */
static bool evaluate_block(const skv__task_t *task, skv__desk_t *desk, int64_t block,
                           int64_t slot) {
  const skv__job_t *job = task->job;
  skv__states_t into = skv__desk_states(desk, job, slot);
  int64_t block_begin = block * job->block_tokens, block_end = block_begin + job->block_tokens;
  bool any = false;
  for (int64_t leaf = block_begin; leaf < block_end; leaf += job->leaf_tokens) {
    int64_t begin = clamp(task->key_begin, leaf, leaf + job->leaf_tokens);
    int64_t end = clamp(task->key_end, leaf, leaf + job->leaf_tokens);
    if (begin >= end)
      continue;
    attend_leaf(task, desk, begin, end);
    desk->tile->end_leaf(into, any, desk->o, desk->e, desk->l, skv__task_rows(task),
                         job->value_head_dim);
    any = true;
  }
  return any;
}

/* Blocks [begin, end), a subtree, into `slot`; slots above are free to use. False: EMPTY. */
static bool evaluate_blocks(const skv__task_t *task, skv__desk_t *desk, int64_t begin, int64_t end,
                            int64_t slot) {
  const skv__job_t *job = task->job;
  if (end * job->block_tokens <= task->key_begin || begin * job->block_tokens >= task->key_end)
    return false;
  if (end - begin == 1)
    return evaluate_block(task, desk, begin, slot);
  int64_t split = skv__order_split((skv__node_t){begin, end});
  bool left = evaluate_blocks(task, desk, begin, split, slot);
  bool right = evaluate_blocks(task, desk, split, end, left ? slot + 1 : slot);
  if (left && right)
    desk->tile->merge(skv__desk_states(desk, job, slot), skv__desk_states(desk, job, slot + 1),
                      skv__task_rows(task), job->value_head_dim);
  return left || right;
}

bool skv__task_evaluate(skv__task_t *task, skv__desk_t *desk) {
  load_rows(task, desk);
  skv__task_begin(task, desk);
  return evaluate_blocks(task, desk, task->block_begin, task->block_end, 0);
}
