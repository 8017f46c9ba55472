/* job.h: what a backend needs to evaluate some nodes of the tree for some rows. Shared by CPU and
 * CUDA kernels. */
#ifndef SKV_JOB_H
#define SKV_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "skv.h"

/* A run of whole queries (all heads) of one sequence. Rows are numbered query-major:
 *   row = row_begin + (query - q_begin) * q_heads + head                        (see
 * skv__job_place) */
typedef struct skv__run {
  int64_t sequence, q_begin, q_count;
  int64_t row_begin;
  int32_t owner; /* whose slice, unless the job is round-robin */
} skv__run_t;

/* A node to evaluate: blocks [begin, end) of the tree. `token_offset` is where the node's first key
 * lies along the token axis of job.k and job.v. */
typedef struct skv__job_node {
  int64_t begin, end;
  int64_t token_offset;
} skv__job_node_t;

typedef struct skv__job {
  /* bounds: sequences, most queries of a sequence, tokens that k and v hold of each, runs */
  int64_t batch, most_q_tokens, most_k_tokens, most_runs;
  /* shape */
  int64_t q_heads, kv_heads, head_dim, value_head_dim;
  skv_dtype_t dtype;
  float scale, softcap; /* softcap 0: off */
  int64_t leaf_tokens, block_tokens;
  bool free_order; /* any split and fold may be used */
  /* mask: query q of sequence s is at position p = q_start[s] + q and sees key j iff
   * j < k_tokens[s] and p - left_tokens <= j <= p + right_tokens */
  int64_t left_tokens, right_tokens; /* INT64_MAX / 4: unbounded; causal is right_tokens 0 */
  const int64_t *k_tokens, *q_start; /* [batch] */
  skv_tensor_t q, k, v; /* k, v: token 0 is at token_offset 0; data of head `kv_head_begin` first */
  int64_t kv_head_begin,
      kv_head_end; /* heads to do; k and v hold exactly these heads, from index 0 */
  /* work */
  const skv__run_t *runs;
  int64_t run_count;
  const skv__job_node_t *nodes;
  int64_t node_count;
  /* results: the state of (node n, row) goes to slices[n * ranks + owner] at row `index`. A slice
   * of R rows is O [R][value_head_dim], then e [R], then l [R], all fp32, 64-byte aligned; R =
   * slice_rows[owner]. A NULL slice is not wanted: its rows are not stored. */
  int32_t ranks;
  bool round_robin;
  float *const *slices;
  const int64_t *slice_rows; /* [ranks] */
  void *resources;           /* what the kernel opened for the plan, or NULL */
} skv__job_t;

typedef struct skv__place {
  int32_t owner;
  int64_t index;
} skv__place_t;

static inline skv__place_t skv__job_place(const skv__job_t *job, const skv__run_t *run,
                                          int64_t query, int64_t head) {
  int64_t row = run->row_begin + (query - run->q_begin) * job->q_heads + head;
  if (job->round_robin)
    return (skv__place_t){(int32_t)(row % job->ranks), row / job->ranks};
  return (skv__place_t){run->owner, row};
}

/* Bytes of a slice of `rows` rows, rounded up to 64. */
static inline int64_t skv__slice_bytes(int64_t rows, int64_t value_head_dim) {
  return (rows * (value_head_dim + 2) * (int64_t)sizeof(float) + 63) / 64 * 64;
}
static inline float *skv__slice_e(float *slice, int64_t rows, int64_t value_head_dim) {
  return slice + rows * value_head_dim;
}
static inline float *skv__slice_l(float *slice, int64_t rows, int64_t value_head_dim) {
  return slice + rows * (value_head_dim + 1);
}

#endif
