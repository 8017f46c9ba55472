/* mpirun.h: a probe program under mpirun, judged from outside: exit code, clock, what it says. The
 * program is MPIRUN_PROBE. */
#ifndef TESTS_MPIRUN_H
#define TESTS_MPIRUN_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "comm/comm.h"

typedef struct outcome {
  int code;
  double seconds;
  char text[16384];
} outcome_t;

/* A job that hangs ends with code 124, which no test expects. */
static outcome_t *run(int ranks, const char *arguments) {
  static outcome_t outcome;
  char command[1024], rest[4096];
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  snprintf(command, sizeof command,
           "timeout -k 5 100 mpirun --oversubscribe --bind-to none -np %d " SKV_TEST_BIN
           "/" MPIRUN_PROBE " %s 2>&1",
           ranks, arguments);
  double begin = skv__comm_now();
  FILE *output = popen(command, "r");
  cr_assert_not_null(output);
  outcome.text[fread(outcome.text, 1, sizeof outcome.text - 1, output)] = '\0';
  while (fread(rest, 1, sizeof rest, output) > 0)
    ;
  int code = pclose(output);
  outcome.code = WIFEXITED(code) ? WEXITSTATUS(code) : -1;
  outcome.seconds = skv__comm_now() - begin;
  return &outcome;
}

static void expect(int ranks, const char *arguments, int code, const char *text) {
  const outcome_t *outcome = run(ranks, arguments);
  cr_expect_eq(outcome->code, code, "-np %d %s: %d, not %d: %s", ranks, arguments, outcome->code,
               code, outcome->text);
  cr_expect(strstr(outcome->text, text), "-np %d %s: no '%s' in: %s", ranks, arguments, text,
            outcome->text);
}

/* The job's deadline is 2 s; it may take 5 more to go down. */
static void expect_in_time(int ranks, const char *arguments, int code, const char *text) {
  const outcome_t *outcome = run(ranks, arguments);
  if (code)
    cr_expect_eq(outcome->code, code, "-np %d %s: %d: %s", ranks, arguments, outcome->code,
                 outcome->text);
  cr_expect(outcome->code != 0 && outcome->code != 124, "-np %d %s: %d: %s", ranks, arguments,
            outcome->code, outcome->text);
  cr_expect(outcome->seconds < 7, "-np %d %s: %g s", ranks, arguments, outcome->seconds);
  cr_expect(strstr(outcome->text, text), "-np %d %s: no '%s' in: %s", ranks, arguments, text,
            outcome->text);
}

#endif
