/* finish.c: merging slices, and turning the root's states into outputs. */
#include <omp.h>
#include <string.h>
#include <xxhash.h>

#include "kernels/convert.h"
#include "kernels/cpu/evaluate.h"
#include "kernels/cpu/rounding.h"
#include "kernels/state.h"

enum { MOST_VALUES = 256 };
static const float zeros[MOST_VALUES];

static skv__states_t slice_states(float *slice, int64_t rows, int64_t dim) {
  return (skv__states_t){.o = slice,
                         .e = skv__slice_e(slice, rows, dim),
                         .l = skv__slice_l(slice, rows, dim),
                         .stride = dim};
}

void skv__cpu_merge(const skv__tile_t *tile, float *into, const float *right, int64_t rows,
                    int64_t value_head_dim, int32_t threads) {
  skv__states_t a = slice_states(into, rows, value_head_dim);
  skv__states_t b = slice_states((float *)right, rows, value_head_dim); /* only read */
  const int64_t some = 64;
  const int64_t worth = rows * value_head_dim < 1 << 15 ? 1 : threads;
#pragma omp parallel num_threads((int)worth)
  {
    skv__rounding_t before = skv__rounding_set();
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row += some) {
      skv__states_t to = {a.o + row * a.stride, a.e + row, a.l + row, a.stride};
      skv__states_t from = {b.o + row * b.stride, b.e + row, b.l + row, b.stride};
      tile->merge(to, from, rows - row < some ? rows - row : some, value_head_dim);
    }
    skv__rounding_restore(before);
  }
}

/* Seeded by who the row is, so that equal rows in other places do not cancel. */
static uint64_t row_digest(int64_t sequence, int64_t position, int64_t head, const float *row,
                           int64_t floats) {
  int64_t place[3] = {sequence, position, head};
  return XXH64(row, (size_t)floats * sizeof *row, XXH64(place, sizeof place, 0));
}

/* One row of the root; returns its digest. */
static uint64_t finish_row(const skv__job_t *job, const skv__finish_t *finish, int64_t sequence,
                           int64_t query, int64_t head, const float *state_o, float e, float l) {
  const int64_t dim = job->value_head_dim;
  float row[MOST_VALUES + 1];
  memcpy(row, state_o, (size_t)dim * sizeof *row);
  if (finish->sinks) {
    skv__mass_t sink = skv__mass_from_lse(finish->sinks[head]);
    skv__merge_row(row, &e, &l, zeros, sink.e, sink.l, dim);
  }
  int64_t at =
      sequence * finish->o.stride[0] + query * finish->o.stride[1] + head * finish->o.stride[2];
  for (int64_t n = 0; n < dim; ++n) {
    row[n] = skv__state_output(e, l, row[n]);
    if (finish->o.data)
      skv__store(finish->out_dtype, finish->o.data, at + n, row[n]);
  }
  row[dim] = skv__state_lse(e, l);
  if (finish->lse)
    finish->lse[sequence * finish->lse_stride[0] + query * finish->lse_stride[1] +
                head * finish->lse_stride[2]] = row[dim];
  if (!finish->bits)
    return 0;
  return row_digest(sequence, job->q_start[sequence] + query, head, row, dim + 1);
}

/* The heads of one query that belong to `owner`. */
static uint64_t finish_query(const skv__job_t *job, int32_t owner, const float *slice,
                             const skv__finish_t *finish, const skv__run_t *run, int64_t query) {
  const int64_t dim = job->value_head_dim, rows = job->slice_rows[owner];
  uint64_t bits = 0;
  for (int64_t head = 0; head < job->q_heads; ++head) {
    skv__place_t place = skv__job_place(job, run, query, head);
    if (place.owner == owner)
      bits +=
          slice ? finish_row(job, finish, run->sequence, query, head, slice + place.index * dim,
                             slice[rows * dim + place.index], slice[rows * (dim + 1) + place.index])
                : finish_row(job, finish, run->sequence, query, head, zeros, skv__empty_exponent(),
                             0.0f);
  }
  return bits;
}

void skv__cpu_finish(const skv__job_t *job, int32_t owner, const float *slice,
                     const skv__finish_t *finish, int32_t threads) {
  uint64_t bits = 0;
#pragma omp parallel num_threads(threads) reduction(+ : bits)
  {
    skv__rounding_t before = skv__rounding_set();
    for (int64_t i = 0; i < job->run_count; ++i) {
      const skv__run_t *run = &job->runs[i];
#pragma omp for schedule(static) nowait
      for (int64_t query = run->q_begin; query < run->q_begin + run->q_count; ++query)
        bits += finish_query(job, owner, slice, finish, run, query);
    }
    skv__rounding_restore(before);
  }
  if (finish->bits)
    *finish->bits += bits;
}
