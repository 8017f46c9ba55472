/* fold.cuh: how a consumer warpgroup's leaves become blocks and blocks the canonical tree. The
 * state of the block at hand is in shared memory, or, where there is no room, in the last slot of a
 * stack in global memory, whose other slots are for pending nodes, by level. */
#ifndef SKV_CUDA_FOLD_CUH
#define SKV_CUDA_FOLD_CUH

#include "kernels/cuda/tiles.cuh"

SKV_DEVICE uint32_t my_warpgroup(void) {
  return threadIdx.x / 128 - 1;
}
/* The first of the thread's two rows among its warpgroup's; the other is 8 below. */
SKV_DEVICE uint32_t my_row(void) {
  return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
}

/* What a consumer warpgroup has of its 64 rows besides the leaf at hand. */
typedef struct pending {
  bool block_started; /* leaves of this block have ended: its image holds their state */
  uint32_t levels;    /* which levels of the stack hold a node */
} pending_t;

/* ---- images ---- */

template <int ValueDim>
SKV_DEVICE void store_image(state_image<ValueDim> *to, const float (&o)[ValueDim / 2],
                            const rows_t &rows) {
  to->rows[my_row()] = make_float2(rows.e[0], rows.l[0]);
  to->rows[my_row() + 8] = make_float2(rows.e[1], rows.l[1]);
#pragma unroll
  for (int i = 0; i < ValueDim / 8; ++i)
    to->o[i][threadIdx.x % 128] = make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
}

/* o and rows = merge(left, them). */
template <int ValueDim>
SKV_DEVICE void merge_image(const state_image<ValueDim> *left, float (&o)[ValueDim / 2],
                            rows_t *rows) {
  float2 a = left->rows[my_row()], b = left->rows[my_row() + 8];
  rows_t left_rows = {{a.x, b.x}, {a.y, b.y}};
  float wl[2], wr[2];
  merge_rows(&left_rows, rows, wl, wr);
  bool plain = !__any_sync(0xffffffff, wl[0] != 1.0f || wl[1] != 1.0f);
#pragma unroll
  for (int i = 0; i < ValueDim / 8; ++i) {
    float4 l = left->o[i][threadIdx.x % 128];
    if (!plain)
      l.x *= wl[0], l.y *= wl[0], l.z *= wl[1], l.w *= wl[1];
    o[4 * i] = __fmaf_rn(o[4 * i], wr[0], l.x);
    o[4 * i + 1] = __fmaf_rn(o[4 * i + 1], wr[0], l.y);
    o[4 * i + 2] = __fmaf_rn(o[4 * i + 2], wr[1], l.z);
    o[4 * i + 3] = __fmaf_rn(o[4 * i + 3], wr[1], l.w);
  }
}

template <typename Shape>
SKV_DEVICE state_image<Shape::kValueDim> *slot_image(const prefill_params_t &p, int32_t slot) {
  int64_t group = (int64_t)blockIdx.x * Shape::kConsumers + my_warpgroup();
  return (state_image<Shape::kValueDim> *)p.images + group * p.slots + slot;
}

template <typename Shape>
SKV_DEVICE state_image<Shape::kValueDim> *block_image(prefill_shared<Shape> *s,
                                                      const prefill_params_t &p) {
  return Shape::kBlocks ? &s->block[my_warpgroup()] : slot_image<Shape>(p, p.slots - 1);
}

/* ---- ends ---- */

/* The leaf that ends before key tile `tile` becomes part of its block, and a block that ends there
 * part of the tree. */
template <typename Shape>
SKV_DEVICE void end_leaf(prefill_shared<Shape> *s, const prefill_params_t &p,
                         float (&o)[Shape::kValueDim / 2], rows_t rows, pending_t *pending,
                         int32_t tile) {
  leaf_end(&rows);
  if (pending->block_started) {
    merge_image(block_image(s, p), o, &rows);
  } else {
#pragma unroll
    for (int i = 0; i < Shape::kValueDim / 2; ++i)
      o[i] += 0.0f;
  }
  pending->block_started = tile % p.block_tiles != 0;
  if (pending->block_started) {
    store_image(block_image(s, p), o, rows);
    return;
  }
  /* A node is whole subtrees of the absolute tree, so that counting from its first block will do */
  int32_t index = tile / p.block_tiles - 1, level = 0;
  for (; index >> level & 1; ++level)
    if (pending->levels >> level & 1) {
      merge_image(slot_image<Shape>(p, level), o, &rows);
      pending->levels &= ~(1u << level);
    }
  store_image(slot_image<Shape>(p, level), o, rows);
  pending->levels |= 1u << level;
}

/* The last leaf, its block, and the pending nodes from the right: the root. */
template <typename Shape>
SKV_DEVICE void end_rows(prefill_shared<Shape> *s, const prefill_params_t &p,
                         float (&o)[Shape::kValueDim / 2], rows_t *rows, pending_t *pending) {
  leaf_end(rows);
  if (pending->block_started)
    merge_image(block_image(s, p), o, rows);
  for (int32_t level = 0; pending->levels >> level; ++level)
    if (pending->levels >> level & 1)
      merge_image(slot_image<Shape>(p, level), o, rows);
}

#endif
