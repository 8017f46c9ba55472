/* finish.cu: from the root's states to O, LSE and the rows' digests: a warp a row, with the bits of
 * kernels/cpu/finish.c. */
#include "kernels/cuda/finish.h"

#include <string.h>

#include <cuda_runtime.h>

#include "kernels/convert.h"
#include "kernels/cuda/tables.h"
#include "kernels/digest.h"

/* What one launch finishes, at most: its runs and sinks travel in the parameters. */
enum { RUNS = 32, SINKS = 256, WARPS = 8, MOST_VALUES = 256 };

typedef struct finish_params {
  const float *slice; /* NULL: EMPTY */
  int64_t slice_rows, dim, q_heads, head_begin, heads;
  int32_t ranks, owner, run_count;
  bool round_robin, has_sinks;
  skv_dtype_t out_dtype;
  void *o;
  float *lse;
  unsigned long long *bits;
  int64_t o_stride[3], lse_stride[3];
  int64_t first_row[RUNS + 1]; /* of each run, among the rows of this launch */
  skv__device_run_t runs[RUNS];
  float sinks[SINKS];
} finish_params_t;

typedef struct row {
  int64_t sequence, query, position, head;
  int64_t index; /* in the slice */
  bool mine;
} row_t;

static __device__ row_t row_at(const finish_params_t &p, int64_t number) {
  int32_t i = 0;
  while (number >= p.first_row[i + 1])
    ++i;
  const skv__device_run_t &run = p.runs[i];
  int64_t query = (number - p.first_row[i]) / p.heads;
  int64_t head = p.head_begin + (number - p.first_row[i]) % p.heads;
  int64_t place = run.row_begin + query * p.q_heads + head;
  row_t row;
  row.sequence = run.sequence, row.query = run.q_begin + query;
  row.position = run.position + query, row.head = head;
  row.mine = p.owner == (p.round_robin ? place % p.ranks : run.owner);
  row.index = p.round_robin ? place / p.ranks : place;
  return row;
}

/* `words` is the warp's room for (O, LSE). */
static __device__ uint64_t digest(const uint32_t *words, int64_t count, const row_t &row) {
  int lane = (int)threadIdx.x % 32;
  uint64_t seed = skv__digest_place(row.sequence, row.position, row.head), lanes[4];
  uint64_t mine = skv__digest_lane(words, count, seed, lane % SKV__DIGEST_LANES);
  for (int i = 0; i < SKV__DIGEST_LANES; ++i)
    lanes[i] = __shfl_sync(0xffffffff, mine, i);
  return skv__digest_end(lanes, words, count, seed);
}

/* Returns the row's digest, where bits are wanted. */
static __device__ uint64_t finish_row(const finish_params_t &p, const row_t &row, uint32_t *words) {
  int lane = (int)threadIdx.x % 32;
  const float *ends = p.slice + p.slice_rows * p.dim + row.index;
  float e = p.slice ? ends[0] : skv__empty_exponent(), l = p.slice ? ends[p.slice_rows] : 0.0f;
  skv__weights_t weights = skv__merge_weights(e, skv__empty_exponent());
  if (p.has_sinks) {
    skv__mass_t sink = skv__mass_from_lse(p.sinks[row.head - p.head_begin]);
    weights = skv__merge_weights(e, sink.e);
    e = weights.e, l = skv__merge_value(weights, l, sink.l);
  }
  int64_t at = row.sequence * p.o_stride[0] + row.query * p.o_stride[1] + row.head * p.o_stride[2];
  for (int64_t d = lane; d < p.dim; d += 32) {
    float o = p.slice ? p.slice[row.index * p.dim + d] : 0.0f;
    o = skv__state_output(e, l, skv__merge_value(weights, o, 0.0f));
    words[d] = skv__float_bits(o);
    if (p.o)
      skv__store(p.out_dtype, p.o, at + d, o);
  }
  float lse = skv__state_lse(e, l);
  if (lane == 0)
    words[p.dim] = skv__float_bits(lse);
  if (p.lse && lane == 0)
    p.lse[row.sequence * p.lse_stride[0] + row.query * p.lse_stride[1] +
          row.head * p.lse_stride[2]] = lse;
  if (!p.bits)
    return 0;
  __syncwarp();
  uint64_t bits = digest(words, p.dim + 1, row);
  __syncwarp();
  return bits;
}

static __global__ void __launch_bounds__(32 * WARPS)
    finish_rows(const __grid_constant__ finish_params_t p) {
  __shared__ uint32_t words[WARPS][MOST_VALUES + 1];
  int warp = (int)threadIdx.x / 32;
  uint64_t bits = 0;
  for (int64_t number = (int64_t)blockIdx.x * WARPS + warp; number < p.first_row[p.run_count];
       number += (int64_t)gridDim.x * WARPS) {
    row_t row = row_at(p, number);
    if (row.mine)
      bits += finish_row(p, row, words[warp]);
  }
  if (p.bits && threadIdx.x % 32 == 0)
    atomicAdd(p.bits, (unsigned long long)bits);
}

/* Runs from `first` on and heads from `head` on, as many as fit. */
static void take_part(finish_params_t *p, const skv__job_t *job, const skv__finish_t *finish,
                      int64_t first, int64_t head) {
  int64_t heads = job->q_heads - head, runs = job->run_count - first;
  p->head_begin = head;
  p->heads = p->has_sinks && heads > SINKS ? (int64_t)SINKS : heads;
  p->run_count = (int32_t)(runs > RUNS ? (int64_t)RUNS : runs);
  p->first_row[0] = 0;
  for (int32_t i = 0; i < p->run_count; ++i) {
    p->runs[i] = skv__device_run(job, &job->runs[first + i]);
    p->first_row[i + 1] = p->first_row[i] + p->runs[i].q_count * p->heads;
  }
  if (p->has_sinks)
    memcpy(p->sinks, finish->sinks + head, (size_t)p->heads * sizeof(float));
}

skv_status_t skv__launch_finish(const skv__job_t *job, int32_t owner, const float *slice,
                                const skv__finish_t *finish, const skv__device_t *device,
                                cudaStream_t stream) {
  finish_params_t p;
  memset(&p, 0, sizeof p);
  p.slice = slice, p.slice_rows = job->slice_rows[owner], p.dim = job->value_head_dim;
  p.q_heads = job->q_heads, p.ranks = job->ranks, p.owner = owner;
  p.round_robin = job->round_robin, p.has_sinks = finish->sinks != NULL;
  p.out_dtype = finish->out_dtype, p.o = finish->o.data, p.lse = finish->lse;
  p.bits = (unsigned long long *)finish->bits;
  memcpy(p.o_stride, finish->o.stride, sizeof p.o_stride);
  memcpy(p.lse_stride, finish->lse_stride, sizeof p.lse_stride);
  for (int64_t first = 0; first < job->run_count; first += RUNS)
    for (int64_t head = 0; head < job->q_heads; head += p.heads) {
      take_part(&p, job, finish, first, head);
      int64_t most = (int64_t)device->multiprocessors * 16;
      int64_t ctas = (p.first_row[p.run_count] + WARPS - 1) / WARPS;
      if (ctas > 0)
        finish_rows<<<(unsigned)(ctas < most ? ctas : most), 32 * WARPS, 0, stream>>>(p);
    }
  return cudaPeekAtLastError() == cudaSuccess ? SKV_OK : SKV_INTERNAL;
}
