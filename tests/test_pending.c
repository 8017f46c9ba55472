/* Pending sets: whatever the order of arrival, the merges are those of the tree. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "pending.h"

#define MOST 4096

/* What merge saw: one mark per split position, since a tree has one inner node for each. */
typedef struct record {
  int64_t blocks;
  int merges;
  bool merged_at[MOST];
  bool slot_free[MOST];
} record_t;

static void record_merge(void *user, skv__held_t left, skv__held_t right) {
  record_t *record = user;
  skv__node_t parent = {left.node.begin, right.node.end};
  CHECK(left.node.end == right.node.begin);
  CHECK(skv__order_is_node(record->blocks, parent));
  CHECK(skv__order_split(parent) == right.node.begin);
  CHECK(!record->merged_at[right.node.begin], "at %ld", right.node.begin);
  CHECK(!record->slot_free[left.slot] && !record->slot_free[right.slot]);
  record->merged_at[right.node.begin] = true;
  record->slot_free[right.slot] = true;
  ++record->merges;
}

static void check_sorted(const skv__pending_t *pending) {
  for (int32_t index = 1; index < pending->count; ++index)
    CHECK(pending->held[index - 1].node.end <= pending->held[index].node.begin);
}

/* Insert `nodes` in the order that `permutation` gives; slots are indices into nodes. */
static void insert_all(int64_t blocks, const skv__node_t *nodes, const int *permutation,
                       int count) {
  static skv__held_t held[MOST];
  static record_t record;
  memset(&record, 0, sizeof record);
  record.blocks = blocks;
  skv__pending_t pending = {blocks, false, 0, MOST, held};
  for (int index = 0; index < count; ++index) {
    CHECK(!skv__pending_complete(&pending));
    skv__pending_insert(&pending, nodes[permutation[index]], permutation[index], record_merge,
                        &record);
    CHECK(pending.count == index + 1 - record.merges);
    check_sorted(&pending);
  }
  CHECK(skv__pending_complete(&pending));
  CHECK(record.merges == count - 1);
  for (int index = 1; index < count; ++index)
    CHECK(record.merged_at[nodes[index].begin]);
  CHECK(held[0].slot == 0, "the state ends in the slot of the lowest node");
}

static void permute(int64_t blocks, const skv__node_t *nodes, int *permutation, int fixed,
                    int count) {
  if (fixed == count)
    insert_all(blocks, nodes, permutation, count);
  for (int index = fixed; index < count; ++index) {
    int first = permutation[fixed];
    permutation[fixed] = permutation[index];
    permutation[index] = first;
    permute(blocks, nodes, permutation, fixed + 1, count);
    permutation[index] = permutation[fixed];
    permutation[fixed] = first;
  }
}

Test(pending, every_order_of_arrival_gives_the_tree) {
  skv__node_t nodes[8];
  int permutation[8];
  for (int blocks = 1; blocks <= 8; ++blocks) {
    for (int block = 0; block < blocks; ++block) {
      nodes[block] = (skv__node_t){block, block + 1};
      permutation[block] = block;
    }
    permute(blocks, nodes, permutation, 0, blocks);
  }
}

static uint64_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

/* Cut [0, blocks) anywhere into intervals and insert their frontiers in a random order. */
Test(pending, frontiers_of_any_cut_give_the_tree) {
  static skv__node_t nodes[MOST];
  static int permutation[MOST];
  uint64_t state = 5;
  for (int trial = 0; trial < 3000; ++trial) {
    int64_t blocks = 1 + (int64_t)(next_random(&state) % 1000), begin = 0;
    uint64_t widest = 1 + next_random(&state) % 60;
    int count = 0;
    while (begin < blocks) {
      int64_t end = begin + 1 + (int64_t)(next_random(&state) % widest);
      end = end < blocks ? end : blocks;
      count += skv__order_frontier(blocks, begin, end, nodes + count);
      begin = end;
    }
    for (int index = 0; index < count; ++index) {
      int other = (int)(next_random(&state) % (uint64_t)(index + 1));
      permutation[index] = permutation[other];
      permutation[other] = index;
    }
    insert_all(blocks, nodes, permutation, count);
  }
}

Test(pending, a_full_set_takes_what_merges_at_once) {
  skv__held_t held[2];
  skv__pending_t pending = {8, false, 0, 2, held};
  skv__pending_insert(&pending, (skv__node_t){0, 4}, 0, NULL, NULL);
  skv__pending_insert(&pending, (skv__node_t){6, 8}, 1, NULL, NULL);
  skv__pending_insert(&pending, (skv__node_t){4, 6}, 2, NULL, NULL);
  cr_assert(skv__pending_complete(&pending));
  cr_assert_eq(held[0].slot, 0);
}

Test(pending, nodes_that_are_no_siblings_wait) {
  skv__held_t held[4];
  skv__pending_t pending = {8, false, 0, 4, held};
  skv__pending_insert(&pending, (skv__node_t){3, 4}, 3, NULL, NULL);
  skv__pending_insert(&pending, (skv__node_t){4, 5}, 4, NULL, NULL);
  skv__pending_insert(&pending, (skv__node_t){1, 2}, 1, NULL, NULL);
  cr_assert_eq(pending.count, 3);
  cr_assert(held[0].slot == 1 && held[1].slot == 3 && held[2].slot == 4);
  cr_assert_not(skv__pending_complete(&pending));
}

Test(pending, nothing_is_complete_without_blocks) {
  skv__pending_t pending = {0, false, 0, 0, NULL};
  cr_assert(skv__pending_complete(&pending));
}

static void count_merge(void *user, skv__held_t left, skv__held_t right) {
  cr_assert_lt(left.node.begin, right.node.begin);
  ++*(int *)user;
}

Test(pending, free_order_merges_at_once) {
  skv__held_t held[1];
  int merges = 0;
  skv__pending_t pending = {8, true, 0, 1, held};
  skv__pending_insert(&pending, (skv__node_t){5, 6}, 5, count_merge, &merges);
  cr_assert_eq(merges, 0);
  skv__pending_insert(&pending, (skv__node_t){0, 1}, 0, count_merge, &merges);
  skv__pending_insert(&pending, (skv__node_t){6, 8}, 6, count_merge, &merges);
  cr_assert_eq(merges, 2);
  cr_assert_eq(pending.count, 1);
  cr_assert(held[0].node.begin == 0 && held[0].node.end == 8 && held[0].slot == 0);
}
