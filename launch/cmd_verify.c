/* cmd_verify.c: splitkv verify: a few problems on 1..P ranks, in every layout, by every path. One
 * rank's result is checked against fp64; all others must have its bits. Free order is the negative
 * control: if nothing differs there either, the comparison shows nothing. */
#include <stdio.h>
#include <string.h>

#include "context.h"
#include "launch/exit_codes.h"
#include "launch/job_run.h"
#include "launch/sub_session.h"

static const char *const LAYOUTS[] = {"contiguous", "zigzag", "blocks:1"};
static const struct {
  skv_direction_t direction;
  skv_reduce_t reduce;
} PATHS[] = {{SKV_PASS_Q, SKV_GATHER},    {SKV_PASS_Q, SKV_SCATTER}, {SKV_PASS_Q, SKV_TREE},
             {SKV_PASS_Q, SKV_BUTTERFLY}, {SKV_PASS_Q, SKV_RING},    {SKV_PASS_KV, SKV_RING},
             {SKV_PASS_KV, SKV_GATHER}};
enum { LAYOUT_COUNT = 3, PATH_COUNT = 7, PROBLEM_COUNT = 4, FREE_LAYOUTS = 1, RANKS_MAX = 512 };

typedef struct problem {
  const char *name;
  skv__job_options_t job;
} problem_t;

typedef struct outcome {
  double error, bound;
  int64_t checked_rows;
  bool accurate;
  uint64_t runs[RANKS_MAX], differing[RANKS_MAX]; /* by ranks - 1: runs whose bits differ */
  uint64_t free_runs, free_differing;
} outcome_t;

typedef struct verify {
  skv__session_t *world;
  skv__session_t alone;
  skv__progress_t *progress;
  int64_t done, total; /* runs */
} verify_t;

/* Uneven lengths on purpose: the last block is short, and 3, 5, 6, 7 ranks get unequal shards. */
static void define_problems(problem_t problems[PROBLEM_COUNT], int64_t seed, int64_t leaf) {
  for (int i = 0; i < PROBLEM_COUNT; ++i) {
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

static skv_status_t run_matrix(verify_t *verify, skv__session_t *sub, problem_t *problem,
                               const skv__job_run_t *reference, int32_t ranks, outcome_t *outcome,
                               skv__error_t *error) {
  skv__job_options_t job = problem->job;
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
static skv_status_t make_reference(verify_t *verify, const problem_t *problem,
                                   skv__job_run_t *reference, outcome_t *outcome,
                                   skv__error_t *error) {
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

static skv_status_t verify_problem(verify_t *verify, problem_t *problem, outcome_t *outcome,
                                   skv__error_t *error) {
  skv__job_run_t reference;
  memset(outcome, 0, sizeof *outcome);
  make_reference(verify, problem, &reference, outcome, error);
  skv_status_t status = skv__session_agree(verify->world, NULL, 0, error);
  for (int32_t ranks = 1; status == SKV_OK && ranks <= verify->world->ranks; ++ranks) {
    skv__session_t sub;
    skv__sub_session_open(&sub, verify->world, ranks, error);
    status = skv__session_agree(verify->world, NULL, 0, error);
    if (status == SKV_OK)
      status = run_matrix(verify, &sub, problem, &reference, ranks, outcome, error);
    skv__sub_session_close(&sub);
  }
  skv__job_run_free(&reference);
  return status;
}

static cJSON *judge_problem(const char *name, const outcome_t *outcome, int32_t ranks_most,
                            bool *passed) {
  cJSON *entry = cJSON_CreateObject();
  cJSON_AddStringToObject(entry, "problem", name);
  cJSON_AddNumberToObject(entry, "rows", (double)outcome->checked_rows);
  cJSON_AddNumberToObject(entry, "error", outcome->error);
  cJSON_AddNumberToObject(entry, "bound", outcome->bound);
  cJSON_AddBoolToObject(entry, "accurate", outcome->accurate);
  cJSON *by_ranks = cJSON_AddArrayToObject(entry, "ranks");
  *passed = *passed && outcome->accurate;
  for (int32_t ranks = 1; ranks <= ranks_most; ++ranks) {
    cJSON *cell = cJSON_CreateObject();
    cJSON_AddNumberToObject(cell, "ranks", ranks);
    cJSON_AddNumberToObject(cell, "runs", (double)outcome->runs[ranks - 1]);
    cJSON_AddNumberToObject(cell, "differing", (double)outcome->differing[ranks - 1]);
    cJSON_AddItemToArray(by_ranks, cell);
    *passed = *passed && outcome->differing[ranks - 1] == 0;
  }
  return entry;
}

/* All that was found, as the object of --json. */
static cJSON *judge(const verify_t *verify, const problem_t *problems, const outcome_t *outcomes,
                    bool *passed) {
  uint64_t free_runs = 0, free_differing = 0;
  cJSON *json = cJSON_CreateObject();
  cJSON *list = cJSON_AddArrayToObject(json, "problems");
  *passed = true;
  for (int i = 0; i < PROBLEM_COUNT; ++i) {
    cJSON_AddItemToArray(
        list, judge_problem(problems[i].name, &outcomes[i], verify->world->ranks, passed));
    free_runs += outcomes[i].free_runs;
    free_differing += outcomes[i].free_differing;
  }
  *passed = *passed && (free_runs == 0 || free_differing > 0);
  cJSON *control = cJSON_AddObjectToObject(json, "free_order");
  cJSON_AddNumberToObject(control, "runs", (double)free_runs);
  cJSON_AddNumberToObject(control, "differing", (double)free_differing);
  cJSON_AddBoolToObject(json, "passed", *passed);
  return json;
}

static double number(const cJSON *object, const char *name) {
  return cJSON_GetNumberValue(cJSON_GetObjectItem(object, name));
}

static void print_table(const cJSON *json) {
  const cJSON *problem, *cell, *control = cJSON_GetObjectItem(json, "free_order");
  cJSON_ArrayForEach(problem, cJSON_GetObjectItem(json, "problems")) {
    printf("%s\n", cJSON_GetObjectItem(problem, "problem")->valuestring);
    cJSON_ArrayForEach(cell, cJSON_GetObjectItem(problem, "ranks"))
        printf("  %2.0f rank%s  %3.0f runs  %3.0f with other bits   %s\n", number(cell, "ranks"),
               number(cell, "ranks") == 1 ? " " : "s", number(cell, "runs"),
               number(cell, "differing"), number(cell, "differing") > 0 ? "FAIL" : "PASS");
    printf("  fp64      %.0f rows, error %.3g (bound %.3g)   %s\n", number(problem, "rows"),
           number(problem, "error"), number(problem, "bound"),
           cJSON_IsTrue(cJSON_GetObjectItem(problem, "accurate")) ? "PASS" : "FAIL");
  }
  if (number(control, "runs") > 0)
    printf("free order (must differ)  %.0f of %.0f runs have other bits   %s\n",
           number(control, "differing"), number(control, "runs"),
           number(control, "differing") > 0 ? "PASS" : "FAIL");
  else
    printf("free order: not judged on one rank; use mpirun -np 2 or more\n");
  printf("%s\n", cJSON_IsTrue(cJSON_GetObjectItem(json, "passed")) ? "PASS" : "FAIL");
}

static int report(const verify_t *verify, const problem_t *problems, const outcome_t *outcomes,
                  bool json) {
  bool passed;
  cJSON *object = judge(verify, problems, outcomes, &passed);
  int code = passed ? SKV__EXIT_OK : SKV__EXIT_DIFFERENT;
  if (skv__session_speaks(verify->world) && json)
    return skv__print_json(object) == SKV__EXIT_OK ? code : SKV__EXIT_MEMORY;
  if (skv__session_speaks(verify->world))
    print_table(object);
  cJSON_Delete(object);
  return code;
}

static int run_and_report(skv__session_t *world, int64_t seed, bool json) {
  outcome_t outcomes[PROBLEM_COUNT];
  problem_t problems[PROBLEM_COUNT];
  skv__error_t error = {0};
  verify_t verify = {.world = world};
  /* The smallest leaves that the kernels take. */
  bool on_gpu = world->context->kernel->backend == SKV_BACKEND_CUDA;
  define_problems(problems, seed, on_gpu ? 128 : 64);
  verify.total = (int64_t)PROBLEM_COUNT * PATH_COUNT *
                 (LAYOUT_COUNT * world->ranks + FREE_LAYOUTS * (world->ranks - 1));
  if (world->ranks > RANKS_MAX)
    skv__fail(&error, SKV_INVALID, "verify takes at most %d ranks", RANKS_MAX);
  else
    skv__sub_session_alone(&verify.alone, world, &error);
  skv_status_t status = skv__session_agree(world, NULL, 0, &error);
  verify.progress = skv__progress_start(!skv__session_speaks(world));
  for (int i = 0; i < PROBLEM_COUNT && status == SKV_OK; ++i)
    status = verify_problem(&verify, &problems[i], &outcomes[i], &error);
  skv__progress_stop(verify.progress);
  skv__sub_session_close(&verify.alone);
  if (status != SKV_OK)
    return skv__session_complain(world, &error, false);
  return report(&verify, problems, outcomes, json);
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
