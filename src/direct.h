/* direct.h: the reduction of a pass by one kernel on every rank, where ranks can load each other's
 * memory: which states it reads, where they lie, and in which order they are merged. */
#ifndef SKV_SRC_DIRECT_H
#define SKV_SRC_DIRECT_H

#include "bank.h"
#include "kernels/peers.h"

typedef struct skv__direct_node {
  skv__node_t node;
  int32_t rank, index; /* the index-th node of that rank's work */
} skv__direct_node_t;

typedef struct skv__direct_path {
  const skv__peers_t *calls; /* NULL: states are sent and received */
  bool optional;             /* messages will do where a window cannot be had */
  skv__window_t *window;     /* holds the banks, at the same place on every rank */
  int32_t rank, ranks;
  skv_results_t results;
  int64_t blocks; /* of the tree */
  int32_t node_count;
  skv__direct_node_t nodes[SKV__REDUCE_NODES]; /* of all ranks, ascending */
} skv__direct_path_t;

/* The work of all ranks. False when it is more than one kernel takes: the path is not to be used.
 */
bool skv__direct_cast(skv__direct_path_t *path, skv__node_t *const *work, const int32_t *counts);
/* Whether this pass can go directly: the same answer on all ranks. */
bool skv__direct_takes(const skv__direct_path_t *path, const skv__bank_t *bank,
                       const skv__finish_t *finish);
/* Reduce what the banks of all ranks hold since they were evaluated, and finish the rows that this
 * rank is to have. Empties the bank's sets. Enqueues on the bank's stream. */
skv_status_t skv__direct_reduce(const skv__direct_path_t *path, skv__bank_t *bank,
                                const skv__finish_t *finish, skv__error_t *error);

#endif
