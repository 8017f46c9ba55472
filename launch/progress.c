/* progress.c: a thread that redraws one line, so that the work itself never stops to print. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "launch/report.h"

enum { BAR_CELLS = 24, REDRAW_MS = 200 };

struct skv__progress {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  bool stopping, drawn;
  const char *phase;
  int64_t done, total;
  struct timespec start;
};

static double seconds_since(const struct timespec *start) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)(now.tv_sec - start->tv_sec) + (double)(now.tv_nsec - start->tv_nsec) * 1e-9;
}

static void draw(skv__progress_t *progress, double seconds) {
  char bar[BAR_CELLS + 1];
  int filled = -1;
  if (progress->total > 0)
    filled = (int)(progress->done * BAR_CELLS / progress->total);
  for (int cell = 0; cell < BAR_CELLS; ++cell)
    bar[cell] = cell < filled ? '#' : '.';
  if (filled < 0) /* how far is not known: something moves */
    bar[(int)(seconds * 5.0) % BAR_CELLS] = '#';
  bar[BAR_CELLS] = '\0';
  fprintf(stderr, "\r%-10s [%s] %.0f s ", progress->phase, bar, seconds);
  fflush(stderr);
  progress->drawn = true;
}

static void *redraw(void *argument) {
  skv__progress_t *progress = argument;
  pthread_mutex_lock(&progress->mutex);
  while (!progress->stopping) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += REDRAW_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_cond_timedwait(&progress->changed, &progress->mutex, &until);
    double seconds = seconds_since(&progress->start);
    if (!progress->stopping && seconds > 1.0)
      draw(progress, seconds);
  }
  pthread_mutex_unlock(&progress->mutex);
  return NULL;
}

skv__progress_t *skv__progress_start(bool quiet) {
  if (quiet || !isatty(STDERR_FILENO))
    return NULL;
  skv__progress_t *progress = calloc(1, sizeof *progress);
  if (!progress)
    return NULL;
  progress->phase = "";
  clock_gettime(CLOCK_MONOTONIC, &progress->start);
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_mutex_init(&progress->mutex, NULL);
  pthread_cond_init(&progress->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  if (pthread_create(&progress->thread, NULL, redraw, progress) != 0) {
    pthread_cond_destroy(&progress->changed);
    pthread_mutex_destroy(&progress->mutex);
    free(progress);
    return NULL;
  }
  return progress;
}

void skv__progress_set(skv__progress_t *progress, const char *phase, int64_t done, int64_t total) {
  if (!progress)
    return;
  pthread_mutex_lock(&progress->mutex);
  progress->phase = phase;
  progress->done = done;
  progress->total = total;
  pthread_mutex_unlock(&progress->mutex);
}

void skv__progress_stop(skv__progress_t *progress) {
  if (!progress)
    return;
  pthread_mutex_lock(&progress->mutex);
  progress->stopping = true;
  pthread_cond_signal(&progress->changed);
  pthread_mutex_unlock(&progress->mutex);
  pthread_join(progress->thread, NULL);
  if (progress->drawn)
    fprintf(stderr, "\r%*s\r", BAR_CELLS + 32, "");
  pthread_cond_destroy(&progress->changed);
  pthread_mutex_destroy(&progress->mutex);
  free(progress);
}
