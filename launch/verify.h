/* verify.h: what splitkv verify found, and its report. */
#ifndef SKV_VERIFY_H
#define SKV_VERIFY_H

#include "launch/job_run.h"

enum { SKV__VERIFY_PROBLEMS = 4, SKV__VERIFY_RANKS_MAX = 512 };

typedef struct skv__outcome {
  double error, bound;
  int64_t checked_rows;
  bool accurate;
  uint64_t runs[SKV__VERIFY_RANKS_MAX];      /* by ranks - 1 */
  uint64_t differing[SKV__VERIFY_RANKS_MAX]; /* those whose bits differ */
  uint64_t free_runs, free_differing;
} skv__outcome_t;

typedef struct skv__verified {
  const char *name;
  skv__job_options_t job;
  skv__job_run_t reference; /* one rank's */
  skv__outcome_t outcome;
} skv__verified_t;

/* Collective, but printed once. Returns an exit code: SKV__EXIT_DIFFERENT when the check failed. */
int skv__verify_report(const skv__verified_t *problems, const skv__session_t *world, bool json);

#endif
