/* pending.h: a sorted set of disjoint nodes whose states are at hand. Inserting a node merges it
 * with its sibling while the sibling is there. Integers only: a state is a slot number, and the
 * caller's function merges slots.
 */
#ifndef SKV_PENDING_H
#define SKV_PENDING_H

#include "order.h"

typedef struct skv__held {
  skv__node_t node;
  int32_t slot;
} skv__held_t;

typedef struct skv__pending {
  int64_t blocks;  /* of the tree (those in use: the clipped tree) */
  bool free_order; /* merge whatever comes with whatever is there */
  int32_t count, capacity;
  skv__held_t *held; /* [capacity], borrowed, ascending */
} skv__pending_t;

/* Merge `right` (higher positions) into `left`; afterwards the slot of `right` is free. split =
 * right.begin. */
typedef void (*skv__merge_t)(void *user, skv__held_t left, skv__held_t right);

/* Insert node with its state in slot. `merge` may be NULL when only the integers matter. In free
 * order the set holds at most one entry, and its interval is the hull. */
void skv__pending_insert(skv__pending_t *pending, skv__node_t node, int32_t slot,
                         skv__merge_t merge, void *user);
/* Whether the whole tree has been evaluated. */
bool skv__pending_complete(const skv__pending_t *pending);

#endif
