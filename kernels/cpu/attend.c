/* attend.c: one tile of keys for all heads of a task. With many rows, a head at a time: its keys
 * and values are packed once for all rows. With few rows (decode) memory is the limit: keys, then
 * values, are read token by token for all heads, which is how they usually lie, and what comes next
 * is fetched meanwhile. */
#include "kernels/convert.h"
#include "kernels/cpu/task.h"

#define LOG2E 1.4426950408889634073599246810018921

enum { FETCH_BYTES = 1 << 15 };

static int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* Of key `position` of a KV head. */
static const char *key_address(const skv__task_t *task, const skv_tensor_t *tensor, int64_t head,
                               int64_t position) {
  const skv__job_t *job = task->job;
  int64_t token = task->node->token_offset + position - task->node->begin * job->block_tokens;
  int64_t element = task->run->sequence * tensor->stride[0] + token * tensor->stride[1] +
                    (head - job->kv_head_begin) * tensor->stride[2];
  return (const char *)tensor->data + element * skv__dtype_bytes(job->dtype);
}

static skv__tile_source_t tile_source(const skv__task_t *task, const skv_tensor_t *tensor,
                                      int64_t dim, int64_t head, int64_t tile, int64_t begin,
                                      int64_t end) {
  return (skv__tile_source_t){.dtype = task->job->dtype,
                              .data = key_address(task, tensor, head, begin),
                              .stride_bytes =
                                  tensor->stride[1] * skv__dtype_bytes(task->job->dtype),
                              .dim = dim,
                              .begin = begin - tile,
                              .end = end - tile,
                              .heads = task->head_end - head,
                              .head_bytes = tensor->stride[2] * skv__dtype_bytes(task->job->dtype)};
}

/* Up to `tokens` tokens from `position`, of heads from `head`, to be fetched during about `calls`
 * calls. Heads that do not lie side by side are left to the hardware. */
static skv__ahead_t fetch_plan(const skv__task_t *task, const skv_tensor_t *tensor, int64_t dim,
                               int64_t head, int64_t heads, int64_t position, int64_t tokens,
                               int64_t calls) {
  const int64_t element = skv__dtype_bytes(task->job->dtype);
  int64_t end = smaller(task->key_end, task->block_end * task->job->block_tokens);
  skv__ahead_t ahead = {.stride_bytes = tensor->stride[1] * element,
                        .row_bytes = heads * dim * element};
  if (position >= end || (heads > 1 && tensor->stride[2] != dim))
    return ahead;
  ahead.row = key_address(task, tensor, head, position);
  ahead.rows = smaller(tokens, end - position);
  ahead.share = ahead.rows * ((ahead.row_bytes + 63) / 64) / calls + 1;
  return ahead;
}

/* The rows of one head. */
static skv__tile_rows_t tile_rows(const skv__task_t *task, const skv__desk_t *desk, int64_t head,
                                  int64_t tile) {
  const skv__job_t *job = task->job;
  const int64_t rows = task->row_end - task->row_begin;
  const int64_t row = (head - task->head_begin) * rows, columns = skv__padded_values(job);
  const bool capped = job->softcap != 0.0f;
  return (skv__tile_rows_t){
      .rows = rows,
      .head_dim = job->head_dim,
      .q = desk->q + row * job->head_dim,
      .first = desk->first + row,
      .end = desk->end + row,
      .key_begin = tile,
      .keys = desk->keys,
      .values = desk->values,
      .value_panels = columns / SKV__PANEL,
      .scores = desk->scores,
      .o = desk->o + row * columns,
      .e = desk->e + row,
      .l = desk->l + row * SKV__PANEL,
      .tanh_scale = capped ? job->scale / job->softcap : 0.0f,
      .log2_scale = (float)((double)(capped ? job->softcap : job->scale) * LOG2E),
  };
}

static void attend_head(const skv__task_t *task, skv__desk_t *desk, int64_t head, int64_t tile,
                        int64_t begin, int64_t end) {
  const skv__job_t *job = task->job;
  skv__tile_source_t keys = tile_source(task, &job->k, job->head_dim, head, tile, begin, end);
  skv__tile_source_t values =
      tile_source(task, &job->v, job->value_head_dim, head, tile, begin, end);
  desk->tile->pack_keys(desk->keys, &keys);
  desk->tile->pack_values(desk->values, &values);
  skv__tile_rows_t work = tile_rows(task, desk, head, tile);
  int64_t next = tile + SKV__TILE_KEYS;
  const int64_t calls = (work.rows + SKV__TILE_ROWS - 1) / SKV__TILE_ROWS;
  skv__ahead_t next_keys =
      fetch_plan(task, &job->k, job->head_dim, head, 1, next, SKV__TILE_KEYS, calls);
  skv__ahead_t next_values =
      fetch_plan(task, &job->v, job->value_head_dim, head, 1, next, SKV__TILE_KEYS, calls);
  work.ahead = &next_keys;
  work.ahead_after_scores = &next_values;
  desk->tile->attend(&work);
}

/* Work on keys [begin, end) of the tile at `tile`, for all heads of a task whose heads share it:
 * their scores stay. `ahead` is fetched meanwhile. */
typedef void (*step_t)(const skv__task_t *task, skv__desk_t *desk, int64_t tile, int64_t begin,
                       int64_t end, skv__ahead_t *ahead);

static skv__tile_rows_t shared_rows(const skv__task_t *task, const skv__desk_t *desk, int64_t head,
                                    int64_t tile) {
  skv__tile_rows_t work = tile_rows(task, desk, head, tile);
  work.scores += (head - task->head_begin) * work.rows * SKV__TILE_KEYS;
  return work;
}

static void score_packed(const skv__task_t *task, skv__desk_t *desk, int64_t tile, int64_t begin,
                         int64_t end, skv__ahead_t *ahead) {
  const skv__job_t *job = task->job;
  ahead->share /= task->head_end - task->head_begin;
  for (int64_t head = task->head_begin; head < task->head_end; ++head) {
    skv__tile_rows_t work = shared_rows(task, desk, head, tile);
    skv__tile_source_t keys = tile_source(task, &job->k, job->head_dim, head, tile, begin, end);
    work.ahead = ahead;
    desk->tile->pack_keys(desk->keys, &keys);
    desk->tile->score(&work, begin - tile, end - tile);
  }
}

static void add_packed(const skv__task_t *task, skv__desk_t *desk, int64_t tile, int64_t begin,
                       int64_t end, skv__ahead_t *ahead) {
  const skv__job_t *job = task->job;
  ahead->share /= task->head_end - task->head_begin;
  for (int64_t head = task->head_begin; head < task->head_end; ++head) {
    skv__tile_rows_t work = shared_rows(task, desk, head, tile);
    skv__tile_source_t values =
        tile_source(task, &job->v, job->value_head_dim, head, tile, begin, end);
    work.ahead_after_scores = ahead;
    desk->tile->pack_values(desk->values, &values);
    desk->tile->add_values(&work, begin - tile, end - tile);
  }
}

static void score_thin(const skv__task_t *task, skv__desk_t *desk, int64_t tile, int64_t begin,
                       int64_t end, skv__ahead_t *ahead) {
  skv__tile_rows_t work = tile_rows(task, desk, task->head_begin, tile);
  skv__tile_source_t keys =
      tile_source(task, &task->job->k, task->job->head_dim, task->head_begin, tile, begin, end);
  work.q = desk->keys;
  work.ahead = ahead;
  desk->tile->score_thin(&work, &keys);
}

static void add_thin(const skv__task_t *task, skv__desk_t *desk, int64_t tile, int64_t begin,
                     int64_t end, skv__ahead_t *ahead) {
  skv__tile_rows_t work = tile_rows(task, desk, task->head_begin, tile);
  skv__tile_source_t values = tile_source(task, &task->job->v, task->job->value_head_dim,
                                          task->head_begin, tile, begin, end);
  work.ahead_after_scores = ahead;
  desk->tile->add_thin(&work, &values);
}

/* Tokens that are worked on while the next ones are fetched: far enough ahead to be there in time,
 * near enough to stay in cache. */
static int64_t group_tokens(const skv__task_t *task) {
  const int64_t token_bytes = (task->head_end - task->head_begin) * task->job->head_dim *
                              skv__dtype_bytes(task->job->dtype);
  int64_t tokens = SKV__TILE_KEYS;
  while (task->thin && tokens > 8 && tokens * token_bytes > FETCH_BYTES)
    tokens /= 2;
  return tokens;
}

/* Where one of the two tensors is read next. */
typedef struct place {
  const skv_tensor_t *tensor;
  int64_t dim, position;
} place_t;

/* `work` on keys [begin, end) of a tile, a group of tokens at a time. Meanwhile the next group is
 * fetched: of these, in the end of `then`. */
static void for_groups(const skv__task_t *task, skv__desk_t *desk, int64_t tile, int64_t begin,
                       int64_t end, step_t work, place_t these, place_t then) {
  const int64_t group = group_tokens(task), heads = task->head_end - task->head_begin;
  for (int64_t from = begin, to; from < end; from = to) {
    to = smaller(end, tile + ((from - tile) / group + 1) * group);
    these.position = to;
    place_t next = to < end ? these : then;
    skv__ahead_t ahead =
        fetch_plan(task, next.tensor, next.dim, task->head_begin, heads, next.position, group, 1);
    work(task, desk, tile, from, to, &ahead);
  }
}

static void attend_heads(const skv__task_t *task, skv__desk_t *desk, int64_t tile, int64_t begin,
                         int64_t end) {
  const skv__job_t *job = task->job;
  place_t keys = {&job->k, job->head_dim, end}, values = {&job->v, job->value_head_dim, begin};
  for_groups(task, desk, tile, begin, end, task->thin ? score_thin : score_packed, keys, values);
  skv__tile_rows_t all = tile_rows(task, desk, task->head_begin, tile);
  all.rows = skv__task_rows(task);
  desk->tile->weigh(&all);
  for_groups(task, desk, tile, begin, end, task->thin ? add_thin : add_packed, values, keys);
}

/* q as score_thin wants it, into the memory for packed keys. */
static void turn_queries(const skv__task_t *task, const skv__desk_t *desk) {
  const int64_t rows = task->row_end - task->row_begin, dim = task->job->head_dim;
  const int64_t task_heads = task->head_end - task->head_begin;
  float *to = desk->keys;
  for (int64_t head = 0, heads; head < task_heads; head += heads) {
    heads = skv__lane_heads(task_heads - head);
    for (int64_t first = 0; first < rows; first += SKV__THIN_CHUNK)
      for (int64_t d = 0; d < dim; ++d)
        for (int64_t row = first; row < smaller(rows, first + SKV__THIN_CHUNK); ++row)
          for (int64_t lane = 0; lane < 8; ++lane)
            *to++ = desk->q[((head + lane % heads) * rows + row) * dim + d];
  }
}

void skv__task_begin(skv__task_t *task, const skv__desk_t *desk) {
  const skv__job_t *job = task->job;
  const int64_t rows = task->row_end - task->row_begin, heads = task->head_end - task->head_begin;
  const int64_t bundles = heads / 8 + (heads >> 2 & 1) + (heads >> 1 & 1) + (heads & 1);
  task->thin = desk->tile->score_thin != NULL && rows <= SKV__THIN_ROWS && job->head_dim % 8 == 0 &&
               job->value_head_dim % SKV__PANEL == 0 && bundles * rows * 8 <= SKV__TILE_KEYS;
  if (task->thin)
    turn_queries(task, desk);
}

void skv__task_attend(const skv__task_t *task, skv__desk_t *desk, int64_t tile, int64_t begin,
                      int64_t end) {
  if (task->row_end - task->row_begin < SKV__FEW_ROWS)
    attend_heads(task, desk, tile, begin, end);
  else
    for (int64_t head = task->head_begin; head < task->head_end; ++head)
      attend_head(task, desk, head, tile, begin, end);
}
