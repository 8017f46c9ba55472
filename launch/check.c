/* check.c: plain attention in fp64, and in fp32 as the measure of what rounding costs. Naive on
 * purpose, and apart from the kernels: it reads the input again, row by row, in two passes.
 *
 * The rule: max |O - fp64| <= 2 max |plain fp32, rounded - fp64| + 2 max |(fp64 + 0.3 - 0.3) -
 * fp64|, the last in the precision of O; |LSE - fp64| <= 1e-5 max(1, |fp64|); rows that see nothing
 * are exactly (0, -inf).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "kernels/convert.h"
#include "launch/attention.h"
#include "launch/oracle.h"

/* Multiply-adds that a rank spends, and bytes for the logits of the rows in hand. */
static const double BUDGET = 1073741824.0;
static const double LOGIT_BYTES = 134217728.0;

typedef struct tally {
  int64_t rows, checked_rows, wrong_empty_rows;
  double error, plain_error, rounding, lse_error;
} tally_t;

typedef struct checker {
  const skv__data_t *data;
  const skv__input_t *input;
  const skv_plan_t *plan;
  uint64_t one_in; /* rows: every row, or one in so many */
  skv__oracle_row_t *rows;
  int64_t count, capacity;
  tally_t tally;
} checker_t;

/* Spreads samples over heads and positions alike. */
static bool sampled(uint64_t row, uint64_t one_in) {
  uint64_t x = row + 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return (x ^ x >> 31) % one_in == 0;
}

static skv_status_t take_rows(void *user, const skv__row_range_t *range, skv__error_t *error) {
  checker_t *checker = user;
  const skv__job_extents_t *e = &checker->input->extents;
  uint64_t last = (uint64_t)(e->batch * e->q_tokens * e->q_heads - 1);
  for (int64_t query = range->q_begin; query < range->q_end; ++query)
    for (int64_t head = range->head_begin; head < range->head_end; ++head) {
      uint64_t number = (uint64_t)((range->sequence * e->q_tokens + query) * e->q_heads + head);
      ++checker->tally.rows;
      if (number != last && !sampled(number, checker->one_in))
        continue;
      if (checker->count == checker->capacity) {
        int64_t capacity = checker->capacity * 2 + 64;
        skv__oracle_row_t *rows = realloc(checker->rows, (size_t)capacity * sizeof *rows);
        if (!rows)
          return skv__fail(error, SKV_MEMORY, "no memory for the rows to check");
        checker->rows = rows;
        checker->capacity = capacity;
      }
      checker->rows[checker->count++] = (skv__oracle_row_t){range->sequence, query, head};
    }
  return SKV_OK;
}

static double distance(double a, double b) {
  if (isnan(a) && isnan(b))
    return 0.0;
  double difference = fabs(a - b);
  return a == b ? 0.0 : isnan(difference) ? INFINITY : difference;
}

static double larger(double a, double b) {
  return a > b ? a : b;
}

/* One row of the result against its reference. */
static void judge(checker_t *checker, const skv__oracle_row_t *row, const skv__oracle_t *oracle,
                  int64_t index) {
  const skv__job_extents_t *e = &checker->input->extents;
  skv_dtype_t dtype = checker->plan->problem.out_dtype;
  int64_t number = (row->sequence * e->q_tokens + row->query) * e->q_heads + row->head;
  int64_t dim = e->value_head_dim;
  const double *reference = oracle->o + index * dim;
  const float *plain = oracle->plain + index * dim;
  double reference_lse = oracle->lse[index], lse = ((const float *)checker->data->lse.data)[number];
  tally_t *tally = &checker->tally;
  bool empty = reference_lse == -INFINITY, exact = lse == reference_lse;
  for (int64_t d = 0; d < dim; ++d) {
    double value = skv__load(dtype, checker->data->o.data, number * dim + d);
    float narrow = skv__rounded(dtype, (float)reference[d]);
    float moved = skv__rounded(dtype, skv__rounded(dtype, narrow + 0.3f) - 0.3f);
    tally->error = larger(tally->error, distance(value, reference[d]));
    tally->plain_error =
        larger(tally->plain_error, distance(skv__rounded(dtype, plain[d]), reference[d]));
    tally->rounding = larger(tally->rounding, distance(moved, reference[d]));
    exact = exact && value == 0.0;
  }
  if (empty || lse == -INFINITY)
    tally->wrong_empty_rows += !(empty && exact);
  else
    tally->lse_error =
        larger(tally->lse_error, distance(lse, reference_lse) / larger(1.0, fabs(reference_lse)));
  ++tally->checked_rows;
}

/* Tensor cores take weights in the inputs' type. Where O is rounded to that type too the rule needs
 * no mention of it; a wider O is judged by a plain implementation that rounds its weights. */
static bool narrow_weights(const checker_t *checker) {
  return checker->plan->context->kernel->backend == SKV_BACKEND_CUDA &&
         checker->plan->problem.out_dtype == SKV_FP32;
}

static skv_status_t check_rows(checker_t *checker, const skv__job_options_t *job,
                               skv__progress_t *progress, skv__error_t *error) {
  const skv__job_extents_t *e = &checker->input->extents;
  int64_t group = (int64_t)(LOGIT_BYTES / (12.0 * (double)(e->k_tokens + 1))) + 1;
  skv_status_t status = SKV_OK;
  for (int64_t first = 0; first < checker->count && status == SKV_OK;) {
    int64_t count = 1;
    while (count < group && first + count < checker->count &&
           checker->rows[first + count].sequence == checker->rows[first].sequence)
      ++count;
    skv__oracle_t oracle;
    skv__progress_set(progress, "checking", first, checker->count);
    status = skv__oracle_rows(&oracle, checker->input, &checker->plan->problem,
                              job->partial ? NULL : checker->input->sinks, narrow_weights(checker),
                              checker->rows + first, count, error);
    for (int64_t i = 0; i < count && status == SKV_OK; ++i)
      judge(checker, &checker->rows[first + i], &oracle, i);
    skv__oracle_free(&oracle);
    first += count;
  }
  return status;
}

/* All ranks' tallies, on every rank. */
static skv_status_t add_up(tally_t *tally, skv__session_t *session, skv__error_t *error) {
  skv__comm_t *comm = session->context->comm;
  tally_t *all = calloc((size_t)session->ranks, sizeof *all), sum = {0};
  if (!all)
    return skv__fail(error, SKV_MEMORY, "no memory to collect the check");
  skv_status_t status = skv__comm_gather(comm, tally, sizeof *tally, all, "result of the check");
  for (int32_t rank = 0; rank < session->ranks; ++rank) {
    sum.rows += all[rank].rows;
    sum.checked_rows += all[rank].checked_rows;
    sum.wrong_empty_rows += all[rank].wrong_empty_rows;
    sum.error = larger(sum.error, all[rank].error);
    sum.plain_error = larger(sum.plain_error, all[rank].plain_error);
    sum.rounding = larger(sum.rounding, all[rank].rounding);
    sum.lse_error = larger(sum.lse_error, all[rank].lse_error);
  }
  free(all);
  if (status == SKV_OK)
    status = skv__comm_broadcast(comm, &sum, sizeof sum, "result of the check");
  *tally = sum;
  if (status != SKV_OK)
    return skv__fail(error, status, "%s", session->context->error.text);
  return SKV_OK;
}

skv_status_t skv__check(skv__verdict_t *verdict, const skv__data_t *data, const skv__input_t *input,
                        const skv__job_options_t *job, const skv_plan_t *plan,
                        skv__session_t *session, skv__progress_t *progress, skv__error_t *error) {
  const skv__job_extents_t *e = &input->extents;
  double work = (double)e->batch * (double)e->q_tokens * (double)e->q_heads * (double)e->k_tokens *
                (double)(e->head_dim + e->value_head_dim);
  bool at_root = plan->options.results == SKV_RESULTS_ROOT;
  double one_in = ceil(work / (BUDGET * (at_root ? 1.0 : (double)session->ranks)));
  checker_t checker = {
      .data = data, .input = input, .plan = plan, .one_in = one_in > 1.0 ? (uint64_t)one_in : 1};
  int32_t whose = !at_root ? session->rank : session->rank == 0 ? SKV__ALL_ROWS : SKV__NO_ROWS;
  for (int64_t i = 0; error->status == SKV_OK && i < skv__step_count(job, e); ++i) {
    skv__step_t step = skv__step_at(job, e, i);
    skv__visit_rows(plan, &step, whose, take_rows, &checker, error);
  }
  if (error->status == SKV_OK)
    check_rows(&checker, job, progress, error);
  free(checker.rows);
  SKV_TRY(skv__session_agree(session, NULL, 0, error));
  SKV_TRY(add_up(&checker.tally, session, error));
  const tally_t *tally = &checker.tally;
  *verdict = (skv__verdict_t){.rows = tally->rows,
                              .checked_rows = tally->checked_rows,
                              .error = tally->error,
                              .bound = 2.0 * tally->plain_error + 2.0 * tally->rounding,
                              .lse_error = tally->lse_error,
                              .wrong_empty_rows = tally->wrong_empty_rows};
  verdict->passed = verdict->error <= verdict->bound && verdict->lse_error <= 1e-5 &&
                    verdict->wrong_empty_rows == 0;
  return SKV_OK;
}
