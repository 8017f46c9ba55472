/* finish.cuh: how a warp turns the state of a row into its output, LSE and digest, with the bits of
 * kernels/cpu/finish.c. What finishes slices includes it, and what finishes rows as it merges them.
 */
#ifndef SKV_CUDA_FINISH_CUH
#define SKV_CUDA_FINISH_CUH

#include <string.h>

#include "kernels/convert.h"
#include "kernels/cuda/tables.h"
#include "kernels/digest.h"

/* What one launch finishes, at most: its runs and sinks travel in the parameters. */
enum { RUNS = 64, SINKS = 256, MOST_VALUES = 256 };

typedef struct finish_params {
  int64_t dim, q_heads, head_begin, heads;
  int32_t ranks, run_count;
  bool round_robin, has_sinks;
  skv_dtype_t out_dtype;
  void *o;
  float *lse;
  unsigned long long *bits;
  int64_t o_stride[3], lse_stride[3];
  skv__device_run_t runs[RUNS];
  float sinks[SINKS];
} finish_params_t;

typedef struct row {
  int64_t sequence, query, position, head;
} row_t;

/* Query `query` of the run, counted from its first. */
static __device__ row_t row_of(const skv__device_run_t &run, int64_t query, int64_t head) {
  row_t row;
  row.sequence = run.sequence, row.query = run.q_begin + query;
  row.position = run.position + query, row.head = head;
  return row;
}

static __device__ uint64_t digest(const uint32_t *words, int64_t count, const row_t &row) {
  int lane = (int)threadIdx.x % 32;
  uint64_t seed = skv__digest_place(row.sequence, row.position, row.head), lanes[4];
  uint64_t mine = skv__digest_lane(words, count, seed, lane % SKV__DIGEST_LANES);
  for (int i = 0; i < SKV__DIGEST_LANES; ++i)
    lanes[i] = __shfl_sync(0xffffffff, mine, i);
  return skv__digest_end(lanes, words, count, seed);
}

/* The row whose state is (e, l, o), o NULL for all 0; `words` is the warp's room for (O, LSE).
 * Returns the digest, where it counts. */
static __device__ uint64_t finish_row(const finish_params_t &p, bool writes, bool counts,
                                      const row_t &row, float e, float l, const float *o,
                                      uint32_t *words) {
  int lane = (int)threadIdx.x % 32;
  skv__weights_t weights = skv__merge_weights(e, skv__empty_exponent());
  if (p.has_sinks) {
    skv__mass_t sink = skv__mass_from_lse(p.sinks[row.head - p.head_begin]);
    weights = skv__merge_weights(e, sink.e);
    e = weights.e, l = skv__merge_value(weights, l, sink.l);
  }
  int64_t at = row.sequence * p.o_stride[0] + row.query * p.o_stride[1] + row.head * p.o_stride[2];
  for (int64_t d = lane; d < p.dim; d += 32) {
    float value = skv__state_output(e, l, skv__merge_value(weights, o ? o[d] : 0.0f, 0.0f));
    words[d] = skv__float_bits(value);
    if (writes && p.o)
      skv__store(p.out_dtype, p.o, at + d, value);
  }
  float lse = skv__state_lse(e, l);
  if (lane == 0)
    words[p.dim] = skv__float_bits(lse);
  if (writes && p.lse && lane == 0)
    p.lse[row.sequence * p.lse_stride[0] + row.query * p.lse_stride[1] +
          row.head * p.lse_stride[2]] = lse;
  if (!counts || !p.bits)
    return 0;
  __syncwarp();
  uint64_t bits = digest(words, p.dim + 1, row);
  __syncwarp();
  return bits;
}

/* All but the heads and the runs. */
static inline void finish_fill(finish_params_t *p, const skv__job_t *job,
                               const skv__finish_t *finish) {
  p->dim = job->value_head_dim, p->q_heads = job->q_heads;
  p->ranks = job->ranks, p->round_robin = job->round_robin;
  p->has_sinks = finish->sinks != NULL;
  p->out_dtype = finish->out_dtype, p->o = finish->o.data, p->lse = finish->lse;
  p->bits = (unsigned long long *)finish->bits;
  memcpy(p->o_stride, finish->o.stride, sizeof p->o_stride);
  memcpy(p->lse_stride, finish->lse_stride, sizeof p->lse_stride);
}

#endif
