/* verify_report.c: see verify.h. */
#include <stdio.h>

#include "launch/exit_codes.h"
#include "launch/verify.h"

static cJSON *judge_problem(const char *name, const skv__outcome_t *outcome, int32_t ranks_most,
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

static void add_places(cJSON *json, const skv__session_t *world) {
  char gpus[1024];
  skv__stations_text(world->stations, world->ranks, gpus, sizeof gpus);
  cJSON_AddStringToObject(json, "kernel", skv_context_kernel(world->context));
  cJSON_AddStringToObject(json, "transport", skv__transport_word(world->chosen.transport));
  if (gpus[0])
    cJSON_AddStringToObject(json, "gpus", gpus);
}

/* All that was found, as the object of --json. */
static cJSON *judge(const skv__verified_t *problems, const skv__session_t *world, bool *passed) {
  uint64_t free_runs = 0, free_differing = 0;
  cJSON *json = cJSON_CreateObject();
  add_places(json, world);
  cJSON *list = cJSON_AddArrayToObject(json, "problems");
  *passed = true;
  for (int i = 0; i < SKV__VERIFY_PROBLEMS; ++i) {
    cJSON_AddItemToArray(
        list, judge_problem(problems[i].name, &problems[i].outcome, world->ranks, passed));
    free_runs += problems[i].outcome.free_runs;
    free_differing += problems[i].outcome.free_differing;
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
  const cJSON *gpus = cJSON_GetObjectItem(json, "gpus");
  printf("kernel %s, transport %s%s%s\n", cJSON_GetObjectItem(json, "kernel")->valuestring,
         cJSON_GetObjectItem(json, "transport")->valuestring, gpus ? "; " : "",
         gpus ? gpus->valuestring : "");
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

int skv__verify_report(const skv__verified_t *problems, const skv__session_t *world, bool json) {
  bool passed;
  cJSON *object = judge(problems, world, &passed);
  int code = passed ? SKV__EXIT_OK : SKV__EXIT_DIFFERENT;
  if (skv__session_speaks(world) && json)
    return skv__print_json(object) == SKV__EXIT_OK ? code : SKV__EXIT_MEMORY;
  if (skv__session_speaks(world))
    print_table(object);
  cJSON_Delete(object);
  return code;
}
