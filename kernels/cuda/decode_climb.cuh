/* decode_climb.cuh: from leaves to the root in the decode kernel. A value warp has a slice of O's
 * columns for all rows of an item, and climbs alone: it needs no other warp of its CTA.
 *
 * States wait in scratch, in the slot of their first leaf. Leaves of a block are folded as they end
 * where the whole block is in the CTA's range; else the warp that ends the last of them folds them.
 * Of a node's two children the one that is done last merges them, and climbs on. So who merges
 * depends on time; what is merged does not. */
#ifndef SKV_CUDA_DECODE_CLIMB_CUH
#define SKV_CUDA_DECODE_CLIMB_CUH

#include "kernels/cuda/decode_items.cuh"

/* The state of an item's rows in a slice: in row tile r a lane has rows lane / 4 and 8 below. */
template <class Shape> struct part {
  rows_t rows[Shape::kRowTiles];
  float o[Shape::kRowTiles][Shape::kColumns / 2];
};

template <class Shape> SKV_DEVICE void empty_part(part<Shape> *state) {
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    state->rows[r] = rows_empty();
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 2; ++i)
      state->o[r][i] = 0.0f;
  }
}

template <class Shape> struct climber {
  const decode_params_t *p;
  int32_t slice;
  const decode_walk_t *walk;
  int32_t from, to; /* leaves of the item that the CTA's range has */
};

SKV_DEVICE int32_t block_from(const decode_params_t &p, const decode_item_t &item, int32_t block) {
  return max(block * p.block_leaves, item.first);
}
SKV_DEVICE int32_t block_to(const decode_params_t &p, const decode_item_t &item, int32_t block) {
  return min((block + 1) * p.block_leaves, item.end);
}

/* ---- states in scratch ---- */

template <class Shape> SKV_DEVICE int64_t slot_index(const climber<Shape> &c, int32_t leaf) {
  const decode_item_t &item = c.walk->item;
  return (int64_t)(item.unit + leaf - item.first) * Shape::kSlices + c.slice;
}

template <class Shape> SKV_DEVICE float4 *slot_of(const climber<Shape> &c, int32_t leaf) {
  return c.p->slots + slot_index(c, leaf) * Shape::kImage * 32 + lane_index();
}

template <class Shape>
SKV_DEVICE void put_part(const climber<Shape> &c, int32_t leaf, const part<Shape> &state) {
  float4 *slot = slot_of(c, leaf);
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    const rows_t &rows = state.rows[r];
    *slot = make_float4(rows.e[0], rows.e[1], rows.l[0], rows.l[1]), slot += 32;
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 2; i += 4, slot += 32)
      *slot = make_float4(state.o[r][i], state.o[r][i + 1], state.o[r][i + 2], state.o[r][i + 3]);
  }
}

/* One value of a merged state, of which one side is `mine`. */
SKV_DEVICE float merge_sides(skv__weights_t w, bool mine_is_left, float mine, float other) {
  return skv__merge_value(w, mine_is_left ? mine : other, mine_is_left ? other : mine);
}

/* mine = merge(mine, what is in the leaf's slot), or the other way round. */
template <class Shape>
SKV_DEVICE void merge_slot(const climber<Shape> &c, int32_t leaf, bool mine_is_left,
                           part<Shape> *mine) {
  const float4 *slot = slot_of(c, leaf);
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    rows_t &rows = mine->rows[r];
    const float4 head = __ldcg(slot);
    slot += 32;
    const float e[2] = {head.x, head.y}, l[2] = {head.z, head.w};
    skv__weights_t w[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      w[h] = skv__merge_weights(mine_is_left ? rows.e[h] : e[h], mine_is_left ? e[h] : rows.e[h]);
      rows.e[h] = w[h].e;
      rows.l[h] = merge_sides(w[h], mine_is_left, rows.l[h], l[h]);
    }
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 2; i += 4, slot += 32) {
      const float4 other = __ldcg(slot);
      float *o = mine->o[r] + i;
      o[0] = merge_sides(w[0], mine_is_left, o[0], other.x);
      o[1] = merge_sides(w[0], mine_is_left, o[1], other.y);
      o[2] = merge_sides(w[1], mine_is_left, o[2], other.z);
      o[3] = merge_sides(w[1], mine_is_left, o[3], other.w);
    }
  }
}

/* ---- results ---- */

SKV_DEVICE void store_output(const decode_params_t &p, int64_t at, float value) {
  uint32_t half =
      p.out_dtype == SKV_FP16 ? pack<fp16_type>(value, 0.0f) : pack<bf16_type>(value, 0.0f);
  if (p.out_dtype == SKV_FP32)
    ((float *)p.o)[at] = value;
  else
    ((uint16_t *)p.o)[at] = (uint16_t)half;
}

/* A row: O and LSE, or the state. The lane has pairs of columns, every eighth from `column` on: of
 * each four values of `o` the first two, or the others when `h`. */
template <class Shape>
SKV_DEVICE void finish_row(const decode_params_t &p, const decode_item_t &item, int32_t row,
                           int32_t column, float e, float l, const float (&o)[Shape::kColumns / 2],
                           int h) {
  const skv__device_run_t &run = skv__run_at(p.tables, item.run);
  const int32_t query = row / p.group;
  const int32_t head = (p.kv_head_begin + item.kv_head) * p.group + row % p.group;
  const bool first = column == 0;
  skv__weights_t sink = skv__merge_weights(e, skv__empty_exponent());
  float *state = NULL;
  int64_t at =
      item.sequence * p.o_stride[0] + (run.q_begin + query) * p.o_stride[1] + head * p.o_stride[2];
  if (p.states) {
    int64_t index;
    skv__device_place_t place = skv__place_at(p.tables, run, query, head, p.q_heads, &index);
    if (!place.slice)
      return;
    state = place.slice + index * p.value_head_dim;
    if (first) {
      place.slice[place.rows * p.value_head_dim + index] = e;
      place.slice[place.rows * (p.value_head_dim + 1) + index] = l;
    }
  } else {
    if (p.tables.has_sinks) {
      skv__mass_t mass = skv__mass_from_lse(skv__sink_at(p.tables, head));
      sink = skv__merge_weights(e, mass.e);
      e = sink.e, l = skv__merge_value(sink, l, mass.l);
    }
    if (first && p.lse)
      p.lse[item.sequence * p.lse_stride[0] + (run.q_begin + query) * p.lse_stride[1] +
            head * p.lse_stride[2]] = skv__state_lse(e, l);
  }
#pragma unroll
  for (int i = 0; i < Shape::kColumns / 4; ++i) {
    const int32_t here = column + 8 * (i / 2) + i % 2;
    const int at_o = 4 * (i / 2) + i % 2;
    const float value = h ? o[at_o + 2] : o[at_o];
    if (here >= p.value_head_dim)
      continue;
    if (p.states)
      state[here] = skv__canonical(value);
    else if (p.o)
      store_output(p, at + here, skv__state_output(e, l, skv__merge_value(sink, value, 0.0f)));
  }
}

template <class Shape> SKV_DEVICE void finish(const climber<Shape> &c, const part<Shape> &state) {
  const decode_item_t &item = c.walk->item;
  const int32_t column = c.slice * Shape::kColumns + 2 * (int32_t)(lane_index() % 4);
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r)
#pragma unroll 1 /* all this runs once, from instructions that nobody has fetched yet */
    for (int h = 0; h < 2; ++h) {
      const int32_t row = item.row_begin + 16 * r + (int32_t)lane_index() / 4 + 8 * h;
      const rows_t &rows = state.rows[r];
      if (row < item.rows)
        finish_row<Shape>(*c.p, item, row, column, h ? rows.e[1] : rows.e[0],
                          h ? rows.l[1] : rows.l[0], state.o[r], h);
    }
}

/* ---- climbing ---- */

/* Counts those that have published their state; true for the last of `all`. */
template <class Shape>
SKV_DEVICE bool arrive(const climber<Shape> &c, uint32_t *counter, int32_t all) {
  uint32_t before = 0;
  __threadfence();
  __syncwarp();
  if (lane_index() == 0)
    before = atomicAdd(counter, 1u);
  before = __shfl_sync(0xffffffff, before, 0);
  if ((int32_t)before + 1 < all)
    return false;
  __threadfence();
  if (lane_index() == 0)
    *counter = 0; /* for the next launch */
  __syncwarp();
  return true;
}

/* The node of the canonical tree over `blocks` blocks whose child is [begin, end). */
typedef struct decode_parent {
  int32_t begin, middle, end;
} decode_parent_t;

SKV_DEVICE decode_parent_t parent_of(int32_t blocks, int32_t begin, int32_t end) {
  decode_parent_t node = {0, 0, blocks};
  for (;;) {
    node.middle = node.begin + (1 << (31 - __clz(node.end - node.begin - 1)));
    if ((begin == node.begin && end == node.middle) || (begin == node.middle && end == node.end))
      return node;
    if (begin < node.middle)
      node.end = node.middle;
    else
      node.begin = node.middle;
  }
}

/* A leaf has ended, with `state`. */
template <class Shape>
SKV_DEVICE void climb(const decode_params_t &p, const decode_walk_t &walk, int32_t slice,
                      part<Shape> *state) {
  const decode_item_t &item = walk.item;
  const int32_t leaf = walk.leaf, at = leaf / p.block_leaves;
  const climber<Shape> c = {&p, slice, &walk, max(item.first + walk.begin - item.unit, item.first),
                            min(item.first + walk.end - item.unit, item.end)};
  const int32_t from = block_from(p, item, at), to = block_to(p, item, at);
  if (from >= c.from && to <= c.to) {
    if (leaf > from)
      merge_slot(c, from, false, state);
    if (leaf + 1 < to) {
      put_part(c, from, *state);
      return;
    }
  } else {
    put_part(c, leaf, *state);
    if (!arrive(c, p.counters + 2 * slot_index(c, from), to - from))
      return;
    empty_part(state);
#pragma unroll 1
    for (int32_t other = from; other < to; ++other)
      merge_slot(c, other, true, state);
  }
  const int32_t blocks = (item.end + p.block_leaves - 1) / p.block_leaves;
  for (int32_t begin = at, end = at + 1; end - begin < blocks;) {
    const decode_parent_t node = parent_of(blocks, begin, end);
    const bool right = begin == node.middle;
    const int32_t all_from = block_from(p, item, node.begin);
    const int32_t middle = block_from(p, item, node.middle);
    if (middle > item.first) { /* else the left child is EMPTY */
      const bool own = all_from >= c.from && block_to(p, item, node.end - 1) <= c.to;
      if (!own || !right)
        put_part(c, right ? middle : all_from, *state);
      if (own ? !right : !arrive(c, p.counters + 2 * slot_index(c, middle) + 1, 2))
        return;
      merge_slot(c, right ? all_from : middle, !right, state);
    }
    begin = node.begin, end = node.end;
  }
  finish(c, *state);
}

#endif
