/* test_check.c: the check of a run fails when the run is wrong, and its reference is right. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kit/kit.h"
#include "launch/job_run.h"
#include "launch/oracle.h"

typedef struct checked {
  skv__job_options_t job;
  skv__session_t session;
  skv__job_run_t run;
  skv__verdict_t verdict;
} checked_t;

static void run_job(checked_t *checked, const char *shape, int dtype, bool windowed) {
  skv__error_t error = {0};
  checked->job = skv__job_defaults(false);
  checked->job.shape = shape;
  checked->job.tokens = 150;
  checked->job.seed = 11;
  checked->job.dtype = dtype;
  checked->job.leaf = 64;
  checked->job.block = 64;
  checked->job.window = windowed ? "0,-1" : NULL;
  checked->job.causal = !windowed;
  checked->job.check = true;
  skv__session_options_t options = {
      .transport = SKV__TRANSPORT_SELF, .threads = 1, .timeout_seconds = 10};
  cr_assert(eq(int, skv__session_open(&checked->session, &options, &error), SKV_OK), "%s",
            error.text);
  cr_assert(
      eq(int, skv__job_run(&checked->run, &checked->job, &checked->session, NULL, &error), SKV_OK),
      "%s", error.text);
}

static bool passes(checked_t *checked) {
  skv__error_t error = {0};
  skv__job_run_t *run = &checked->run;
  cr_assert(eq(int,
               skv__check(&checked->verdict, &run->data, &run->input, &checked->job, run->plan,
                          &checked->session, NULL, &error),
               SKV_OK),
            "%s", error.text);
  return checked->verdict.passed;
}

static void end_job(checked_t *checked) {
  skv__job_run_free(&checked->run);
  skv__session_close(&checked->session, 0);
}

Test(check, right_results_pass_and_wrong_ones_do_not) {
  checked_t checked;
  run_job(&checked, "4,2,64", SKV_FP32, false);
  float *o = checked.run.data.o.data, *lse = checked.run.data.lse.data;
  cr_assert(passes(&checked));
  cr_expect(eq(i64, checked.verdict.rows, 150 * 4));
  cr_expect(eq(i64, checked.verdict.checked_rows, 150 * 4));
  float kept = o[5000];
  o[5000] = kept + 1e-4f;
  cr_expect(not(passes(&checked)));
  o[5000] = NAN;
  cr_expect(not(passes(&checked)));
  o[5000] = kept;
  kept = lse[77];
  lse[77] = kept * (1 + 1e-4f) + 1e-4f;
  cr_expect(not(passes(&checked)));
  lse[77] = -INFINITY; /* a row that sees keys may not claim to see none */
  cr_expect(not(passes(&checked)));
  lse[77] = kept;
  cr_expect(passes(&checked));
  end_job(&checked);
}

Test(check, half_precision) {
  const int dtypes[] = {SKV_FP16, SKV_BF16};
  for (int i = 0; i < 2; ++i) {
    checked_t checked;
    run_job(&checked, "2,1,80,48", dtypes[i], true);
    cr_expect(passes(&checked));
    ((uint16_t *)checked.run.data.o.data)[100] ^= 0x0100u;
    cr_expect(not(passes(&checked)));
    end_job(&checked);
  }
}

/* The reference of the command against the reference of the tests: written apart, same numbers. */
Test(check, two_oracles_agree) {
  checked_t checked;
  run_job(&checked, "4,2,64,32", SKV_FP32, false);
  skv_problem_t problem = checked.run.problem;
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 11);
  int64_t rows = problem.q_tokens * problem.q_heads, dim = problem.value_head_dim;
  double *o = calloc((size_t)(rows * dim), sizeof *o), *lse = calloc((size_t)rows, sizeof *lse);
  skv__oracle_row_t *list = calloc((size_t)rows, sizeof *list);
  cr_assert(test && o && lse && list);
  for (int64_t row = 0; row < rows; ++row)
    list[row] = (skv__oracle_row_t){0, row / problem.q_heads, row % problem.q_heads};
  skv__oracle_t oracle;
  skv__error_t error = {0};
  kit_oracle(test, o, lse);
  cr_assert(eq(
      int, skv__oracle_rows(&oracle, &checked.run.input, &problem, NULL, false, list, rows, &error),
      SKV_OK));
  double difference = 0.0;
  for (int64_t i = 0; i < rows * dim; ++i)
    difference = fmax(difference, fabs(o[i] - oracle.o[i]));
  for (int64_t row = 0; row < rows; ++row)
    difference = fmax(difference, fabs(lse[row] - oracle.lse[row]));
  cr_expect(difference < 1e-12, "they differ by %g", difference);
  skv__oracle_free(&oracle);
  kit_case_free(test);
  free(list);
  free(lse);
  free(o);
  end_job(&checked);
}
