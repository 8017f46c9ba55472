/* plain.cu: from a job to launches of the plain kernel, one a node. */
#include <string.h>

#include <cuda_runtime.h>

#include "kernels/cuda/plain.cuh"

/* CTAs that stay; more do not fit the registers. */
enum { CTAS_OF_MULTIPROCESSOR = 2, FP32_KEYS = 64 };

static int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

static int64_t tile_keys(const skv__job_t *job) {
  return job->dtype == SKV_FP32 ? (int64_t)FP32_KEYS : skv__tile_keys(job->head_dim);
}

static bool supports(const skv__job_t *job, const skv__device_t *device) {
  bool dims = job->head_dim >= 1 && job->head_dim <= 256 && job->value_head_dim >= 1 &&
              job->value_head_dim <= 256;
  bool order = job->leaf_tokens > 0 && job->leaf_tokens % tile_keys(job) == 0 &&
               job->block_tokens > 0 && job->block_tokens % job->leaf_tokens == 0;
  bool near =
      !job->q.data || (job->q.stride[3] == 1 && job->k.stride[3] == 1 && job->v.stride[3] == 1);
  return device->major >= 8 && dims && order && near;
}

/* Levels of the tree on which a node can wait: none over one block. */
static int32_t stack_levels(const skv__job_t *job) {
  int64_t blocks = ceil_divide(job->most_k_tokens, job->block_tokens);
  int32_t levels = 0;
  while (blocks > 1 && (blocks - 1) >> levels)
    ++levels;
  return levels;
}

/* As many as row tiles, of which there are no more than if each run began one and they held all
 * queries of the bounds. */
static int64_t cta_count(const skv__job_t *job, const skv__device_t *device) {
  int64_t group = job->q_heads / job->kv_heads;
  int64_t row_tiles = job->most_runs + job->batch * job->most_q_tokens * group / PLAIN_ROWS;
  int64_t tiles = row_tiles * job->kv_heads * plain_chunks(job->value_head_dim);
  int64_t most = device->most_ctas ? device->most_ctas
                                   : (int64_t)device->multiprocessors * CTAS_OF_MULTIPROCESSOR;
  return tiles < most ? tiles : most;
}

static size_t counter_bytes(const skv__job_t *job, const skv__device_t *device) {
  (void)job, (void)device;
  return 0;
}

static size_t scratch_bytes(const skv__job_t *job, const skv__device_t *device) {
  size_t image = (size_t)PLAIN_IMAGE * PLAIN_THREADS * sizeof(float4);
  return skv__tables_bytes(job) +
         (size_t)cta_count(job, device) * (1 + (size_t)stack_levels(job)) * image;
}

/* `dim`: elements of a row. */
static plain_tensor_t strided(const skv_tensor_t *tensor, int64_t dim, skv_dtype_t dtype) {
  const int64_t vector = dtype == SKV_FP32 ? 4 : 8;
  plain_tensor_t out = {tensor->data, {}, (uintptr_t)tensor->data % 16 == 0 && dim % vector == 0};
  for (int i = 0; i < 3; ++i) {
    out.stride[i] = tensor->stride[i];
    out.vectors = out.vectors && tensor->stride[i] % vector == 0;
  }
  return out;
}

static void fill_params(plain_params_t *params, const skv__job_t *job,
                        const skv__finish_t *finish) {
  memset(params, 0, sizeof *params);
  params->q = strided(&job->q, job->head_dim, job->dtype);
  params->k = strided(&job->k, job->head_dim, job->dtype);
  params->v = strided(&job->v, job->value_head_dim, job->dtype);
  params->q_heads = job->q_heads, params->group = job->q_heads / job->kv_heads;
  params->kv_head_begin = job->kv_head_begin;
  params->kv_heads = job->kv_head_end - job->kv_head_begin;
  params->head_dim = (int32_t)job->head_dim;
  params->value_head_dim = (int32_t)job->value_head_dim;
  params->logits = skv__logits_of(job->scale, job->softcap);
  params->left_tokens = job->left_tokens, params->right_tokens = job->right_tokens;
  params->leaf_tokens = job->leaf_tokens, params->block_tokens = job->block_tokens;
  params->slots = 1 + stack_levels(job);
  params->finish = finish != NULL;
  if (!finish)
    return;
  params->o = finish->o.data, params->out_dtype = finish->out_dtype, params->lse = finish->lse;
  for (int i = 0; i < 3; ++i) {
    params->o_stride[i] = finish->o.stride[i];
    params->lse_stride[i] = finish->lse_stride[i];
  }
}

template <typename Type, int Keys>
static cudaError_t launch_kernel(const plain_params_t *params, int64_t ctas, cudaStream_t stream) {
  typedef plain_leaf<Type> kind;
  int elements = PLAIN_ROWS * plain_q_pitch<Type>(params->head_dim) + 2 * Keys * kind::kPitch;
  int bytes = elements * (int)sizeof(typename kind::element);
  cudaError_t status =
      cudaFuncSetAttribute(plain<Type, Keys>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess)
    return status;
  plain<Type, Keys><<<(unsigned)ctas, PLAIN_THREADS, (size_t)bytes, stream>>>(*params);
  return cudaGetLastError();
}

template <typename Type>
static cudaError_t launch_half(const plain_params_t *params, int64_t ctas, cudaStream_t stream) {
  return skv__tile_keys(params->head_dim) == 128 ? launch_kernel<Type, 128>(params, ctas, stream)
                                                 : launch_kernel<Type, 64>(params, ctas, stream);
}

static cudaError_t launch_node(const plain_params_t *params, skv_dtype_t dtype, int64_t ctas,
                               cudaStream_t stream) {
  switch (dtype) {
  case SKV_BF16:
    return launch_half<bf16_type>(params, ctas, stream);
  case SKV_FP16:
    return launch_half<fp16_type>(params, ctas, stream);
  default:
    return launch_kernel<fp32_type, FP32_KEYS>(params, ctas, stream);
  }
}

static skv_status_t launch(const skv__job_t *job, const skv__finish_t *finish,
                           const skv__device_t *device, void *counters, void *scratch,
                           cudaStream_t stream, skv__error_t *error) {
  (void)counters;
  int64_t ctas = cta_count(job, device);
  if (ctas == 0 || job->run_count == 0)
    return SKV_OK;
  plain_params_t params;
  fill_params(&params, job, finish);
  params.states = (float4 *)((char *)scratch + skv__tables_bytes(job));
  for (int64_t n = 0; n < job->node_count; ++n) {
    const skv__job_node_t *node = &job->nodes[n];
    params.node_begin = node->begin, params.node_end = node->end;
    params.token_offset = node->token_offset;
    SKV_TRY(skv__tables_fill(&params.tables, job, n, finish, scratch, stream));
    cudaError_t status = launch_node(&params, job->dtype, ctas, stream);
    if (status != cudaSuccess)
      return skv__fail(error, SKV_INTERNAL, "the plain attention kernel did not start: %s",
                       cudaGetErrorString(status));
  }
  return SKV_OK;
}

const skv__attention_t skv__cuda_plain = {"plain", supports, counter_bytes, scratch_bytes, launch};
