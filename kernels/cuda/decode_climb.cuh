/* decode_climb.cuh: from leaves to the root in the decode kernel. A value warp has a slice of O's
 * columns for all rows of an item, and climbs alone: it needs no other warp of its CTA.
 *
 * A piece, one node of the canonical tree, is folded by one warp; states that wait are in the
 * piece's slots. Pieces are merged sixteen at a time: each is published, and whoever is last merges
 * them as the tree says, and so on up. So who merges depends on time; what is merged does not. */
#ifndef SKV_CUDA_DECODE_CLIMB_CUH
#define SKV_CUDA_DECODE_CLIMB_CUH

#include "kernels/cuda/decode_results.cuh"

/* ---- a piece ---- */

/* A leaf of the piece has ended, with `state`; true when the piece has, with its state there. Of
 * its slots the first is for the block at hand, if blocks have several leaves; the others are for
 * pending nodes by level. */
template <class Shape> SKV_DEVICE bool fold_piece(const climber<Shape> &c, node<Shape> *state) {
  const decode_walk_t &walk = *c.walk;
  const int32_t leaves = c.p->block_leaves, block = walk.leaf / leaves;
  if (walk.leaf_end - walk.leaf_begin == 1)
    return true;
  const int32_t piece = walk_piece(walk), levels = leaves > 1;
  const bool last = walk.leaf + 1 == walk.leaf_end;
  if (walk.leaf > max(block * leaves, walk.leaf_begin))
    merge_slot(slot_of(c, piece, 0), state);
  if (!last && (walk.leaf + 1) % leaves != 0) {
    put_node(slot_of(c, piece, 0), *state);
    return false;
  }
  /* Blocks counted from where the piece begins; before `from` the sequence sees none. */
  const int32_t before = walk_piece(walk) * (c.p->piece_leaves / leaves);
  const int32_t index = block - before, from = walk.leaf_begin / leaves - before;
  int32_t level = 0;
  for (; last ? index >> level != 0 : (index >> level & 1) != 0; ++level)
    if ((index >> level & 1) != 0 && index >> level << level > from)
      merge_slot(slot_of(c, piece, levels + level), state);
  if (!last)
    put_node(slot_of(c, piece, levels + level), *state);
  return last;
}

/* ---- climbing ---- */

/* Counts those that have published their state; true for the last of `all`. */
template <class Shape> SKV_DEVICE bool arrive(const climber<Shape> &c, int32_t piece, int32_t all) {
  const decode_item_t &item = c.walk->item;
  uint32_t *counter =
      c.p->counters + (int64_t)(item.unit + piece - item.pieces.begin) * Shape::kSlices + c.slice;
  uint32_t before = 0;
  __syncwarp();
  if (lane_index() == 0)
    before = count_arrival(counter);
  before = __shfl_sync(0xffffffff, before, 0);
  if ((int32_t)before + 1 < all)
    return false;
  if (lane_index() == 0)
    *counter = 0; /* for the next launch */
  __syncwarp();
  return true;
}

/* The children [begin, end) of a node that has room for `kRadix` of them, each `stride` pieces. */
typedef struct decode_children {
  int64_t stride;
  int32_t begin, end;
} decode_children_t;

template <class Shape>
SKV_DEVICE const float4 *child_slot(const climber<Shape> &c, const decode_children_t &node,
                                    int32_t child, int r) {
  int32_t piece = max((int32_t)(child * node.stride), c.walk->item.pieces.begin);
  return slot_of(c, piece, 0) + 32 * Shape::kVectors * r;
}

/* Four children from `first` on. Those that are not there are EMPTY: their e says so, and nobody
 * looks at the rest, which is another child's. */
template <class Shape>
SKV_DEVICE void get_four(image<Shape> (&four)[4], const climber<Shape> &c,
                         const decode_children_t &node, int32_t first, int r) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t child = first + i;
    four[i] = get_image<Shape>(child_slot(c, node, max(min(child, node.end - 1), node.begin), r));
#pragma unroll
    for (int h = 0; h < Shape::kRows; ++h)
      if (child < node.begin || child >= node.end)
        four[i].e[h] = skv__empty_exponent();
  }
}

/* Up to sixteen children, as the tree has them: pairs, pairs of pairs and so on. EMPTY changes no
 * bit, so that the tree may end anywhere. The next four are loaded while four are merged. */
template <class Shape>
SKV_DEVICE image<Shape> merge_sixteen(const climber<Shape> &c, const decode_children_t &node,
                                      int r) {
  const int32_t first = node.begin / 16 * 16;
  image<Shape> left = empty_image<Shape>(), state = left, eight = left, next[4];
  get_four(next, c, node, first, r);
  int32_t i = 0;
#pragma unroll 1
  do {
    image<Shape> four[4] = {next[0], next[1], next[2], next[3]};
    if (first + i + 4 < node.end)
      get_four(next, c, node, first + i + 4, r);
    if (i == 8)
      eight = state;
    left = state;
    merge_left(four[0], &four[1]);
    merge_left(four[2], &four[3]);
    merge_left(four[1], &four[3]);
    state = four[3];
    if (i % 8 != 0)
      merge_left(left, &state);
    i += 4;
  } while (first + i < node.end);
  if (first + 8 < node.end)
    merge_left(eight, &state);
  return state;
}

/* Leaves of a block, or two nodes, one after the other. */
template <class Shape>
SKV_DEVICE image<Shape> merge_block(const climber<Shape> &c, const decode_children_t &node, int r) {
  image<Shape> left = get_image<Shape>(child_slot(c, node, node.begin, r));
#pragma unroll 1
  for (int32_t child = node.begin + 1; child < node.end; ++child) {
    image<Shape> right = get_image<Shape>(child_slot(c, node, child, r));
    merge_left(left, &right);
    left = right;
  }
  return left;
}

/* A leaf has ended, with `state`. */
template <class Shape>
SKV_DEVICE void climb(const decode_params_t &p, const decode_walk_t &walk, int32_t slice,
                      node<Shape> *state) {
  constexpr int kRadix = image<Shape>::kRadix;
  const climber<Shape> c = {&p, slice, &walk};
  if (!fold_piece(c, state))
    return;
  const decode_keys_t pieces = walk.item.pieces;
  int32_t piece = walk_piece(walk);
  /* A pair of leaves is what two children of a tree are. */
  bool block = p.piece_leaves == 1 && p.block_leaves > 2, more = pieces.end - pieces.begin > 1;
  for (decode_children_t node = {1, 0, 0}; more;) {
    const int64_t radix = block ? p.block_leaves : kRadix, stride = node.stride * radix;
    const int64_t from = piece / stride * stride, to = from + stride;
    const int32_t first = max((int32_t)from, pieces.begin);
    const int32_t end = to < pieces.end ? (int32_t)to : pieces.end;
    node.begin = (int32_t)(first / node.stride), node.end = (int32_t)((end - 1) / node.stride) + 1;
    if (node.end - node.begin > 1) {
      put_node(slot_of(c, max((int32_t)(piece / node.stride * node.stride), pieces.begin), 0),
               *state);
      if (!arrive(c, (int32_t)((node.begin + 1) * node.stride), node.end - node.begin))
        return;
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r)
        state->tiles[r] = block || kRadix == 2 ? merge_block<Shape>(c, node, r)
                                               : merge_sixteen<Shape>(c, node, r);
    }
    block = false;
    node.stride = stride;
    more = pieces.begin / stride < (pieces.end - 1) / stride;
  }
  finish(c, *state);
}

#endif
