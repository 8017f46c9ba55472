/* cmd_replay.c: splitkv replay LOG: a recorded reduction, evaluated again. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>

#include "launch/exit_codes.h"
#include "launch/options.h"
#include "launch/replay.h"

static void print_json(const skv__replayed_t *replayed) {
  cJSON *object = cJSON_CreateObject();
  cJSON_AddNumberToObject(object, "slices", (double)replayed->slices);
  cJSON_AddNumberToObject(object, "nodes", (double)replayed->nodes);
  cJSON_AddNumberToObject(object, "merges", (double)replayed->merges);
  cJSON_AddBoolToObject(object, "states", replayed->with_states);
  cJSON_AddBoolToObject(object, "differs", replayed->differs);
  cJSON_AddStringToObject(object, "first", replayed->difference);
  char *text = cJSON_PrintUnformatted(object);
  puts(text ? text : "{}");
  cJSON_free(text);
  cJSON_Delete(object);
}

static void print_text(const skv__replayed_t *replayed) {
  printf("%" PRId64 " nodes of %" PRId64 " slices; %" PRId64 " merges evaluated again\n",
         replayed->nodes, replayed->slices, replayed->merges);
  if (!replayed->with_states)
    puts("no states were recorded: the tree and the chain of digests were checked, no sum "
         "(record with --order-states)");
  if (replayed->differs)
    printf("DIFFERS first at %s\n", replayed->difference);
  else
    puts("SAME");
}

int skv__cmd_replay(int argc, const char **argv) {
  bool json = false;
  const skv__option_t options[] = {
      {"json", SKV__FLAG, &json, NULL, "one JSON object on stdout", 0}};
  skv__arguments_t arguments = {.words_least = 1, .words_most = 1};
  int code = skv__options_parse("replay", options, 1, &arguments, argc, argv);
  if (code < 0) {
    skv__replayed_t replayed;
    skv__error_t error = {0};
    if (skv__replay(&replayed, arguments.words[0], &error) != SKV_OK) {
      code = skv__complain(&error);
    } else {
      (json ? print_json : print_text)(&replayed);
      code = replayed.differs ? SKV__EXIT_DIFFERENT : SKV__EXIT_OK;
    }
  }
  skv__arguments_free(&arguments);
  return code;
}
