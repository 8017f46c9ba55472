/* cmd_account.c: splitkv account. */
#include <stdio.h>
#include <string.h>

#include "launch/account.h"
#include "launch/exit_codes.h"
#include "launch/options.h"
#include "launch/report.h"
#include "launch/shape.h"

typedef struct account_options {
  const char *shape, *gpu;
  int64_t tokens, queries, batch, layers;
  int dtype;
  bool causal, json;
} account_options_t;

static skv_status_t find_gpu(const char *name, const skv__gpu_t **gpu, skv__error_t *error) {
  const char *names[16];
  char all[128] = "";
  int32_t count = 0;
  for (*gpu = skv__gpus; (*gpu)->name; ++*gpu) {
    if (strcmp((*gpu)->name, name) == 0)
      return SKV_OK;
    names[count++] = (*gpu)->name;
    snprintf(all + strlen(all), sizeof all - strlen(all), " %s", (*gpu)->name);
  }
  const char *closest = skv__suggest(name, names, count);
  return skv__fail(error, SKV_INVALID, "--gpu %.60s: not in the table%s%s%s; it has%s", name,
                   closest ? "; did you mean " : "", closest ? closest : "", closest ? "?" : "",
                   all);
}

static void print_text(const skv__account_case_t *work, const skv__account_t *account,
                       const skv__gpu_t *gpu) {
  printf("work         %lld query heads, %lld KV heads, head dim %lld, %lld queries, %lld keys%s\n",
         (long long)work->q_heads, (long long)work->kv_heads, (long long)work->head_dim,
         (long long)work->queries, (long long)work->keys, work->causal ? ", causal" : "");
  printf("\none layer                 stored scores     each byte once\n");
  printf("FLOP         %.5g\n", account->flop);
  printf("one S        %26s\n", skv__bytes_text(account->score_bytes).text);
  printf("traffic      %26s %18s\n", skv__bytes_text(account->materialised_bytes).text,
         skv__bytes_text(account->compulsory_bytes).text);
  printf("FLOP/byte    %26.1f %18.1f   (%.1f per head, without sharing K and V)\n",
         account->materialised_intensity, account->compulsory_intensity, account->head_intensity);
  printf("\nfloors on %s (%s, %s; ridge %.0f FLOP/byte)\n", gpu->name,
         skv__rate_text(gpu->flop_per_second, "FLOP").text,
         skv__rate_text(gpu->bytes_per_second, "B").text, account->ridge);
  printf("memory       %26s %18s   %lld layers\n",
         skv__seconds_text(account->materialised_seconds).text,
         skv__seconds_text(account->compulsory_seconds).text, (long long)work->layers);
  printf("             %26s %18s   one layer\n",
         skv__seconds_text(account->materialised_seconds / (double)work->layers).text,
         skv__seconds_text(account->compulsory_seconds / (double)work->layers).text);
  printf("arithmetic   %26s %18s   %lld layers\n", skv__seconds_text(account->compute_seconds).text,
         skv__seconds_text(account->compute_seconds).text, (long long)work->layers);
  printf("\nmerge        %.0f bytes and %.0f FLOP for one row of (O, LSE)\n", account->merge_bytes,
         account->merge_flop);
}

static int print_json(const skv__account_case_t *work, const skv__account_t *account,
                      const skv__gpu_t *gpu) {
  cJSON *object = cJSON_CreateObject();
  cJSON_AddStringToObject(object, "gpu", gpu->name);
  cJSON_AddNumberToObject(object, "layers", (double)work->layers);
  const struct {
    const char *name;
    double value;
  } figures[] = {{"flop", account->flop},
                 {"score_bytes", account->score_bytes},
                 {"materialised_bytes", account->materialised_bytes},
                 {"compulsory_bytes", account->compulsory_bytes},
                 {"materialised_intensity", account->materialised_intensity},
                 {"compulsory_intensity", account->compulsory_intensity},
                 {"head_intensity", account->head_intensity},
                 {"ridge", account->ridge},
                 {"materialised_seconds", account->materialised_seconds},
                 {"compulsory_seconds", account->compulsory_seconds},
                 {"compute_seconds", account->compute_seconds},
                 {"merge_bytes", account->merge_bytes},
                 {"merge_flop", account->merge_flop}};
  for (size_t i = 0; i < sizeof figures / sizeof *figures; ++i)
    cJSON_AddNumberToObject(object, figures[i].name, figures[i].value);
  return skv__print_json(object);
}

static skv_status_t prepare(const account_options_t *options, skv__account_case_t *work,
                            const skv__gpu_t **gpu, skv__error_t *error) {
  skv__shape_t shape;
  SKV_TRY(skv__shape_parse(options->shape, &shape, error));
  SKV_TRY(find_gpu(options->gpu, gpu, error));
  *work = (skv__account_case_t){
      .q_heads = shape.q_heads,
      .kv_heads = shape.kv_heads,
      .head_dim = shape.head_dim,
      .value_head_dim = shape.value_head_dim,
      .queries = options->queries > 0 ? options->queries : options->tokens,
      .keys = options->tokens,
      .batch = options->batch,
      .layers = options->layers > 0 ? options->layers : skv__account_layers(options->shape),
      .element_bytes = options->dtype == 0 ? 4 : 2,
      .causal = options->causal};
  return SKV_OK;
}

int skv__cmd_account(int argc, const char **argv) {
  account_options_t options = {
      .shape = "llama3-8b", .gpu = "h100", .tokens = 8192, .batch = 1, .dtype = SKV_FP16};
  const skv__option_t table[] = {
      {"shape", SKV__TEXT, &options.shape, "SHAPE",
       "query heads,KV heads,head dim, or a model (llama3-8b)", 0},
      {"tokens", SKV__SIZE, &options.tokens, "N", "keys (8192)", 1},
      {"queries", SKV__SIZE, &options.queries, "N", "queries (as many as keys)", 1},
      {"batch", SKV__SIZE, &options.batch, "N", "sequences (1)", 1},
      {"layers", SKV__SIZE, &options.layers, "N", "layers (the model's, or 1)", 1},
      {"dtype", SKV__CHOICE, &options.dtype, "fp32|fp16|bf16",
       "stored elements (fp16); the GPU's speed is that of 16-bit products", 0},
      {"causal", SKV__FLAG, &options.causal, "", "count only pairs that see each other", 0},
      {"gpu", SKV__TEXT, &options.gpu, "NAME", "a100, h100 (default), h200, b200, l40s, mi300x", 0},
      {"json", SKV__FLAG, &options.json, "", "one JSON object on stdout", 0}};
  skv__arguments_t arguments = {0};
  int code =
      skv__options_parse("account", table, sizeof table / sizeof *table, &arguments, argc, argv);
  if (code < 0) {
    skv__account_case_t work;
    const skv__gpu_t *gpu;
    skv__error_t error = {0};
    if (prepare(&options, &work, &gpu, &error) != SKV_OK) {
      skv__complain(&error);
      code = SKV__EXIT_USAGE;
    } else {
      skv__account_t account = skv__account_of(&work, gpu);
      code = SKV__EXIT_OK;
      if (options.json)
        code = print_json(&work, &account, gpu);
      else
        print_text(&work, &account, gpu);
    }
  }
  skv__arguments_free(&arguments);
  return code;
}
