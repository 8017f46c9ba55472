/* measure.c: each rung runs in a process of its own, so that its peak of resident memory is its
 * own, and so that a rung that dies takes nothing with it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/ladder/ladder.h"

static double now_seconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* A line "VmHWM:   1234 kB" of /proc/self/status, in bytes; 0 where there is none. */
static double resident_peak_bytes(void) {
  FILE *status = fopen("/proc/self/status", "r");
  char line[256];
  long kilobytes = 0;
  while (status != NULL && fgets(line, sizeof line, status) != NULL)
    if (sscanf(line, "VmHWM: %ld kB", &kilobytes) == 1)
      break;
  if (status != NULL)
    fclose(status);
  return 1024.0 * (double)kilobytes;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The rung's peak starts where the fork left it: inputs shared with the parent count for neither
 * end of the difference. O is the caller's, the same for every rung, and resident beforehand. */
static ladder_result_t run_here(const ladder_rung_t *rung, const ladder_problem_t *problem,
                                int32_t repeats) {
  ladder_result_t result = {.buffer_bytes = (double)rung->buffer_bytes(problem)};
  double *seconds = malloc((size_t)repeats * sizeof *seconds);
  size_t o_bytes = (size_t)(problem->tokens * problem->heads * problem->dim) * sizeof(float);
  float *o = malloc(o_bytes);
  if (result.buffer_bytes < 0.0 || seconds == NULL || o == NULL)
    return result;
  memset(o, 0xff, o_bytes);
  double before = resident_peak_bytes();
  size_t buffer_bytes = ((size_t)result.buffer_bytes + 63) / 64 * 64;
  ladder_work_t work = {.buffer = aligned_alloc(64, buffer_bytes > 0 ? buffer_bytes : 64)};
  if (work.buffer == NULL)
    return result;
  for (int32_t i = 0; i < repeats; i++) {
    double start = now_seconds();
    if (!rung->run(problem, &work, o))
      return result;
    seconds[i] = now_seconds() - start;
  }
  result.resident_bytes = resident_peak_bytes() - before;
  qsort(seconds, (size_t)repeats, sizeof *seconds, by_value);
  result.seconds = seconds[repeats / 2];
  result.moved_bytes = work.moved_bytes;
  result.quality = ladder_judge(problem, o);
  result.ran = true;
  return result;
}

ladder_result_t ladder_measure(const ladder_rung_t *rung, const ladder_problem_t *problem,
                               int32_t repeats) {
  ladder_result_t result = {.ran = false};
  int ends[2];
  fflush(stdout);
  if (pipe(ends) != 0)
    return result;
  pid_t child = fork();
  if (child == 0) {
    result = run_here(rung, problem, repeats);
    _exit(write(ends[1], &result, sizeof result) == (ssize_t)sizeof result ? 0 : 1);
  }
  close(ends[1]);
  if (child > 0) {
    if (read(ends[0], &result, sizeof result) != (ssize_t)sizeof result)
      result.ran = false;
    waitpid(child, NULL, 0);
  }
  close(ends[0]);
  return result;
}
