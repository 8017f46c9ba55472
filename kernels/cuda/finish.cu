/* finish.cu: from root states to O = O / l and LSE, and the rows' digests: a warp a row. */
#include "kernels/cuda/finish.h"

#include <cuda_runtime.h>

#include "kernels/cuda/finish.cuh"

enum { WARPS = 8 };

typedef struct slice_params {
  finish_params_t finish;
  const float *slice; /* NULL: EMPTY */
  int64_t slice_rows;
  int32_t owner;
  int64_t first_row[RUNS + 1]; /* of each run, among the rows of this launch */
} slice_params_t;

/* Row `number` of the launch; false where another rank owns it. */
static __device__ bool find_row(const slice_params_t &s, int64_t number, row_t *row,
                                int64_t *index) {
  const finish_params_t &p = s.finish;
  int32_t i = 0;
  while (number >= s.first_row[i + 1])
    ++i;
  const skv__device_run_t &run = p.runs[i];
  int64_t query = (number - s.first_row[i]) / p.heads;
  int64_t head = p.head_begin + (number - s.first_row[i]) % p.heads;
  int64_t place = run.row_begin + query * p.q_heads + head;
  *row = row_of(run, query, head);
  *index = p.round_robin ? place / p.ranks : place;
  return s.owner == (p.round_robin ? place % p.ranks : run.owner);
}

static __global__ void __launch_bounds__(32 * WARPS)
    finish_rows(const __grid_constant__ slice_params_t s) {
  __shared__ uint32_t words[WARPS][MOST_VALUES + 1];
  const finish_params_t &p = s.finish;
  int warp = (int)threadIdx.x / 32;
  uint64_t bits = 0;
  for (int64_t number = (int64_t)blockIdx.x * WARPS + warp; number < s.first_row[p.run_count];
       number += (int64_t)gridDim.x * WARPS) {
    row_t row;
    int64_t index;
    if (!find_row(s, number, &row, &index))
      continue;
    const float *ends = s.slice + s.slice_rows * p.dim + index;
    float e = s.slice ? ends[0] : skv__empty_exponent(), l = s.slice ? ends[s.slice_rows] : 0.0f;
    bits +=
        finish_row(p, true, true, row, e, l, s.slice ? s.slice + index * p.dim : NULL, words[warp]);
  }
  if (p.bits && threadIdx.x % 32 == 0)
    atomicAdd(p.bits, (unsigned long long)bits);
}

/* Runs from `first` on and heads from `head` on, as many as fit. */
static void take_part(slice_params_t *s, const skv__job_t *job, const skv__finish_t *finish,
                      int64_t first, int64_t head) {
  finish_params_t *p = &s->finish;
  int64_t heads = job->q_heads - head, runs = job->run_count - first;
  p->head_begin = head;
  p->heads = p->has_sinks && heads > SINKS ? (int64_t)SINKS : heads;
  p->run_count = (int32_t)(runs > RUNS ? (int64_t)RUNS : runs);
  s->first_row[0] = 0;
  for (int32_t i = 0; i < p->run_count; ++i) {
    p->runs[i] = skv__device_run(job, &job->runs[first + i]);
    s->first_row[i + 1] = s->first_row[i] + p->runs[i].q_count * p->heads;
  }
  if (p->has_sinks)
    memcpy(p->sinks, finish->sinks + head, (size_t)p->heads * sizeof(float));
}

skv_status_t skv__launch_finish(const skv__job_t *job, int32_t owner, const float *slice,
                                const skv__finish_t *finish, const skv__device_t *device,
                                cudaStream_t stream) {
  slice_params_t s;
  memset(&s, 0, sizeof s);
  s.slice = slice, s.slice_rows = job->slice_rows[owner], s.owner = owner;
  finish_fill(&s.finish, job, finish);
  for (int64_t first = 0; first < job->run_count; first += RUNS)
    for (int64_t head = 0; head < job->q_heads; head += s.finish.heads) {
      take_part(&s, job, finish, first, head);
      int64_t most = (int64_t)device->multiprocessors * 16;
      int64_t ctas = (s.first_row[s.finish.run_count] + WARPS - 1) / WARPS;
      if (ctas > 0)
        finish_rows<<<(unsigned)(ctas < most ? ctas : most), 32 * WARPS, 0, stream>>>(s);
    }
  return cudaPeekAtLastError() == cudaSuccess ? SKV_OK : SKV_INTERNAL;
}
