/* interrupt.c: see interrupt.h. A signal handler has no argument, hence the two statics. */
#include "launch/interrupt.h"

#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum { PATHS = 2, PATH_BYTES = 4096 };

static char paths[PATHS][PATH_BYTES];
static volatile sig_atomic_t path_count;

static void remove_and_end(int signal_number) {
  for (int i = 0; i < path_count; ++i)
    unlink(paths[i]);
  /* SA_RESETHAND: now it does what it did before. */
  raise(signal_number);
}

void skv__interrupt_remove(const char *path) {
  static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
  if (path_count == PATHS || strlen(path) >= PATH_BYTES)
    return;
  strcpy(paths[path_count], path);
  path_count = path_count + 1;
  struct sigaction action = {.sa_handler = remove_and_end, .sa_flags = (int)SA_RESETHAND};
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < sizeof signals / sizeof *signals; ++i) {
    struct sigaction before;
    if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
      sigaction(signals[i], &action, NULL);
  }
}

void skv__interrupt_forget(void) {
  path_count = 0;
}
