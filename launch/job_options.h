/* job_options.h: the options that prefill, decode and plan share, and what they mean to the
 * library. */
#ifndef SKV_JOB_OPTIONS_H
#define SKV_JOB_OPTIONS_H

#include "launch/mpi_session.h"
#include "launch/options.h"
#include "launch/tensor_file.h"
#include "skv.h"

typedef struct skv__job_options {
  bool decode;
  /* Input: files, or seeded. Numbers are -1 where not given. */
  const char *q, *k, *v, *sinks, *shape;
  int tensor_layout, dtype; /* skv__tensor_layout_t, skv_dtype_t; -1 */
  int64_t tokens, seed, batch, outliers, queries, chunk, capacity, kv_len;
  /* What is computed. */
  int64_t leaf, block; /* -1 */
  bool causal, partial;
  const char *window;    /* "L,R" */
  double softcap, scale; /* 0: default */
  int order, out_fp32;
  /* How. */
  const char *layout, *tune;
  int direction, reduce, results, path;
  /* The run. */
  int64_t threads; /* 0 */
  int64_t repeat;  /* 0: once */
  int backend, transport, bind;
  double timeout;
  bool check, json, order_states;
  const char *out, *lse, *order_log;
} skv__job_options_t;

/* Groups of options, in the order of --help. */
enum {
  SKV__JOB_FILES = 1,
  SKV__JOB_SHAPE = 2,
  SKV__JOB_SEED = 4,
  SKV__JOB_PROBLEM = 8,
  SKV__JOB_PLAN = 16,
  SKV__JOB_RUN = 32,
  SKV__JOB_OUTPUT = 64,
  SKV__JOB_TABLE_MAX = 64
};

skv__job_options_t skv__job_defaults(bool decode);
/* Appends the options of these groups at table; returns how many. */
int32_t skv__job_table(skv__job_options_t *job, unsigned groups, skv__option_t *table);
/* Options that contradict each other or are missing. */
skv_status_t skv__job_check(const skv__job_options_t *job, skv__error_t *error);

/* What the input turned out to be. */
typedef struct skv__job_extents {
  int64_t batch, q_tokens, k_tokens, capacity_tokens; /* k_tokens: that are used */
  int64_t q_heads, kv_heads, head_dim, value_head_dim;
  skv_dtype_t dtype;
} skv__job_extents_t;

/* The problem of one execute: q_tokens is the chunk's, if there are chunks. */
skv_status_t skv__job_problem(const skv__job_options_t *job, const skv__job_extents_t *extents,
                              skv_problem_t *problem, skv__error_t *error);
skv_status_t skv__job_plan_options(const skv__job_options_t *job, skv_plan_options_t *options,
                                   skv__error_t *error);
skv__session_options_t skv__job_session(const skv__job_options_t *job);

/* The words of --layout, --direction, --reduce, --results for reports. */
const char *skv__layout_word(skv_layout_kind_t kind);
const char *skv__direction_word(skv_direction_t direction);
const char *skv__reduce_word(skv_reduce_t reduce);
const char *skv__dtype_word(skv_dtype_t dtype);

#endif
