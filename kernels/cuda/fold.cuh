/* fold.cuh: how a consumer warpgroup's leaves become blocks and blocks the canonical tree. The
 * state of the block at hand is in shared memory, those of pending nodes on a stack in global
 * memory, both as the threads hold them. */
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
  bool block_started; /* leaves of this block have ended: block and block_rows hold their state */
  uint32_t levels;    /* which levels of the stack hold a node */
} pending_t;

SKV_DEVICE void put_rows(float2 *to, const rows_t &rows) {
  to[my_row()] = make_float2(rows.e[0], rows.l[0]);
  to[my_row() + 8] = make_float2(rows.e[1], rows.l[1]);
}
SKV_DEVICE rows_t get_rows(const float2 *from) {
  float2 a = from[my_row()], b = from[my_row() + 8];
  return (rows_t){{a.x, b.x}, {a.y, b.y}};
}

/* o = merge(left, o). `left` is [Count / 4][128]. */
template <int Count>
SKV_DEVICE void merge_left(float (&o)[Count], const float4 *left, const float (&wl)[2],
                           const float (&wr)[2]) {
  const uint32_t thread = threadIdx.x % 128;
  bool plain = !__any_sync(0xffffffff, wl[0] != 1.0f || wl[1] != 1.0f);
#pragma unroll
  for (int i = 0; i < Count / 4; ++i) {
    float4 l = left[i * 128 + thread];
    if (!plain)
      l.x *= wl[0], l.y *= wl[0], l.z *= wl[1], l.w *= wl[1];
    o[4 * i] = __fmaf_rn(o[4 * i], wr[0], l.x);
    o[4 * i + 1] = __fmaf_rn(o[4 * i + 1], wr[0], l.y);
    o[4 * i + 2] = __fmaf_rn(o[4 * i + 2], wr[1], l.z);
    o[4 * i + 3] = __fmaf_rn(o[4 * i + 3], wr[1], l.w);
  }
}

template <int Count> SKV_DEVICE void store_image(float4 *to, const float (&o)[Count]) {
#pragma unroll
  for (int i = 0; i < Count / 4; ++i)
    to[i * 128 + threadIdx.x % 128] =
        make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
}

template <int Dim> SKV_DEVICE float4 *stack_slot(const prefill_params_t &p, int32_t level) {
  int64_t group = (int64_t)blockIdx.x * prefill_shape<Dim>::kConsumers + my_warpgroup();
  return p.stack + (group * p.stack_levels + level) * (1 + Dim / 8) * 128;
}

template <int Dim>
SKV_DEVICE void pop_node(const prefill_params_t &p, float (&o)[Dim / 2], rows_t *rows,
                         int32_t level) {
  const float4 *slot = stack_slot<Dim>(p, level);
  float4 head = slot[threadIdx.x % 128];
  rows_t left = {{head.x, head.y}, {head.z, head.w}};
  float wl[2], wr[2];
  merge_rows(&left, rows, wl, wr);
  merge_left(o, slot + 128, wl, wr);
}

template <int Dim>
SKV_DEVICE void push_node(const prefill_params_t &p, const float (&o)[Dim / 2], const rows_t *rows,
                          int32_t level) {
  float4 *slot = stack_slot<Dim>(p, level);
  slot[threadIdx.x % 128] = make_float4(rows->e[0], rows->e[1], rows->l[0], rows->l[1]);
  store_image(slot + 128, o);
}

/* o and rows = merge(block at hand, them). */
template <int Dim>
SKV_DEVICE void merge_block(prefill_shared<Dim> *s, float (&o)[Dim / 2], rows_t *rows) {
  rows_t left = get_rows(s->block_rows[my_warpgroup()]);
  float wl[2], wr[2];
  merge_rows(&left, rows, wl, wr);
  merge_left(o, &s->block[my_warpgroup()][0][0], wl, wr);
}

/* The leaf that ends before key tile `tile` becomes part of its block, and a block that ends there
 * part of the tree. */
template <int Dim>
SKV_DEVICE void end_leaf(prefill_shared<Dim> *s, const prefill_params_t &p, float (&o)[Dim / 2],
                         rows_t rows, pending_t *pending, int32_t tile) {
  leaf_end(&rows);
  if (prefill_shape<Dim>::kBlocks && pending->block_started) {
    merge_block<Dim>(s, o, &rows);
  } else {
#pragma unroll
    for (int i = 0; i < Dim / 2; ++i)
      o[i] += 0.0f;
  }
  pending->block_started = prefill_shape<Dim>::kBlocks && tile % p.block_tiles != 0;
  if (pending->block_started) {
    put_rows(s->block_rows[my_warpgroup()], rows);
    store_image(&s->block[my_warpgroup()][0][0], o);
    return;
  }
  int32_t index = tile / p.block_tiles - 1, level = 0;
  for (; index >> level & 1; ++level)
    if (pending->levels >> level & 1) {
      pop_node<Dim>(p, o, &rows, level);
      pending->levels &= ~(1u << level);
    }
  push_node<Dim>(p, o, &rows, level);
  pending->levels |= 1u << level;
}

/* The last leaf, its block, and the pending nodes from the right: the root. */
template <int Dim>
SKV_DEVICE void end_rows(prefill_shared<Dim> *s, const prefill_params_t &p, float (&o)[Dim / 2],
                         rows_t *rows, pending_t *pending) {
  leaf_end(rows);
  if (prefill_shape<Dim>::kBlocks && pending->block_started)
    merge_block<Dim>(s, o, rows);
  for (int32_t level = 0; pending->levels >> level; ++level)
    if (pending->levels >> level & 1)
      pop_node<Dim>(p, o, rows, level);
}

#endif
