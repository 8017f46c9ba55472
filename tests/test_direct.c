/* test_direct.c: what the one-kernel reduction is told: states at their addresses in every rank's
 * window, folded in the canonical order, for ranks, layouts and lengths. The kernel is the test's.
 */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/state.h"
#include "kit.h"
#include "plan_parts.h"

enum { DIM = 2, MOST_ROWS = 3, MOST_NODES = 128, SLOT_BYTES = 64, STATE = DIM + 2 };

/* ---- states that tell who they are ---- */

static float number(int64_t a, int64_t b, int64_t c, int64_t d) {
  uint64_t x = (uint64_t)(((a * 1031 + b) * 1031 + c) * 1031 + d) * 0x9e3779b97f4a7c15u;
  return (float)(x >> 40) * 0x1p-20f;
}

/* (O, e, l) of a row of an evaluated node. */
static void fill_state(float *state, skv__node_t node, int64_t slice, int64_t row) {
  for (int64_t d = 0; d < DIM; d++)
    state[d] = number(node.begin, node.end, slice * MOST_ROWS + row, d);
  state[DIM] = (float)((node.begin + row) % 5);
  state[DIM + 1] = number(node.begin, node.end, slice, row + 7);
}

static skv_status_t evaluate(const skv__job_t *job, void *scratch, int32_t threads,
                             skv_status_t (*poll)(void *user), void *user, void *stream,
                             skv__error_t *error) {
  (void)scratch, (void)threads, (void)poll, (void)user, (void)stream, (void)error;
  for (int64_t n = 0; n < job->node_count; n++)
    for (int32_t slice = 0; slice < job->ranks; slice++)
      for (int64_t row = 0; row < job->slice_rows[slice]; row++) {
        float state[STATE], *to = job->slices[n * job->ranks + slice];
        int64_t rows = job->slice_rows[slice];
        fill_state(state, (skv__node_t){job->nodes[n].begin, job->nodes[n].end}, slice, row);
        memcpy(to + row * DIM, state, DIM * sizeof(float));
        to[rows * DIM + row] = state[DIM];
        to[rows * (DIM + 1) + row] = state[DIM + 1];
      }
  return SKV_OK;
}

/* ---- the kernel ---- */

static float results[SKV__WINDOW_RANKS][SKV__WINDOW_RANKS][MOST_ROWS][STATE]; /* [rank][slice] */
static int64_t announced_rows;

static bool finishes(const skv__job_t *job, const skv__finish_t *finish) {
  return job && finish;
}

static skv_status_t reduce(const skv__window_t *window, const skv__reduce_t *r,
                           const skv__job_t *job, const skv__finish_t *finish, void *stream) {
  (void)job, (void)finish, (void)stream;
  announced_rows = r->most_rows;
  for (int32_t i = 0; i < r->parts; i++)
    for (int64_t row = 0; row < r->part[i].rows; row++) {
      float states[SKV__REDUCE_NODES][STATE];
      for (int32_t n = 0; n < r->nodes; n++) {
        const float *from = r->part[i].states[n];
        memcpy(states[n], from + row * DIM, DIM * sizeof(float));
        states[n][DIM] = from[r->part[i].rows * DIM + row];
        states[n][DIM + 1] = from[r->part[i].rows * (DIM + 1) + row];
      }
      for (int32_t f = 0; f < r->nodes - 1; f++) {
        float *left = states[r->folds[f].left], *right = states[r->folds[f].right];
        skv__merge_row(left, left + DIM, left + DIM + 1, right, right[DIM], right[DIM + 1], DIM);
      }
      memcpy(results[window->rank][r->part[i].owner][row], states[0], sizeof states[0]);
    }
  return SKV_OK;
}

static const skv__peers_t peers = {.finishes = finishes, .reduce = reduce};
static const skv__kernel_t kernel = {.evaluate = evaluate};

/* ---- a world ---- */

typedef struct world {
  skv__shard_t shard;
  int64_t used_blocks;
  skv_results_t wanted;
  skv__node_t *work[SKV__WINDOW_RANKS];
  int32_t counts[SKV__WINDOW_RANKS];
  int64_t rows[SKV__WINDOW_RANKS];
  skv__window_t windows[SKV__WINDOW_RANKS];
  skv__bank_t banks[SKV__WINDOW_RANKS];
} world_t;

static bool is_work(const world_t *w, skv__node_t node) {
  for (int32_t rank = 0; rank < w->shard.ranks; rank++)
    for (int32_t i = 0; i < w->counts[rank]; i++)
      if (w->work[rank][i].begin == node.begin && w->work[rank][i].end == node.end)
        return true;
  return false;
}

/* The tree, from its root. */
static void expect_state(const world_t *w, skv__node_t node, int64_t slice, int64_t row,
                         float *state) {
  if (node.begin >= w->used_blocks) {
    memset(state, 0, STATE * sizeof *state);
    state[DIM] = skv__empty_exponent();
  } else if (is_work(w, node)) {
    fill_state(state, node, slice, row);
  } else {
    float right[STATE];
    int64_t split = skv__order_split(node);
    expect_state(w, (skv__node_t){node.begin, split}, slice, row, state);
    expect_state(w, (skv__node_t){split, node.end}, slice, row, right);
    skv__merge_row(state, state + DIM, state + DIM + 1, right, right[DIM], right[DIM + 1], DIM);
  }
}

static void open_rank(world_t *w, int32_t rank) {
  skv__error_t error;
  skv__bank_t *bank = &w->banks[rank];
  int32_t slots = 0;
  for (int32_t r = 0; r < w->shard.ranks; r++)
    slots = w->counts[r] * w->shard.ranks > slots ? w->counts[r] * w->shard.ranks : slots;
  *bank = (skv__bank_t){.kernel = &kernel,
                        .rank = rank,
                        .ranks = w->shard.ranks,
                        .slot_bytes = SLOT_BYTES,
                        .slots = slots,
                        .set_capacity = MOST_NODES};
  cr_assert_eq(skv__bank_open(bank, w->counts[rank], 1, &error), SKV_OK);
  bank->used_blocks = w->used_blocks;
  memcpy(bank->slice_rows, w->rows, (size_t)w->shard.ranks * sizeof *w->rows);
  bank->job = (skv__job_t){.value_head_dim = DIM,
                           .ranks = w->shard.ranks,
                           .slice_rows = bank->slice_rows,
                           .runs = bank->runs,
                           .run_count = 1};
  unsigned char *memory = aligned_alloc(64, ((size_t)slots + 2) * SLOT_BYTES);
  w->windows[rank] = (skv__window_t){.rank = rank, .ranks = w->shard.ranks};
  for (int32_t r = 0; r < w->shard.ranks; r++)
    w->windows[r].memory[rank] = memory;
  skv__bank_reset(bank, w->shard.blocks, false, memory + SLOT_BYTES); /* a bank is not at 0 */
  skv__job_node_t work[MOST_NODES];
  for (int32_t i = 0; i < w->counts[rank]; i++)
    work[i] = (skv__job_node_t){w->work[rank][i].begin, w->work[rank][i].end, 0};
  cr_assert_eq(skv__bank_evaluate(bank, work, w->counts[rank], NULL, NULL, NULL, &error), SKV_OK);
}

static void close_rank(world_t *w, int32_t rank) {
  free(w->windows[rank].memory[rank]);
  skv__bank_close(&w->banks[rank]);
  free(w->work[rank]);
}

static void run_rank(world_t *w, int32_t rank) {
  skv__error_t error;
  skv__finish_t finish = {0};
  for (int32_t r = 0; r < w->shard.ranks; r++)
    w->windows[rank].memory[r] = w->windows[r].memory[r];
  skv__direct_path_t path = {.calls = &peers,
                             .window = &w->windows[rank],
                             .rank = rank,
                             .ranks = w->shard.ranks,
                             .results = w->wanted,
                             .blocks = w->shard.blocks};
  cr_assert(skv__direct_cast(&path, w->work, w->counts));
  cr_assert(skv__direct_takes(&path, &w->banks[rank], &finish));
  cr_assert_eq(skv__direct_reduce(&path, &w->banks[rank], &finish, &error), SKV_OK);
  int64_t all = 0, most = 0;
  for (int32_t slice = 0; slice < w->shard.ranks; slice++) {
    cr_expect_eq(w->banks[rank].sets[slice].count, 0);
    all += w->rows[slice];
    most = w->rows[slice] > most ? w->rows[slice] : most;
  }
  cr_expect_eq(announced_rows, w->wanted == SKV_RESULTS_OWNER ? most : all);
}

static void check_rank(const world_t *w, int32_t rank) {
  for (int32_t slice = 0; slice < w->shard.ranks; slice++)
    for (int64_t row = 0; row < w->rows[slice]; row++) {
      float wanted[STATE];
      bool mine = slice == rank || w->wanted == SKV_RESULTS_ALL ||
                  (w->wanted == SKV_RESULTS_ROOT && rank == 0);
      if (!mine)
        continue;
      expect_state(w, (skv__node_t){0, w->shard.blocks}, slice, row, wanted);
      cr_expect_eq(memcmp(results[rank][slice][row], wanted, sizeof wanted), 0,
                   "%d ranks, %lld of %lld blocks: rank %d, slice %d, row %lld",
                   (int)w->shard.ranks, (long long)w->used_blocks, (long long)w->shard.blocks,
                   (int)rank, (int)slice, (long long)row);
    }
}

/* How many worlds of this kind fit one kernel. */
static int try_world(skv__shard_t shard, int64_t used_blocks, skv_results_t wanted) {
  world_t w = {.shard = shard, .used_blocks = used_blocks, .wanted = wanted};
  skv__error_t error;
  int32_t nodes = 0;
  for (int32_t rank = 0; rank < shard.ranks; rank++) {
    w.counts[rank] = (int32_t)skv__shard_frontier(&shard, rank, NULL);
    w.work[rank] = malloc(((size_t)w.counts[rank] + 1) * sizeof(skv__node_t));
    skv__shard_frontier(&shard, rank, w.work[rank]);
    w.rows[rank] = (rank + 1 + used_blocks) % (MOST_ROWS + 1); /* some have none */
    nodes += w.counts[rank];
  }
  (void)error;
  memset(results, 0xff, sizeof results);
  bool fits = nodes <= SKV__REDUCE_NODES;
  for (int32_t rank = 0; rank < shard.ranks && fits; rank++)
    open_rank(&w, rank);
  for (int32_t rank = 0; rank < shard.ranks && fits; rank++) {
    run_rank(&w, rank);
    check_rank(&w, rank);
  }
  skv__direct_path_t path = {.calls = &peers, .ranks = shard.ranks};
  cr_expect_eq(skv__direct_cast(&path, w.work, w.counts), fits);
  for (int32_t rank = 0; rank < shard.ranks; rank++) {
    if (fits)
      close_rank(&w, rank);
    else
      free(w.work[rank]);
  }
  return fits;
}

Test(direct, states_are_found_and_folded_in_the_pinned_order) {
  int fit = 0, all = 0;
  for (int32_t ranks = 1; ranks <= SKV__WINDOW_RANKS; ranks++)
    for (int64_t blocks = 1; blocks <= 40; blocks += 1 + blocks / 8)
      for (int layout = 0; layout < 4; layout++)
        for (int64_t used = 1; used <= blocks; used += 1 + blocks / 3) {
          static const skv_layout_kind_t kinds[] = {SKV_CONTIGUOUS, SKV_ZIGZAG, SKV_BLOCKS,
                                                    SKV_BLOCKS};
          skv__shard_t shard = {
              .blocks = blocks, .ranks = ranks, .layout = {kinds[layout], layout == 2 ? 1 : 4}};
          fit += try_world(shard, used, (skv_results_t)(all++ % 3));
        }
  cr_expect_gt(fit, 1000);
  cr_expect_lt(fit, all);
}

/* ---- windows that some ranks cannot have ---- */

enum { RANKS = 3 };

typedef struct trouble {
  skv_status_t reserve[RANKS], open[RANKS]; /* how these go on each rank */
  bool optional;
  skv_status_t outcome;
  bool direct; /* states go directly then */
  atomic_int held;
} trouble_t;

static _Thread_local trouble_t *trouble;
static _Thread_local int32_t my_rank;

static skv_status_t reserve_window(skv__window_t **window, void *native, int64_t bytes,
                                   skv__error_t *error) {
  skv_status_t status = trouble->reserve[my_rank];
  (void)native;
  *window = NULL;
  if (status != SKV_OK)
    return skv__fail(error, status, "no memory for a window");
  *window = calloc(1, sizeof **window);
  (*window)->bytes = bytes;
  trouble->held++;
  return SKV_OK;
}

static skv_status_t open_window(skv__window_t *window, double timeout_seconds,
                                skv__error_t *error) {
  skv_status_t status = trouble->open[my_rank];
  (void)window, (void)timeout_seconds;
  for (int32_t rank = 0; rank < RANKS; rank++) /* it would wait for ever for such a rank */
    cr_expect_eq(trouble->reserve[rank], SKV_OK);
  return status == SKV_OK ? SKV_OK : skv__fail(error, status, "no window");
}

static void close_window(skv__window_t *window) {
  free(window);
  trouble->held--;
}

static const skv__peers_t troubled = {
    .reserve = reserve_window, .open = open_window, .close = close_window};

static int open_in_trouble(int32_t rank, skv_context_t *context, void *user) {
  trouble = user;
  my_rank = rank;
  skv_problem_t problem;
  skv_problem_init(&problem, sizeof problem, 4, 2, 24);
  problem.q_tokens = problem.kv_capacity_tokens = 500;
  problem.leaf_tokens = problem.block_tokens = 64;
  skv_plan_options_t options = {
      .struct_bytes = sizeof options, .direction = SKV_PASS_Q, .reduce = SKV_SCATTER};
  skv_plan_t *plan;
  cr_assert_eq(skv_plan_create(&plan, context, &problem, &options), SKV_OK);
  int64_t with_banks = plan->workspace.total;
  plan->direct.calls = &troubled;
  plan->direct.optional = trouble->optional;
  plan->options.path = SKV_PATH_DIRECT;
  skv__plan_lay_out(plan);
  cr_expect_lt(plan->workspace.total, with_banks);
  skv_status_t status = skv__plan_open_window(plan);
  cr_expect_eq(status, trouble->outcome, "%s", skv_status_name(status));
  if (status == SKV_OK) {
    cr_expect_eq(plan->direct.calls != NULL, trouble->direct);
    cr_expect_eq(plan->direct.window != NULL, trouble->direct);
    cr_expect_eq(plan->options.path, trouble->direct ? SKV_PATH_DIRECT : SKV_PATH_MESSAGES);
    cr_expect_eq(plan->workspace.total == with_banks, !trouble->direct);
  } else {
    cr_expect(strstr(skv_context_error(context), "rank 1: no "), "%s", skv_context_error(context));
  }
  skv_plan_destroy(plan);
  cr_expect_null(context->windows);
  return 0;
}

Test(direct, all_ranks_have_the_window_or_none) {
  trouble_t troubles[] = {
      {.direct = true},
      {.optional = true, .direct = true},
      {.optional = true, .reserve = {SKV_OK, SKV_MEMORY, SKV_OK}},
      {.optional = true, .reserve = {SKV_MEMORY, SKV_MEMORY, SKV_INTERNAL}},
      {.optional = true, .open = {SKV_OK, SKV_UNSUPPORTED, SKV_OK}},
      {.optional = true, .open = {SKV_UNSUPPORTED, SKV_UNSUPPORTED, SKV_UNSUPPORTED}},
      {.optional = true, .open = {SKV_OK, SKV_TIMEOUT, SKV_OK}, .outcome = SKV_TIMEOUT},
      {.optional = true, .open = {SKV_UNSUPPORTED, SKV_TRANSPORT}, .outcome = SKV_TRANSPORT},
      {.reserve = {SKV_OK, SKV_MEMORY, SKV_OK}, .outcome = SKV_MEMORY},
      {.open = {SKV_OK, SKV_UNSUPPORTED, SKV_OK}, .outcome = SKV_UNSUPPORTED}};
  for (size_t i = 0; i < sizeof troubles / sizeof *troubles; i++) {
    cr_expect_eq(kit_run_ranks(RANKS, 1, NULL, 0, open_in_trouble, &troubles[i]), 0);
    cr_expect_eq(troubles[i].held, 0, "trouble %zu", i);
  }
}
