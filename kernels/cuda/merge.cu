/* merge.cu: merges slices of states, a warp a row. Bound by memory: every value is read once and
 * written once, and a warp has the loads of several states or rows in flight. */
#include "kernels/cuda/merge.h"

#include <cuda_runtime.h>

#include "kernels/state.h"

typedef struct merge_params {
  float *out;
  const float *states[SKV__MERGE_MAX];
  int64_t rows, dim;
} merge_params_t;

/* A row's e and l, and one lane's `Width` elements of O. */
template <int Width> struct node { float e, l, o[Width]; };

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

template <int Width>
__device__ __forceinline__ node<Width> merge(const node<Width> &left, const node<Width> &right) {
  skv__weights_t weights = skv__merge_weights(left.e, right.e);
  node<Width> merged;
  merged.e = weights.e;
  merged.l = skv__merge_value(weights, left.l, right.l);
#pragma unroll
  for (int i = 0; i < Width; ++i)
    merged.o[i] = skv__merge_value(weights, left.o[i], right.o[i]);
  return merged;
}

/* The largest power of two below `Count`: where the canonical tree splits. */
template <int Count> struct split_of {
  static constexpr int value = 2 * split_of<(Count + 1) / 2>::value;
};
template <> struct split_of<2> { static constexpr int value = 1; };

template <int Count, int Width>
__device__ __forceinline__ node<Width> fold(const node<Width> *nodes) {
  if constexpr (Count == 1)
    return nodes[0];
  else
    return merge(fold<split_of<Count>::value, Width>(nodes),
                 fold<Count - split_of<Count>::value, Width>(nodes + split_of<Count>::value));
}

/* `Rows` rows at a time for each warp. Lane i reads e and l of one row of one state for all lanes,
 * before anything is written, because `out` may be a state. */
template <int Count, int Rows, int Width>
__global__ void __launch_bounds__(256) merge_rows(const merge_params_t p) {
  const int64_t warps = (int64_t)gridDim.x * 8, lane = threadIdx.x % 32;
  const float *state = p.states[0];
#pragma unroll
  for (int i = 1; i < Count; ++i)
    state = lane % Count == i ? p.states[i] : state;
  for (int64_t first = ((int64_t)blockIdx.x * 8 + threadIdx.x / 32) * Rows; first < p.rows;
       first += warps * Rows) {
    node<Width> nodes[Rows][Count];
    static_assert(Rows * Count <= 32, "a lane for each row and state");
    int64_t mine = first + lane / Count % Rows, row = mine < p.rows ? mine : p.rows - 1;
    const float *heads = state + p.rows * p.dim + row;
    float e = heads[0], l = heads[p.rows];
    for (int64_t column = lane * Width; column < p.dim + lane * Width; column += 32 * Width) {
      bool here = column < p.dim;
#pragma unroll
      for (int i = 0; i < Rows * Count; ++i)
        if (here && first + i / Count < p.rows)
          load(nodes[i / Count][i % Count].o,
               p.states[i % Count] + (first + i / Count) * p.dim + column);
#pragma unroll
      for (int i = 0; i < Rows * Count; ++i) {
        nodes[i / Count][i % Count].e = __shfl_sync(0xffffffff, e, i);
        nodes[i / Count][i % Count].l = __shfl_sync(0xffffffff, l, i);
      }
#pragma unroll
      for (int r = 0; r < Rows; ++r)
        if (here && first + r < p.rows) {
          node<Width> root = fold<Count, Width>(nodes[r]);
          store(p.out + (first + r) * p.dim + column, root.o);
          if (column == 0) {
            p.out[p.rows * p.dim + first + r] = root.e;
            p.out[p.rows * (p.dim + 1) + first + r] = root.l;
          }
        }
    }
  }
}

template <int Count>
static void launch(const merge_params_t *p, int64_t ctas, cudaStream_t stream) {
  constexpr int kRows = Count <= 2 ? 4 : Count <= 4 ? 2 : 1;
  int64_t most = (p->rows + 8 * kRows - 1) / (8 * kRows);
  unsigned grid = (unsigned)(most < ctas ? most : ctas);
  if (p->dim % 4 == 0)
    merge_rows<Count, kRows, 4><<<grid, 256, 0, stream>>>(*p);
  else
    merge_rows<Count, 1, 1><<<grid, 256, 0, stream>>>(*p);
}

typedef void (*launch_t)(const merge_params_t *, int64_t, cudaStream_t);

static const launch_t LAUNCHES[SKV__MERGE_MAX + 1] = {
    NULL,       launch<1>,  launch<2>,  launch<3>,  launch<4>,  launch<5>,
    launch<6>,  launch<7>,  launch<8>,  launch<9>,  launch<10>, launch<11>,
    launch<12>, launch<13>, launch<14>, launch<15>, launch<16>};

skv_status_t skv__launch_merge(float *out, const float *const *states, int32_t count, int64_t rows,
                               int64_t value_head_dim, int32_t multiprocessors,
                               cudaStream_t stream) {
  if (count < 1 || count > SKV__MERGE_MAX)
    return SKV_INVALID;
  if (!rows)
    return SKV_OK;
  merge_params_t p = {out, {NULL}, rows, value_head_dim};
  for (int32_t i = 0; i < count; ++i)
    p.states[i] = states[i];
  LAUNCHES[count](&p, (int64_t)multiprocessors * 8, stream);
  return cudaGetLastError() == cudaSuccess ? SKV_OK : SKV_INTERNAL;
}
