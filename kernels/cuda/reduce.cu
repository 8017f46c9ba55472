/* reduce.cu: see reduce.h. A warp takes a few neighbouring rows: all loads of O of all nodes are in
 * flight at once, each lane's for itself; then a lane a row runs the order of merges over (e, l)
 * and leaves the weights, and O follows. */
#include "kernels/cuda/reduce.h"

#include <string.h>

#include "kernels/cuda/finish.cuh"
#include "kernels/cuda/meet.cuh"
#include "kernels/state.h"

enum {
  MOST_PAIRS = 32,
  MANY_PAIRS = 4,
  FLIGHT = 8,
  MOST_WARPS = 16,
  SMALL_WARPS = 4,
  MOST_CTAS = 128
};
static_assert((int)MOST_CTAS <= (int)SKV__WINDOW_CTAS, "a window has room for all CTAs to meet");

typedef struct reduce_params {
  skv__window_t window;
  skv__reduce_t reduce;
  int32_t row_bits; /* 2^row_bits rows of a warp at a time */
  int32_t stride;   /* floats between rows in shared memory */
  finish_params_t finish;
} reduce_params_t;

/* A warp's part of shared memory. Row r of node or fold n is at (n << row_bits) + r. */
typedef struct desk {
  float e[MOST_PAIRS], l[MOST_PAIRS];
  skv__weights_t weights[MOST_PAIRS];
  uint32_t words[MOST_VALUES + 4];
  float o[]; /* [pairs][stride] */
} desk_t;

static __host__ __device__ size_t desk_bytes(const reduce_params_t &p) {
  return sizeof(desk_t) +
         ((sizeof(float) * (size_t)p.stride * (size_t)p.reduce.nodes) << p.row_bits);
}

/* Rows [first, first + count) of a part. */
typedef struct batch {
  const skv__reduce_part_t *part;
  int64_t first;
  int32_t count;
} batch_t;

template <int Width> struct pack { float at[Width]; };
template <> struct alignas(16) pack<4> { float at[4]; };

/* Plain loads: asynchronous copies of 16 bytes reach half of what a link between GPUs gives. */
template <int Width>
static __device__ __forceinline__ void load_o(const reduce_params_t &p, const batch_t &b,
                                              desk_t *desk) {
  const int dim = (int)p.reduce.value_head_dim, lane = (int)threadIdx.x % 32;
  const int pairs = p.reduce.nodes << p.row_bits;
  for (int d = lane * Width; d < dim; d += 32 * Width)
    for (int first = 0; first < pairs; first += FLIGHT) {
      pack<Width> flight[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; ++i) {
        const int n = (first + i) >> p.row_bits, r = first + i - (n << p.row_bits);
        if (first + i < pairs && r < b.count)
          flight[i] = *(const pack<Width> *)(b.part->states[n] + (b.first + r) * dim + d);
      }
#pragma unroll
      for (int i = 0; i < FLIGHT; ++i)
        if (first + i < pairs)
          *(pack<Width> *)(desk->o + (first + i) * p.stride + d) = flight[i];
    }
}

/* A lane a pair: its e and l. */
static __device__ __forceinline__ float2 load_ends(const reduce_params_t &p, const batch_t &b) {
  const int lane = (int)threadIdx.x % 32, n = lane >> p.row_bits, r = lane - (n << p.row_bits);
  if (n >= p.reduce.nodes || r >= b.count)
    return make_float2(0.0f, 0.0f);
  const float *e = b.part->states[n] + b.part->rows * p.reduce.value_head_dim + b.first + r;
  return make_float2(e[0], e[b.part->rows]);
}

/* A lane a row. */
static __device__ __forceinline__ void fold_ends(const reduce_params_t &p, const batch_t &b,
                                                 desk_t *desk) {
  const int r = (int)threadIdx.x % 32;
  for (int f = 0; f < p.reduce.nodes - 1 && r < b.count; ++f) {
    const int left = (p.reduce.folds[f].left << p.row_bits) + r;
    const int right = (p.reduce.folds[f].right << p.row_bits) + r;
    const skv__weights_t weights = skv__merge_weights(desk->e[left], desk->e[right]);
    desk->weights[(f << p.row_bits) + r] = weights;
    desk->e[left] = weights.e;
    desk->l[left] = skv__merge_value(weights, desk->l[left], desk->l[right]);
  }
  __syncwarp();
}

/* Each lane the elements that it has loaded. */
template <int Width>
static __device__ __forceinline__ void fold_row(const reduce_params_t &p, desk_t *desk, int r) {
  const int dim = (int)p.reduce.value_head_dim, lane = (int)threadIdx.x % 32;
  for (int f = 0; f < p.reduce.nodes - 1; ++f) {
    const skv__weights_t weights = desk->weights[(f << p.row_bits) + r];
    if (weights.keep == SKV__KEEP_LEFT)
      continue;
    float *left = desk->o + ((p.reduce.folds[f].left << p.row_bits) + r) * p.stride;
    const float *right = desk->o + ((p.reduce.folds[f].right << p.row_bits) + r) * p.stride;
    for (int d = lane * Width; d < dim; d += 32 * Width) {
      pack<Width> a = *(const pack<Width> *)(left + d);
      const pack<Width> b = *(const pack<Width> *)(right + d);
#pragma unroll
      for (int i = 0; i < Width; ++i)
        a.at[i] = skv__merge_value(weights, a.at[i], b.at[i]);
      *(pack<Width> *)(left + d) = a;
    }
  }
}

template <int Width>
static __device__ __forceinline__ void store_row(const reduce_params_t &p, const batch_t &b,
                                                 const desk_t *desk, int r) {
  const int64_t dim = p.reduce.value_head_dim, row = b.first + r;
  const int lane = (int)threadIdx.x % 32;
  for (int d = lane * Width; d < dim; d += 32 * Width)
    *(pack<Width> *)(b.part->out + row * dim + d) =
        *(const pack<Width> *)(desk->o + r * p.stride + d);
  if (lane == 0) {
    b.part->out[b.part->rows * dim + row] = desk->e[r];
    b.part->out[b.part->rows * (dim + 1) + row] = desk->l[r];
  }
}

/* Who is row `index` of the slice. */
static __device__ row_t row_of_slice(const finish_params_t &p, int32_t owner, int64_t index) {
  const int64_t place = p.round_robin ? index * p.ranks + owner : index;
  int32_t i = 0;
  while (i + 1 < p.run_count && ((!p.round_robin && p.runs[i].owner != owner) ||
                                 place >= p.runs[i].row_begin + p.runs[i].q_count * p.q_heads))
    ++i;
  const int64_t within = place - p.runs[i].row_begin;
  return row_of(p.runs[i], within / p.q_heads, within % p.q_heads);
}

static __device__ uint64_t finish_one(const reduce_params_t &p, const batch_t &b, desk_t *desk,
                                      int r) {
  const row_t row = row_of_slice(p.finish, b.part->owner, b.first + r);
  __syncwarp();
  return finish_row(p.finish, b.part->writes, b.part->counts, row, desk->e[r], desk->l[r],
                    desk->o + r * p.stride, desk->words);
}

template <int Width>
static __device__ uint64_t reduce_batch(const reduce_params_t &p, const batch_t &b, desk_t *desk) {
  uint64_t bits = 0;
  const float2 ends = load_ends(p, b);
  load_o<Width>(p, b, desk);
  desk->e[threadIdx.x % 32] = ends.x, desk->l[threadIdx.x % 32] = ends.y;
  __syncwarp();
  fold_ends(p, b, desk);
  for (int r = 0; r < b.count; ++r) {
    fold_row<Width>(p, desk, r);
    if (b.part->out)
      store_row<Width>(p, b, desk, r);
    else
      bits += finish_one(p, b, desk, r);
  }
  __syncwarp();
  return bits;
}

/* Batch `number`, counted over all parts. */
static __device__ __forceinline__ bool find_batch(const reduce_params_t &p, int64_t number,
                                                  batch_t *batch) {
  const int64_t most = (int64_t)1 << p.row_bits;
  for (int i = 0; i < p.reduce.parts; ++i) {
    const int64_t rows = p.reduce.part[i].rows, first = number << p.row_bits;
    if (first < rows) {
      *batch = {&p.reduce.part[i], first, (int32_t)min(rows - first, most)};
      return true;
    }
    number -= (rows + most - 1) >> p.row_bits;
  }
  return false;
}

template <int Width>
static __global__ void __launch_bounds__(32 * MOST_WARPS, 1)
    reduce_rows(const __grid_constant__ reduce_params_t p) {
  extern __shared__ __align__(16) unsigned char room[];
  __shared__ int stopped;
  const int warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32;
  desk_t *desk = (desk_t *)(room + warp * desk_bytes(p));
  meeting_t meeting = meetings_begin(p.window);
  if (threadIdx.x == 0)
    stopped = 0;
  if (!meet(p.window, &meeting, &stopped))
    return;
  uint64_t bits = 0;
  batch_t batch;
  for (int64_t number = (int64_t)blockIdx.x * warps + warp; find_batch(p, number, &batch);
       number += (int64_t)gridDim.x * warps)
    bits += reduce_batch<Width>(p, batch, desk);
  if (p.finish.bits && threadIdx.x % 32 == 0 && bits)
    atomicAdd(p.finish.bits, (unsigned long long)bits);
  if (!p.reduce.leaves_early && !meet(p.window, &meeting, &stopped))
    return;
  meetings_end(p.window, meeting);
}

bool skv__reduce_finishes(const skv__job_t *job, const skv__finish_t *finish) {
  return job->run_count <= RUNS && (!finish->sinks || job->q_heads <= SINKS);
}

static void take_finish(finish_params_t *p, const skv__job_t *job, const skv__finish_t *finish) {
  finish_fill(p, job, finish);
  p->heads = job->q_heads;
  p->run_count = (int32_t)job->run_count;
  for (int32_t i = 0; i < p->run_count; ++i)
    p->runs[i] = skv__device_run(job, &job->runs[i]);
  if (p->has_sinks)
    memcpy(p->sinks, finish->sinks, (size_t)p->heads * sizeof(float));
}

/* Rows of a warp at a time: many where there are many. */
static int32_t bits_of_rows(const skv__reduce_t *reduce) {
  int32_t bits = 0;
  while (2 * reduce->nodes << bits <= MANY_PAIRS &&
         (int64_t)MOST_CTAS * MOST_WARPS << (bits + 1) <= reduce->most_rows)
    ++bits;
  return bits;
}

/* Many warps to a CTA where there is work for them, and room. */
static int warps_of(const reduce_params_t *p, int64_t batches) {
  const size_t room = (size_t)200 << 10;
  int warps = batches < MOST_CTAS * SMALL_WARPS ? (int)SMALL_WARPS : (int)MOST_WARPS;
  while (warps * desk_bytes(*p) > room)
    warps /= 2;
  return warps;
}

typedef void (*kernel_t)(reduce_params_t);

skv_status_t skv__launch_reduce(const skv__window_t *window, const skv__reduce_t *reduce,
                                const skv__job_t *job, const skv__finish_t *finish, void *stream) {
  const int64_t dim = reduce->value_head_dim;
  if (reduce->nodes < 1 || reduce->nodes > SKV__REDUCE_NODES || dim < 1 || dim > MOST_VALUES ||
      window->ranks > SKV__WINDOW_RANKS || (finish && !skv__reduce_finishes(job, finish)))
    return SKV_INVALID;
  reduce_params_t p;
  memset(&p, 0, sizeof p);
  p.window = *window, p.reduce = *reduce;
  p.row_bits = bits_of_rows(reduce);
  p.stride = (int32_t)((dim + 3) / 4 * 4);
  if (finish)
    take_finish(&p.finish, job, finish);
  const int64_t batches = (reduce->most_rows >> p.row_bits) + (p.row_bits ? 1 : 0);
  const int warps = warps_of(&p, batches);
  const int64_t ctas = (batches + warps - 1) / warps + (batches == 0);
  const size_t bytes = warps * desk_bytes(p);
  const kernel_t kernel = dim % 4 ? reduce_rows<1> : reduce_rows<4>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) ==
      cudaSuccess)
    kernel<<<(unsigned)(ctas < MOST_CTAS ? ctas : (int64_t)MOST_CTAS), 32 * warps, bytes,
             (cudaStream_t)stream>>>(p);
  return cudaGetLastError() == cudaSuccess ? SKV_OK : SKV_INTERNAL;
}
