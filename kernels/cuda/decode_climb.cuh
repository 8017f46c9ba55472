/* decode_climb.cuh: from leaves to the root in the decode kernel. A value warp has a slice of O's
 * columns for all rows of an item, and climbs alone: it needs no other warp of its CTA.
 *
 * A piece, one node of the canonical tree, is folded by one warp; states that wait are in shared
 * memory, or, where that is full, in the piece's slots. Pieces are merged sixteen at a time: each
 * is published, and whoever is last merges them as the tree says, and so on up. So who merges
 * depends on time; what is merged does not. */
#ifndef SKV_CUDA_DECODE_CLIMB_CUH
#define SKV_CUDA_DECODE_CLIMB_CUH

#include "kernels/cuda/decode_results.cuh"

/* ---- a piece ---- */

/* Where pending states of a piece wait: in place 0 that of the block at hand, if blocks have
 * several leaves; in the others nodes, by level. Nobody but the lane itself looks there. */
template <class Shape> SKV_DEVICE float4 *pending_place(const climber<Shape> &c, int32_t place) {
  return place < Shape::kHeld ? c.held + place * (Shape::kVectors * 32)
                              : slot_of(c, walk_piece(*c.walk), place);
}

/* A leaf of the piece has ended, with `state`; true when the piece has, with its state there. */
template <class Shape> SKV_DEVICE bool fold_piece(const climber<Shape> &c, image<Shape> *state) {
  const decode_walk_t &walk = *c.walk;
  if (walk.leaf_end - walk.leaf_begin == 1)
    return true;
  const int32_t leaves = c.p->block_leaves, block = walk.leaf / leaves, levels = leaves > 1;
  const bool last = walk.leaf + 1 == walk.leaf_end, ends = last || (walk.leaf + 1) % leaves == 0;
  /* Blocks counted from where the piece begins; before `from` the sequence sees none. */
  const int32_t before = walk_piece(walk) * (c.p->piece_leaves / leaves);
  const int32_t index = block - before, from = walk.leaf_begin / leaves - before;
  bool merges = walk.leaf > max(block * leaves, walk.leaf_begin);
  int32_t place = 0;
  for (int32_t level = 0;; ++level) { /* first in the block, then up the tree */
    if (merges)
      merge_left(image_at<Shape>(pending_place(c, place)), state);
    if (!ends || !(last ? index >> level != 0 : (index >> level & 1) != 0)) {
      if (ends)
        place = levels + level;
      break;
    }
    place = levels + level;
    merges = (index >> level & 1) != 0 && index >> level << level > from;
  }
  if (!last)
    put_image<Shape>(pending_place(c, place), *state);
  return last;
}

/* ---- climbing ---- */

/* Counts those that have published their state; true for the last of `all`. */
template <class Shape> SKV_DEVICE bool arrive(const climber<Shape> &c, int32_t piece, int32_t all) {
  const decode_item_t &item = c.walk->item;
  const int64_t unit = item.unit + piece - item.pieces.begin;
  uint32_t *counter =
      c.p->counters + (unit * Shape::kSlices + c.slice) * Shape::kRowTiles + c.row_tile;
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

/* Those that meet: children [begin, end), of `stride` pieces each. Groups of `each` children are
 * merged one after the other if they are blocks, else as a tree; and groups as a tree. */
typedef struct decode_meeting {
  int32_t begin, end, stride, each;
  bool blocks;
} decode_meeting_t;

/* Four children of a group, at most; `last`: the group has no more. */
typedef struct decode_four {
  int32_t first, end, group;
  bool last;
} decode_four_t;

SKV_DEVICE decode_four_t first_four(const decode_meeting_t &m) {
  const int32_t group = m.begin / m.each, first = group * m.each;
  return (decode_four_t){first, first + m.each, group, min(first + m.each, m.end) <= first + 4};
}
SKV_DEVICE void next_four(const decode_meeting_t &m, decode_four_t *four) {
  four->first = four->last ? four->end : four->first + 4;
  four->end += four->last ? m.each : 0, four->group += four->last;
  four->last = min(four->end, m.end) <= four->first + 4;
}

template <class Shape>
SKV_DEVICE image<Shape> get_child(const climber<Shape> &c, const decode_meeting_t &m,
                                  int32_t child) {
  return image_at<Shape, true>(slot_of(c, max(child * m.stride, c.walk->item.pieces.begin), 0));
}

/* Those that are not there are EMPTY. */
template <class Shape>
SKV_DEVICE void get_four(image<Shape> (&four)[4], const climber<Shape> &c,
                         const decode_meeting_t &m, const decode_four_t &at) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t child = at.first + i;
    four[i] = get_child(c, m, max(min(child, m.end - 1), m.begin));
    four[i] = either(child >= m.begin && child < min(at.end, m.end), four[i], empty_image<Shape>());
  }
}

/* Four children at a time, of four groups at most, the first at a multiple of their number; fours
 * on the way ahead. EMPTY changes no bit, so that anything may be missing. One piece of code for
 * leaves of blocks and for the tree: it runs once, from instructions that nobody has fetched. */
template <class Shape>
SKV_DEVICE image<Shape> merge_children(const climber<Shape> &c, const decode_meeting_t &m) {
  constexpr int kAhead = sizeof(image<Shape>) <= 40 ? 2 : 1; /* what registers allow */
  const image<Shape> empty = empty_image<Shape>();
  image<Shape> before = empty, one = empty, two = empty, state, ahead[kAhead][4];
  decode_four_t four = first_four(m), later = four;
#pragma unroll
  for (int i = 0; i < kAhead; ++i, next_four(m, &later))
    get_four(ahead[i], c, m, later);
#pragma unroll 1
  for (bool more = true; more; next_four(m, &four)) {
    image<Shape> at[4] = {ahead[0][0], ahead[0][1], ahead[0][2], ahead[0][3]};
    if (kAhead > 1)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        ahead[0][i] = ahead[kAhead - 1][i];
    if (later.first < m.end)
      get_four(ahead[kAhead - 1], c, m, later);
    next_four(m, &later);
    more = (four.last ? four.end : four.first + 4) < m.end;
    merge_left(before, &at[0]);
    merge_left(at[0], &at[1]);
    image<Shape> left = either(m.blocks, at[1], at[2]);
    image<Shape> right = either(m.blocks, at[2], at[3]);
    merge_left(left, &right);
    left = either(m.blocks, right, at[1]), state = either(m.blocks, at[3], right);
    merge_left(left, &state);
    before = either(four.last, empty, state);
    if (!four.last)
      continue;
    if (four.group & 1)
      merge_left(one, &state);
    if ((four.group & 2) && ((four.group & 1) || !more))
      merge_left(two, &state);
    if (four.group & 1)
      two = state;
    else
      one = state;
  }
  return state;
}

/* The same of large images, one after the other: a block, or two nodes. */
template <class Shape>
SKV_DEVICE image<Shape> merge_large(const climber<Shape> &c, const decode_meeting_t &m) {
  image<Shape> left = get_child(c, m, m.begin);
#pragma unroll 1
  for (int32_t child = m.begin + 1; child < m.end; ++child) {
    image<Shape> right = get_child(c, m, child);
    merge_left(left, &right);
    left = right;
  }
  return left;
}

/* Where a unit's piece is in the tree: worked out while there is nothing to wait for. */
typedef struct decode_way {
  bool leaves;  /* pieces are leaves, of more than two a block */
  int32_t each; /* pieces of a block */
  uint32_t piece;
  uint32_t block, first, last; /* of the piece; of the item */
  uint32_t level;              /* 2^level blocks meet first */
  decode_meeting_t blocks;
} decode_way_t;

template <class Shape>
SKV_DEVICE decode_way_t way_of(const decode_params_t &p, const decode_walk_t &walk) {
  const decode_keys_t pieces = walk.item.pieces;
  decode_way_t way;
  /* A pair of leaves is what two children of a tree are. */
  way.leaves = p.piece_leaves == 1 && p.block_leaves > 2;
  const uint32_t each = way.leaves ? (uint32_t)p.block_leaves : 1;
  way.piece = (uint32_t)walk_piece(walk);
  way.block = way.piece / each;
  way.first = (uint32_t)pieces.begin / each, way.last = (uint32_t)(pieces.end - 1) / each;
  way.level = way.leaves && Shape::kRadix == 16 ? (each <= 4 ? 2 : each <= 8) : 0;
  const uint32_t from = way.block >> way.level << way.level, to = from + (1u << way.level);
  way.each = (int32_t)each;
  way.blocks = (decode_meeting_t){max((int32_t)(from * each), pieces.begin),
                                  min((int32_t)(to * each), pieces.end), 1, (int32_t)each, true};
  return way;
}

/* A leaf has ended, with `state`. */
template <class Shape>
SKV_DEVICE void climb(const climber<Shape> &c, const decode_way_t &way, image<Shape> *state) {
  constexpr uint32_t kRadix = Shape::kRadix, kStep = kRadix == 16 ? 4 : 1;
  if (!fold_piece(c, state))
    return;
  uint32_t level = way.level, child = way.piece;
  decode_meeting_t m = way.blocks;
  for (bool blocks = way.leaves; blocks || way.first >> level < way.last >> level; blocks = false) {
    if (!blocks) {
      child = way.block >> level;
      m.begin = (int32_t)max(child & ~(kRadix - 1), way.first >> level);
      m.end = (int32_t)min(child | (kRadix - 1), way.last >> level) + 1;
      m.stride = way.each << level, m.each = 4, m.blocks = false;
      level += kStep;
    }
    if (m.end - m.begin == 1)
      continue;
    const int32_t piece = max((int32_t)child * m.stride, c.walk->item.pieces.begin);
    put_image<Shape>(slot_of(c, piece, 0), *state);
    if (!arrive(c, (m.begin + 1) * m.stride, m.end - m.begin))
      return;
    if constexpr (kRadix == 16)
      *state = merge_children<Shape>(c, m);
    else
      *state = merge_large<Shape>(c, m);
  }
  finish(c, *state);
}

#endif
