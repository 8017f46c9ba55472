/* reduce_cases.cuh: the one-kernel reduction on worlds of windows: every way to cut a small tree
 * into nodes, nodes dealt to ranks at random, random states with specials; each result compared bit
 * for bit with skv__merge_row along the same tree on the host, beside guards. The caller brings the
 * windows: of one rank, or of all ranks of a world inside one process. */
#ifndef SKV_TESTS_REDUCE_CASES_CUH
#define SKV_TESTS_REDUCE_CASES_CUH

extern "C" {
#include "kernels/kernel.h"
#include "src/pending.h"
}

#include "kernels/cuda/reduce.h"
#include "tests/cuda/states.cuh"

enum { MOST_BLOCKS = 8, SETS = 2, REPEATS = 200 };
static const size_t WINDOW_BYTES = (size_t)64 << 20;

typedef struct world {
  int ranks, begin, end; /* ranks of this process: [begin, end) */
  skv__window_t *window[SKV__WINDOW_RANKS];
  cudaStream_t stream[SKV__WINDOW_RANKS];
} world_t;

typedef struct reduction {
  int ranks, nodes;
  int64_t blocks, dim, rows[SKV__WINDOW_RANKS]; /* of each owner's slice */
  bool to_all;
  skv__node_t node[MOST_BLOCKS];
  int rank_of[MOST_BLOCKS];
  float *state[SETS][MOST_BLOCKS][SKV__WINDOW_RANKS]; /* of each node and slice, with guards */
  float *root[SETS][SKV__WINDOW_RANKS];               /* as the host merges them */
} reduction_t;

static size_t slice_floats(const reduction_t *c, int slice) {
  return (size_t)(c->rows[slice] * (c->dim + 2) + 2 * GUARD);
}

/* Slices begin at 64 bytes. */
static size_t padded_floats(const reduction_t *c, int slice) {
  return (slice_floats(c, slice) + 63) / 64 * 64;
}

/* Where a state lies in its rank's window: after those of the nodes before it, 64-byte aligned. */
static size_t place_of(const reduction_t *c, int node, int slice) {
  size_t at = 0;
  for (int n = 0; n <= node; ++n)
    for (int s = 0; s < (n == node ? slice : c->ranks); ++s)
      at += padded_floats(c, s) * sizeof(float);
  return at;
}

/* ---- on the host ---- */

static void host_merge(float *left, const float *right, int64_t rows, int64_t dim) {
  left += GUARD, right += GUARD;
  for (int64_t row = 0; row < rows; ++row)
    skv__merge_row(left + row * dim, left + rows * dim + row, left + rows * (dim + 1) + row,
                   right + row * dim, right[rows * dim + row], right[rows * (dim + 1) + row], dim);
}

static float *host_root(const reduction_t *c, int set, int slice, skv__node_t node) {
  for (int n = 0; n < c->nodes; ++n)
    if (c->node[n].begin == node.begin && c->node[n].end == node.end) {
      float *copy = (float *)malloc(slice_floats(c, slice) * sizeof(float));
      memcpy(copy, c->state[set][n][slice], slice_floats(c, slice) * sizeof(float));
      return copy;
    }
  const int64_t split = skv__order_split(node);
  float *left = host_root(c, set, slice, {node.begin, split});
  float *right = host_root(c, set, slice, {split, node.end});
  host_merge(left, right, c->rows[slice], c->dim);
  free(right);
  return left;
}

static int64_t differences(const float *a, const float *b, size_t floats) {
  int64_t count = 0;
  for (size_t i = 0; i < floats; ++i)
    count += memcmp(a + i, b + i, sizeof *a) != 0;
  return count;
}

/* ---- cases ---- */

/* Cut `pattern` of the tree over the node: 0 is the node itself, the others cut both children. */
static int64_t cuts_of(skv__node_t node) {
  if (node.end - node.begin == 1)
    return 1;
  const int64_t split = skv__order_split(node);
  return 1 + cuts_of({node.begin, split}) * cuts_of({split, node.end});
}

static void cut(reduction_t *c, skv__node_t node, int64_t pattern) {
  if (pattern == 0) {
    c->node[c->nodes++] = node;
    return;
  }
  const skv__node_t left = {node.begin, skv__order_split(node)};
  const skv__node_t right = {left.end, node.end};
  cut(c, left, (pattern - 1) % cuts_of(left));
  cut(c, right, (pattern - 1) / cuts_of(left));
}

static void make_case(reduction_t *c) {
  for (int n = 0; n < c->nodes; ++n)
    c->rank_of[n] = (int)(random_bits() % (uint32_t)c->ranks);
  for (int set = 0; set < SETS; ++set) {
    for (int n = 0; n < c->nodes; ++n)
      for (int slice = 0; slice < c->ranks; ++slice)
        c->state[set][n][slice] = random_slice(c->rows[slice], c->dim);
    for (int slice = 0; slice < c->ranks; ++slice)
      c->root[set][slice] = host_root(c, set, slice, {0, c->blocks});
  }
}

static void drop_case(reduction_t *c) {
  for (int set = 0; set < SETS; ++set)
    for (int slice = 0; slice < c->ranks; ++slice) {
      free(c->root[set][slice]);
      for (int n = 0; n < c->nodes; ++n)
        free(c->state[set][n][slice]);
    }
}

/* ---- on the device ---- */

static void note_fold(void *user, skv__held_t left, skv__held_t right) {
  skv__reduce_t *reduce = (skv__reduce_t *)user;
  reduce->folds[reduce->nodes++] = {(uint8_t)left.slot, (uint8_t)right.slot};
}

/* The order of merges is what a pending set does with the nodes in ascending order. */
static void order_folds(const reduction_t *c, skv__reduce_t *reduce) {
  skv__held_t held[MOST_BLOCKS + 1];
  skv__pending_t set = {c->blocks, false, 0, MOST_BLOCKS + 1, held};
  reduce->nodes = 0;
  for (int n = 0; n < c->nodes; ++n)
    skv__pending_insert(&set, c->node[n], n, note_fold, reduce);
  reduce->nodes = c->nodes;
}

static skv__reduce_t reduction_for(const reduction_t *c, const skv__window_t *window, float *out) {
  skv__reduce_t reduce;
  memset(&reduce, 0, sizeof reduce);
  reduce.value_head_dim = c->dim;
  order_folds(c, &reduce);
  int64_t all = 0;
  for (int slice = 0; slice < c->ranks; ++slice) {
    all += c->rows[slice];
    reduce.most_rows = c->rows[slice] > reduce.most_rows ? c->rows[slice] : reduce.most_rows;
    if (!c->to_all && slice != window->rank)
      continue;
    skv__reduce_part_t *part = &reduce.part[reduce.parts++];
    part->owner = slice, part->rows = c->rows[slice];
    for (int n = 0; n < c->nodes; ++n)
      part->states[n] =
          (const float *)(window->memory[c->rank_of[n]] + place_of(c, n, slice)) + GUARD;
    part->out = out ? out + GUARD : NULL;
    if (out)
      out += padded_floats(c, slice);
  }
  if (c->to_all)
    reduce.most_rows = all;
  return reduce;
}

static __global__ void delay(uint32_t nanoseconds) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - begin < nanoseconds);
}

/* This rank's states of a set, as its window is to hold them. */
static float *window_image(const reduction_t *c, int rank, int set, size_t bytes) {
  float *image = (float *)calloc(bytes, 1), *device;
  for (int n = 0; n < c->nodes; ++n)
    for (int slice = 0; slice < c->ranks && c->rank_of[n] == rank; ++slice)
      memcpy((char *)image + place_of(c, n, slice), c->state[set][n][slice],
             slice_floats(c, slice) * sizeof(float));
  check(cudaMalloc((void **)&device, bytes));
  check(cudaMemcpy(device, image, bytes, cudaMemcpyHostToDevice));
  free(image);
  return device;
}

static int64_t out_differences(const reduction_t *c, int rank, int set, const float *out) {
  int64_t differ = 0;
  for (int slice = 0; slice < c->ranks; ++slice) {
    if (!c->to_all && slice != rank)
      continue;
    const size_t floats = slice_floats(c, slice);
    differ += differences(out + GUARD, c->root[set][slice] + GUARD, floats - 2 * GUARD);
    for (int i = 0; i < GUARD; ++i)
      differ += (skv__float_bits(out[i]) != 0x5a5a5a5a) +
                (skv__float_bits(out[floats - 1 - i]) != 0x5a5a5a5a);
    out += padded_floats(c, slice);
  }
  return differ;
}

typedef struct rank_data {
  float *image[SETS], *out, *host;
  size_t bytes, out_floats;
} rank_data_t;

static void open_rank(const reduction_t *c, int rank, int repeats, rank_data_t *d) {
  d->bytes = place_of(c, c->nodes, 0);
  d->out_floats = 0;
  for (int slice = 0; slice < c->ranks; ++slice)
    d->out_floats += c->to_all || slice == rank ? padded_floats(c, slice) : 0;
  for (int set = 0; set < SETS; ++set)
    d->image[set] = window_image(c, rank, set, d->bytes);
  const size_t bytes = d->out_floats * (size_t)repeats * sizeof(float);
  d->host = (float *)malloc(bytes);
  check(cudaMalloc((void **)&d->out, bytes));
  check(cudaMemset(d->out, 0x5a, bytes));
}

/* The outputs, and the states, which nobody may have changed. */
static int64_t close_rank(const reduction_t *c, const world_t *w, int rank, int repeats,
                          rank_data_t *d) {
  const size_t bytes = d->out_floats * (size_t)repeats * sizeof(float);
  int64_t differ = 0;
  check(cudaMemcpy(d->host, d->out, bytes, cudaMemcpyDeviceToHost));
  for (int i = 0; i < repeats; ++i)
    differ += out_differences(c, rank, i % SETS, d->host + d->out_floats * (size_t)i);
  free(d->host);
  char *now = (char *)malloc(2 * d->bytes + 1), *then = now + d->bytes;
  check(cudaMemcpy(now, w->window[rank]->memory[rank], d->bytes, cudaMemcpyDeviceToHost));
  check(cudaMemcpy(then, d->image[(repeats - 1) % SETS], d->bytes, cudaMemcpyDeviceToHost));
  differ += memcmp(now, then, d->bytes) != 0;
  free(now);
  check(cudaFree(d->out));
  for (int set = 0; set < SETS; ++set)
    check(cudaFree(d->image[set]));
  return differ;
}

/* Each repeat overwrites the states of the one before: too early, if the kernel did not wait. */
static int64_t run_case(const reduction_t *c, const world_t *w, int repeats) {
  rank_data_t data[SKV__WINDOW_RANKS];
  int64_t differ = 0;
  for (int rank = w->begin; rank < w->end; ++rank)
    open_rank(c, rank, repeats, &data[rank]);
  check(cudaDeviceSynchronize());
  for (int i = 0; i < repeats; ++i)
    for (int rank = w->begin; rank < w->end; ++rank) {
      const skv__window_t *window = w->window[rank];
      rank_data_t *d = &data[rank];
      if (repeats > 1)
        delay<<<1, 1, 0, w->stream[rank]>>>((uint32_t)rand() % 100000);
      check(cudaMemcpyAsync(window->memory[rank], d->image[i % SETS], d->bytes,
                            cudaMemcpyDeviceToDevice, w->stream[rank]));
      const skv__reduce_t reduce = reduction_for(c, window, d->out + d->out_floats * (size_t)i);
      if (skv__launch_reduce(window, &reduce, NULL, NULL, w->stream[rank]) != SKV_OK)
        ++differ, printf("FAIL launch\n");
    }
  for (int rank = w->begin; rank < w->end; ++rank)
    check(cudaStreamSynchronize(w->stream[rank]));
  for (int rank = w->begin; rank < w->end; ++rank)
    differ += close_rank(c, w, rank, repeats, &data[rank]);
  return differ;
}

static int64_t try_case(const world_t *w, int64_t blocks, int64_t pattern, int64_t rows,
                        int64_t dim, bool to_all, int repeats) {
  reduction_t c;
  memset(&c, 0, sizeof c);
  c.ranks = w->ranks, c.blocks = blocks, c.dim = dim, c.to_all = to_all;
  for (int slice = 0; slice < c.ranks; ++slice)
    c.rows[slice] = slice == 2 ? 0 : rows + slice * (rows / 5);
  cut(&c, {0, blocks}, pattern);
  make_case(&c);
  const int64_t differ = place_of(&c, c.nodes, 0) > WINDOW_BYTES ? -1 : run_case(&c, w, repeats);
  failures += differ != 0;
  if (differ)
    printf("FAIL %d ranks, blocks %lld, cut %lld, %lld rows x %lld, to %s, %d times: %lld differ\n",
           c.ranks, (long long)blocks, (long long)pattern, (long long)rows, (long long)dim,
           to_all ? "all" : "owners", repeats, (long long)differ);
  drop_case(&c);
  return differ;
}

/* All of it, on one world. The random numbers are the same in every process of the world. Kernels
 * that wait for each other on one device must all fit on it: ranks that share one get few rows. */
[[maybe_unused]] static void try_world(const world_t *w) {
  const int sharing = w->end - w->begin;
  int cases = 0;
  srand((unsigned)w->begin + 1);
  for (int64_t blocks = 1; blocks <= MOST_BLOCKS; ++blocks)
    for (int64_t pattern = 0; pattern < cuts_of({0, blocks}); ++pattern, ++cases)
      try_case(w, blocks, pattern, 1 + (int64_t)(random_bits() % 100) / sharing,
               4 + 4 * (pattern % 32), pattern % 3 == 1, 1);
  static const int64_t dims[] = {1, 3, 8, 96, 128, 192, 255, 256};
  for (size_t i = 0; i < sizeof dims / sizeof *dims; ++i)
    for (int64_t blocks = 1; blocks <= MOST_BLOCKS; blocks += 3, ++cases)
      try_case(w, blocks, cuts_of({0, blocks}) - 1, sharing == 1 && i % 2 ? 2100 : 77 / sharing,
               dims[i], i % 4 < 2, 1);
  try_case(w, 2, 1, 32, 128, false, REPEATS);
  try_case(w, 5, cuts_of({0, 5}) - 1, 300 / sharing, 128, false, REPEATS / 5);
  cases += 2;
  if (sharing == 1) {
    try_case(w, 2, 1, 20000, 128, false, 2);
    try_case(w, 7, cuts_of({0, 7}) - 1, 1200, 128, true, 1);
    try_case(w, 2, 1, 2000, 64, true, REPEATS / 5);
    cases += 3;
  }
  printf("%d ranks: %d cases, %d failures\n", w->ranks, cases, failures);
}

#endif
