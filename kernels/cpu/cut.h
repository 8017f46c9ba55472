/* cut.h: how a job is cut into tasks. Cuts decide who works on what, never a bit. */
#ifndef SKV_CPU_CUT_H
#define SKV_CPU_CUT_H

#include "kernels/cpu/task.h"

typedef struct skv__cut {
  const skv__job_t *job;
  int64_t heads;       /* KV heads of a task */
  int64_t rows;        /* rows of each of them, at most */
  int64_t part_blocks; /* a power of two: nodes are cut into parts of so many blocks; 0: whole */
  int64_t key_begin, key_end; /* what any row may see */
  int64_t units;              /* parts of all nodes, or nodes */
  int64_t total_rows;         /* of the job, over its heads */
} skv__cut_t;

/* Parts [begin, end) of a node, counted from the node's begin, that some row may see. */
typedef struct skv__parts {
  int64_t begin, end;
} skv__parts_t;

/* `part_bytes`: memory for states of parts; `most_rows`: what a task may have. */
void skv__cut_choose(skv__cut_t *cut, const skv__job_t *job, int32_t threads, int64_t most_rows,
                     size_t part_bytes);
skv__parts_t skv__cut_parts(const skv__cut_t *cut, const skv__job_node_t *node);
int64_t skv__cut_run_tasks(const skv__cut_t *cut, const skv__run_t *run);
/* Task `index` of a run, and which unit it is. */
skv__task_t skv__cut_task(const skv__cut_t *cut, const skv__run_t *run, int64_t index,
                          int64_t *unit);
/* States of unit `unit` in the memory for parts: total_rows rows. */
skv__states_t skv__cut_states(const skv__cut_t *cut, float *parts, int64_t unit);

#endif
