/* rehearsal.h: plays all hops of all slices with integers alone, before anything moves, and keeps
 * what one rank does: its moves with the nodes that each carries, and how many states it holds at
 * most. */
#ifndef SKV_REHEARSAL_H
#define SKV_REHEARSAL_H

#include "error.h"
#include "schedule.h"

/* This rank's side of a hop. Moves are sorted by round, then slice. */
typedef struct skv__move {
  int32_t round, slice, peer;
  bool sends, copies;
  int32_t first_node, node_count; /* in rehearsal.nodes */
} skv__move_t;

typedef struct skv__rehearsal {
  skv__move_t *moves;
  int32_t move_count, move_capacity;
  skv__node_t *nodes;
  int32_t node_count, node_capacity;
  int32_t rounds;
  int32_t peak_slots;    /* states held by this rank at once, all slices together */
  int32_t peak_messages; /* node-states that this rank sends and receives in one round */
  int32_t peak_nodes;    /* most nodes of one pending set of this rank */
  int64_t sent_states;   /* node-states that this rank sends in a pass */
} skv__rehearsal_t;

typedef struct skv__cast {
  int64_t blocks;
  int32_t ranks, rank;
  bool free_order;
  skv__node_t *const *start; /* [ranks] the nodes that each rank evaluates, ascending */
  const int32_t *start_count;
  bool roots; /* instead: each slice starts as its root, at its owner (pass-KV results) */
} skv__cast_t;

/* The hops of slice `owner`, sorted by round, into `hops`; returns how many. */
typedef int32_t (*skv__hop_source_t)(void *user, int32_t owner, skv__hop_t *hops);

/* Allocates; free with skv__rehearsal_free, also after a failure. `hop_bound` is the most hops of a
 * slice. */
skv_status_t skv__rehearse(skv__rehearsal_t *rehearsal, const skv__cast_t *cast,
                           skv__hop_source_t source, void *user, int32_t hop_bound,
                           skv__error_t *error);
void skv__rehearsal_free(skv__rehearsal_t *rehearsal);

#endif
