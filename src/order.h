/* order.h: the canonical tree over blocks. Pure integers; see docs/numerics.md.
 *
 * The tree over n blocks splits at the largest power of two below n, recursively. A node is a
 * subtree, named by its interval of blocks. Clipping every node to the first m blocks gives exactly
 * the nodes of the tree over m (prefix-stable), which is why lengths may grow under one layout.
 */
#ifndef SKV_ORDER_H
#define SKV_ORDER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct skv__node {
  int64_t begin, end; /* blocks [begin, end) */
} skv__node_t;

/* Most nodes that a contiguous interval of blocks can decompose into. */
#define SKV__FRONTIER_MAX 128

/* Where a node of two or more blocks divides: children are [begin, split) and [split, end). */
int64_t skv__order_split(skv__node_t node);
bool skv__order_is_node(int64_t blocks, skv__node_t node);
/* The other child of the node's parent. The root and non-nodes have none: false. */
bool skv__order_sibling(int64_t blocks, skv__node_t node, skv__node_t *sibling);
/* The maximal nodes of the tree over `blocks` inside [begin, end), ascending. Returns how many (<=
 * 128). */
int32_t skv__order_frontier(int64_t blocks, int64_t begin, int64_t end, skv__node_t *nodes);
/* The node's part within the first `blocks` blocks; empty (begin == end) if it has none. */
skv__node_t skv__order_clip(skv__node_t node, int64_t blocks);

#endif
