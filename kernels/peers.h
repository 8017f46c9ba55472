/* peers.h: what a device offers where ranks can load each other's memory: windows, and a reduction
 * that reads the states of all ranks where they lie. Knows states, no plan. */
#ifndef SKV_PEERS_H
#define SKV_PEERS_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"
#include "kernels/job.h"

struct skv__finish;

enum {
  SKV__WINDOW_RANKS = 8,  /* most of one window */
  SKV__REDUCE_NODES = 32, /* most of one reduction, over all ranks */
};

/* Memory of which every rank has a piece of the same size, and can load the others'.
 * NCCL 2.28 waits for ever for a message that is in a window on one side and not on the other: what
 * else travels must lie in windows on both sides, or on neither. */
typedef struct skv__window {
  int32_t rank, ranks;
  int64_t bytes;
  unsigned char *memory[SKV__WINDOW_RANKS]; /* each rank's `bytes`, as this device reaches them */
  volatile uint32_t *stop;  /* memory of the host: once it is not 0, kernels that wait for other
                               ranks end, and what they were to write is undefined */
  struct skv__window *next; /* of the context's */
} skv__window_t;

/* state[left] = merge(state[left], state[right]) */
typedef struct skv__fold {
  uint8_t left, right;
} skv__fold_t;

/* A slice that this rank reduces. */
typedef struct skv__reduce_part {
  int32_t owner;
  int64_t rows;
  const float *states[SKV__REDUCE_NODES]; /* of each node, as this device reaches it */
  float *out;                             /* the root's state; NULL: its rows are finished */
  bool writes, counts;                    /* when finishing: O and LSE, bits */
} skv__reduce_part_t;

typedef struct skv__reduce {
  int64_t value_head_dim;
  int32_t nodes;                            /* 1 to SKV__REDUCE_NODES */
  skv__fold_t folds[SKV__REDUCE_NODES - 1]; /* nodes - 1 of them; the root ends in state 0 */
  int32_t parts;
  skv__reduce_part_t part[SKV__WINDOW_RANKS];
  int64_t most_rows; /* that any rank reduces, over its parts: the same number on all ranks */
  bool leaves_early; /* the ranks do not wait for each other at the end: the caller knows, from a
                        later meeting, when states may be overwritten */
} skv__reduce_t;

typedef struct skv__peers {
  /* `native` is the wire's communicator. Whether all its ranks can load each other's memory; if
   * not, `error` says why. The same on all ranks. */
  bool (*available)(void *native, skv__error_t *error);
  /* This rank's memory, the same `bytes` on every rank. */
  skv_status_t (*reserve)(skv__window_t **window, void *native, int64_t bytes, skv__error_t *error);
  /* Collective, once every rank has reserved: makes the memories known to each other. Waits for the
   * other ranks at most `timeout_seconds`. */
  skv_status_t (*open)(skv__window_t *window, double timeout_seconds, skv__error_t *error);
  /* On every rank, opened or not, once nothing uses it. Where `stop` is set the communicator is
   * gone, and so may be other ranks: memory that they had is left alone. */
  void (*close)(skv__window_t *window);
  /* Whether rows can be finished as they are merged: the job has few enough runs and sinks. */
  bool (*finishes)(const skv__job_t *job, const struct skv__finish *finish);
  /* Collective: every rank launches one, with the same nodes and most_rows. States may have been
   * written by whatever came before on each rank's stream. `job` and `finish` are those of the rows
   * to be finished, or NULL. Enqueues; a CUDA graph may capture it. */
  skv_status_t (*reduce)(const skv__window_t *window, const skv__reduce_t *reduce,
                         const skv__job_t *job, const struct skv__finish *finish, void *stream);
} skv__peers_t;

#endif
