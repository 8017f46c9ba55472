/* rungs.c: the algorithms. Read them in order: each drops what the one before it could not do
 * without. */
#include <math.h>
#include <string.h>

#include "bench/ladder/ladder.h"

/* ---- the two products, of one query with one block ---- */

/* x[64] = scale * q . K^T */
static void score_block(const float *q, const float *k_block, int64_t dim, float scale, float *x) {
  memset(x, 0, LADDER_BLOCK * sizeof *x);
  for (int64_t d = 0; d < dim; d++)
    for (int64_t j = 0; j < LADDER_BLOCK; j++)
      x[j] += q[d] * k_block[d * LADDER_BLOCK + j];
  for (int64_t j = 0; j < LADDER_BLOCK; j++)
    x[j] *= scale;
}

/* o += p[64] . V; rows of V are `stride` apart */
static void weigh_block(const float *p, const float *v, int64_t stride, int64_t dim, float *o) {
  for (int64_t j = 0; j < LADDER_BLOCK; j++)
    for (int64_t d = 0; d < dim; d++)
      o[d] += p[j] * v[j * stride + d];
}

static float largest(const float *x, int64_t count, float m) {
  for (int64_t j = 0; j < count; j++)
    m = x[j] > m ? x[j] : m;
  return m;
}

/* The sum of exp(x - m). */
static float mass(const float *x, int64_t count, float m) {
  float sum = 0.0f;
  for (int64_t j = 0; j < count; j++)
    sum += expf(x[j] - m);
  return sum;
}

/* p = exp(x - m) / l */
static void weights(const float *x, int64_t count, float m, float l, float *p) {
  for (int64_t j = 0; j < count; j++)
    p[j] = expf(x[j] - m) / l;
}

/* ---- where things are ---- */

static const float *q_of(const ladder_problem_t *problem, int64_t head, int64_t query) {
  return problem->q + (query * problem->heads + head) * problem->dim;
}

static const float *k_block_of(const ladder_problem_t *problem, int64_t head, int64_t key) {
  return problem->k_blocks + (head * problem->tokens + key) * problem->dim;
}

static const float *v_of(const ladder_problem_t *problem, int64_t head, int64_t key) {
  return problem->v + (key * problem->heads + head) * problem->dim;
}

static double tensor_bytes(const ladder_problem_t *problem) {
  return (double)(problem->heads * problem->tokens * problem->dim) * sizeof(float);
}

/* ---- softmax of one row: three ways to turn S into P ---- */

/* How a row becomes probabilities, and how often that moves a row's bytes. */
typedef struct softmax {
  void (*apply)(const float *x, int64_t count, float *p);
  double moves;
} softmax_t;

/* Reads x for the sum, x again for p. exp overflows from x = 88.8 on, and inf / inf is NaN. */
static void softmax_naive(const float *x, int64_t count, float *p) {
  weights(x, count, 0.0f, mass(x, count, 0.0f), p);
}

/* Reads x for the maximum, for the sum, and for p. */
static void softmax_safe(const float *x, int64_t count, float *p) {
  float m = largest(x, count, -INFINITY);
  weights(x, count, m, mass(x, count, m), p);
}

/* Reads x for maximum and sum together, block by block, and for p. A block that raises the maximum
 * rescales the sum so far. */
static void softmax_online(const float *x, int64_t count, float *p) {
  float m = -INFINITY, l = 0.0f;
  for (int64_t j = 0; j < count; j += LADDER_BLOCK) {
    float m_new = largest(x + j, LADDER_BLOCK, m);
    l = l * expf(m - m_new) + mass(x + j, LADDER_BLOCK, m_new);
    m = m_new;
  }
  weights(x, count, m, l, p);
}

/* ---- attention with S in memory: three kernels, the middle one a softmax ---- */

/* S = scale * Q K^T; a tile of queries shares each block of keys. */
static void scores(const ladder_problem_t *problem, int64_t head, float *s) {
  int64_t tokens = problem->tokens;
  for (int64_t tile = 0; tile < tokens; tile += LADDER_BLOCK)
    for (int64_t key = 0; key < tokens; key += LADDER_BLOCK)
      for (int64_t query = tile; query < tile + LADDER_BLOCK; query++)
        score_block(q_of(problem, head, query), k_block_of(problem, head, key), problem->dim,
                    problem->scale, s + query * tokens + key);
}

/* O = P V */
static void outputs(const ladder_problem_t *problem, int64_t head, const float *p, float *o) {
  int64_t tokens = problem->tokens, stride = problem->heads * problem->dim;
  for (int64_t tile = 0; tile < tokens; tile += LADDER_BLOCK)
    for (int64_t key = 0; key < tokens; key += LADDER_BLOCK)
      for (int64_t query = tile; query < tile + LADDER_BLOCK; query++)
        weigh_block(p + query * tokens + key, v_of(problem, head, key), stride, problem->dim,
                    o + query * stride + head * problem->dim);
}

/* As in the textbook: S and P of all heads, each a tensor of its own. */
static bool materialised(const ladder_problem_t *problem, ladder_work_t *work, float *o,
                         softmax_t softmax) {
  int64_t tokens = problem->tokens, matrix = tokens * tokens;
  float *s = work->buffer, *p = s + problem->heads * matrix;
  memset(o, 0, (size_t)tensor_bytes(problem));
  for (int64_t head = 0; head < problem->heads; head++)
    scores(problem, head, s + head * matrix);
  for (int64_t row = 0; row < problem->heads * tokens; row++)
    softmax.apply(s + row * tokens, tokens, p + row * tokens);
  for (int64_t head = 0; head < problem->heads; head++)
    outputs(problem, head, p + head * matrix, o);
  double s_bytes = (double)(problem->heads * matrix) * sizeof *s;
  work->moved_bytes = 4.0 * tensor_bytes(problem) + (2.0 + softmax.moves) * s_bytes;
  return true;
}

static int64_t materialised_bytes(const ladder_problem_t *problem) {
  return 2 * problem->heads * problem->tokens * problem->tokens * (int64_t)sizeof(float);
}

static bool run_naive(const ladder_problem_t *problem, ladder_work_t *work, float *o) {
  return materialised(problem, work, o, (softmax_t){softmax_naive, 3.0});
}

static bool run_safe(const ladder_problem_t *problem, ladder_work_t *work, float *o) {
  return materialised(problem, work, o, (softmax_t){softmax_safe, 4.0});
}

static bool run_two_pass(const ladder_problem_t *problem, ladder_work_t *work, float *o) {
  return materialised(problem, work, o, (softmax_t){softmax_online, 3.0});
}

/* ---- attention in one pass: the recurrence carried to the output ---- */

typedef struct row_state {
  float m, l;
} row_state_t;

/* One query meets one block: its state and its o, unnormalised, move from before to after it. */
static void absorb(const float *x, row_state_t *state, const float *v, int64_t stride, int64_t dim,
                   float *o) {
  float p[LADDER_BLOCK];
  float m = largest(x, LADDER_BLOCK, state->m);
  float alpha = expf(state->m - m);
  weights(x, LADDER_BLOCK, m, 1.0f, p);
  state->l *= alpha;
  for (int64_t j = 0; j < LADDER_BLOCK; j++)
    state->l += p[j];
  for (int64_t d = 0; d < dim; d++)
    o[d] *= alpha;
  weigh_block(p, v, stride, dim, o);
  state->m = m;
}

static void one_pass_tile(const ladder_problem_t *problem, int64_t head, int64_t tile,
                          row_state_t *states, float *o) {
  int64_t stride = problem->heads * problem->dim;
  for (int64_t row = 0; row < LADDER_BLOCK; row++)
    states[row] = (row_state_t){.m = -INFINITY};
  for (int64_t key = 0; key < problem->tokens; key += LADDER_BLOCK)
    for (int64_t row = 0; row < LADDER_BLOCK; row++) {
      float x[LADDER_BLOCK];
      score_block(q_of(problem, head, tile + row), k_block_of(problem, head, key), problem->dim,
                  problem->scale, x);
      absorb(x, &states[row], v_of(problem, head, key), stride, problem->dim, o + row * stride);
    }
  for (int64_t row = 0; row < LADDER_BLOCK; row++)
    for (int64_t d = 0; d < problem->dim; d++)
      o[row * stride + d] /= states[row].l;
}

static int64_t one_pass_bytes(const ladder_problem_t *problem) {
  (void)problem;
  return LADDER_BLOCK * (int64_t)sizeof(row_state_t);
}

static bool run_one_pass(const ladder_problem_t *problem, ladder_work_t *work, float *o) {
  int64_t stride = problem->heads * problem->dim;
  memset(o, 0, (size_t)tensor_bytes(problem));
  for (int64_t head = 0; head < problem->heads; head++)
    for (int64_t tile = 0; tile < problem->tokens; tile += LADDER_BLOCK)
      one_pass_tile(problem, head, tile, work->buffer, o + tile * stride + head * problem->dim);
  work->moved_bytes = 4.0 * tensor_bytes(problem);
  return true;
}

const ladder_rung_t ladder_rungs[] = {
    {"naive", materialised_bytes, run_naive},
    {"safe", materialised_bytes, run_safe},
    {"two-pass", materialised_bytes, run_two_pass},
    {"one-pass", one_pass_bytes, run_one_pass},
    {"splitkv", ladder_splitkv_bytes, ladder_splitkv_run},
};
const int32_t ladder_rung_count = sizeof ladder_rungs / sizeof *ladder_rungs;
