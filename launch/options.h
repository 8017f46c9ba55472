/* options.h: strict command lines. An unknown option, word or value is an error that names the
 * closest thing that exists; nothing is guessed, abbreviated or given twice. */
#ifndef SKV_OPTIONS_H
#define SKV_OPTIONS_H

#include <stdbool.h>

#include "error.h"

typedef enum skv__option_kind {
  SKV__FLAG,   /* bool *: true when given */
  SKV__TEXT,   /* const char **: as it stands, not empty; lives as long as the arguments */
  SKV__SIZE,   /* int64_t *: 4096, 16k (2^10), 1M (2^20); at least `minimum` */
  SKV__NUMBER, /* double *: finite and more than 0 */
  SKV__CHOICE  /* int *: which of the words of `value` ("auto|cpu|cuda"), from 0 */
} skv__option_kind_t;

/* One option, in a table in the order of --help. `name` NULL: `help` is a heading. Where the result
 * goes holds the default beforehand. */
typedef struct skv__option {
  const char *name; /* without the dashes */
  skv__option_kind_t kind;
  void *result;
  const char *value; /* what --help calls the value; the words of a choice */
  const char *help;
  int64_t minimum; /* of a size */
} skv__option_t;

/* What is left of a command line besides options. Zero-initialise it, but for words_least and
 * words_most. */
typedef struct skv__arguments {
  int32_t words_least, words_most; /* how many words the command takes */
  int32_t word_count;
  const char *const *words;
  bool help; /* --help was given: nothing else was looked at */
  void *parser;
  char *texts[96];
  int32_t text_count;
} skv__arguments_t;

/* Parse without printing. argv[0] is the subcommand's name. Failures are SKV_INVALID with a text;
 * what follows a wrong option is read all the same.
 */
skv_status_t skv__options_read(const char *command, const skv__option_t *options, int32_t count,
                               skv__arguments_t *arguments, int argc, const char **argv,
                               skv__error_t *error);
/* The same for commands of one process: prints the help or the error. Returns -1 to go on, else the
 * exit code to leave with. Call skv__arguments_free either way. */
int skv__options_parse(const char *command, const skv__option_t *options, int32_t count,
                       skv__arguments_t *arguments, int argc, const char **argv);
void skv__options_help(const char *command, const skv__option_t *options, int32_t count);
void skv__arguments_free(skv__arguments_t *arguments);

/* "splitkv: text" on stderr, as one line. Returns the exit code of the error's status. */
int skv__complain(const skv__error_t *error);

/* suggest.c: the word that `word` begins, or the closest within a third of its letters; or NULL. */
const char *skv__suggest(const char *word, const char *const *words, int32_t count);

/* commands.c: the subcommands, one table. */
typedef struct skv__command {
  const char *name;
  int (*run)(int argc, const char **argv); /* returns the exit code */
  const char *words;                       /* words it takes, for the help: "A.npy B.npy" */
  const char *summary;                     /* one line */
  const char *examples;                    /* lines */
} skv__command_t;
extern const skv__command_t skv__commands[]; /* ends with a NULL name */
const skv__command_t *skv__command_find(const char *name);

int skv__cmd_prefill(int argc, const char **argv);
int skv__cmd_decode(int argc, const char **argv);
int skv__cmd_verify(int argc, const char **argv);
int skv__cmd_plan(int argc, const char **argv);
int skv__cmd_account(int argc, const char **argv);
int skv__cmd_merge(int argc, const char **argv);
int skv__cmd_diff(int argc, const char **argv);
int skv__cmd_make(int argc, const char **argv);
int skv__cmd_replay(int argc, const char **argv);
int skv__cmd_info(int argc, const char **argv);
int skv__cmd_tune(int argc, const char **argv);

#endif
