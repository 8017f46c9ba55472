/* cmd_verify.c: splitkv verify: a few problems on 1..P ranks, in every layout, by every path. One
 * rank's result is checked against fp64; all others must have its bits. Free order is the negative
 * control: if nothing differs there either, the comparison shows nothing. */
#include <string.h>

#include "context.h"
#include "launch/exit_codes.h"
#include "launch/sub_session.h"
#include "launch/verify.h"

static const char *const LAYOUTS[] = {"contiguous", "zigzag", "blocks:1"};
static const struct {
  skv_direction_t direction;
  skv_reduce_t reduce;
} PATHS[] = {{SKV_PASS_Q, SKV_GATHER},    {SKV_PASS_Q, SKV_SCATTER}, {SKV_PASS_Q, SKV_TREE},
             {SKV_PASS_Q, SKV_BUTTERFLY}, {SKV_PASS_Q, SKV_RING},    {SKV_PASS_KV, SKV_RING},
             {SKV_PASS_KV, SKV_GATHER}};
enum { LAYOUT_COUNT = 3, PATH_COUNT = 7, FREE_LAYOUTS = 1 };

typedef struct verify {
  skv__session_t *world;
  skv__session_t alone;
  skv__progress_t *progress;
  int64_t done, total; /* runs */
} verify_t;

/* Uneven lengths on purpose: the last block is short, and 3, 5, 6, 7 ranks get unequal shards. */
static void define_problems(skv__verified_t problems[SKV__VERIFY_PROBLEMS], int64_t seed,
                            int64_t leaf) {
  memset(problems, 0, SKV__VERIFY_PROBLEMS * sizeof *problems);
  for (int i = 0; i < SKV__VERIFY_PROBLEMS; ++i) {
    problems[i].job = skv__job_defaults(i == 2);
    problems[i].job.seed = seed + i;
    problems[i].job.leaf = leaf;
    problems[i].job.block = leaf;
    problems[i].job.results = SKV_RESULTS_ALL;
  }
  skv__job_options_t *job = &problems[0].job;
  problems[0].name = "prefill, causal, fp32, 4/2 heads of 64, 1500 keys";
  job->shape = "4,2,64";
  job->tokens = 1500;
  job->causal = true;
  job = &problems[1].job;
  problems[1].name = "prefill, window, bf16, outliers, 200 queries, 1100 keys, 2 sequences";
  job->shape = "2,1,80,48";
  job->tokens = 1100;
  job->queries = 200;
  job->batch = 2;
  job->dtype = SKV_BF16;
  job->outliers = 2;
  job->window = "700,3";
  job->block = 2 * leaf;
  job = &problems[2].job;
  problems[2].name = "decode, softcap, fp16, 8/1 heads of 128, 3 queries, 3333 keys";
  job->shape = "8,1,128";
  job->tokens = 3333;
  job->queries = 3;
  job->dtype = SKV_FP16;
  job->causal = true;
  job->softcap = 20.0;
  job = &problems[3].job;
  problems[3].name = "prefill, causal, fp32, in chunks of 33, one block, capacity 777";
  job->shape = "2,2,59";
  job->tokens = 100;
  job->chunk = 33;
  job->capacity = 777;
  job->causal = true;
  job->block = 2 * leaf;
}

static bool same_bytes(const skv__pages_t *a, const skv__pages_t *b) {
  return a->bytes == b->bytes && memcmp(a->data, b->data, a->bytes) == 0;
}

/* One run on the sub-session; *differs tells whether this rank sees other bits than `reference`. */
static skv_status_t run_once(skv__session_t *session, const skv__job_options_t *job,
                             const skv__job_run_t *reference, bool *differs, skv__error_t *error) {
  skv__job_run_t run;
  skv_status_t status = skv__job_run(&run, job, session, NULL, error);
  if (status == SKV_OK)
    *differs = !same_bytes(&run.data.o, &reference->data.o) ||
               !same_bytes(&run.data.lse, &reference->data.lse);
  skv__job_run_free(&run);
  return status;
}

/* The same on the first ranks of the world; all of the world hear how it went. */
static skv_status_t run_on(verify_t *verify, skv__session_t *sub, const skv__job_options_t *job,
                           const skv__job_run_t *reference, uint64_t *runs, uint64_t *differing,
                           skv__error_t *error) {
  skv__comm_t *comm = verify->world->context->comm;
  bool differs = false;
  if (sub->context)
    run_once(sub, job, reference, &differs, error);
  SKV_TRY(skv__session_agree(verify->world, NULL, 0, error));
  uint64_t sum = differs;
  if (skv__comm_sum(comm, &sum, 1, "bits that differ") != SKV_OK)
    return skv__fail(error, verify->world->context->error.status, "%s",
                     verify->world->context->error.text);
  ++*runs;
  *differing += sum > 0;
  skv__progress_set(verify->progress, "verify", ++verify->done, verify->total);
  return SKV_OK;
}

static skv_status_t run_matrix(verify_t *verify, skv__session_t *sub, skv__verified_t *problem,
                               int32_t ranks, skv__error_t *error) {
  skv__job_options_t job = problem->job;
  const skv__job_run_t *reference = &problem->reference;
  skv__outcome_t *outcome = &problem->outcome;
  for (int layout = 0; layout < LAYOUT_COUNT; ++layout)
    for (int path = 0; path < PATH_COUNT; ++path) {
      job.layout = LAYOUTS[layout];
      job.direction = PATHS[path].direction;
      job.reduce = PATHS[path].reduce;
      job.order = SKV_ORDER_PINNED;
      SKV_TRY(run_on(verify, sub, &job, reference, &outcome->runs[ranks - 1],
                     &outcome->differing[ranks - 1], error));
      job.order = SKV_ORDER_FREE;
      if (ranks > 1 && layout < FREE_LAYOUTS)
        SKV_TRY(run_on(verify, sub, &job, reference, &outcome->free_runs, &outcome->free_differing,
                       error));
    }
  return SKV_OK;
}

/* One rank alone: the bits to compare with, and their error. */
static skv_status_t make_reference(verify_t *verify, skv__verified_t *problem,
                                   skv__error_t *error) {
  skv__job_run_t *reference = &problem->reference;
  skv__outcome_t *outcome = &problem->outcome;
  skv__verdict_t verdict;
  SKV_TRY(skv__job_run(reference, &problem->job, &verify->alone, NULL, error));
  outcome->accurate = true;
  if (verify->world->rank != 0) /* it speaks for all, and decides the exit code of the job */
    return SKV_OK;
  SKV_TRY(skv__check(&verdict, &reference->data, &reference->input, &problem->job, reference->plan,
                     &verify->alone, NULL, error));
  outcome->error = verdict.error;
  outcome->bound = verdict.bound;
  outcome->checked_rows = verdict.checked_rows;
  outcome->accurate = verdict.passed;
  return SKV_OK;
}

/* All problems on the first `ranks` ranks: a session costs more than a small run. */
static skv_status_t verify_ranks(verify_t *verify, skv__verified_t *problems, int32_t ranks,
                                 skv__error_t *error) {
  skv__session_t sub;
  skv__sub_session_open(&sub, verify->world, ranks, error);
  skv_status_t status = skv__session_agree(verify->world, NULL, 0, error);
  for (int i = 0; status == SKV_OK && i < SKV__VERIFY_PROBLEMS; ++i)
    status = run_matrix(verify, &sub, &problems[i], ranks, error);
  skv__sub_session_close(&sub);
  return status;
}

static skv_status_t verify_all(verify_t *verify, skv__verified_t *problems, skv__error_t *error) {
  skv_status_t status = SKV_OK;
  for (int i = 0; status == SKV_OK && i < SKV__VERIFY_PROBLEMS; ++i) {
    make_reference(verify, &problems[i], error);
    status = skv__session_agree(verify->world, NULL, 0, error);
  }
  for (int32_t ranks = 1; status == SKV_OK && ranks <= verify->world->ranks; ++ranks)
    status = verify_ranks(verify, problems, ranks, error);
  for (int i = 0; i < SKV__VERIFY_PROBLEMS; ++i)
    skv__job_run_free(&problems[i].reference);
  return status;
}

static int run_and_report(skv__session_t *world, int64_t seed, bool json) {
  skv__verified_t problems[SKV__VERIFY_PROBLEMS];
  skv__error_t error = {0};
  verify_t verify = {.world = world};
  /* The smallest leaves that the kernels take. */
  bool on_gpu = world->context->kernel->backend == SKV_BACKEND_CUDA;
  define_problems(problems, seed, on_gpu ? 128 : 64);
  verify.total = (int64_t)SKV__VERIFY_PROBLEMS * PATH_COUNT *
                 (LAYOUT_COUNT * world->ranks + FREE_LAYOUTS * (world->ranks - 1));
  if (world->ranks > SKV__VERIFY_RANKS_MAX)
    skv__fail(&error, SKV_INVALID, "verify takes at most %d ranks", SKV__VERIFY_RANKS_MAX);
  else
    skv__sub_session_alone(&verify.alone, world, &error);
  skv_status_t status = skv__session_agree(world, NULL, 0, &error);
  verify.progress = skv__progress_start(!skv__session_speaks(world));
  if (status == SKV_OK)
    status = verify_all(&verify, problems, &error);
  skv__progress_stop(verify.progress);
  skv__sub_session_close(&verify.alone);
  if (status != SKV_OK)
    return skv__session_complain(world, &error, false);
  return skv__verify_report(problems, world, json);
}

int skv__cmd_verify(int argc, const char **argv) {
  skv__job_options_t job = skv__job_defaults(false);
  skv__option_t table[SKV__JOB_TABLE_MAX];
  int32_t count = skv__job_table(&job, SKV__JOB_RUN, table);
  job.seed = 0;
  table[count++] = (skv__option_t){"seed", SKV__SIZE, &job.seed, "N", "of the inputs (0)", 0};
  table[count++] =
      (skv__option_t){"json", SKV__FLAG, &job.json, "", "one JSON object on stdout", 0};
  skv__arguments_t arguments = {0};
  int code = skv__options_parse("verify", table, count, &arguments, argc, argv);
  skv__arguments_free(&arguments);
  if (code >= 0)
    return code;
  skv__session_options_t options = skv__job_session(&job);
  skv__session_t world;
  skv__error_t error = {0};
  if (skv__session_open(&world, &options, &error) != SKV_OK)
    code = skv__session_complain(&world, &error, true);
  else
    code = run_and_report(&world, job.seed, job.json);
  return skv__session_close(&world, code);
}
