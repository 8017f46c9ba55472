/* The canonical tree against a tree built by recursion from its definition. */
#include <string.h>

#include "check.h"
#include "order.h"

#define MOST 200

/* Every node of the tree over `blocks`, with its split (0: one block) and its parent. */
typedef struct table {
  bool node[MOST + 1][MOST + 1];
  int64_t split[MOST + 1][MOST + 1];
  skv__node_t parent[MOST + 1][MOST + 1];
} table_t;

static void build(table_t *table, skv__node_t node, skv__node_t parent) {
  table->node[node.begin][node.end] = true;
  table->parent[node.begin][node.end] = parent;
  table->split[node.begin][node.end] = 0;
  if (node.end - node.begin == 1)
    return;
  int64_t left = 1;
  while (2 * left < node.end - node.begin)
    left *= 2;
  int64_t split = node.begin + left;
  table->split[node.begin][node.end] = split;
  build(table, (skv__node_t){node.begin, split}, node);
  build(table, (skv__node_t){split, node.end}, node);
}

static table_t *table_of(int64_t blocks) {
  static table_t table;
  memset(&table, 0, sizeof table);
  if (blocks > 0)
    build(&table, (skv__node_t){0, blocks}, (skv__node_t){0, 0});
  return &table;
}

static void check_sibling(const table_t *table, int64_t blocks, skv__node_t node) {
  skv__node_t sibling = {-1, -1}, parent = table->parent[node.begin][node.end];
  bool found = skv__order_sibling(blocks, node, &sibling);
  bool inner = table->node[node.begin][node.end] && node.end - node.begin < blocks;
  CHECK(found == inner, "blocks %ld node [%ld, %ld)", blocks, node.begin, node.end);
  if (!inner)
    return;
  int64_t split = table->split[parent.begin][parent.end];
  bool left = node.begin == parent.begin;
  CHECK(sibling.begin == (left ? split : parent.begin));
  CHECK(sibling.end == (left ? parent.end : split));
}

Test(order, nodes_splits_and_siblings_follow_the_definition) {
  for (int64_t blocks = 0; blocks <= MOST; ++blocks) {
    const table_t *table = table_of(blocks);
    for (int64_t begin = 0; begin <= blocks; ++begin)
      for (int64_t end = begin; end <= blocks; ++end) {
        skv__node_t node = {begin, end};
        CHECK(skv__order_is_node(blocks, node) == table->node[begin][end],
              "blocks %ld node [%ld, %ld)", blocks, begin, end);
        if (table->node[begin][end] && end - begin > 1)
          CHECK(skv__order_split(node) == table->split[begin][end]);
        check_sibling(table, blocks, node);
      }
  }
}

Test(order, what_lies_outside_the_tree_is_no_node) {
  skv__node_t sibling;
  CHECK(!skv__order_is_node(4, (skv__node_t){4, 5}));
  CHECK(!skv__order_is_node(4, (skv__node_t){0, 8}));
  CHECK(!skv__order_is_node(4, (skv__node_t){-2, 0}));
  CHECK(!skv__order_is_node(0, (skv__node_t){0, 0}));
  CHECK(!skv__order_sibling(5, (skv__node_t){0, 5}, &sibling));
  CHECK(!skv__order_sibling(5, (skv__node_t){1, 3}, &sibling));
}

/* Maximal nodes by definition: inside the interval, with a parent that is not. */
static int32_t maximal_nodes(const table_t *table, int64_t begin, int64_t end, skv__node_t *nodes) {
  int32_t count = 0;
  for (int64_t from = begin; from < end; ++from)
    for (int64_t to = from + 1; to <= end; ++to) {
      skv__node_t parent = table->parent[from][to];
      if (table->node[from][to] && (parent.end == 0 || parent.begin < begin || parent.end > end))
        nodes[count++] = (skv__node_t){from, to};
    }
  return count;
}

Test(order, frontier_is_the_maximal_nodes) {
  static skv__node_t expected[MOST], nodes[SKV__FRONTIER_MAX];
  for (int64_t blocks = 0; blocks <= 70; ++blocks) {
    const table_t *table = table_of(blocks);
    for (int64_t begin = 0; begin <= blocks; ++begin)
      for (int64_t end = begin; end <= blocks; ++end) {
        int32_t count = maximal_nodes(table, begin, end, expected);
        CHECK(skv__order_frontier(blocks, begin, end, nodes) == count);
        CHECK(memcmp(nodes, expected, (size_t)count * sizeof *nodes) == 0,
              "blocks %ld interval [%ld, %ld)", blocks, begin, end);
      }
  }
}

static uint64_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 11;
}

/* Whole coverage and at most 2 log2 n nodes, up to trees far larger than memory. */
Test(order, frontier_covers_and_stays_short) {
  skv__node_t nodes[SKV__FRONTIER_MAX];
  uint64_t state = 1;
  for (int trial = 0; trial < 200000; ++trial) {
    int64_t log2_blocks = 1 + (int64_t)(next_random(&state) % 57);
    int64_t base = (int64_t)1 << log2_blocks;
    int64_t blocks = base + (int64_t)(next_random(&state) % (uint64_t)base);
    int64_t begin = (int64_t)(next_random(&state) % (uint64_t)blocks);
    int64_t end = begin + 1 + (int64_t)(next_random(&state) % (uint64_t)(blocks - begin));
    int32_t count = skv__order_frontier(blocks, begin, end, nodes);
    CHECK(count <= 2 * log2_blocks);
    for (int32_t index = 0; index < count; ++index) {
      CHECK(nodes[index].begin == (index == 0 ? begin : nodes[index - 1].end));
      CHECK(skv__order_is_node(blocks, nodes[index]));
    }
    CHECK(nodes[count - 1].end == end);
  }
}

/* Clipping the tree over n to m blocks gives the tree over m: each node becomes a node or nothing,
 * a node that keeps both children keeps its split, and no node of the smaller tree is missing. */
Test(order, clipping_gives_the_smaller_tree) {
  static table_t whole;
  static bool reached[MOST + 1][MOST + 1];
  for (int64_t blocks = 1; blocks <= MOST; ++blocks) {
    whole = *table_of(blocks);
    for (int64_t prefix = 0; prefix <= blocks; prefix += blocks <= 100 || prefix % 7 == 0 ? 1 : 2) {
      memset(reached, 0, sizeof reached);
      for (int64_t begin = 0; begin < blocks; ++begin)
        for (int64_t end = begin + 1; end <= blocks; ++end) {
          if (!whole.node[begin][end])
            continue;
          skv__node_t clipped = skv__order_clip((skv__node_t){begin, end}, prefix);
          if (begin >= prefix) {
            CHECK(clipped.begin == clipped.end);
            continue;
          }
          CHECK(clipped.begin == begin);
          CHECK(clipped.end == (end < prefix ? end : prefix));
          CHECK(skv__order_is_node(prefix, clipped));
          if (whole.split[begin][end] != 0 && whole.split[begin][end] < prefix)
            CHECK(skv__order_split(clipped) == whole.split[begin][end]);
          reached[begin][clipped.end] = true;
        }
      const table_t *small = table_of(prefix);
      CHECK(memcmp(reached, small->node, sizeof reached) == 0, "%ld of %ld blocks", prefix, blocks);
    }
  }
}
