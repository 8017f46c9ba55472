/* inputs.c: seeded tensors, and fp64 attention to judge by. */
#include <math.h>
#include <stdlib.h>

#include "bench/ladder/ladder.h"
#include "launch/seeded.h"

/* Queries between two that are judged: all of them in fp64 would take longer than the ladder. */
#define JUDGED_STEP 64

static float *filled(const ladder_problem_t *problem, skv__which_t which, uint64_t seed) {
  int64_t count = problem->tokens * problem->heads * problem->dim;
  float *data = malloc((size_t)count * sizeof *data);
  skv__seeded_t seeded = {.seed = seed};
  if (data != NULL)
    skv__seeded_fill(&seeded, which, 0, 0, problem->tokens, problem->heads, problem->dim, SKV_FP32,
                     data);
  return data;
}

static float *transposed_blocks(const ladder_problem_t *problem) {
  int64_t dim = problem->dim, heads = problem->heads, tokens = problem->tokens;
  float *blocks = malloc((size_t)(tokens * heads * dim) * sizeof *blocks);
  if (blocks == NULL || problem->k == NULL)
    return blocks;
  for (int64_t head = 0; head < heads; head++)
    for (int64_t key = 0; key < tokens; key++)
      for (int64_t d = 0; d < dim; d++) {
        int64_t block = key / LADDER_BLOCK, lane = key % LADDER_BLOCK;
        blocks[((head * tokens / LADDER_BLOCK + block) * dim + d) * LADDER_BLOCK + lane] =
            problem->k[(key * heads + head) * dim + d];
      }
  return blocks;
}

bool ladder_problem_open(ladder_problem_t *problem, uint64_t seed, float gain) {
  problem->scale = (float)(1.0 / sqrt((double)problem->dim));
  problem->q = filled(problem, SKV__Q, seed);
  problem->k = filled(problem, SKV__K, seed);
  problem->v = filled(problem, SKV__V, seed);
  problem->k_blocks = transposed_blocks(problem);
  if (problem->q == NULL || problem->k == NULL || problem->v == NULL || problem->k_blocks == NULL) {
    ladder_problem_close(problem);
    return false;
  }
  for (int64_t i = 0; i < problem->tokens * problem->heads * problem->dim; i++)
    problem->q[i] *= gain;
  return true;
}

void ladder_problem_close(ladder_problem_t *problem) {
  free(problem->q);
  free(problem->k);
  free(problem->v);
  free(problem->k_blocks);
}

/* ---- truth ---- */

typedef struct reference {
  double *x; /* [tokens] */
  double *o; /* [dim] */
} reference_t;

static void reference_row(const ladder_problem_t *problem, int64_t query, int64_t head,
                          reference_t *reference) {
  int64_t dim = problem->dim, heads = problem->heads;
  const float *q = problem->q + (query * heads + head) * dim;
  double max = -INFINITY, sum = 0.0;
  for (int64_t j = 0; j < problem->tokens; j++) {
    const float *k = problem->k + (j * heads + head) * dim;
    double dot = 0.0;
    for (int64_t d = 0; d < dim; d++)
      dot += (double)q[d] * (double)k[d];
    reference->x[j] = dot * (double)problem->scale;
    max = fmax(max, reference->x[j]);
  }
  for (int64_t d = 0; d < dim; d++)
    reference->o[d] = 0.0;
  for (int64_t j = 0; j < problem->tokens; j++) {
    const float *v = problem->v + (j * heads + head) * dim;
    double weight = exp(reference->x[j] - max);
    sum += weight;
    for (int64_t d = 0; d < dim; d++)
      reference->o[d] += weight * (double)v[d];
  }
  for (int64_t d = 0; d < dim; d++)
    reference->o[d] /= sum;
}

static double row_error(const float *o, const double *reference, int64_t dim) {
  double worst = 0.0;
  for (int64_t d = 0; d < dim; d++)
    if (isfinite(o[d]))
      worst = fmax(worst, fabs((double)o[d] - reference[d]));
  return worst;
}

ladder_quality_t ladder_judge(const ladder_problem_t *problem, const float *o) {
  int64_t dim = problem->dim, heads = problem->heads;
  ladder_quality_t quality = {.error = 0.0};
  for (int64_t i = 0; i < problem->tokens * heads * dim; i++)
    quality.broken += !isfinite(o[i]);
  reference_t reference = {.x = malloc((size_t)problem->tokens * sizeof(double)),
                           .o = malloc((size_t)dim * sizeof(double))};
  if (reference.x == NULL || reference.o == NULL)
    quality.error = NAN;
  for (int64_t query = 0; !isnan(quality.error) && query < problem->tokens; query += JUDGED_STEP)
    for (int64_t head = 0; head < heads; head++) {
      reference_row(problem, query, head, &reference);
      double error = row_error(o + (query * heads + head) * dim, reference.o, dim);
      quality.error = fmax(quality.error, error);
    }
  free(reference.x);
  free(reference.o);
  return quality;
}
