/* prefill.cu: from a problem to the launch of the sm_90a prefill kernel. */
#include "kernels/cuda/prefill.h"

#include <string.h>

#include <cuda.h>
#include <cuda_runtime.h>

#include "error.h"
#include "kernels/cuda/prefill.cuh"

/* Keys and values of a band of heads should stay in the L2 cache beside everything else. */
#define BAND_BYTES ((int64_t)32 << 20)

static int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/* Rows and keys of a tile, as prefill_shape says. */
static int64_t tile_rows(int64_t head_dim) {
  return head_dim <= 64    ? prefill_shape<64>::kRows
         : head_dim <= 128 ? prefill_shape<128>::kRows
                           : prefill_shape<256>::kRows;
}
static int64_t tile_keys(int64_t head_dim) {
  return head_dim <= 128 ? prefill_shape<128>::kKeys : prefill_shape<256>::kKeys;
}
static_assert(prefill_shape<64>::kKeys == prefill_shape<128>::kKeys, "tile_keys");

static int32_t stack_levels(const skv__prefill_t *prefill) {
  if (!prefill->leaf_tokens)
    return 0;
  int64_t blocks = ceil_divide(prefill->kv_tokens, prefill->block_tokens);
  int32_t levels = 0;
  while (blocks >> levels)
    ++levels;
  return levels;
}

static int32_t cta_count(const skv__prefill_t *prefill, int32_t multiprocessors) {
  int64_t tiles = prefill->batch * prefill->q_heads *
                  ceil_divide(prefill->q_tokens, tile_rows(prefill->head_dim));
  int64_t most = prefill->most_ctas ? prefill->most_ctas : multiprocessors;
  return (int32_t)(tiles < most ? tiles : most);
}

static int32_t band_heads(const skv__prefill_t *prefill) {
  int64_t bytes_per_head = prefill->kv_tokens * prefill->head_dim * 4;
  int64_t kv_heads = prefill->kv_heads;
  int64_t band = 1;
  for (int64_t heads = 1; heads <= kv_heads; ++heads)
    if (kv_heads % heads == 0 && heads * bytes_per_head <= BAND_BYTES)
      band = heads;
  return (int32_t)(band * (prefill->q_heads / kv_heads));
}

size_t skv__prefill_scratch_bytes(const skv__prefill_t *prefill, int32_t multiprocessors) {
  size_t slot_bytes = (1 + (size_t)prefill->head_dim / 8) * 128 * sizeof(float4);
  return 256 + (size_t)cta_count(prefill, multiprocessors) * 3 * (size_t)stack_levels(prefill) *
                   slot_bytes;
}

typedef CUresult (*encode_t)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                             const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                             const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                             CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encode_t encoder(void) {
  void *function = NULL;
  cudaDriverEntryPointQueryResult found;
  cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                        cudaEnableDefault, &found);
  return status == cudaSuccess && found == cudaDriverEntryPointSuccess ? (encode_t)function : NULL;
}

/* Boxes of 64 columns and box_tokens tokens of one head; columns past head_dim and tokens past
 * `tokens` are read as 0. */
static bool map_tensor(CUtensorMap *map, encode_t encode, const skv__prefill_t *prefill,
                       const skv_tensor_t *tensor, int64_t tokens, int64_t heads,
                       int64_t box_tokens) {
  cuuint64_t extents[4] = {(cuuint64_t)prefill->head_dim, (cuuint64_t)tokens, (cuuint64_t)heads,
                           (cuuint64_t)prefill->batch};
  cuuint64_t strides[3] = {(cuuint64_t)tensor->stride[1] * 2, (cuuint64_t)tensor->stride[2] * 2,
                           (cuuint64_t)tensor->stride[0] * 2};
  cuuint32_t box[4] = {64, (cuuint32_t)box_tokens, 1, 1}, steps[4] = {1, 1, 1, 1};
  CUtensorMapDataType type = prefill->dtype == SKV_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return encode(map, type, 4, tensor->data, extents, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static void fill_params(prefill_params_t *params, const skv__prefill_t *prefill, void *scratch) {
  params->o = prefill->o.data, params->lse = prefill->lse;
  for (int i = 0; i < 3; ++i)
    params->o_stride[i] = prefill->o.stride[i], params->lse_stride[i] = prefill->lse_stride[i];
  params->q_lengths = prefill->q_lengths, params->k_lengths = prefill->k_lengths;
  params->q_start = prefill->q_start;
  params->left_tokens = prefill->left_tokens, params->right_tokens = prefill->right_tokens;
  params->q_heads = (int32_t)prefill->q_heads;
  params->group = (int32_t)(prefill->q_heads / prefill->kv_heads);
  params->row_tiles = (int32_t)ceil_divide(prefill->q_tokens, tile_rows(prefill->head_dim));
  params->band = band_heads(prefill);
  params->tiles = (int32_t)(prefill->batch * prefill->q_heads * params->row_tiles);
  params->leaf_tiles = (int32_t)(prefill->leaf_tokens / tile_keys(prefill->head_dim));
  params->block_tiles = (int32_t)(prefill->block_tokens / tile_keys(prefill->head_dim));
  params->stack_levels = stack_levels(prefill);
  params->c = (float)((double)prefill->scale * 1.4426950408889634);
  params->next_tile = (uint32_t *)scratch, params->leavers = (uint32_t *)scratch + 1;
  params->stack = (float4 *)((char *)scratch + 256);
}

template <typename Type, int Dim, bool Pinned>
static skv_status_t launch(const prefill_params_t *params, int32_t ctas, cudaStream_t stream) {
  int bytes = (int)sizeof(prefill_shared<Dim>);
  if (cudaFuncSetAttribute(prefill<Type, Dim, Pinned>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           bytes) != cudaSuccess)
    return SKV_UNSUPPORTED;
  prefill<Type, Dim, Pinned>
      <<<(unsigned)ctas, prefill_shape<Dim>::kThreads, (size_t)bytes, stream>>>(*params);
  return cudaGetLastError() == cudaSuccess ? SKV_OK : SKV_INTERNAL;
}

template <typename Type>
static skv_status_t launch_type(const skv__prefill_t *prefill, const prefill_params_t *params,
                                int32_t ctas, cudaStream_t stream) {
  bool pinned = prefill->leaf_tokens > 0;
  switch (prefill->head_dim) {
  case 64:
    return pinned ? launch<Type, 64, true>(params, ctas, stream)
                  : launch<Type, 64, false>(params, ctas, stream);
  case 256:
    return pinned ? launch<Type, 256, true>(params, ctas, stream)
                  : launch<Type, 256, false>(params, ctas, stream);
  case 128:
    return pinned ? launch<Type, 128, true>(params, ctas, stream)
                  : launch<Type, 128, false>(params, ctas, stream);
  default:
    return SKV_UNSUPPORTED;
  }
}

/* Leaves are whole tiles, blocks whole leaves; of one leaf where the block's state has no room. */
static bool order_fits(const skv__prefill_t *prefill) {
  int64_t leaf = prefill->leaf_tokens, block = prefill->block_tokens;
  if (!leaf)
    return true;
  bool whole = leaf > 0 && leaf % tile_keys(prefill->head_dim) == 0 && block % leaf == 0;
  return whole && block > 0 && (prefill->head_dim <= 128 || block == leaf);
}

skv_status_t skv__launch_prefill(const skv__prefill_t *prefill, int32_t multiprocessors,
                                 void *scratch, cudaStream_t stream) {
  if (!prefill->q_tokens)
    return SKV_OK;
  if (!order_fits(prefill))
    return SKV_UNSUPPORTED;
  encode_t encode = encoder();
  prefill_params_t params;
  memset(&params, 0, sizeof params);
  if (!encode)
    return SKV_UNSUPPORTED;
  int64_t rows = tile_rows(prefill->head_dim), keys = tile_keys(prefill->head_dim);
  if (!map_tensor(&params.q, encode, prefill, &prefill->q, prefill->q_tokens, prefill->q_heads,
                  rows) ||
      !map_tensor(&params.k, encode, prefill, &prefill->k, prefill->kv_tokens, prefill->kv_heads,
                  keys) ||
      !map_tensor(&params.v, encode, prefill, &prefill->v, prefill->kv_tokens, prefill->kv_heads,
                  keys))
    return SKV_INVALID;
  fill_params(&params, prefill, scratch);
  int32_t ctas = cta_count(prefill, multiprocessors);
  if (prefill->dtype == SKV_BF16)
    return launch_type<bf16_type>(prefill, &params, ctas, stream);
  if (prefill->dtype == SKV_FP16)
    return launch_type<fp16_type>(prefill, &params, ctas, stream);
  return SKV_UNSUPPORTED;
}
