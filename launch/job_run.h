/* job_run.h: one prefill or decode from its options to its results, on the ranks of a session. */
#ifndef SKV_JOB_RUN_H
#define SKV_JOB_RUN_H

#include "launch/attention.h"
#include "launch/mirror.h"
#include "launch/order_log.h"

typedef struct skv__sample {
  double wall_seconds;
  skv_times_t times;
} skv__sample_t;

typedef struct skv__job_run {
  const skv__job_options_t *job;
  skv__session_t *session;   /* borrowed */
  skv__progress_t *progress; /* or NULL; borrowed */
  skv__input_t input;
  skv_problem_t problem;
  skv_machine_t machine; /* of --tuned */
  skv_plan_t *plan;
  skv_plan_info_t info;
  skv__data_t data;
  bool on_gpu; /* computed from and to the mirror */
  skv__mirror_t mirror;
  skv__results_t results;
  skv__order_log_t *log;
  skv__pages_t workspace;
  int64_t *lengths;       /* [3][batch]: queries, keys, position of query 0 */
  int64_t repeats;        /* of each execute */
  skv__sample_t *samples; /* [repeats] of the step that runs */
  int64_t differing;      /* repeats whose results differ from the first's, on this rank */
  skv_times_t times;
  double wall_seconds; /* of all steps, on this rank */
  uint64_t bits;       /* of this rank's rows */
} skv__job_run_t;

/* Collective: input, plan, memory, output files, all executes. Every rank returns the same status.
 * Call free whatever comes back. */
skv_status_t skv__job_run(skv__job_run_t *run, const skv__job_options_t *job,
                          skv__session_t *session, skv__progress_t *progress, skv__error_t *error);
/* job_step.c: one step of it. Not to be called from elsewhere. */
skv_status_t skv__job_step(skv__job_run_t *run, const skv__step_t *step, skv__error_t *error);
void skv__job_run_free(skv__job_run_t *run);

#endif
