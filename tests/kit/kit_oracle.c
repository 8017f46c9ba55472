/* kit_oracle.c: the definition of attention, twice (fp64 and plain fp32), and the error rule. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kit.h"

/* The tensors of a case widened to fp32, which is exact, so that the loops below are plain. */
typedef struct wide {
  float *q, *k, *v;
} wide_t;

/* One row: a query of a query head of a sequence. */
typedef struct row {
  const wide_t *wide;
  const kit_case_t *test;
  int64_t sequence, query, head;
} row_t;

static float *widened(skv_dtype_t dtype, const void *data, int64_t count) {
  float *wide = malloc(((size_t)count + 1) * sizeof *wide);
  if (wide == NULL)
    abort();
  for (int64_t i = 0; i < count; i++)
    wide[i] = kit_widen(dtype, data, i);
  return wide;
}

static wide_t wide_open(const kit_case_t *test) {
  const skv_problem_t *p = &test->problem;
  int64_t queries = p->batch * p->q_tokens * p->q_heads;
  int64_t keys = p->batch * p->kv_capacity_tokens * p->kv_heads;
  return (wide_t){.q = widened(p->dtype, test->q, queries * p->head_dim),
                  .k = widened(p->dtype, test->k, keys * p->head_dim),
                  .v = widened(p->dtype, test->v, keys * p->value_head_dim)};
}

static void wide_close(wide_t *wide) {
  free(wide->q);
  free(wide->k);
  free(wide->v);
}

/* Which keys a row may see: [begin, end) of its sequence, possibly empty. */
typedef struct sight {
  int64_t begin, end;
} sight_t;

static sight_t sight_of(row_t row) {
  const skv_problem_t *problem = &row.test->problem;
  int64_t keys = row.test->k_tokens[row.sequence];
  int64_t start = keys - row.test->q_tokens[row.sequence];
  if (row.test->q_start != NULL)
    start = row.test->q_start[row.sequence];
  int64_t position = start + row.query;
  int64_t right = problem->causal ? 0 : problem->window_right_tokens;
  sight_t sight = {0, keys};
  if (problem->window_left_tokens >= 0 && position - problem->window_left_tokens > 0)
    sight.begin = position - problem->window_left_tokens;
  if (right >= 0 && position + right + 1 < keys)
    sight.end = position + right + 1;
  if (sight.end < sight.begin)
    sight.end = sight.begin;
  return sight;
}

static const float *q_of(row_t row) {
  const skv_problem_t *p = &row.test->problem;
  int64_t token = row.sequence * p->q_tokens + row.query;
  return row.wide->q + (token * p->q_heads + row.head) * p->head_dim;
}

static int64_t kv_index(row_t row, int64_t key) {
  const skv_problem_t *p = &row.test->problem;
  int64_t kv_head = row.head / (p->q_heads / p->kv_heads);
  return (row.sequence * p->kv_capacity_tokens + key) * p->kv_heads + kv_head;
}

static const float *k_of(row_t row, int64_t key) {
  return row.wide->k + kv_index(row, key) * row.test->problem.head_dim;
}

static const float *v_of(row_t row, int64_t key) {
  return row.wide->v + kv_index(row, key) * row.test->problem.value_head_dim;
}

/* ---- fp64 ---- */

static double logit64(row_t row, int64_t key) {
  const skv_problem_t *p = &row.test->problem;
  const float *q = q_of(row), *k = k_of(row, key);
  double dot = 0.0;
  for (int64_t d = 0; d < p->head_dim; d++)
    dot += (double)q[d] * (double)k[d];
  double logit = dot * (double)p->scale;
  return p->softcap > 0.0f ? (double)p->softcap * tanh(logit / (double)p->softcap) : logit;
}

/* o[value_head_dim] and the LSE, by a pass for the logits and a pass for the sums. */
static double oracle_row(row_t row, double *logits, double *o) {
  int64_t dim = row.test->problem.value_head_dim;
  sight_t sight = sight_of(row);
  const float *sinks = row.test->sinks;
  double max = sinks != NULL ? (double)sinks[row.head] : -INFINITY;
  for (int64_t key = sight.begin; key < sight.end; key++) {
    logits[key] = logit64(row, key);
    max = fmax(max, logits[key]);
  }
  memset(o, 0, (size_t)dim * sizeof *o);
  if (max == -INFINITY)
    return -INFINITY;
  double sum = sinks != NULL ? exp((double)sinks[row.head] - max) : 0.0;
  for (int64_t key = sight.begin; key < sight.end; key++) {
    double weight = exp(logits[key] - max);
    const float *v = v_of(row, key);
    sum += weight;
    for (int64_t d = 0; d < dim; d++)
      o[d] += weight * (double)v[d];
  }
  for (int64_t d = 0; d < dim; d++)
    o[d] /= sum;
  return max + log(sum);
}

/* ---- fp32 ---- */

static float logit32(row_t row, int64_t key) {
  const skv_problem_t *p = &row.test->problem;
  const float *q = q_of(row), *k = k_of(row, key);
  float dot = 0.0f;
  for (int64_t d = 0; d < p->head_dim; d++)
    dot += q[d] * k[d];
  float logit = dot * p->scale;
  return p->softcap > 0.0f ? p->softcap * tanhf(logit / p->softcap) : logit;
}

/* Three passes: logits and maximum, exponentials and sum, weighted values. */
static float plain_row(row_t row, float *scores, float *o) {
  int64_t dim = row.test->problem.value_head_dim;
  sight_t sight = sight_of(row);
  const float *sinks = row.test->sinks;
  float max = sinks != NULL ? sinks[row.head] : -INFINITY;
  for (int64_t key = sight.begin; key < sight.end; key++) {
    scores[key] = logit32(row, key);
    max = fmaxf(max, scores[key]);
  }
  memset(o, 0, (size_t)dim * sizeof *o);
  if (max == -INFINITY)
    return -INFINITY;
  float sum = sinks != NULL ? expf(sinks[row.head] - max) : 0.0f;
  for (int64_t key = sight.begin; key < sight.end; key++) {
    scores[key] = expf(scores[key] - max);
    sum += scores[key];
  }
  for (int64_t key = sight.begin; key < sight.end; key++) {
    float weight = scores[key] / sum;
    const float *v = v_of(row, key);
    for (int64_t d = 0; d < dim; d++)
      o[d] += weight * v[d];
  }
  return max + logf(sum);
}

/* ---- all rows ---- */

/* Where a row lies among the dense results, in rows. */
static int64_t row_index(row_t row) {
  const skv_problem_t *p = &row.test->problem;
  return (row.sequence * p->q_tokens + row.query) * p->q_heads + row.head;
}

/* Steps to the next row that exists; false at the end. Start from head -1 of query 0. */
static bool next_row(row_t *row) {
  const skv_problem_t *p = &row->test->problem;
  if (++row->head == p->q_heads) {
    row->head = 0;
    row->query++;
  }
  while (row->sequence < p->batch && row->query >= row->test->q_tokens[row->sequence]) {
    row->query = 0;
    row->sequence++;
  }
  return row->sequence < p->batch;
}

int64_t kit_rows_seeing(const kit_case_t *test, int64_t keys) {
  int64_t rows = 0;
  row_t row = {.test = test, .head = -1};
  while (next_row(&row)) {
    sight_t sight = sight_of(row);
    rows += sight.end - sight.begin >= keys;
  }
  return rows;
}

void kit_oracle(const kit_case_t *test, double *o, double *lse) {
  int64_t dim = test->problem.value_head_dim;
  wide_t wide = wide_open(test);
  double *logits = malloc(((size_t)test->problem.kv_capacity_tokens + 1) * sizeof *logits);
  if (logits == NULL)
    abort();
  row_t row = {.wide = &wide, .test = test, .head = -1};
  while (next_row(&row))
    lse[row_index(row)] = oracle_row(row, logits, o + row_index(row) * dim);
  free(logits);
  wide_close(&wide);
}

void kit_plain(const kit_case_t *test, float *o, float *lse) {
  int64_t dim = test->problem.value_head_dim;
  wide_t wide = wide_open(test);
  float *scores = malloc(((size_t)test->problem.kv_capacity_tokens + 1) * sizeof *scores);
  if (scores == NULL)
    abort();
  row_t row = {.wide = &wide, .test = test, .head = -1};
  while (next_row(&row))
    lse[row_index(row)] = plain_row(row, scores, o + row_index(row) * dim);
  free(scores);
  wide_close(&wide);
}

/* ---- the error rule ---- */

static float rounded(skv_dtype_t dtype, float value) {
  float slot = 0.0f;
  kit_narrow(dtype, &slot, 0, value);
  return kit_widen(dtype, &slot, 0);
}

/* What adding 0.3 and taking it away again loses in this dtype: one rounding's worth. */
static double rounding_loss(skv_dtype_t dtype, double reference) {
  float start = rounded(dtype, (float)reference);
  float there = rounded(dtype, start + 0.3f);
  float back = rounded(dtype, there - 0.3f);
  return fabs((double)back - (double)start);
}

typedef struct truth {
  double *o, *lse;            /* the oracle's */
  float *plain_o, *plain_lse; /* the plain implementation's */
  double plain_error, loss;   /* maxima over all elements */
  double worst;               /* of the result under test */
  row_t worst_row;
  int64_t worst_d;
} truth_t;

static void truth_init(truth_t *truth, const kit_case_t *test) {
  const skv_problem_t *p = &test->problem;
  size_t rows = (size_t)(p->batch * p->q_tokens * p->q_heads) + 1;
  size_t elements = rows * (size_t)p->value_head_dim;
  *truth = (truth_t){.o = malloc(elements * sizeof(double)),
                     .lse = malloc(rows * sizeof(double)),
                     .plain_o = malloc(elements * sizeof(float)),
                     .plain_lse = malloc(rows * sizeof(float)),
                     .worst = -1.0};
  if (truth->o == NULL || truth->lse == NULL || truth->plain_o == NULL || truth->plain_lse == NULL)
    abort();
  kit_oracle(test, truth->o, truth->lse);
  kit_plain(test, truth->plain_o, truth->plain_lse);
}

static void truth_free(truth_t *truth) {
  free(truth->o);
  free(truth->lse);
  free(truth->plain_o);
  free(truth->plain_lse);
}

/* Gathers the maxima of the rule over one row of O. NaN counts as infinitely wrong. */
static void measure_row(truth_t *truth, row_t row, const void *o) {
  const skv_problem_t *p = &row.test->problem;
  for (int64_t d = 0; d < p->value_head_dim; d++) {
    int64_t i = row_index(row) * p->value_head_dim + d;
    double error = fabs((double)kit_widen(p->out_dtype, o, i) - truth->o[i]);
    double plain = fabs((double)rounded(p->out_dtype, truth->plain_o[i]) - truth->o[i]);
    truth->plain_error = fmax(truth->plain_error, plain);
    truth->loss = fmax(truth->loss, rounding_loss(p->out_dtype, truth->o[i]));
    if (isnan(error))
      error = INFINITY;
    if (error > truth->worst) {
      truth->worst = error;
      truth->worst_row = row;
      truth->worst_d = d;
    }
  }
}

static bool empty_row_is_exact(row_t row, const void *o, const float *lse) {
  const skv_problem_t *p = &row.test->problem;
  size_t bytes = (size_t)p->value_head_dim * (p->out_dtype == SKV_FP32 ? 4 : 2);
  const unsigned char *begin = (const unsigned char *)o + (size_t)row_index(row) * bytes;
  for (size_t i = 0; i < bytes; i++)
    if (begin[i] != 0)
      return false;
  return lse == NULL || lse[row_index(row)] == -INFINITY;
}

/* Writes which row broke which rule. */
static bool broken(row_t row, const char *what, double value, double bound, char *text,
                   size_t text_bytes) {
  int used =
      snprintf(text, text_bytes,
               "%s: %g, bound %g, at sequence %" PRId64 " query %" PRId64 " head %" PRId64 "; ",
               what, value, bound, row.sequence, row.query, row.head);
  if ((size_t)used < text_bytes)
    kit_case_describe(row.test, text + used, text_bytes - (size_t)used);
  return false;
}

bool kit_check(const kit_case_t *test, const void *o, const float *lse, char *text,
               size_t text_bytes) {
  truth_t truth;
  truth_init(&truth, test);
  bool kept = true;
  row_t row = {.test = test, .head = -1};
  while (kept && next_row(&row)) {
    double reference = truth.lse[row_index(row)];
    measure_row(&truth, row, o);
    if (reference == -INFINITY) {
      if (!empty_row_is_exact(row, o, lse))
        kept = broken(row, "a row that sees no key is not exactly (0, -inf)", NAN, 0.0, text,
                      text_bytes);
      continue;
    }
    double error = lse == NULL ? 0.0 : fabs((double)lse[row_index(row)] - reference);
    double bound = 1e-5 * fmax(1.0, fabs(reference));
    if (!(error <= bound))
      kept = broken(row, "LSE error", error, bound, text, text_bytes);
  }
  double bound = 2.0 * truth.plain_error + 2.0 * truth.loss;
  if (kept && truth.worst > bound)
    kept = broken(truth.worst_row, "error of O", truth.worst, bound, text, text_bytes);
  truth_free(&truth);
  return kept;
}
