/* merge_lse.cu: merges partial results of other libraries, (O, LSE) pairs; a warp works on a few
 * rows. skv_merge_lse, on a device. */
#include <string.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/convert.h"
#include "kernels/cuda/merge.h"
#include "kernels/lse.h"

enum { ROWS = 4 /* of a warp */, WARPS = 8 };

typedef struct lse_params {
  void *out;
  const void *left, *right;
  float *lse_out;
  const float *lse_left, *lse_right;
  int64_t rows, dim;
  skv_lse_base_t base;
} lse_params_t;

/* `Width` elements as they lie in memory. */
template <typename Element, int Width> struct alignas(Width * sizeof(Element)) piece {
  Element element[Width];
};

/* As skv__load and skv__store do it. fp16 by the hardware, which has other bits only for NaN; for
 * bf16 that would be slower. */
static __device__ __forceinline__ float widen(float value) {
  return value;
}
static __device__ __forceinline__ float widen(__half value) {
  return __half2float(value);
}
static __device__ __forceinline__ float widen(__nv_bfloat16 value) {
  return skv__widen_bf16(__bfloat16_as_ushort(value));
}
static __device__ __forceinline__ void narrow(float *to, float value) {
  *to = value;
}
static __device__ __forceinline__ void narrow(__half *to, float value) {
  *to = value == value ? __float2half_rn(value) : __ushort_as_half(0x7e00);
}
static __device__ __forceinline__ void narrow(__nv_bfloat16 *to, float value) {
  *to = __ushort_as_bfloat16(skv__narrow_bf16(value));
}

/* left = merge(left, right), a piece of a row. What is kept is kept bit for bit, NaN included. */
template <typename Element, int Width>
static __device__ __forceinline__ void merge_piece(piece<Element, Width> *left,
                                                   const piece<Element, Width> &right,
                                                   skv__lse_weights_t weights) {
  if (skv__is_empty(weights.lse)) {
    memset(left, 0, sizeof *left);
  } else if (weights.keep == SKV__KEEP_RIGHT) {
    *left = right;
  } else if (weights.keep == SKV__KEEP_BOTH) {
#pragma unroll
    for (int i = 0; i < Width; ++i)
      narrow(&left->element[i],
             skv__lse_merge_value(weights, widen(left->element[i]), widen(right.element[i])));
  }
}

static __device__ __forceinline__ skv__lse_weights_t shared_weights(skv__lse_weights_t mine,
                                                                    int lane) {
  skv__lse_weights_t weights;
  weights.keep = (skv__keep_t)__shfl_sync(0xffffffff, (int)mine.keep, lane);
  weights.lse = __shfl_sync(0xffffffff, mine.lse, lane);
  weights.left = __shfl_sync(0xffffffff, mine.left, lane);
  weights.right = __shfl_sync(0xffffffff, mine.right, lane);
  return weights;
}

/* Lanes 0 to ROWS - 1 find the weights of a row each. What is read is read before it is written,
 * because the output may be the left side. */
template <typename Element, int Width>
static __global__ void __launch_bounds__(32 * WARPS)
    merge_pairs(const __grid_constant__ lse_params_t p) {
  typedef piece<Element, Width> piece_t;
  const int lane = (int)threadIdx.x % 32;
  const int64_t step = (int64_t)gridDim.x * WARPS * ROWS, pieces = p.dim / Width;
  for (int64_t first = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * ROWS; first < p.rows;
       first += step) {
    const int64_t mine = min(first + lane % ROWS, p.rows - 1);
    const skv__lse_weights_t weights =
        skv__lse_merge_weights(p.lse_left[mine], p.lse_right[mine], p.base);
    __syncwarp();
    if (lane < ROWS && first + lane < p.rows)
      p.lse_out[mine] = weights.lse;
    skv__lse_weights_t row[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      row[r] = shared_weights(weights, r);
    for (int64_t i = first * pieces + lane; i < (first + 1) * pieces; i += 32) {
      piece_t left[ROWS], right[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        if (first + r < p.rows) {
          left[r] = ((const piece_t *)p.left)[i + r * pieces];
          right[r] = ((const piece_t *)p.right)[i + r * pieces];
        }
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        merge_piece(&left[r], right[r], row[r]);
        if (first + r < p.rows)
          ((piece_t *)p.out)[i + r * pieces] = left[r];
      }
    }
  }
}

template <typename Element>
static void launch(const lse_params_t *p, int64_t ctas, cudaStream_t stream) {
  const uintptr_t places = (uintptr_t)p->out | (uintptr_t)p->left | (uintptr_t)p->right;
  const int64_t most = (p->rows + ROWS * WARPS - 1) / (ROWS * WARPS);
  const unsigned grid = (unsigned)(most < ctas ? most : ctas);
  if (p->dim % 4 == 0 && places % (4 * sizeof(Element)) == 0)
    merge_pairs<Element, 4><<<grid, 32 * WARPS, 0, stream>>>(*p);
  else
    merge_pairs<Element, 1><<<grid, 32 * WARPS, 0, stream>>>(*p);
}

skv_status_t skv__launch_merge_lse(void *o_out, float *lse_out, const void *o_a, const float *lse_a,
                                   const void *o_b, const float *lse_b, int64_t rows, int64_t dim,
                                   skv_dtype_t dtype, skv_lse_base_t base, int32_t multiprocessors,
                                   cudaStream_t stream) {
  if (rows < 0 || dim < 1)
    return SKV_INVALID;
  if (!rows)
    return SKV_OK;
  const lse_params_t p = {o_out, o_a, o_b, lse_out, lse_a, lse_b, rows, dim, base};
  const int64_t ctas = (int64_t)multiprocessors * 8;
  if (dtype == SKV_FP32)
    launch<float>(&p, ctas, stream);
  else if (dtype == SKV_FP16)
    launch<__half>(&p, ctas, stream);
  else if (dtype == SKV_BF16)
    launch<__nv_bfloat16>(&p, ctas, stream);
  else
    return SKV_INVALID;
  return cudaGetLastError() == cudaSuccess ? SKV_OK : SKV_INTERNAL;
}
