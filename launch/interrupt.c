/* interrupt.c: see interrupt.h. A signal handler has no argument, hence the static. */
#include "launch/interrupt.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { PATHS = 4, PATH_BYTES = 4096 };

static struct {
  char path[PATH_BYTES];
  volatile sig_atomic_t used;
} entries[PATHS];

static void remove_and_end(int signal_number) {
  for (int i = 0; i < PATHS; ++i)
    if (entries[i].used)
      unlink(entries[i].path);
  /* SA_RESETHAND: now it does what it did before. */
  raise(signal_number);
}

static void catch_signals(void) {
  static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction action = {.sa_handler = remove_and_end, .sa_flags = (int)SA_RESETHAND};
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < sizeof signals / sizeof *signals; ++i) {
    struct sigaction before;
    if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
      sigaction(signals[i], &action, NULL);
  }
}

void skv__interrupt_remove(const char *path) {
  for (int i = 0; i < PATHS; ++i)
    if (!entries[i].used && strlen(path) < PATH_BYTES) {
      strcpy(entries[i].path, path);
      entries[i].used = 1;
      catch_signals();
      return;
    }
}

void skv__interrupt_forget(const char *path) {
  for (int i = 0; i < PATHS; ++i)
    if (entries[i].used && strcmp(entries[i].path, path) == 0)
      entries[i].used = 0;
}
