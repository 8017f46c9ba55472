/* pending.c: see pending.h. The caller sizes the set: an insert that merges nothing needs one free
 * entry. */
#include "pending.h"

#include <string.h>

/* Entries that begin before `begin`. */
static int32_t entries_before(const skv__pending_t *pending, int64_t begin) {
  int32_t low = 0, high = pending->count;
  while (low < high) {
    int32_t middle = low + (high - low) / 2;
    if (pending->held[middle].node.begin < begin)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static bool same_node(skv__node_t a, skv__node_t b) {
  return a.begin == b.begin && a.end == b.end;
}

/* Merge two entries, `left` at the lower positions; the result keeps the left slot. */
static skv__held_t merged(skv__held_t left, skv__held_t right, skv__merge_t merge, void *user) {
  if (merge)
    merge(user, left, right);
  if (right.node.end > left.node.end)
    left.node.end = right.node.end;
  return left;
}

/* Whatever is there, with whatever came: nodes may interleave, so the hull is all that is known. */
static void insert_free(skv__pending_t *pending, skv__held_t entry, skv__merge_t merge,
                        void *user) {
  if (pending->count == 0)
    pending->held[0] = entry;
  else if (entry.node.begin < pending->held[0].node.begin)
    pending->held[0] = merged(entry, pending->held[0], merge, user);
  else
    pending->held[0] = merged(pending->held[0], entry, merge, user);
  pending->count = 1;
}

void skv__pending_insert(skv__pending_t *pending, skv__node_t node, int32_t slot,
                         skv__merge_t merge, void *user) {
  skv__held_t entry = {node, slot}, *held = pending->held;
  if (pending->free_order) {
    insert_free(pending, entry, merge, user);
    return;
  }
  /* [low, high) are the neighbours that the entry has absorbed on its way up */
  int32_t low = entries_before(pending, node.begin), high = low;
  skv__node_t sibling;
  while (skv__order_sibling(pending->blocks, entry.node, &sibling)) {
    if (low > 0 && same_node(held[low - 1].node, sibling))
      entry = merged(held[--low], entry, merge, user);
    else if (high < pending->count && same_node(held[high].node, sibling))
      entry = merged(entry, held[high++], merge, user);
    else
      break;
  }
  memmove(held + low + 1, held + high, (size_t)(pending->count - high) * sizeof *held);
  held[low] = entry;
  pending->count += low + 1 - high;
}

bool skv__pending_complete(const skv__pending_t *pending) {
  if (pending->blocks == 0)
    return true;
  return pending->count == 1 && same_node(pending->held[0].node, (skv__node_t){0, pending->blocks});
}
