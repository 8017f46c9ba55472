/* hammer_probe.c: random problems, planned and executed in random ways, until time is up.
 *   hammer_probe SEED SECONDS
 * Each seed is one trial: a problem, some lengths of its sequences, and two plans on one context
 * which execute those lengths in turn. Every answer must have the bits that one rank gives by
 * default on dense tensors; every fifth of those is judged by the oracle. A failure names the seed:
 * `hammer_probe SEED 0` repeats that trial alone. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chance.h"
#include "comm/comm.h"
#include "placed.h"
#include "solve.h"

enum { PLANS = 2, LENGTHS = 3, BATCH_MAX = 5, RANKS_MAX = 6 };

/* A plan's options, and how its executes are called. */
typedef struct use {
  skv_plan_options_t options;
  uint64_t strides;    /* seed of the tensors' memory layouts */
  int64_t split_query; /* > 0: two executes, which divide the queries here */
} use_t;

typedef struct trial {
  uint64_t seed;
  kit_case_t *test;            /* owns the tensors */
  kit_case_t variant[LENGTHS]; /* the same tensors, other lengths */
  int64_t lengths[LENGTHS][3][BATCH_MAX];
  kit_answer_t *wanted[LENGTHS], *got[LENGTHS][PLANS];
  int32_t ranks, threads;
  uint64_t delay_seed;
  use_t use[PLANS];
  bool same_q_tokens, same_heads; /* Q of all tokens, K and V of all heads: strides of 0 */
  pthread_mutex_t lock;
} trial_t;

/* ---- what is tried ---- */

static skv_problem_t random_problem(uint64_t *state) {
  skv_problem_t p;
  int64_t kv_heads = kit_between(state, 1, 3), group = kit_between(state, 1, 4);
  skv_problem_init(&p, sizeof p, kv_heads * group, kv_heads, kit_between(state, 1, 40));
  p.batch = kit_one_in(state, 2) ? 1 : kit_between(state, 1, BATCH_MAX);
  p.q_tokens = kit_one_in(state, 4) ? kit_between(state, 0, 2) : kit_between(state, 0, 60);
  p.kv_capacity_tokens =
      kit_one_in(state, 12) ? kit_between(state, 0, 64) : kit_between(state, 0, 900);
  p.value_head_dim = kit_one_in(state, 2) ? p.head_dim : kit_between(state, 1, 40);
  p.dtype = (skv_dtype_t)kit_between(state, 0, 2);
  p.out_dtype = kit_one_in(state, 2) ? SKV_FP32 : (skv_dtype_t)kit_between(state, 0, 2);
  p.causal = kit_one_in(state, 2);
  p.window_left_tokens = kit_one_in(state, 3) ? kit_between(state, 0, 200) : SKV_UNBOUNDED;
  p.window_right_tokens = kit_one_in(state, 4) ? kit_between(state, 0, 90) : SKV_UNBOUNDED;
  p.softcap = kit_one_in(state, 4) ? (float)kit_between(state, 1, 40) : 0;
  p.leaf_tokens = kit_one_in(state, 3) ? 128 : 64;
  p.block_tokens = p.leaf_tokens * kit_between(state, 1, 3);
  p.order = kit_one_in(state, 10) ? SKV_ORDER_FREE : SKV_ORDER_PINNED;
  return p;
}

static int64_t shorter(uint64_t *state, int64_t most) {
  return kit_one_in(state, 6) ? 0 : kit_one_in(state, 2) ? most : kit_between(state, 0, most);
}

static use_t random_use(uint64_t *state, const skv_problem_t *p) {
  static const skv_reduce_t of_keys[] = {SKV_REDUCE_AUTO, SKV_RING, SKV_GATHER};
  use_t use = {.strides = kit_draw(state)};
  skv_plan_options_t *o = &use.options;
  o->struct_bytes = sizeof *o;
  o->layout = (skv_layout_kind_t)kit_between(state, 0, 2);
  o->layout_run_blocks = kit_between(state, 1, 4);
  o->direction = (skv_direction_t)kit_between(state, 0, 2);
  o->reduce = (skv_reduce_t)kit_between(state, 0, 5);
  if (o->direction == SKV_PASS_KV)
    o->reduce = of_keys[kit_between(state, 0, 2)];
  else if (o->direction == SKV_DIRECTION_AUTO && kit_one_in(state, 2))
    o->reduce = SKV_REDUCE_AUTO;
  o->results = (skv_results_t)kit_between(state, 0, 2);
  o->row_owner = (skv_row_owner_t)kit_between(state, 0, 1);
  o->workspace_bytes = kit_one_in(state, 3) ? 0 : INT64_C(1) << kit_between(state, 0, 20);
  if (p->q_tokens > 1 && kit_one_in(state, 3))
    use.split_query = kit_between(state, 1, p->q_tokens - 1);
  return use;
}

/* ---- cases ---- */

static int64_t element_bytes(skv_dtype_t dtype) {
  return dtype == SKV_FP32 ? 4 : 2;
}

/* Of dense [outer][count][bytes]: item 0 of each outer one over its first `used` items. */
static void repeat_first(void *data, int64_t outer, int64_t count, int64_t used, int64_t bytes) {
  for (int64_t i = 0; i < outer; i++)
    for (int64_t item = 1; item < used; item++)
      memcpy((char *)data + (i * count + item) * bytes, (char *)data + i * count * bytes,
             (size_t)bytes);
}

static void make_alike(trial_t *trial) {
  const skv_problem_t *p = &trial->test->problem;
  int64_t item = element_bytes(p->dtype), keys = p->batch * p->kv_capacity_tokens;
  int64_t q_bytes = p->q_heads * p->head_dim * item;
  for (int64_t s = 0; trial->same_q_tokens && s < p->batch; s++)
    repeat_first((char *)trial->test->q + s * p->q_tokens * q_bytes, 1, p->q_tokens,
                 trial->test->q_tokens[s], q_bytes);
  if (!trial->same_heads)
    return;
  repeat_first(trial->test->k, keys, p->kv_heads, p->kv_heads, p->head_dim * item);
  repeat_first(trial->test->v, keys, p->kv_heads, p->kv_heads, p->value_head_dim * item);
}

/* Lengths within those of the tensors; queries anywhere, or at the end. */
static void make_variant(trial_t *trial, int32_t which, uint64_t *state) {
  const kit_case_t *test = trial->test;
  const skv_problem_t *p = &test->problem;
  int64_t(*lengths)[BATCH_MAX] = trial->lengths[which];
  bool anywhere = kit_one_in(state, 2);
  for (int64_t s = 0; s < p->batch; s++) {
    lengths[0][s] = which ? shorter(state, test->q_tokens[s]) : test->q_tokens[s];
    lengths[1][s] = which ? shorter(state, test->k_tokens[s]) : test->k_tokens[s];
    lengths[2][s] = kit_between(state, -80, p->kv_capacity_tokens + 300);
  }
  trial->variant[which] = *test;
  trial->variant[which].q_tokens = lengths[0];
  trial->variant[which].k_tokens = lengths[1];
  trial->variant[which].q_start = anywhere ? lengths[2] : NULL;
}

static void make_trial(trial_t *trial, uint64_t seed) {
  uint64_t state = seed;
  skv_problem_t p = random_problem(&state);
  int64_t q_tokens[BATCH_MAX], k_tokens[BATCH_MAX];
  for (int64_t s = 0; s < p.batch; s++) {
    q_tokens[s] = shorter(&state, p.q_tokens);
    k_tokens[s] = shorter(&state, p.kv_capacity_tokens);
  }
  *trial = (trial_t){.seed = seed,
                     .lock = PTHREAD_MUTEX_INITIALIZER,
                     .same_q_tokens = kit_one_in(&state, 6),
                     .same_heads = kit_one_in(&state, 4),
                     .ranks = (int32_t)kit_between(&state, 1, RANKS_MAX),
                     .threads = (int32_t)kit_between(&state, 1, 3),
                     .delay_seed = kit_one_in(&state, 3) ? kit_draw(&state) : 0};
  trial->test = kit_case_create(&p, q_tokens, k_tokens, kit_one_in(&state, 3), seed);
  make_alike(trial);
  for (int32_t i = 0; i < LENGTHS; i++) {
    make_variant(trial, i, &state);
    trial->wanted[i] = kit_answer_create(trial->test);
    for (int32_t plan = 0; plan < PLANS; plan++)
      trial->got[i][plan] = kit_answer_create(trial->test);
  }
  for (int32_t plan = 0; plan < PLANS; plan++)
    trial->use[plan] = random_use(&state, &p);
}

static void free_trial(trial_t *trial) {
  for (int32_t i = 0; i < LENGTHS; i++) {
    kit_answer_free(trial->wanted[i]);
    for (int32_t plan = 0; plan < PLANS; plan++)
      kit_answer_free(trial->got[i][plan]);
  }
  kit_case_free(trial->test);
}

/* ---- one rank ---- */

typedef struct seat {
  trial_t *trial;
  int32_t rank, which; /* which plan */
  skv_plan_t *plan;
  uint64_t state; /* of strides */
  kit_placed_t q, k, v;
  int64_t events;
} seat_t;

static void observe(void *user, const skv_node_event_t *event) {
  seat_t *seat = user;
  seat->events += event->end > event->begin && event->state[0] == event->state[0];
}

static void place_keys(seat_t *seat) {
  const kit_case_t *test = seat->trial->test;
  const skv_problem_t *p = &test->problem;
  size_t count = 0;
  skv_plan_key_intervals(seat->plan, seat->rank, NULL, &count);
  skv_interval_t *own = calloc(count + 1, sizeof *own);
  skv_plan_key_intervals(seat->plan, seat->rank, own, &count);
  int64_t extent[3] = {p->batch, 0, p->kv_heads}, item = element_bytes(p->dtype);
  for (size_t i = 0; i < count; i++)
    extent[1] += own[i].end - own[i].begin;
  int32_t zero = seat->trial->same_heads ? 2 : -1;
  seat->k = kit_place(&seat->state, extent, p->head_dim, item, zero, true);
  seat->v = kit_place(&seat->state, extent, p->value_head_dim, item, zero, true);
  int64_t to = 0, capacity = p->kv_capacity_tokens;
  for (size_t i = 0; i < count; to += own[i].end - own[i].begin, i++) {
    kit_copy_tokens(&seat->k, test->k, capacity, own[i].begin, own[i].end, to, false);
    kit_copy_tokens(&seat->v, test->v, capacity, own[i].begin, own[i].end, to, false);
  }
  free(own);
}

static void place_queries(seat_t *seat) {
  const kit_case_t *test = seat->trial->test;
  const skv_problem_t *p = &test->problem;
  int64_t extent[3] = {p->batch, p->q_tokens, p->q_heads};
  bool alike = seat->trial->same_q_tokens;
  seat->q =
      kit_place(&seat->state, extent, p->head_dim, element_bytes(p->dtype), alike ? 1 : -1, true);
  kit_copy_tokens(&seat->q, test->q, p->q_tokens, 0, alike ? p->q_tokens > 0 : p->q_tokens, 0,
                  false);
}

static void place_tensors(seat_t *seat) {
  place_keys(seat);
  place_queries(seat);
}

/* Queries [begin, end) of each sequence of a variant. */
static skv_status_t execute_part(const seat_t *seat, int32_t variant, int64_t begin, int64_t end,
                                 const kit_placed_t *o, const kit_placed_t *lse, uint64_t *bits) {
  const kit_case_t *test = &seat->trial->variant[variant];
  int64_t queries[BATCH_MAX], start[BATCH_MAX];
  for (int64_t s = 0; s < test->problem.batch; s++) {
    int64_t past = test->q_tokens[s] < end ? test->q_tokens[s] : end;
    queries[s] = past > begin ? past - begin : 0;
    start[s] = begin + (test->q_start ? test->q_start[s] : test->k_tokens[s] - test->q_tokens[s]);
  }
  skv_inputs_t inputs = {.struct_bytes = sizeof inputs,
                         .q = seat->q.tensor,
                         .k = seat->k.tensor,
                         .v = seat->v.tensor,
                         .sinks = test->sinks,
                         .q_tokens = queries,
                         .k_tokens = test->k_tokens,
                         .q_start =
                             begin || test->q_start || end < test->problem.q_tokens ? start : NULL};
  skv_outputs_t outputs = {.struct_bytes = sizeof outputs, .o = o->tensor, .bits = bits};
  inputs.q.data = kit_placed_row(&seat->q, 0, begin, 0);
  outputs.o.data = kit_placed_row(o, 0, begin, 0);
  outputs.lse = kit_placed_row(lse, 0, begin, 0);
  memcpy(outputs.lse_stride, lse->tensor.stride, sizeof outputs.lse_stride);
  skv_plan_info_t info = {.struct_bytes = sizeof info};
  skv_plan_info(seat->plan, &info);
  void *workspace = kit_poisoned((size_t)info.workspace_bytes); /* aligned to 64 */
  skv_status_t status =
      skv_execute(seat->plan, &inputs, &outputs, workspace, (size_t)info.workspace_bytes, NULL);
  if (!kit_guards_intact(workspace))
    status = SKV_INTERNAL;
  kit_poisoned_free(workspace);
  return status;
}

static bool untouched(const kit_answer_t *answer) {
  for (size_t i = 0; i < answer->lse_bytes / sizeof(float); i++)
    if (memcmp(&answer->lse[i], "\xa1\x7f\xa1\x7f", sizeof(float)) != 0)
      return false;
  return true;
}

/* What this rank wrote, dense. The answer of a rank that gets no results stays poisoned. */
static bool keep_answer(seat_t *seat, int32_t variant, kit_placed_t *o, kit_placed_t *lse,
                        uint64_t bits) {
  trial_t *trial = seat->trial;
  const skv_problem_t *p = &trial->test->problem;
  skv_results_t results = trial->use[seat->which].options.results;
  kit_answer_t *mine = kit_answer_create(trial->test), *all = trial->got[variant][seat->which];
  kit_copy_tokens(o, mine->o, p->q_tokens, 0, p->q_tokens, 0, true);
  kit_copy_tokens(lse, mine->lse, p->q_tokens, 0, p->q_tokens, 0, true);
  bool fine = kit_guards_intact(o->memory) && kit_guards_intact(lse->memory);
  pthread_mutex_lock(&trial->lock);
  all->bits += bits;
  if (results == SKV_RESULTS_ROOT && seat->rank > 0) {
    fine = fine && untouched(mine);
  } else if (results == SKV_RESULTS_ALL && seat->rank > 0 && p->order == SKV_ORDER_PINNED) {
    const kit_answer_t *wanted = trial->wanted[variant];
    fine = fine && memcmp(mine->o, wanted->o, wanted->o_bytes) == 0 &&
           memcmp(mine->lse, wanted->lse, wanted->lse_bytes) == 0;
  } else if (results != SKV_RESULTS_ALL || seat->rank == 0) { /* rows that others own: poison */
    int64_t rows = p->batch * p->q_tokens * p->q_heads;
    int64_t o_bytes = p->value_head_dim * element_bytes(p->out_dtype);
    for (int64_t row = 0; row < rows; row++)
      if (memcmp(&mine->lse[row], "\xa1\x7f\xa1\x7f", sizeof(float)) != 0) {
        all->lse[row] = mine->lse[row];
        memcpy((char *)all->o + row * o_bytes, (char *)mine->o + row * o_bytes, (size_t)o_bytes);
      }
  }
  pthread_mutex_unlock(&trial->lock);
  kit_answer_free(mine);
  return fine;
}

static skv_status_t execute(seat_t *seat, int32_t variant) {
  const skv_problem_t *p = &seat->trial->test->problem;
  int64_t extent[3] = {p->batch, p->q_tokens, p->q_heads};
  kit_placed_t o =
      kit_place(&seat->state, extent, p->value_head_dim, element_bytes(p->out_dtype), -1, true);
  kit_placed_t lse = kit_place(&seat->state, extent, 1, sizeof(float), -1, true);
  uint64_t bits = 0;
  int64_t split = seat->trial->use[seat->which].split_query;
  skv_status_t status = split ? execute_part(seat, variant, 0, split, &o, &lse, &bits) : SKV_OK;
  if (status == SKV_OK)
    status = execute_part(seat, variant, split, p->q_tokens, &o, &lse, &bits);
  if (status == SKV_OK && !keep_answer(seat, variant, &o, &lse, bits)) {
    fprintf(stderr, "rank %d has results that are wrong, or not its own\n", (int)seat->rank);
    status = SKV_INTERNAL;
  }
  kit_poisoned_free(o.memory);
  kit_poisoned_free(lse.memory);
  return status;
}

static int body(int32_t rank, skv_context_t *context, void *user) {
  trial_t *trial = user;
  seat_t seats[PLANS] = {0};
  skv_status_t status = SKV_OK;
  for (int32_t i = 0; i < PLANS && status == SKV_OK; i++) {
    seats[i] = (seat_t){.trial = trial, .rank = rank, .which = i};
    seats[i].state = trial->use[i].strides + (uint64_t)rank;
    skv_plan_options_t options = trial->use[i].options;
    options.observer = trial->use[i].strides % 5 ? NULL : observe;
    options.observer_user = &seats[i];
    status = skv_plan_create(&seats[i].plan, context, &trial->test->problem, &options);
    if (status == SKV_OK)
      place_tensors(&seats[i]);
  }
  for (int32_t variant = 0; variant < LENGTHS; variant++)
    for (int32_t i = 0; i < PLANS && status == SKV_OK; i++)
      status = execute(&seats[i], variant);
  if (status != SKV_OK)
    fprintf(stderr, "rank %d: %s: %s\n", (int)rank, skv_status_name(status),
            skv_context_error(context));
  for (int32_t i = 0; i < PLANS; i++) {
    skv_plan_destroy(seats[i].plan);
    kit_poisoned_free(seats[i].q.memory);
    kit_poisoned_free(seats[i].k.memory);
    kit_poisoned_free(seats[i].v.memory);
  }
  return (int)status;
}

/* ---- trials ---- */

/* The error rule compares maxima: it needs rows enough (see kit_case_random). */
static bool right(const kit_case_t *test, const kit_answer_t *answer) {
  const skv_problem_t *p = &test->problem;
  char what[1024], text[512];
  int64_t busy = kit_rows_seeing(test, 8);
  if (p->out_dtype == SKV_FP32 && (busy < 160 || busy * p->value_head_dim < 256))
    return true;
  if (kit_check(test, answer->o, answer->lse, text, sizeof text))
    return true;
  kit_case_describe(test, what, sizeof what);
  fprintf(stderr, "%s: %s\n", what, text);
  return false;
}

static bool judge(const trial_t *trial) {
  bool fine = true;
  for (int32_t i = 0; i < LENGTHS; i++)
    for (int32_t plan = 0; plan < PLANS; plan++) {
      char what[256], problem[1024];
      kit_way_t way = {
          .ranks = trial->ranks, .threads = trial->threads, .options = trial->use[plan].options};
      bool pinned = trial->test->problem.order == SKV_ORDER_PINNED;
      if (pinned ? kit_answer_same(trial->wanted[i], trial->got[i][plan])
                 : right(&trial->variant[i], trial->got[i][plan]))
        continue;
      kit_way_describe(&way, what, sizeof what);
      kit_case_describe(&trial->variant[i], problem, sizeof problem);
      fprintf(stderr, "plan %d: %s: other bits for %s\n", (int)plan, what, problem);
      fine = false;
    }
  return fine;
}

static bool run_trial(uint64_t seed) {
  trial_t trial;
  make_trial(&trial, seed);
  bool fine = true;
  for (int32_t i = 0; i < LENGTHS && fine; i++) {
    fine = kit_solve(&trial.variant[i], &(kit_way_t){0}, trial.wanted[i]);
    if (fine && (seed + (uint64_t)i) % 5 == 0)
      fine = right(&trial.variant[i], trial.wanted[i]);
  }
  fine =
      fine && kit_run_ranks(trial.ranks, trial.threads, NULL, trial.delay_seed, body, &trial) == 0;
  fine = fine && judge(&trial);
  free_trial(&trial);
  if (!fine)
    fprintf(stderr, "FAILED: hammer_probe %llu 0\n", (unsigned long long)seed);
  return fine;
}

int main(int count, char **arguments) {
  uint64_t seed = count > 1 ? strtoull(arguments[1], NULL, 10) : 1, first = seed;
  double until = skv__comm_now() + (count > 2 ? atof(arguments[2]) : 10);
  bool fine = true;
  do
    fine = run_trial(seed++) && fine;
  while (skv__comm_now() < until);
  printf("%llu trials from seed %llu: %s\n", (unsigned long long)(seed - first),
         (unsigned long long)first, fine ? "fine" : "FAILED");
  return fine ? 0 : 1;
}
