/* order.c: the canonical tree. An interval is a node exactly when it begins at a multiple of the
 * power of two that covers its length, and either fills that power of two or ends where the tree
 * ends. Everything below follows from that. */
#include "order.h"

/* The largest power of two below `count`, which is at least 2. */
static int64_t power_below(int64_t count) {
  return (int64_t)1 << (63 - __builtin_clzll((uint64_t)(count - 1)));
}

/* The smallest power of two that is not below `count`, which is at least 1. */
static int64_t power_covering(int64_t count) {
  return count == 1 ? 1 : 2 * power_below(count);
}

/* The largest power of two that divides `value`, which is not 0. */
static int64_t power_dividing(int64_t value) {
  return value & -value;
}

int64_t skv__order_split(skv__node_t node) {
  return node.begin + power_below(node.end - node.begin);
}

bool skv__order_is_node(int64_t blocks, skv__node_t node) {
  if (node.begin < 0 || node.begin >= node.end || node.end > blocks)
    return false;
  int64_t count = node.end - node.begin, cover = power_covering(count);
  return node.begin % cover == 0 && (count == cover || node.end == blocks);
}

bool skv__order_sibling(int64_t blocks, skv__node_t node, skv__node_t *sibling) {
  if (!skv__order_is_node(blocks, node) || node.end - node.begin == blocks)
    return false;
  int64_t count = node.end - node.begin;
  if (node.end < blocks && (node.begin & count) == 0) { /* a left child is always full */
    int64_t room = blocks - node.end;
    *sibling = (skv__node_t){node.end, node.end + (count < room ? count : room)};
  } else {
    *sibling = (skv__node_t){node.begin - power_dividing(node.begin), node.begin};
  }
  return true;
}

/* The largest node that begins at `begin` and ends by `end`. */
static skv__node_t largest_node(int64_t blocks, int64_t begin, int64_t end) {
  skv__node_t tail = {begin, end};
  if (skv__order_is_node(blocks, tail))
    return tail;
  int64_t count = power_below(end - begin);
  if (begin != 0 && power_dividing(begin) < count)
    count = power_dividing(begin);
  return (skv__node_t){begin, begin + count};
}

int32_t skv__order_frontier(int64_t blocks, int64_t begin, int64_t end, skv__node_t *nodes) {
  int32_t count = 0;
  if (end > blocks)
    end = blocks;
  while (begin < end) {
    nodes[count] = largest_node(blocks, begin, end);
    begin = nodes[count++].end;
  }
  return count;
}

skv__node_t skv__order_clip(skv__node_t node, int64_t blocks) {
  if (node.begin > blocks)
    node.begin = blocks;
  if (node.end > blocks)
    node.end = blocks;
  return node;
}
