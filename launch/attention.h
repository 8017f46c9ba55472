/* attention.h: the parts of a prefill or decode run, in the order in which they happen. */
#ifndef SKV_ATTENTION_H
#define SKV_ATTENTION_H

#include "launch/input.h"
#include "launch/mpi_session.h"
#include "launch/pages.h"
#include "launch/report.h"
#include "plan.h"

/* One execute: queries [q_begin, q_begin + q_count) of each sequence, the first at position
 * q_start, over the first k_tokens keys. All sequences of a job are alike. */
typedef struct skv__step {
  int64_t q_begin, q_count, q_start, k_tokens;
} skv__step_t;

/* Steps of a job: one, or one for each chunk. With causal masks a chunk needs no later keys. */
int64_t skv__step_count(const skv__job_options_t *job, const skv__job_extents_t *extents);
skv__step_t skv__step_at(const skv__job_options_t *job, const skv__job_extents_t *extents,
                         int64_t index);

/* Queries [q_begin, q_end) of the job and heads [head_begin, head_end) of one sequence. */
typedef struct skv__row_range {
  int64_t sequence, q_begin, q_end, head_begin, head_end;
} skv__row_range_t;
/* Where they lie among the rows of a dense [sequence][query][head]: whole queries, or heads of one
 * query. */
typedef struct skv__row_span {
  int64_t first, count;
} skv__row_span_t;
skv__row_span_t skv__row_span(const skv__row_range_t *range, int64_t q_tokens, int64_t q_heads);
typedef skv_status_t (*skv__row_visitor_t)(void *user, const skv__row_range_t *range,
                                           skv__error_t *error);

/* Rows of a step that `rank` owns; SKV__ALL_ROWS: all of them. */
enum { SKV__ALL_ROWS = -1, SKV__NO_ROWS = -2 };
skv_status_t skv__visit_rows(const skv_plan_t *plan, const skv__step_t *step, int32_t rank,
                             skv__row_visitor_t visit, void *user, skv__error_t *error);

/* data.c: this rank's part of the tensors. */
typedef struct skv__data {
  skv__pages_t q, k, v, o, lse;
  int64_t own_tokens; /* along the token axis of k and v */
} skv__data_t;
/* Memory, of which only what is touched costs anything; then what is in it. */
skv_status_t skv__data_map(skv__data_t *data, const skv__input_t *input, const skv_plan_t *plan,
                           const skv__session_t *session, skv__error_t *error);
skv_status_t skv__data_read(skv__data_t *data, const skv__input_t *input,
                            const skv__job_options_t *job, const skv_plan_t *plan,
                            const skv__session_t *session, skv__progress_t *progress,
                            skv__error_t *error);
void skv__data_free(skv__data_t *data);
skv_inputs_t skv__data_inputs(const skv__data_t *data, const skv__input_t *input,
                              const skv__step_t *step);
skv_outputs_t skv__data_outputs(const skv__data_t *data, const skv__input_t *input,
                                const skv_plan_t *plan, const skv__step_t *step);

/* results.c: O and LSE files that all ranks write and that appear together or not at all. */
typedef struct skv__results {
  skv__output_t *o, *lse; /* NULL: not asked for */
  int64_t o_offset, lse_offset;
  const char *o_path;
} skv__results_t;
/* Collective: every rank returns the same status. */
skv_status_t skv__results_open(skv__results_t *results, const skv__input_t *input,
                               const skv__job_options_t *job, skv_dtype_t out_dtype,
                               skv__session_t *session, skv__error_t *error);
/* Rows of a step into the files; not collective. */
skv_status_t skv__results_write(skv__results_t *results, const skv__data_t *data,
                                const skv__input_t *input, const skv_plan_t *plan,
                                const skv__step_t *step, skv__error_t *error);
/* Collective: gives the files their names once every rank has succeeded. */
skv_status_t skv__results_commit(skv__results_t *results, skv__session_t *session,
                                 skv__error_t *error);
void skv__results_discard(skv__results_t *results);

/* check.c: the results against plain attention in fp64. */
typedef struct skv__verdict {
  int64_t rows, checked_rows; /* of the whole job */
  double error, bound;        /* max |O - reference|, and what it may be */
  double lse_error;           /* max |LSE - reference| / max(1, |reference|), bound 1e-5 */
  int64_t
      wrong_empty_rows; /* rows that see nothing and are not exactly (0, -inf), or the reverse */
  bool passed;
} skv__verdict_t;
/* Collective. */
skv_status_t skv__check(skv__verdict_t *verdict, const skv__data_t *data, const skv__input_t *input,
                        const skv__job_options_t *job, const skv_plan_t *plan,
                        skv__session_t *session, skv__progress_t *progress, skv__error_t *error);

/* attention_report.c */
typedef struct skv__run_times {
  double wall_seconds; /* of all executes, on the slowest rank */
  double mean_wall_seconds;
  double compute[2], communicate[2], wait[2];          /* max over ranks, mean */
  int64_t frontier_nodes, sent_bytes, workspace_bytes; /* max over ranks */
} skv__run_times_t;
/* Collective: what this rank measured becomes what rank 0 reports. */
skv_status_t skv__times_collect(skv__run_times_t *all, const skv_times_t *times,
                                double wall_seconds, const skv_plan_info_t *info,
                                skv__session_t *session, skv__error_t *error);
typedef struct skv__report {
  const skv__job_options_t *job;
  const skv__session_t *session;
  const skv__input_t *input;
  const skv_plan_t *plan;
  skv_plan_info_t info;
  skv__run_times_t times;
  const skv__verdict_t *verdict; /* NULL: not checked */
  int64_t steps, repeats;
  uint64_t differing; /* repeats of a rank with other results than its first */
  uint64_t bits;
} skv__report_t;
/* Rank 0 prints. Returns an exit code. */
int skv__report_print(const skv__report_t *report);

#endif
