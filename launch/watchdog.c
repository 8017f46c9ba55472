#include "launch/watchdog.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "launch/siblings.h"

/* The process has one: it guards the process, not an object. */
static struct {
  const char *phase;
  double seconds;
  int exit_code;
  bool running, stopped;
  struct timespec until;
  struct sigaction resumed_before;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t stop;
} watchdog;

/* What the launchers call the rank, before MPI does. Only for the message. */
static const char *launcher_rank(void) {
  static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                      "SLURM_PROCID"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *value = getenv(names[i]);
    if (value && *value)
      return value;
  }
  return NULL;
}

/* The process is in a state that nobody knows: no stdio, no exit handlers. */
static void expire(void) {
  char line[320], cause[64];
  const char *rank = launcher_rank();
  if (!skv__siblings_blame(cause, sizeof cause, true))
    snprintf(cause, sizeof cause, "another rank has died, stopped, or did not start");
  int bytes =
      snprintf(line, sizeof line,
               "splitkv: rank %.15s: %.60s took longer than %.1f s; %s: see its output, or raise "
               "--timeout\n",
               rank ? rank : "unknown", watchdog.phase, watchdog.seconds, cause);
  if (write(STDERR_FILENO, line, (size_t)bytes) < 0) {
    /* nobody listens: the exit code has to do */
  }
  _exit(watchdog.exit_code);
}

/* The launcher lets a stopped process go on only to end it, when the others' deadlines have passed.
 * It must not go on with the phase meanwhile: Open MPI 4.1's mpirun can hang or crash when somebody
 * connects while it shuts down. Deadlines do not pass at one instant, hence the margin. */
static void resume(int signal_number) {
  struct timespec now;
  (void)signal_number;
  clock_gettime(CLOCK_MONOTONIC, &now);
  double left = (double)(watchdog.until.tv_sec - now.tv_sec) +
                1e-9 * (double)(watchdog.until.tv_nsec - now.tv_nsec);
  if (left < watchdog.seconds / 4)
    _exit(watchdog.exit_code);
}

static void set_deadline(double seconds) {
  double whole;
  clock_gettime(CLOCK_MONOTONIC, &watchdog.until);
  double nanoseconds = 1e9 * modf(seconds, &whole) + (double)watchdog.until.tv_nsec;
  watchdog.until.tv_sec += (time_t)whole + (time_t)(nanoseconds / 1e9);
  watchdog.until.tv_nsec = (long)fmod(nanoseconds, 1e9);
}

static void *watch(void *argument) {
  (void)argument;
  int code = 0;
  pthread_mutex_lock(&watchdog.lock);
  while (!watchdog.stopped && code != ETIMEDOUT)
    code = pthread_cond_timedwait(&watchdog.stop, &watchdog.lock, &watchdog.until);
  bool expired = !watchdog.stopped;
  pthread_mutex_unlock(&watchdog.lock);
  if (expired)
    expire();
  return NULL;
}

bool skv__watchdog_start(const char *phase, double seconds, int exit_code) {
  pthread_condattr_t attributes;
  struct sigaction resumed = {.sa_handler = resume, .sa_flags = SA_RESTART};
  sigset_t all, before;
  pthread_mutex_init(&watchdog.lock, NULL);
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&watchdog.stop, &attributes);
  pthread_condattr_destroy(&attributes);
  watchdog.phase = phase;
  watchdog.seconds = seconds;
  watchdog.exit_code = exit_code;
  watchdog.stopped = false;
  set_deadline(seconds);
  /* Signals are for the threads that the program has its handlers for. */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  watchdog.running = pthread_create(&watchdog.thread, NULL, watch, NULL) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (watchdog.running)
    sigaction(SIGCONT, &resumed, &watchdog.resumed_before);
  return watchdog.running;
}

void skv__watchdog_stop(void) {
  if (!watchdog.running)
    return;
  pthread_mutex_lock(&watchdog.lock);
  watchdog.stopped = true;
  pthread_cond_signal(&watchdog.stop);
  pthread_mutex_unlock(&watchdog.lock);
  pthread_join(watchdog.thread, NULL);
  sigaction(SIGCONT, &watchdog.resumed_before, NULL);
  pthread_cond_destroy(&watchdog.stop);
  pthread_mutex_destroy(&watchdog.lock);
  watchdog.running = false;
}
