/* task.h: some rows of some KV heads against one node (or part of one), and the memory for it. */
#ifndef SKV_CPU_TASK_H
#define SKV_CPU_TASK_H

#include <stdatomic.h>

#include "error.h"
#include "kernels/cpu/tile.h"

/* What the threads of one evaluate share. */
typedef struct skv__progress {
  skv_status_t (*poll)(void *user); /* or NULL */
  void *user;
  atomic_int status; /* of the first poll that failed: everyone stops */
} skv__progress_t;

enum {
  SKV__FEW_ROWS = 48,   /* of a KV head: below, heads share a task */
  SKV__SHARED_ROWS = 96 /* rows of all heads of such a task, at most */
};

/* Rows are numbered within a KV head: row = (query - q_begin) * group + head in group. */
typedef struct skv__task {
  const skv__job_t *job;
  const skv__run_t *run;
  const skv__job_node_t *node;
  int64_t block_begin, block_end; /* the subtree of the node that is evaluated */
  int64_t head_begin, head_end;   /* KV heads */
  int64_t row_begin, row_end;     /* of each of them */
  int64_t key_begin, key_end;     /* absolute positions that some row sees: by skv__task_evaluate */
  bool thin;                      /* keys and values are used where they lie: by skv__task_begin */
} skv__task_t;

/* One thread's memory. */
typedef struct skv__desk {
  const skv__tile_t *tile;
  skv__progress_t *progress;
  bool polls;        /* this is the calling thread */
  int64_t work;      /* multiply-adds since the last poll */
  int64_t most_rows; /* that a task may have, all heads together */
  int64_t slots;
  float *keys, *values, *scores, *q;
  int64_t *first, *end;
  float *o, *e, *l; /* of the leaf under way */
  float *states;    /* [slots] of most_rows rows */
} skv__desk_t;

static inline int64_t skv__padded_values(const skv__job_t *job) {
  return (job->value_head_dim + SKV__PANEL - 1) / SKV__PANEL * SKV__PANEL;
}
static inline int64_t skv__task_rows(const skv__task_t *task) {
  return (task->head_end - task->head_begin) * (task->row_end - task->row_begin);
}
/* Slot `slot` of the desk: states of most_rows rows. */
skv__states_t skv__desk_states(const skv__desk_t *desk, const skv__job_t *job, int64_t slot);

/* Lays a desk out in `bytes` at `memory` for nodes of at most `node_blocks` blocks: as many rows as
 * fit, at most what is useful. */
void skv__desk_layout(skv__desk_t *desk, const skv__job_t *job, int64_t node_blocks, char *memory,
                      size_t bytes);

/* Chooses how tiles are worked on; q is loaded. */
void skv__task_begin(skv__task_t *task, const skv__desk_t *desk);

/* Keys [begin, end) of the tile at `tile` (absolute) into the accumulators of all the task's rows.
 */
void skv__task_attend(const skv__task_t *task, skv__desk_t *desk, int64_t tile, int64_t begin,
                      int64_t end);

/* Evaluates the task into slot 0 of the desk. False: no row sees a key there. */
bool skv__task_evaluate(skv__task_t *task, skv__desk_t *desk);

#endif
