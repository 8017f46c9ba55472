/* main.c: picks the subcommand. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "launch/exit_codes.h"
#include "launch/launcher.h"
#include "launch/options.h"

static void print_help(void) {
  printf("splitkv %s: exact attention over sharded keys and values; one answer\n\n"
         "use: splitkv COMMAND [options], under mpirun for more than one rank\n\n",
         skv_version());
  for (const skv__command_t *command = skv__commands; command->name; ++command)
    printf("  %-9s %s\n", command->name, command->summary);
  printf("\nsplitkv COMMAND --help shows the options and examples; splitkv --version the version.\n"
         "Sizes take k = 2^10 and M = 2^20.\n");
}

static int unknown_command(const char *word) {
  const char *names[32];
  int32_t count = 0;
  for (const skv__command_t *command = skv__commands; command->name; ++command)
    names[count++] = command->name;
  const char *closest = skv__suggest(word, names, count);
  if (skv__launcher_first())
    fprintf(stderr, "splitkv: unknown command \"%.60s\"%s%s%s; see splitkv --help\n", word,
            closest ? ": did you mean " : "", closest ? closest : "", closest ? "?" : "");
  return SKV__EXIT_USAGE;
}

/* Files opened later must never land on 0, 1 or 2, which a caller may have closed. */
static void fill_standard_streams(void) {
  int descriptor = 0;
  while (descriptor >= 0 && descriptor <= 2) {
    if (fcntl(descriptor, F_GETFD) >= 0) {
      ++descriptor;
      continue;
    }
    if (open("/dev/null", O_RDWR) < 0)
      return;
  }
}

/* A reader that went away (head, less) is no failure; a full disk behind stdout is one. */
static int finish_output(int code) {
  if (fflush(stdout) == 0 && !ferror(stdout))
    return code;
  int reader_left = fcntl(STDOUT_FILENO, F_GETFL) >= 0 && lseek(STDOUT_FILENO, 0, SEEK_CUR) < 0;
  if (reader_left || code != SKV__EXIT_OK)
    return code;
  fprintf(stderr, "splitkv: standard output could not be written; is the disk full?\n");
  return SKV__EXIT_IO;
}

int main(int argc, char **argv) {
  fill_standard_streams();
  signal(SIGPIPE, SIG_IGN); /* these two come back as errors of write */
  signal(SIGXFSZ, SIG_IGN);
  const char *word = argc > 1 ? argv[1] : "";
  if (word[0] == '\0') {
    fprintf(stderr, "splitkv: no command given; see splitkv --help\n");
    return SKV__EXIT_USAGE;
  }
  if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
    if (skv__launcher_first())
      print_help();
    return finish_output(SKV__EXIT_OK);
  }
  if (strcmp(word, "--version") == 0) {
    if (skv__launcher_first())
      printf("splitkv %s\n", skv_version());
    return finish_output(SKV__EXIT_OK);
  }
  const skv__command_t *command = skv__command_find(word);
  if (!command)
    return unknown_command(word);
  return finish_output(command->run(argc - 1, (const char **)(argv + 1)));
}
