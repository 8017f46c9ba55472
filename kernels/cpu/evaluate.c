/* evaluate.c: threads take tasks one by one; states of parts are then folded along the tree. */
#include "kernels/cpu/evaluate.h"

#include <omp.h>
#include <string.h>

#include "kernels/cpu/cut.h"
#include "kernels/cpu/rounding.h"
#include "kernels/state.h"
#include "order.h"

/* Everything that the threads of one evaluate share. */
typedef struct shop {
  const skv__tile_t *tile;
  const skv__job_t *job;
  skv__cut_t cut;
  skv__progress_t progress;
  float *parts;
  char *desks;
  size_t desk_bytes;
  int64_t node_blocks, tasks;
  atomic_llong next, finished;
} shop_t;

/* Enough for hundreds of rows when threads are few; 32 MiB in all while that leaves a thread
 * enough. */
static size_t desk_bytes(int32_t threads) {
  const size_t least = (size_t)3 << 18, most = (size_t)3 << 20;
  size_t share = ((size_t)32 << 20) / (size_t)threads / 64 * 64;
  return share < least ? least : share > most ? most : share;
}

static size_t parts_bytes(int32_t threads) {
  return threads > 1 ? (size_t)threads << 19 : 0;
}

size_t skv__cpu_scratch_bytes(const skv__job_t *job, int32_t threads) {
  (void)job;
  return parts_bytes(threads) + (size_t)threads * desk_bytes(threads);
}

static void write_row(const shop_t *shop, const skv__job_node_t *node, const skv__run_t *run,
                      int64_t query, int64_t head, const float *o, float e, float l) {
  const skv__job_t *job = shop->job;
  const int64_t dim = job->value_head_dim;
  skv__place_t place = skv__job_place(job, run, query, head);
  float *slice = job->slices[(node - job->nodes) * job->ranks + place.owner];
  int64_t rows = job->slice_rows[place.owner];
  if (slice == NULL) /* this rank does not want that owner's rows */
    return;
  if (o != NULL)
    memcpy(slice + place.index * dim, o, (size_t)dim * sizeof *o);
  else
    memset(slice + place.index * dim, 0, (size_t)dim * sizeof *o);
  skv__slice_e(slice, rows, dim)[place.index] = e;
  skv__slice_l(slice, rows, dim)[place.index] = l;
}

/* Rows [begin, end) of a KV head from `states` (or EMPTY) to the slices. */
static void write_rows(const shop_t *shop, const skv__job_node_t *node, const skv__run_t *run,
                       int64_t kv_head, int64_t begin, int64_t end, const skv__states_t *states,
                       int64_t row) {
  const int64_t group = shop->job->q_heads / shop->job->kv_heads;
  for (int64_t r = begin; r < end; ++r, ++row) {
    int64_t query = run->q_begin + r / group, head = kv_head * group + r % group;
    if (states && !skv__is_empty(states->e[row])) /* an EMPTY one may hold any O */
      write_row(shop, node, run, query, head, states->o + row * states->stride, states->e[row],
                states->l[row]);
    else
      write_row(shop, node, run, query, head, NULL, skv__empty_exponent(), 0.0f);
  }
}

/* The run's first row among all rows of the job. */
static int64_t run_base(const shop_t *shop, const skv__run_t *run) {
  const skv__job_t *job = shop->job;
  int64_t base = 0;
  for (const skv__run_t *other = job->runs; other < run; ++other)
    base +=
        other->q_count * (job->q_heads / job->kv_heads) * (job->kv_head_end - job->kv_head_begin);
  return base;
}

/* A part's states, kept until all parts are there. */
static void keep_part(const shop_t *shop, const skv__task_t *task, int64_t unit, int64_t base,
                      const skv__states_t *states) {
  const skv__job_t *job = shop->job;
  const int64_t rows = task->row_end - task->row_begin;
  const int64_t run_rows = task->run->q_count * (job->q_heads / job->kv_heads);
  skv__states_t kept = skv__cut_states(&shop->cut, shop->parts, unit);
  for (int64_t head = task->head_begin; head < task->head_end; ++head) {
    int64_t to = base + (head - job->kv_head_begin) * run_rows + task->row_begin;
    int64_t from = (head - task->head_begin) * rows;
    for (int64_t r = 0; r < rows; ++r) {
      kept.e[to + r] = states ? states->e[from + r] : skv__empty_exponent();
      kept.l[to + r] = states ? states->l[from + r] : 0.0f;
    }
    if (states)
      memcpy(kept.o + to * kept.stride, states->o + from * kept.stride,
             (size_t)(rows * kept.stride) * sizeof *kept.o);
  }
}

static void do_task(shop_t *shop, skv__desk_t *desk, const skv__run_t *run, int64_t index) {
  int64_t unit;
  skv__task_t task = skv__cut_task(&shop->cut, run, index, &unit);
  bool any = skv__task_evaluate(&task, desk);
  skv__states_t states = skv__desk_states(desk, shop->job, 0);
  if (shop->cut.part_blocks != 0) {
    keep_part(shop, &task, unit, run_base(shop, run), any ? &states : NULL);
    return;
  }
  const int64_t rows = task.row_end - task.row_begin;
  for (int64_t head = task.head_begin; head < task.head_end; ++head)
    write_rows(shop, task.node, run, head, task.row_begin, task.row_end, any ? &states : NULL,
               (head - task.head_begin) * rows);
}

static bool stopped(shop_t *shop) {
  return atomic_load_explicit(&shop->progress.status, memory_order_relaxed) != SKV_OK;
}

/* Takes tasks until none is left. Their numbers only grow, so the run is found by walking on. */
static void do_tasks(shop_t *shop, skv__desk_t *desk) {
  const skv__run_t *run = shop->job->runs;
  int64_t before = 0; /* tasks of runs before this one */
  for (;;) {
    int64_t index = atomic_fetch_add_explicit(&shop->next, 1, memory_order_relaxed);
    if (index >= shop->tasks || stopped(shop))
      return;
    while (index - before >= skv__cut_run_tasks(&shop->cut, run))
      before += skv__cut_run_tasks(&shop->cut, run++);
    do_task(shop, desk, run, index - before);
    atomic_fetch_add_explicit(&shop->finished, 1, memory_order_release);
  }
}

/* The calling thread has run out of tasks: communication goes on while others work. */
static void poll_until_finished(shop_t *shop) {
  while (atomic_load_explicit(&shop->finished, memory_order_acquire) < shop->tasks &&
         !stopped(shop)) {
    skv_status_t status = shop->progress.poll(shop->progress.user);
    if (status != SKV_OK)
      atomic_store_explicit(&shop->progress.status, (int)status, memory_order_relaxed);
    for (int i = 0; i < 1000; ++i)
      skv__spin_pause();
  }
}

/* Rows [row, row + rows) of parts [begin, end) of a node into the first of them that some row may
 * see; returns which, or -1. */
static int64_t fold_parts(const shop_t *shop, skv__parts_t seen, int64_t unit, int64_t begin,
                          int64_t end, int64_t row, int64_t rows) {
  if (end <= seen.begin || begin >= seen.end)
    return -1;
  if (end - begin == 1)
    return unit + begin - seen.begin;
  int64_t split = skv__order_split((skv__node_t){begin, end});
  int64_t left = fold_parts(shop, seen, unit, begin, split, row, rows);
  int64_t right = fold_parts(shop, seen, unit, split, end, row, rows);
  if (left < 0 || right < 0)
    return left < 0 ? right : left;
  skv__states_t into = skv__cut_states(&shop->cut, shop->parts, left);
  skv__states_t from = skv__cut_states(&shop->cut, shop->parts, right);
  into.o += row * into.stride, into.e += row, into.l += row;
  from.o += row * from.stride, from.e += row, from.l += row;
  shop->tile->merge(into, from, rows, shop->job->value_head_dim);
  return left;
}

/* One KV head of one run: its parts folded for each node, and written. */
static void fold_head(const shop_t *shop, const skv__run_t *run, int64_t head) {
  const skv__job_t *job = shop->job;
  const int64_t rows = run->q_count * (job->q_heads / job->kv_heads);
  const int64_t row = run_base(shop, run) + (head - job->kv_head_begin) * rows;
  int64_t unit = 0;
  for (const skv__job_node_t *node = job->nodes; node < job->nodes + job->node_count; ++node) {
    skv__parts_t seen = skv__cut_parts(&shop->cut, node);
    int64_t parts = (node->end - node->begin + shop->cut.part_blocks - 1) / shop->cut.part_blocks;
    int64_t folded = fold_parts(shop, seen, unit, 0, parts, row, rows);
    skv__states_t states = skv__cut_states(&shop->cut, shop->parts, folded < 0 ? 0 : folded);
    write_rows(shop, node, run, head, 0, rows, folded < 0 ? NULL : &states, row);
    unit += seen.end - seen.begin;
  }
}

static void fold_all(shop_t *shop) {
  const int64_t heads = shop->job->kv_head_end - shop->job->kv_head_begin;
#pragma omp for schedule(static) collapse(2)
  for (int64_t i = 0; i < shop->job->run_count; ++i)
    for (int64_t h = 0; h < heads; ++h)
      fold_head(shop, &shop->job->runs[i], shop->job->kv_head_begin + h);
}

static void work(shop_t *shop, int32_t thread) {
  skv__rounding_t before = skv__rounding_set();
  skv__desk_t desk = {.tile = shop->tile,
                      .progress = &shop->progress,
                      .polls = thread == 0 && shop->progress.poll != NULL};
  skv__desk_layout(&desk, shop->job, shop->node_blocks,
                   shop->desks + (size_t)thread * shop->desk_bytes, shop->desk_bytes);
  do_tasks(shop, &desk);
  if (desk.polls)
    poll_until_finished(shop);
#pragma omp barrier
  if (shop->cut.part_blocks != 0)
    fold_all(shop);
  skv__rounding_restore(before);
}

skv_status_t skv__cpu_evaluate(const skv__tile_t *tile, const skv__job_t *job, void *scratch,
                               int32_t threads, skv_status_t (*poll)(void *user), void *user,
                               skv__error_t *error) {
  (void)error; /* poll leaves the text */
  shop_t shop = {.tile = tile,
                 .job = job,
                 .progress = {.poll = poll, .user = user},
                 .parts = scratch,
                 .desks = (char *)scratch + parts_bytes(threads),
                 .desk_bytes = desk_bytes(threads),
                 .node_blocks = 1};
  for (int64_t i = 0; i < job->node_count; ++i)
    if (job->nodes[i].end - job->nodes[i].begin > shop.node_blocks)
      shop.node_blocks = job->nodes[i].end - job->nodes[i].begin;
  skv__desk_t desk;
  skv__desk_layout(&desk, job, shop.node_blocks, NULL, shop.desk_bytes);
  skv__cut_choose(&shop.cut, job, threads, desk.most_rows, parts_bytes(threads));
  for (int64_t i = 0; i < job->run_count; ++i)
    shop.tasks += skv__cut_run_tasks(&shop.cut, &job->runs[i]);
#pragma omp parallel num_threads(threads)
  { work(&shop, omp_get_thread_num()); }
  return (skv_status_t)atomic_load(&shop.progress.status);
}
