/* prefill.cu: from a job to launches of the sm_90a prefill kernel, one a node. */
#include "kernels/cuda/launch.h"

#include <string.h>

#include <cuda.h>
#include <cuda_runtime.h>

#include "kernels/cuda/prefill.cuh"

/* Keys and values of a band of heads should stay in the L2 cache beside everything else. */
#define BAND_BYTES ((int64_t)32 << 20)
#define MOST_TOKENS ((int64_t)INT32_MAX - 8192)
#define MOST_TILES ((int64_t)1 << 24) /* of keys: more than MOST_TOKENS has, and sums fit int32 */

/* ---- what there is to launch ---- */

typedef void (*prefill_kernel_t)(const prefill_params_t);

typedef struct variant {
  int32_t head_dim, value_head_dim, rows, keys, consumers, threads;
  bool blocks;
  size_t shared_bytes, image_bytes;
  prefill_kernel_t kernels[2][3]; /* [fp16, bf16][mode] */
} variant_t;

template <typename Shape> constexpr variant_t variant_of(void) {
  return {Shape::kDim,
          Shape::kValueDim,
          Shape::kRows,
          Shape::kKeys,
          Shape::kConsumers,
          Shape::kThreads,
          Shape::kBlocks,
          sizeof(prefill_shared<Shape>),
          sizeof(state_image<Shape::kValueDim>),
          {{prefill<fp16_type, Shape, MODE_FREE>, prefill<fp16_type, Shape, MODE_PINNED>,
            prefill<fp16_type, Shape, MODE_CAPPED>},
           {prefill<bf16_type, Shape, MODE_FREE>, prefill<bf16_type, Shape, MODE_PINNED>,
            prefill<bf16_type, Shape, MODE_CAPPED>}}};
}

static const variant_t variants[] = {variant_of<shape_64>(),  variant_of<shape_96>(),
                                     variant_of<shape_128>(), variant_of<shape_192_128>(),
                                     variant_of<shape_192>(), variant_of<shape_256>()};

/* The smallest that holds the heads, with the tile that the order has for them; NULL: none. */
static const variant_t *variant_for(const skv__job_t *job) {
  for (const variant_t &v : variants)
    if (job->head_dim <= v.head_dim && job->value_head_dim <= v.value_head_dim &&
        v.keys == skv__tile_keys(job->head_dim))
      return &v;
  return NULL;
}

/* ---- shapes ---- */

static int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

static int64_t at_most(int64_t value, int64_t most) {
  return value < most ? value : most;
}

/* Bulk tensor copies address whole 16 bytes, forwards. A stride that is never used may be anything.
 */
static bool copyable(const skv_tensor_t *tensor, int64_t batch, int64_t tokens, int64_t heads) {
  const int64_t extent[3] = {batch, tokens, heads};
  for (int i = 0; i < 3; ++i)
    if (extent[i] > 1 && (tensor->stride[i] <= 0 || tensor->stride[i] % 8 != 0 ||
                          tensor->stride[i] >= (int64_t)1 << 39))
      return false;
  return (uintptr_t)tensor->data % 16 == 0;
}

static bool supports(const skv__job_t *job, const skv__device_t *device) {
  bool shape = device->major == 9 && device->minor == 0 && variant_for(job) &&
               (job->dtype == SKV_FP16 || job->dtype == SKV_BF16) && job->head_dim % 8 == 0 &&
               job->value_head_dim % 8 == 0 && job->most_q_tokens <= MOST_TOKENS &&
               job->most_k_tokens <= MOST_TOKENS &&
               (job->free_order || job->leaf_tokens % skv__tile_keys(job->head_dim) == 0);
  if (!shape || !job->q.data)
    return shape;
  int64_t kv_heads = job->kv_head_end - job->kv_head_begin;
  return copyable(&job->q, job->batch, job->most_q_tokens, job->q_heads) &&
         copyable(&job->k, job->batch, job->most_k_tokens, kv_heads) &&
         copyable(&job->v, job->batch, job->most_k_tokens, kv_heads);
}

static int64_t cta_limit(const skv__device_t *device) {
  return device->most_ctas ? device->most_ctas : device->multiprocessors;
}

/* Images of a warpgroup: pending nodes, by level (one for results at least), and the block at hand.
 */
static int32_t slot_count(const skv__job_t *job, const variant_t *variant) {
  if (job->free_order)
    return 1;
  int64_t blocks = ceil_divide(job->most_k_tokens, job->block_tokens);
  int32_t levels = 1;
  while (blocks >> levels)
    ++levels;
  return levels + !variant->blocks;
}

static size_t counter_bytes(const skv__job_t *job, const skv__device_t *device) {
  (void)job, (void)device;
  return 2 * sizeof(uint32_t);
}

static size_t scratch_bytes(const skv__job_t *job, const skv__device_t *device) {
  const variant_t *variant = variant_for(job);
  return skv__tables_bytes(job) + (size_t)cta_limit(device) * (size_t)variant->consumers *
                                      (size_t)slot_count(job, variant) * variant->image_bytes;
}

static int32_t band_heads(const skv__job_t *job) {
  int64_t bytes_per_head = job->most_k_tokens * (job->head_dim + job->value_head_dim) * 2;
  int64_t kv_heads = job->kv_head_end - job->kv_head_begin, band = 1;
  for (int64_t heads = 1; heads <= kv_heads; ++heads)
    if (kv_heads % heads == 0 && heads * bytes_per_head <= BAND_BYTES)
      band = heads;
  return (int32_t)(band * (job->q_heads / job->kv_heads));
}

/* ---- tensor maps ---- */

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

/* Boxes of 64 columns and box_tokens tokens of one head; columns past `dim` and tokens past
 * `tokens` are read as 0. */
static bool map_tensor(CUtensorMap *map, encode_t encode, const skv__job_t *job,
                       const skv_tensor_t *tensor, int64_t dim, int64_t tokens, int64_t heads,
                       int64_t box_tokens) {
  cuuint64_t extents[4] = {(cuuint64_t)dim, (cuuint64_t)tokens, (cuuint64_t)heads,
                           (cuuint64_t)job->batch};
  const int64_t elements[3] = {tensor->stride[1], tensor->stride[2], tensor->stride[0]};
  cuuint64_t strides[3];
  for (int i = 0; i < 3; ++i)
    strides[i] = extents[i + 1] > 1 ? (cuuint64_t)elements[i] * 2 : 16;
  cuuint32_t box[4] = {64, (cuuint32_t)box_tokens, 1, 1}, steps[4] = {1, 1, 1, 1};
  CUtensorMapDataType type =
      job->dtype == SKV_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return encode(map, type, 4, tensor->data, extents, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static skv_status_t map_tensors(prefill_params_t *params, const skv__job_t *job,
                                const variant_t *variant, skv__error_t *error) {
  encode_t encode = encoder();
  if (!encode)
    return skv__fail(error, SKV_UNSUPPORTED, "the driver knows no tensor maps: it is too old");
  int64_t keys = job->most_k_tokens, kv_heads = job->kv_head_end - job->kv_head_begin;
  bool good = map_tensor(&params->q, encode, job, &job->q, job->head_dim, job->most_q_tokens,
                         job->q_heads, variant->rows);
  params->k = params->v = params->q; /* in case there are no keys */
  if (good && keys)
    good = map_tensor(&params->k, encode, job, &job->k, job->head_dim, keys, kv_heads,
                      variant->keys) &&
           map_tensor(&params->v, encode, job, &job->v, job->value_head_dim, keys, kv_heads,
                      variant->keys);
  return good ? SKV_OK : skv__fail(error, SKV_INVALID, "q, k or v has no tensor map");
}

/* ---- launches ---- */

static void fill_results(prefill_params_t *params, const skv__job_t *job,
                         const skv__finish_t *finish) {
  params->states = !finish, params->quick = true;
  params->finish.out_dtype = SKV_FP32;
  if (!finish)
    return;
  params->finish = *finish;
  const int64_t *stride = finish->o.stride;
  params->quick = (finish->out_dtype == SKV_FP32 || finish->out_dtype == job->dtype) &&
                  (uintptr_t)finish->o.data % 16 == 0 && stride[0] % 8 == 0 && stride[1] % 8 == 0 &&
                  stride[2] % 8 == 0;
}

/* What all nodes share. */
static void fill_params(prefill_params_t *params, const skv__job_t *job, const variant_t *variant,
                        void *counters, void *scratch) {
  int64_t group = job->q_heads / job->kv_heads;
  params->left_tokens = job->left_tokens, params->right_tokens = job->right_tokens;
  params->q_heads = (int32_t)job->q_heads, params->group = (int32_t)group;
  params->head_begin = (int32_t)(job->kv_head_begin * group);
  params->heads = (int32_t)((job->kv_head_end - job->kv_head_begin) * group);
  params->band = band_heads(job);
  params->value_head_dim = (int32_t)job->value_head_dim;
  params->leaf_tiles = params->block_tiles = (int32_t)MOST_TILES;
  if (!job->free_order) {
    params->leaf_tiles = (int32_t)at_most(job->leaf_tokens / variant->keys, MOST_TILES);
    params->block_tiles = (int32_t)at_most(job->block_tokens / variant->keys, MOST_TILES);
  }
  params->slots = slot_count(job, variant);
  params->logits = skv__logits_of(job->scale, job->softcap);
  params->next_tile = (uint32_t *)counters, params->leavers = (uint32_t *)counters + 1;
  params->images = (uint8_t *)scratch + skv__tables_bytes(job);
}

static void fill_node(prefill_params_t *params, const skv__job_t *job, int64_t node) {
  const skv__job_node_t *n = &job->nodes[node];
  int64_t blocks = at_most(n->end - n->begin, ceil_divide(MOST_TOKENS, job->block_tokens));
  params->node_begin = n->begin * job->block_tokens;
  params->node_keys = at_most(blocks * job->block_tokens, MOST_TOKENS);
  params->token_offset = (int32_t)n->token_offset;
}

static skv_status_t launch(const skv__job_t *job, const skv__finish_t *finish,
                           const skv__device_t *device, void *counters, void *scratch,
                           cudaStream_t stream, skv__error_t *error) {
  const variant_t *variant = variant_for(job);
  int64_t tiles = 0;
  for (int64_t i = 0; i < job->run_count; ++i)
    tiles += ceil_divide(job->runs[i].q_count, variant->rows);
  tiles *= (job->kv_head_end - job->kv_head_begin) * (job->q_heads / job->kv_heads);
  if (!tiles)
    return SKV_OK;
  if (tiles > INT32_MAX)
    return skv__fail(error, SKV_UNSUPPORTED, "too many rows for one launch");
  prefill_params_t params;
  memset(&params, 0, sizeof params);
  fill_results(&params, job, finish);
  SKV_TRY(map_tensors(&params, job, variant, error));
  fill_params(&params, job, variant, counters, scratch);
  params.tiles = (uint32_t)tiles;
  prefill_mode_t mode = job->softcap != 0.0f ? MODE_CAPPED
                        : job->free_order    ? MODE_FREE
                                             : MODE_PINNED;
  prefill_kernel_t kernel = variant->kernels[job->dtype == SKV_BF16][mode];
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           (int)variant->shared_bytes) != cudaSuccess)
    return skv__fail(error, SKV_UNSUPPORTED, "the device has too little shared memory");
  params.ctas = (uint32_t)at_most(tiles, cta_limit(device));
  for (int64_t node = 0; node < job->node_count; ++node) {
    SKV_TRY(skv__tables_fill(&params.tables, job, node, finish, scratch, stream));
    fill_node(&params, job, node);
    kernel<<<params.ctas, (unsigned)variant->threads, variant->shared_bytes, stream>>>(params);
    cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess)
      return skv__fail(error, SKV_INTERNAL, "prefill: %s", cudaGetErrorString(status));
  }
  return SKV_OK;
}

const skv__attention_t skv__cuda_prefill = {"prefill", supports, counter_bytes, scratch_bytes,
                                            launch};
