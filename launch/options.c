/* options.c: popt cuts the command line into options and words; values are read here, strictly. */
#include "launch/options.h"

#include <math.h>
#include <popt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch/exit_codes.h"
#include "launch/launcher.h"
#include "launch/size.h"

enum { OPTION_MAX = 96, WORDS_OF_CHOICE_MAX = 16, CHOICE_BYTES = 256 };

static skv_status_t unknown_option(const char *command, const skv__option_t *options, int32_t count,
                                   const char *given, skv__error_t *error) {
  const char *names[OPTION_MAX];
  char bare[80];
  int32_t known = 0;
  for (int32_t i = 0; i < count; ++i)
    if (options[i].name)
      names[known++] = options[i].name;
  int dashes = (int)strspn(given, "-");
  snprintf(bare, sizeof bare, "%.*s", (int)strcspn(given + dashes, "="), given + dashes);
  const char *closest = skv__suggest(bare, names, known);
  return skv__fail(error, SKV_INVALID, "%s knows no option %.*s%s%s%s%s; see splitkv %s --help",
                   command, dashes, "--", bare, closest ? ": did you mean --" : "",
                   closest ? closest : "", closest ? "?" : "", command);
}

static skv_status_t read_choice(const skv__option_t *option, const char *text,
                                skv__error_t *error) {
  char copy[CHOICE_BYTES];
  const char *words[WORDS_OF_CHOICE_MAX];
  int32_t count = 0;
  char *rest = NULL;
  snprintf(copy, sizeof copy, "%s", option->value);
  for (char *word = strtok_r(copy, "|", &rest); word; word = strtok_r(NULL, "|", &rest)) {
    if (strcmp(word, text) == 0) {
      *(int *)option->result = count;
      return SKV_OK;
    }
    words[count++] = word;
  }
  const char *closest = skv__suggest(text, words, count);
  return skv__fail(error, SKV_INVALID, "--%s %.60s: unknown word%s%s%s; it takes %s", option->name,
                   text, closest ? "; did you mean " : "", closest ? closest : "",
                   closest ? "?" : "", option->value);
}

static skv_status_t read_number(const skv__option_t *option, const char *text,
                                skv__error_t *error) {
  char *end = NULL;
  double number = strtod(text, &end);
  if (end == text || *end || text[strspn(text, "+-.0123456789eE")] || !isfinite(number) ||
      number <= 0.0)
    return skv__fail(error, SKV_INVALID, "--%s %.60s: not a decimal number above 0", option->name,
                     text);
  *(double *)option->result = number;
  return SKV_OK;
}

static skv_status_t read_size(const skv__option_t *option, const char *text, skv__error_t *error) {
  skv__error_t cause = {0};
  int64_t size = 0;
  if (skv__size_parse(text, &size, &cause) != SKV_OK)
    return skv__fail(error, SKV_INVALID, "--%s: %.200s", option->name, cause.text);
  if (size < option->minimum)
    return skv__fail(error, SKV_INVALID, "--%s %.60s: must be at least %lld", option->name, text,
                     (long long)option->minimum);
  *(int64_t *)option->result = size;
  return SKV_OK;
}

static skv_status_t read_value(const skv__option_t *option, const char *text, skv__error_t *error) {
  if (option->kind == SKV__FLAG) {
    *(bool *)option->result = true;
    return SKV_OK;
  }
  if (text[0] == '\0' || strncmp(text, "--", 2) == 0)
    return skv__fail(error, SKV_INVALID, "--%s needs a value: %s", option->name, option->value);
  switch (option->kind) {
  case SKV__SIZE:
    return read_size(option, text, error);
  case SKV__NUMBER:
    return read_number(option, text, error);
  case SKV__CHOICE:
    return read_choice(option, text, error);
  default:
    *(const char **)option->result = text;
    return SKV_OK;
  }
}

/* After these the rest of the line can still be read. */
static bool is_bad_word(int32_t code) {
  return code == POPT_ERROR_BADOPT || code == POPT_ERROR_NOARG || code == POPT_ERROR_UNWANTEDARG;
}

static void refuse_word(const char *command, const skv__option_t *options, int32_t count,
                        poptContext parser, int32_t code, skv__error_t *error) {
  const char *bad = poptBadOption(parser, POPT_BADOPTION_NOALIAS);
  if (code == POPT_ERROR_BADOPT)
    unknown_option(command, options, count, bad, error);
  else
    skv__fail(error, SKV_INVALID, "%.80s: %s; see splitkv %s --help", bad,
              code == POPT_ERROR_NOARG         ? "needs a value"
              : code == POPT_ERROR_UNWANTEDARG ? "takes no value"
                                               : poptStrerror(code),
              command);
}

/* Walk the options that popt finds. */
static skv_status_t read_all(const char *command, const skv__option_t *options, int32_t count,
                             skv__arguments_t *arguments, skv__error_t *error) {
  poptContext parser = arguments->parser;
  bool given[OPTION_MAX] = {false};
  int32_t code;
  while ((code = poptGetNextOpt(parser)) > 0 || is_bad_word(code)) {
    if (code < 0) {
      refuse_word(command, options, count, parser, code, error);
      continue;
    }
    char *text = poptGetOptArg(parser);
    if (text)
      arguments->texts[arguments->text_count++] = text;
    if (code > count) {
      arguments->help = error->status == SKV_OK;
      return error->status;
    }
    const skv__option_t *option = &options[code - 1];
    if (given[code - 1] || arguments->text_count == OPTION_MAX)
      return skv__fail(error, SKV_INVALID, "--%s is given twice", option->name);
    given[code - 1] = true;
    read_value(option, text ? text : "", error);
  }
  if (code < -1)
    refuse_word(command, options, count, parser, code, error);
  return error->status;
}

static skv_status_t read_words(const char *command, skv__arguments_t *arguments,
                               skv__error_t *error) {
  arguments->words = poptGetArgs(arguments->parser);
  arguments->word_count = 0;
  while (arguments->words && arguments->words[arguments->word_count])
    ++arguments->word_count;
  if (arguments->word_count > arguments->words_most)
    return skv__fail(error, SKV_INVALID, "%s: unexpected word \"%.80s\"; see splitkv %s --help",
                     command, arguments->words[arguments->words_most], command);
  if (arguments->word_count < arguments->words_least) {
    const skv__command_t *entry = skv__command_find(command);
    return skv__fail(error, SKV_INVALID, "%s needs %s; see splitkv %s --help", command,
                     entry ? entry->words : "more words", command);
  }
  return SKV_OK;
}

skv_status_t skv__options_read(const char *command, const skv__option_t *options, int32_t count,
                               skv__arguments_t *arguments, int argc, const char **argv,
                               skv__error_t *error) {
  struct poptOption table[OPTION_MAX + 2] = {0};
  int32_t entries = 0;
  if (count > OPTION_MAX)
    return skv__fail(error, SKV_INTERNAL, "%s has more than %d options", command, OPTION_MAX);
  for (int32_t i = 0; i < count; ++i)
    if (options[i].name)
      table[entries++] = (struct poptOption){
          .longName = options[i].name,
          .argInfo = options[i].kind == SKV__FLAG ? POPT_ARG_NONE : POPT_ARG_STRING,
          .val = i + 1};
  table[entries] = (struct poptOption){.longName = "help", .shortName = 'h', .val = count + 1};
  arguments->parser = poptGetContext("splitkv", argc, argv, table, POPT_CONTEXT_NO_EXEC);
  if (!arguments->parser)
    return skv__fail(error, SKV_MEMORY, "out of memory while reading the command line");
  SKV_TRY(read_all(command, options, count, arguments, error));
  return arguments->help ? SKV_OK : read_words(command, arguments, error);
}

void skv__options_help(const char *command, const skv__option_t *options, int32_t count) {
  const skv__command_t *entry = skv__command_find(command);
  if (!entry)
    return;
  printf("splitkv %s: %s\n\nuse: splitkv %s [options]%s%s\n", entry->name, entry->summary,
         entry->name, entry->words[0] ? " " : "", entry->words);
  for (int32_t i = 0; i < count; ++i) {
    if (!options[i].name) {
      printf("\n%s\n", options[i].help);
      continue;
    }
    char left[CHOICE_BYTES];
    int32_t width = snprintf(left, sizeof left, "--%s %s", options[i].name,
                             options[i].kind == SKV__FLAG ? "" : options[i].value);
    if (width > 26)
      printf("  %s\n  %-26s %s\n", left, "", options[i].help);
    else
      printf("  %-26s %s\n", left, options[i].help);
  }
  printf("\nexamples:\n%s", entry->examples);
}

int skv__options_parse(const char *command, const skv__option_t *options, int32_t count,
                       skv__arguments_t *arguments, int argc, const char **argv) {
  skv__error_t error = {0};
  if (skv__options_read(command, options, count, arguments, argc, argv, &error) != SKV_OK) {
    skv__complain(&error);
    return error.status == SKV_INVALID ? SKV__EXIT_USAGE : skv__exit_code(error.status);
  }
  if (!arguments->help)
    return -1;
  if (skv__launcher_first())
    skv__options_help(command, options, count);
  return SKV__EXIT_OK;
}

void skv__arguments_free(skv__arguments_t *arguments) {
  for (int32_t i = 0; i < arguments->text_count; ++i)
    free(arguments->texts[i]);
  arguments->text_count = 0;
  if (arguments->parser)
    arguments->parser = poptFreeContext(arguments->parser);
}

int skv__complain(const skv__error_t *error) {
  fprintf(stderr, "splitkv: %s\n", error->text[0] ? error->text : skv_status_text(error->status));
  return skv__exit_code(error->status);
}
