/* merge.cu: merges slices of states, a warp a row. Bound by memory: every value is read once and
 * written once, and a warp has the loads of several states or rows in flight. */
#include "kernels/cuda/merge.h"

#include <cuda_runtime.h>

#include "kernels/state.h"

enum { THREADS = 128, MOST_COLUMNS = 256 };

typedef struct merge_params {
  float *out;
  const float *states[SKV__MERGE_MAX];
  int64_t rows, dim;
} merge_params_t;

/* A row's e and l, and a lane's elements of O: `Pieces` times `Width` that lie together. */
template <int Width, int Pieces> struct node { float e, l, o[Pieces][Width]; };

template <int Width> __device__ __forceinline__ void load(float (&to)[Width], const float *from) {
  if constexpr (Width == 4) {
    float4 v = *(const float4 *)from;
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else {
    to[0] = *from;
  }
}

template <int Width> __device__ __forceinline__ void store(float *to, const float (&from)[Width]) {
  if constexpr (Width == 4)
    *(float4 *)to = make_float4(from[0], from[1], from[2], from[3]);
  else
    *to = from[0];
}

/* All lanes of a warp have the same rows, so the branch is the warp's. */
template <int Width, int Pieces>
__device__ __forceinline__ node<Width, Pieces> merge(const node<Width, Pieces> &left,
                                                     const node<Width, Pieces> &right) {
  const skv__weights_t weights = skv__merge_weights(left.e, right.e);
  node<Width, Pieces> merged;
  merged.e = weights.e;
  merged.l = skv__merge_value(weights, left.l, right.l);
  if (weights.keep == SKV__KEEP_BOTH) {
#pragma unroll
    for (int i = 0; i < Pieces * Width; ++i)
      merged.o[i / Width][i % Width] =
          skv__merge_value(weights, left.o[i / Width][i % Width], right.o[i / Width][i % Width]);
  } else {
#pragma unroll
    for (int i = 0; i < Pieces * Width; ++i)
      merged.o[i / Width][i % Width] = weights.keep == SKV__KEEP_LEFT
                                           ? left.o[i / Width][i % Width]
                                           : right.o[i / Width][i % Width];
  }
  return merged;
}

/* The largest power of two below `Count`: where the canonical tree splits. */
template <int Count> struct split_of {
  static constexpr int value = 2 * split_of<(Count + 1) / 2>::value;
};
template <> struct split_of<2> { static constexpr int value = 1; };

template <int Count, int Width, int Pieces>
__device__ __forceinline__ node<Width, Pieces> fold(const node<Width, Pieces> *nodes) {
  if constexpr (Count == 1)
    return nodes[0];
  else
    return merge(fold<split_of<Count>::value>(nodes),
                 fold<Count - split_of<Count>::value>(nodes + split_of<Count>::value));
}

/* `Rows` rows a warp, and then it ends: new CTAs begin loading while old ones still store. Lane i
 * reads e and l of one row of one state for all lanes. Everything is read before anything is
 * written, because `out` may be a state. */
template <int Count, int Rows, int Width, int Pieces>
__global__ void __launch_bounds__(THREADS) merge_rows(const merge_params_t p) {
  static_assert(Rows * Count <= 32, "a lane for each row and state");
  const int64_t lane = threadIdx.x % 32, last = p.rows - 1;
  const int64_t first = ((int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * Rows;
  if (first > last)
    return;
  const float *state = p.states[0];
#pragma unroll
  for (int i = 1; i < Count; ++i)
    state = lane % Count == i ? p.states[i] : state;
  const float *heads = state + p.rows * p.dim + min(first + lane / Count % Rows, last);
  const float e = heads[0], l = heads[p.rows];
  node<Width, Pieces> nodes[Rows][Count];
#pragma unroll
  for (int i = 0; i < Rows * Count; ++i)
#pragma unroll
    for (int j = 0; j < Pieces; ++j) {
      const int64_t column = (lane + 32 * j) * Width;
      if (column < p.dim && first + i / Count <= last)
        load(nodes[i / Count][i % Count].o[j],
             p.states[i % Count] + (first + i / Count) * p.dim + column);
    }
#pragma unroll
  for (int i = 0; i < Rows * Count; ++i) {
    nodes[i / Count][i % Count].e = __shfl_sync(0xffffffff, e, i);
    nodes[i / Count][i % Count].l = __shfl_sync(0xffffffff, l, i);
  }
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    const int64_t row = first + r;
    if (row > last)
      return;
    const node<Width, Pieces> root = fold<Count>(nodes[r]);
#pragma unroll
    for (int j = 0; j < Pieces; ++j) {
      const int64_t column = (lane + 32 * j) * Width;
      if (column < p.dim)
        store(p.out + row * p.dim + column, root.o[j]);
    }
    if (lane == 0) {
      p.out[p.rows * p.dim + row] = root.e;
      p.out[p.rows * (p.dim + 1) + row] = root.l;
    }
  }
}

template <int Count, int Rows, int Width, int Pieces>
static void launch_rows(const merge_params_t *p, cudaStream_t stream) {
  const int64_t rows = Rows * (THREADS / 32);
  merge_rows<Count, Rows, Width, Pieces>
      <<<(unsigned)((p->rows + rows - 1) / rows), THREADS, 0, stream>>>(*p);
}

template <int Count> static void launch(const merge_params_t *p, cudaStream_t stream) {
  constexpr int kRows = Count <= 2 ? 4 : Count <= 4 ? 2 : 1;
  if (p->dim % 4 != 0)
    launch_rows<Count, 1, 1, MOST_COLUMNS / 32>(p, stream);
  else if (p->dim <= MOST_COLUMNS / 2)
    launch_rows<Count, kRows, 4, 1>(p, stream);
  else
    launch_rows<Count, 1, 4, 2>(p, stream);
}

typedef void (*launch_t)(const merge_params_t *, cudaStream_t);

static const launch_t LAUNCHES[SKV__MERGE_MAX + 1] = {
    NULL,       launch<1>,  launch<2>,  launch<3>,  launch<4>,  launch<5>,
    launch<6>,  launch<7>,  launch<8>,  launch<9>,  launch<10>, launch<11>,
    launch<12>, launch<13>, launch<14>, launch<15>, launch<16>};

skv_status_t skv__launch_merge(float *out, const float *const *states, int32_t count, int64_t rows,
                               int64_t value_head_dim, cudaStream_t stream) {
  if (count < 1 || count > SKV__MERGE_MAX || value_head_dim < 1 || value_head_dim > MOST_COLUMNS)
    return SKV_INVALID;
  if (!rows)
    return SKV_OK;
  merge_params_t p = {out, {NULL}, rows, value_head_dim};
  for (int32_t i = 0; i < count; ++i)
    p.states[i] = states[i];
  LAUNCHES[count](&p, stream);
  return cudaGetLastError() == cudaSuccess ? SKV_OK : SKV_INTERNAL;
}
