/* test_watchdog.c: a phase that outlives its deadline ends the process. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/comm.h"
#include "launch/watchdog.h"

typedef struct outcome {
  int code;
  double seconds;
  char text[512];
} outcome_t;

/* A child whose phases take these times under these deadlines; it exits with 0 after the last. */
static outcome_t run(double deadline_seconds, double phase_seconds, int phases) {
  int ends[2];
  outcome_t outcome = {0};
  cr_assert_eq(pipe(ends), 0);
  double begin = skv__comm_now();
  pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    setenv("OMPI_COMM_WORLD_RANK", "5", 1);
    for (int i = 0; i < phases; i++) {
      if (!skv__watchdog_start("MPI_Init", deadline_seconds, 77))
        _exit(99);
      usleep((useconds_t)(1e6 * phase_seconds));
      skv__watchdog_stop();
    }
    skv__watchdog_stop(); /* none is watched */
    _exit(0);
  }
  close(ends[1]);
  size_t bytes = 0;
  ssize_t got;
  while (bytes < sizeof outcome.text - 1 &&
         (got = read(ends[0], outcome.text + bytes, sizeof outcome.text - 1 - bytes)) > 0)
    bytes += (size_t)got;
  close(ends[0]);
  int status;
  waitpid(child, &status, 0);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.seconds = skv__comm_now() - begin;
  return outcome;
}

Test(watchdog, ends_a_phase_that_takes_too_long) {
  outcome_t outcome = run(0.25, 20, 1);
  cr_expect_eq(outcome.code, 77, "%d", outcome.code);
  cr_expect(outcome.seconds >= 0.25 && outcome.seconds < 1.25, "%g s", outcome.seconds);
  cr_expect_eq(
      strncmp(outcome.text, "splitkv: rank 5: MPI_Init took longer than 0.2 s; another rank ", 60),
      0, "%s", outcome.text);
  cr_expect_eq(strchr(outcome.text, '\n'), outcome.text + strlen(outcome.text) - 1, "one line");
}

Test(watchdog, leaves_phases_in_time_alone) {
  outcome_t outcome = run(5, 0.01, 20);
  cr_expect_eq(outcome.code, 0, "%d: %s", outcome.code, outcome.text);
  cr_expect_str_eq(outcome.text, "");
  cr_expect(outcome.seconds < 2, "%g s", outcome.seconds);
}

Test(watchdog, deadlines_start_anew) {
  outcome_t outcome = run(0.4, 0.15, 6);
  cr_expect_eq(outcome.code, 0, "%d: %s", outcome.code, outcome.text);
}
