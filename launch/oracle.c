/* oracle.c: logits first (scale, softcap, mask), then the maximum, the sum and the weighted values,
 * once in fp64 and once in fp32. Keys are read in tiles, so that K and V need not fit memory. */
#include "launch/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/convert.h"

enum { TILE_TOKENS = 256 };

/* The rows in hand. Logits of keys that a row does not see are -inf. */
typedef struct work {
  const skv__input_t *input;
  const skv_problem_t *problem;
  const float *sinks;
  bool narrow_weights;
  const skv__oracle_row_t *rows;
  int64_t count, keys;
  double *logits;      /* [count][keys] */
  float *plain_logits; /* [count][keys] */
  float *queries;      /* [count][head_dim] */
  float *tile;         /* [tokens][kv_heads][dim], widened */
  void *raw;           /* the same as read */
} work_t;

static bool sees(const work_t *work, const skv__oracle_row_t *row, int64_t key) {
  const skv_problem_t *p = work->problem;
  const skv__job_extents_t *e = &work->input->extents;
  int64_t position = e->k_tokens - e->q_tokens + row->query;
  if (p->causal && key > position)
    return false;
  if (p->window_left_tokens >= 0 && key < position - p->window_left_tokens)
    return false;
  return p->window_right_tokens < 0 || key <= position + p->window_right_tokens;
}

static skv_status_t read_tile(work_t *work, skv__which_t which, int64_t begin, int64_t end,
                              skv__error_t *error) {
  const skv__input_t *input = work->input;
  int64_t elements = (end - begin) * skv__input_heads(input, which) * skv__input_dim(input, which);
  SKV_TRY(skv__input_read(input, which, work->rows[0].sequence, begin, end, work->raw, error));
  for (int64_t i = 0; i < elements; ++i)
    work->tile[i] = skv__load(input->extents.dtype, work->raw, i);
  return SKV_OK;
}

static skv_status_t read_queries(work_t *work, skv__error_t *error) {
  const skv__job_extents_t *e = &work->input->extents;
  for (int64_t r = 0; r < work->count; ++r) {
    SKV_TRY(skv__input_read(work->input, SKV__Q, work->rows[r].sequence, work->rows[r].query,
                            work->rows[r].query + 1, work->raw, error));
    for (int64_t d = 0; d < e->head_dim; ++d)
      work->queries[r * e->head_dim + d] =
          skv__load(e->dtype, work->raw, work->rows[r].head * e->head_dim + d);
  }
  return SKV_OK;
}

/* The vector of a row's KV head for one key of the tile. */
static const float *tile_row(const work_t *work, const skv__oracle_row_t *row, int64_t token,
                             int64_t dim) {
  const skv__job_extents_t *e = &work->input->extents;
  int64_t kv_head = row->head / (e->q_heads / e->kv_heads);
  return work->tile + (token * e->kv_heads + kv_head) * dim;
}

static void set_logit(work_t *work, int64_t r, int64_t key, const float *k) {
  const skv_problem_t *p = work->problem;
  const float *q = work->queries + r * p->head_dim;
  double sum = 0.0;
  float plain = 0.0f;
  for (int64_t d = 0; d < p->head_dim; ++d) {
    sum += (double)q[d] * (double)k[d];
    plain += q[d] * k[d];
  }
  sum *= (double)p->scale;
  plain *= p->scale;
  if (p->softcap > 0.0f) {
    sum = (double)p->softcap * tanh(sum / (double)p->softcap);
    plain = p->softcap * tanhf(plain / p->softcap);
  }
  work->logits[r * work->keys + key] = sum;
  work->plain_logits[r * work->keys + key] = plain;
}

static skv_status_t score(work_t *work, skv__error_t *error) {
  for (int64_t begin = 0; begin < work->keys; begin += TILE_TOKENS) {
    int64_t end = begin + TILE_TOKENS < work->keys ? begin + TILE_TOKENS : work->keys;
    SKV_TRY(read_tile(work, SKV__K, begin, end, error));
    for (int64_t r = 0; r < work->count; ++r)
      for (int64_t key = begin; key < end; ++key) {
        work->logits[r * work->keys + key] = -INFINITY;
        work->plain_logits[r * work->keys + key] = -INFINITY;
        if (sees(work, &work->rows[r], key))
          set_logit(work, r, key,
                    tile_row(work, &work->rows[r], key - begin, work->problem->head_dim));
      }
  }
  return SKV_OK;
}

/* Logits become weights; the LSE comes out. A sink takes weight and has no value. */
static void normalise(work_t *work, skv__oracle_t *oracle, int64_t r) {
  double *logits = work->logits + r * work->keys;
  float *plain = work->plain_logits + r * work->keys;
  double most = work->sinks ? (double)work->sinks[work->rows[r].head] : -INFINITY;
  float plain_most = (float)most;
  for (int64_t key = 0; key < work->keys; ++key) {
    most = logits[key] > most || isnan(logits[key]) ? logits[key] : most;
    plain_most = plain[key] > plain_most || isnan(plain[key]) ? plain[key] : plain_most;
  }
  oracle->lse[r] = most;
  if (most == -INFINITY) { /* sees nothing: all weights are 0 */
    memset(logits, 0, (size_t)work->keys * sizeof *logits);
    memset(plain, 0, (size_t)work->keys * sizeof *plain);
    return;
  }
  double sum = work->sinks ? exp((double)work->sinks[work->rows[r].head] - most) : 0.0;
  float plain_sum = work->sinks ? expf(work->sinks[work->rows[r].head] - plain_most) : 0.0f;
  for (int64_t key = 0; key < work->keys; ++key) {
    sum += logits[key] = exp(logits[key] - most);
    plain_sum += plain[key] = expf(plain[key] - plain_most);
  }
  for (int64_t key = 0; key < work->keys; ++key) {
    logits[key] /= sum;
    plain[key] /= plain_sum;
    if (work->narrow_weights)
      plain[key] = skv__rounded(work->input->extents.dtype, plain[key]);
  }
  oracle->lse[r] = most + log(sum);
}

static skv_status_t weigh_values(work_t *work, skv__oracle_t *oracle, skv__error_t *error) {
  int64_t dim = work->problem->value_head_dim;
  for (int64_t begin = 0; begin < work->keys; begin += TILE_TOKENS) {
    int64_t end = begin + TILE_TOKENS < work->keys ? begin + TILE_TOKENS : work->keys;
    SKV_TRY(read_tile(work, SKV__V, begin, end, error));
    for (int64_t r = 0; r < work->count; ++r)
      for (int64_t key = begin; key < end; ++key) {
        if (!sees(work, &work->rows[r], key))
          continue;
        const float *v = tile_row(work, &work->rows[r], key - begin, dim);
        double weight = work->logits[r * work->keys + key];
        float plain_weight = work->plain_logits[r * work->keys + key];
        for (int64_t d = 0; d < dim; ++d) {
          oracle->o[r * dim + d] += weight * (double)v[d];
          oracle->plain[r * dim + d] += plain_weight * v[d];
        }
      }
  }
  return SKV_OK;
}

static skv_status_t evaluate(work_t *work, skv__oracle_t *oracle, skv__error_t *error) {
  SKV_TRY(read_queries(work, error));
  SKV_TRY(score(work, error));
  for (int64_t r = 0; r < work->count; ++r)
    normalise(work, oracle, r);
  return weigh_values(work, oracle, error);
}

skv_status_t skv__oracle_rows(skv__oracle_t *oracle, const skv__input_t *input,
                              const skv_problem_t *problem, const float *sinks, bool narrow_weights,
                              const skv__oracle_row_t *rows, int64_t count, skv__error_t *error) {
  const skv__job_extents_t *e = &input->extents;
  int64_t dim = e->head_dim > e->value_head_dim ? e->head_dim : e->value_head_dim;
  size_t tile = (size_t)(TILE_TOKENS * e->kv_heads * dim), query = (size_t)(e->q_heads * dim);
  size_t logits = (size_t)(count * e->k_tokens + 1);
  work_t work = {.input = input,
                 .problem = problem,
                 .sinks = sinks,
                 .narrow_weights = narrow_weights,
                 .rows = rows,
                 .count = count,
                 .keys = e->k_tokens};
  work.logits = malloc(logits * sizeof *work.logits);
  work.plain_logits = malloc(logits * sizeof *work.plain_logits);
  work.queries = malloc((size_t)(count * e->head_dim) * sizeof *work.queries);
  work.tile = malloc(tile * sizeof *work.tile);
  work.raw = malloc((tile > query ? tile : query) * sizeof(float));
  oracle->o = calloc((size_t)(count * e->value_head_dim), sizeof *oracle->o);
  oracle->lse = calloc((size_t)count, sizeof *oracle->lse);
  oracle->plain = calloc((size_t)(count * e->value_head_dim), sizeof *oracle->plain);
  skv_status_t status =
      work.logits && work.plain_logits && work.queries && work.tile && work.raw && oracle->o &&
              oracle->lse && oracle->plain
          ? evaluate(&work, oracle, error)
          : skv__fail(error, SKV_MEMORY, "no memory to check %lld rows", (long long)count);
  free(work.raw);
  free(work.tile);
  free(work.queries);
  free(work.plain_logits);
  free(work.logits);
  return status;
}

void skv__oracle_free(skv__oracle_t *oracle) {
  free(oracle->o);
  free(oracle->lse);
  free(oracle->plain);
  memset(oracle, 0, sizeof *oracle);
}
