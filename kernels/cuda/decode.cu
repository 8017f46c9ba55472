/* decode.cu: from a job to the launch of the sm_90a decode kernel. */
#include "kernels/cuda/decode.cuh"

#include <string.h>

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"

/* Above MOST_ROWS rows of a KV head the prefill kernel takes over: more would spill. Where it
 * becomes the faster one was not measured. */
enum { MOST_ROWS = 32, MOST_KEYS = 1 << 30, MOST_SLICES = 8 };

static int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* Columns that the kernel's tiles have. */
static int tile_columns(const skv__job_t *job) {
  int64_t most = job->head_dim > job->value_head_dim ? job->head_dim : job->value_head_dim;
  return most <= 64 ? 64 : most <= 128 ? 128 : 256;
}

static int64_t job_heads(const skv__job_t *job) {
  return job->kv_head_end - job->kv_head_begin;
}

/* Rows of a sequence that share a KV head, at most; a plan may allow no query. */
static int64_t rows_of(const skv__job_t *job) {
  int64_t queries = job->most_q_tokens > 0 ? job->most_q_tokens : 1;
  return queries * (job->q_heads / job->kv_heads);
}

/* Row tiles of 16 rows that a CTA has at once: all rows of a KV head. */
static int row_tiles(const skv__job_t *job) {
  return rows_of(job) <= 16 ? 1 : 2;
}

/* Keys of a leaf. In free order: so that every multiprocessor has one leaf to do. */
static int64_t leaf_keys(const skv__job_t *job, const skv__device_t *device) {
  if (!job->free_order)
    return least(job->leaf_tokens, MOST_KEYS);
  int64_t leaves = device->multiprocessors / (job->batch * job_heads(job));
  int64_t keys = ceil_divide(job->most_k_tokens, leaves > 1 ? leaves : 1);
  return ceil_divide(keys > 0 ? keys : 1, 128) * 128;
}

/* Units that a job can have, were each a leaf. */
static int64_t most_units(const skv__job_t *job, const skv__device_t *device) {
  int64_t leaves = ceil_divide(job->most_k_tokens, leaf_keys(job, device)) + 1;
  return job->most_runs * job_heads(job) * leaves;
}

static size_t slots_bytes(const skv__job_t *job, const skv__device_t *device) {
  return (size_t)most_units(job, device) * (size_t)row_tiles(job) * 32 *
         (size_t)(MOST_SLICES + tile_columns(job) / 8) * sizeof(float4);
}
static size_t counters_bytes(const skv__job_t *job, const skv__device_t *device) {
  return (size_t)most_units(job, device) * MOST_SLICES * sizeof(uint32_t);
}
static size_t items_bytes(const skv__job_t *job) {
  return (size_t)(ceil_divide(job->most_runs, DECODE_CARRIED_ITEMS) * DECODE_CARRIED_ITEMS) *
         sizeof(decode_item_t);
}
/* Tables, then items, then slots. */
static size_t scratch_bytes(const skv__job_t *job, const skv__device_t *device) {
  return skv__tables_bytes(job) + items_bytes(job) + slots_bytes(job, device);
}

static bool tensor_fits(const skv_tensor_t *tensor, int64_t sequences) {
  return (uintptr_t)tensor->data % 16 == 0 && tensor->stride[1] % 8 == 0 &&
         tensor->stride[2] % 8 == 0 && (sequences == 1 || tensor->stride[0] % 8 == 0);
}

static bool supports(const skv__job_t *job, const skv__device_t *device) {
  int64_t keys = skv__tile_keys(job->head_dim);
  bool shape = device->major == 9 && job->head_dim % 8 == 0 && job->value_head_dim % 8 == 0 &&
               job->head_dim > 0 && job->head_dim <= 256 && job->value_head_dim > 0 &&
               job->value_head_dim <= (keys == 128 ? 128 : 256) &&
               (job->dtype == SKV_BF16 || job->dtype == SKV_FP16) && rows_of(job) <= MOST_ROWS &&
               job->most_k_tokens <= MOST_KEYS;
  bool order = job->free_order ||
               (job->leaf_tokens % keys == 0 && job->block_tokens % job->leaf_tokens == 0);
  if (!shape || !order || most_units(job, device) > INT32_MAX / (2 * MOST_SLICES))
    return false;
  return !job->q.data || (tensor_fits(&job->q, job->batch) && tensor_fits(&job->k, job->batch) &&
                          tensor_fits(&job->v, job->batch));
}

/* ---- parameters ---- */

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

/* Boxes of `keys` tokens and `columns` columns of one head; columns past `dim` are read as 0. */
static bool map_tensor(CUtensorMap *map, const skv__job_t *job, const skv_tensor_t *tensor,
                       int64_t dim, int columns, int keys) {
  encode_t encode = encoder();
  int64_t one = tensor->stride[1] * 2; /* a stride that is not used must fit, too */
  cuuint64_t extents[4] = {(cuuint64_t)dim,
                           (cuuint64_t)(job->most_k_tokens > 0 ? job->most_k_tokens : 1),
                           (cuuint64_t)job_heads(job), (cuuint64_t)job->batch};
  cuuint64_t strides[3] = {(cuuint64_t)one,
                           (cuuint64_t)(job_heads(job) > 1 ? tensor->stride[2] * 2 : one),
                           (cuuint64_t)(job->batch > 1 ? tensor->stride[0] * 2 : one)};
  cuuint32_t box[4] = {(cuuint32_t)columns, (cuuint32_t)keys, 1, 1}, steps[4] = {1, 1, 1, 1};
  return encode &&
         encode(map,
                job->dtype == SKV_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                4, tensor->data, extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                columns == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                : columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                : CU_TENSOR_MAP_SWIZZLE_32B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static void fill_outputs(decode_params_t *params, const skv__finish_t *finish) {
  params->states = !finish;
  if (!finish)
    return;
  params->o = finish->o.data, params->out_dtype = finish->out_dtype, params->lse = finish->lse;
  for (int i = 0; i < 3; ++i)
    params->o_stride[i] = finish->o.stride[i], params->lse_stride[i] = finish->lse_stride[i];
}

/* All but the maps, tables and shares. */
static void fill_params(decode_params_t *params, const skv__job_t *job, const skv__job_node_t *node,
                        const skv__device_t *device, void *counters, void *scratch) {
  int64_t leaf = leaf_keys(job, device), blocks = node->end - node->begin;
  int64_t block_leaves = job->free_order ? 1 : job->block_tokens / job->leaf_tokens;
  params->q = (const uint16_t *)job->q.data;
  for (int i = 0; i < 3; ++i)
    params->q_stride[i] = job->q.stride[i];
  params->q_heads = (int32_t)job->q_heads;
  params->group = (int32_t)(job->q_heads / job->kv_heads);
  params->head_dim = (int32_t)job->head_dim;
  params->value_head_dim = (int32_t)job->value_head_dim;
  params->kv_heads = (int32_t)job_heads(job);
  params->kv_head_begin = (int32_t)job->kv_head_begin;
  params->logits = skv__logits_of(job->scale, job->softcap);
  params->left_tokens = job->left_tokens, params->right_tokens = job->right_tokens;
  params->node_begin = node->begin * job->block_tokens;
  params->node_keys =
      least(blocks, MOST_KEYS / job->block_tokens + 1) * least(job->block_tokens, MOST_KEYS);
  params->token_offset = (int32_t)node->token_offset;
  params->leaf_keys = (int32_t)leaf;
  params->block_leaves = (int32_t)least(block_leaves, ceil_divide(MOST_KEYS, leaf));
  params->piece_leaves = params->piece_slots = 1;
  params->runs = job->run_count;
  params->counters = (uint32_t *)counters;
  unsigned char *items = (unsigned char *)scratch + skv__tables_bytes(job);
  params->far_items = (const decode_item_t *)items;
  params->slots = (float4 *)(items + items_bytes(job));
}

static int32_t count_units(const decode_params_t *params, const skv__job_t *job) {
  int32_t units = 0;
  for (int64_t i = 0; i < job->run_count; ++i)
    units += decode_units_of(*params, skv__device_run(job, &job->runs[i]));
  return units;
}

static int32_t most_ctas(const skv__device_t *device) {
  return device->most_ctas ? device->most_ctas : device->multiprocessors;
}

/* Larger pieces are merged by fewer meetings of CTAs: the largest that leave no CTA more to do than
 * single leaves would. Returns the units, which had a leaf each. */
static int32_t choose_pieces(decode_params_t *params, const skv__job_t *job,
                             const skv__device_t *device, int32_t leaves) {
  const int32_t most = most_ctas(device);
  int64_t least_work = ceil_divide(leaves, most);
  decode_params_t tried = *params;
  int32_t units = leaves, slots = params->block_leaves > 1;
  for (int64_t piece = params->block_leaves; piece <= least_work; piece *= 2, ++slots) {
    if (piece == 1)
      piece = 2, ++slots;
    tried.piece_leaves = (int32_t)piece;
    int32_t pieces = count_units(&tried, job);
    if (ceil_divide(pieces, most) * piece > least_work || (int64_t)pieces * slots > leaves)
      continue;
    params->piece_leaves = (int32_t)piece, params->piece_slots = slots;
    units = pieces;
  }
  return units;
}

/* To the parameters, or, where they are many, to scratch. */
static void fill_items(decode_params_t *params, const skv__job_t *job, int tile_keys,
                       cudaStream_t stream) {
  decode_item_t items[DECODE_CARRIED_ITEMS];
  const bool far = job->run_count > DECODE_NEAR_ITEMS;
  static_assert(sizeof items % 16 == 0 && sizeof items <= SKV__CARRIED_BYTES, "carried at once");
  int32_t unit = 0;
  if (!far)
    params->far_items = NULL;
  for (int64_t i = 0; i < job->run_count; ++i) {
    const int64_t at = i % DECODE_CARRIED_ITEMS;
    skv__device_run_t run = skv__device_run(job, &job->runs[i]);
    decode_item_t *item = far ? &items[at] : &params->near_items[i];
    *item = decode_item_of(*params, run, (int32_t)i, unit, tile_keys);
    unit += decode_units_of(*params, run);
    if (far && (at + 1 == DECODE_CARRIED_ITEMS || i + 1 == job->run_count))
      skv__tables_carry((void *)(params->far_items + i - at), items, sizeof items, stream);
  }
}

/* ---- launching ---- */

template <class Shape>
static skv_status_t launch_shape(decode_params_t *params, const skv__job_t *job, int32_t units,
                                 int32_t parts, cudaStream_t stream) {
  if (!map_tensor(&params->k, job, &job->k, job->head_dim, 64, Shape::kKeys) ||
      !map_tensor(&params->v, job, &job->v, job->value_head_dim, Shape::kPitch / 2, Shape::kKeys))
    return SKV_INVALID;
  const int bytes = (int)sizeof(decode_shared<Shape>);
  static_assert(bytes <= 227 * 1024, "shared memory");
  params->share = units / parts, params->larger = units % parts;
  if (cudaFuncSetAttribute(decode<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) !=
      cudaSuccess)
    return SKV_UNSUPPORTED;
  cudaLaunchAttribute cluster;
  memset(&cluster, 0, sizeof cluster);
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = Shape::kCtas;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((unsigned)(parts * Shape::kCtas * Shape::kParts));
  config.blockDim = dim3(Shape::kThreads);
  config.dynamicSmemBytes = (size_t)bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = Shape::kCtas > 1;
  return cudaLaunchKernelEx(&config, decode<Shape>, *params) == cudaSuccess ? SKV_OK : SKV_INTERNAL;
}

/* CTAs that share a leaf: more where leaves alone do not fill the device. Clusters do not fit
 * everywhere on it, and those that must wait for others come late. */
static int leaf_ctas(const decode_params_t *params, const skv__job_t *job, int32_t units,
                     const skv__device_t *device) {
  const int columns = tile_columns(job), most = device->multiprocessors;
  if (rows_of(job) > 8 || params->leaf_keys > 2048 || device->most_ctas)
    return 1;
  if (units * 8 <= most * 7 / 8 && columns > 64)
    return 8;
  return units * 4 <= most * 3 / 4 && columns <= 128 ? 4 : 1;
}

/* Whether two CTAs should share a leaf: where that many alone do not read at the memory's speed.
 * Each reads all of K, which the L2 cache has for the second. */
static bool has_parts(const skv__job_t *job, int32_t leaves, const skv__device_t *device) {
  return rows_of(job) <= 8 && leaves * 8 <= device->multiprocessors * 3 && !device->most_ctas;
}

template <typename Type, int Dim, int Keys>
static skv_status_t launch_columns(decode_params_t *params, const skv__job_t *job, int32_t leaves,
                                   const skv__device_t *device, cudaStream_t stream) {
  int spread = leaf_ctas(params, job, leaves, device);
  int32_t units = spread == 1 ? choose_pieces(params, job, device, leaves) : leaves;
  /* as many CTAs as can be busy to the end */
  int32_t ctas = (int32_t)ceil_divide(units, ceil_divide(units, most_ctas(device)));
  fill_items(params, job, Keys, stream);
  if (spread == 8)
    if constexpr (Dim > 64)
      return launch_shape<decode_shape<Type, Dim, Keys, 8, 8>>(params, job, units, units, stream);
  if (spread == 4)
    if constexpr (Dim < 256)
      return launch_shape<decode_shape<Type, Dim, Keys, 8, 4>>(params, job, units, units, stream);
  if constexpr (Dim > 64)
    if (has_parts(job, leaves, device))
      return launch_shape<decode_shape<Type, Dim, Keys, 8, 1, 2>>(params, job, units, units,
                                                                  stream);
  if (rows_of(job) <= 8)
    return launch_shape<decode_shape<Type, Dim, Keys, 8, 1>>(params, job, units, ctas, stream);
  if (rows_of(job) <= 16)
    return launch_shape<decode_shape<Type, Dim, Keys, 16, 1>>(params, job, units, ctas, stream);
  return launch_shape<decode_shape<Type, Dim, Keys, 32, 1>>(params, job, units, ctas, stream);
}

template <typename Type>
static skv_status_t launch_type(decode_params_t *params, const skv__job_t *job, int32_t units,
                                const skv__device_t *device, cudaStream_t stream) {
  if (skv__tile_keys(job->head_dim) == 64)
    return launch_columns<Type, 256, 64>(params, job, units, device, stream);
  if (tile_columns(job) == 64)
    return launch_columns<Type, 64, 128>(params, job, units, device, stream);
  return launch_columns<Type, 128, 128>(params, job, units, device, stream);
}

static skv_status_t launch(const skv__job_t *job, const skv__finish_t *finish,
                           const skv__device_t *device, void *counters, void *scratch,
                           cudaStream_t stream, skv__error_t *error) {
  for (int64_t node = 0; node < job->node_count; ++node) {
    decode_params_t params;
    memset(&params, 0, sizeof params);
    fill_params(&params, job, &job->nodes[node], device, counters, scratch);
    fill_outputs(&params, finish);
    const int32_t units = count_units(&params, job);
    if (!units)
      continue;
    skv__job_t tabled = *job;
    if (finish) /* runs say only where states go */
      tabled.run_count = 0;
    skv_status_t status = skv__tables_fill(&params.tables, &tabled, node, finish, scratch, stream);
    if (status == SKV_OK)
      status = job->dtype == SKV_BF16 ? launch_type<bf16_type>(&params, job, units, device, stream)
                                      : launch_type<fp16_type>(&params, job, units, device, stream);
    if (status != SKV_OK)
      return skv__fail(error, status, "the decode kernel was not launched: %s",
                       cudaGetErrorString(cudaGetLastError()));
  }
  return SKV_OK;
}

extern "C" const skv__attention_t skv__cuda_decode = {"decode", supports, counters_bytes,
                                                      scratch_bytes, launch};
