/* tables.h: a job's runs, places and sinks where kernels can read them: in the launch's parameters
 * when they are few, else in scratch, to which small kernels carry them in their own parameters. So
 * nothing refers to host memory after the launch, and a CUDA graph keeps what it captured. */
#ifndef SKV_CUDA_TABLES_H
#define SKV_CUDA_TABLES_H

#include "kernels/cuda/launch.h"

/* skv__run_t with its sequence's lengths. */
typedef struct skv__device_run {
  int64_t sequence, q_begin, q_count;
  int64_t row_begin; /* row of (q_begin, head 0) in the owner's slice, or round-robin */
  int64_t position;  /* of q_begin */
  int64_t k_tokens;  /* of the sequence */
  int64_t owner;
} skv__device_run_t;

static inline skv__device_run_t skv__device_run(const skv__job_t *job, const skv__run_t *run) {
  skv__device_run_t out = {run->sequence,
                           run->q_begin,
                           run->q_count,
                           run->row_begin,
                           job->q_start[run->sequence] + run->q_begin,
                           job->k_tokens[run->sequence],
                           run->owner};
  return out;
}

/* Where an owner's rows of the node go. NULL: nowhere. */
typedef struct skv__device_place {
  float *slice;
  int64_t rows;
} skv__device_place_t;

enum { SKV__NEAR_RUNS = 8, SKV__NEAR_PLACES = 8, SKV__NEAR_SINKS = 64 };

typedef struct skv__tables {
  const skv__device_run_t *runs; /* NULL: near */
  const skv__device_place_t *places;
  const float *sinks;
  int64_t run_count;
  int32_t ranks; /* of the places */
  bool round_robin, has_sinks;
  skv__device_run_t near_runs[SKV__NEAR_RUNS];
  skv__device_place_t near_places[SKV__NEAR_PLACES];
  float near_sinks[SKV__NEAR_SINKS];
} skv__tables_t;

/* Scratch that skv__tables_fill needs at most for jobs of these bounds; a multiple of 256. */
size_t skv__tables_bytes(const skv__job_t *job);
/* Tables for node `node` of the job (places), or for its outputs (`finish`: sinks). Enqueues what
 * does not fit the parameters. */
skv_status_t skv__tables_fill(skv__tables_t *tables, const skv__job_t *job, int64_t node,
                              const skv__finish_t *finish, void *scratch, cudaStream_t stream);

/* Carries some of the host's memory, at most SKV__CARRIED_BYTES, a multiple of 16, to the device.
 */
enum { SKV__CARRIED_BYTES = 3072 };
void skv__tables_carry(void *to, const void *from, size_t bytes, cudaStream_t stream);

#if defined(__CUDACC__)
static __device__ __forceinline__ const skv__device_run_t &skv__run_at(const skv__tables_t &tables,
                                                                       int64_t index) {
  return tables.runs ? tables.runs[index] : tables.near_runs[index];
}
/* A copy: a reference to one of two places makes generic loads of it, which reach the launch's
 * parameters through the L2 cache. */
static __device__ __forceinline__ skv__device_run_t skv__run_copy(const skv__tables_t &tables,
                                                                  int64_t index) {
  if (tables.runs)
    return tables.runs[index];
  return tables.near_runs[index];
}
static __device__ __forceinline__ float skv__sink_at(const skv__tables_t &tables, int64_t head) {
  return tables.sinks ? tables.sinks[head] : tables.near_sinks[head];
}
/* Slice and index of a row; the slice may be NULL. `query` counts within the run. */
static __device__ __forceinline__ skv__device_place_t skv__place_at(const skv__tables_t &tables,
                                                                    const skv__device_run_t &run,
                                                                    int64_t query, int64_t head,
                                                                    int64_t q_heads,
                                                                    int64_t *index) {
  int64_t row = run.row_begin + query * q_heads + head;
  int64_t owner = tables.round_robin ? row % tables.ranks : run.owner;
  *index = tables.round_robin ? row / tables.ranks : row;
  return tables.places ? tables.places[owner] : tables.near_places[owner];
}
#endif

#endif
