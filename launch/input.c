/* input.c: see input.h. */
#include "launch/input.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "launch/shape.h"

static int64_t or_else(int64_t given, int64_t otherwise) {
  return given >= 0 ? given : otherwise;
}

static skv_status_t open_seeded(skv__input_t *input, const skv__job_options_t *job,
                                skv__error_t *error) {
  skv__shape_t shape;
  SKV_TRY(skv__shape_parse(job->shape, &shape, error));
  int64_t keys = or_else(job->kv_len, job->tokens);
  input->seeded = true;
  input->seed = (skv__seeded_t){.seed = (uint64_t)or_else(job->seed, 0)};
  if (or_else(job->outliers, 0) > shape.head_dim)
    return skv__fail(error, SKV_INVALID, "--outliers %lld: a head has %lld channels",
                     (long long)job->outliers, (long long)shape.head_dim);
  input->seed.outliers = (int32_t)or_else(job->outliers, 0);
  input->extents = (skv__job_extents_t){.batch = or_else(job->batch, 1),
                                        .q_tokens = or_else(job->queries, job->decode ? 1 : keys),
                                        .k_tokens = job->tokens,
                                        .q_heads = shape.q_heads,
                                        .kv_heads = shape.kv_heads,
                                        .head_dim = shape.head_dim,
                                        .value_head_dim = shape.value_head_dim,
                                        .dtype = (skv_dtype_t)or_else(job->dtype, SKV_FP32)};
  if (input->extents.q_tokens > keys)
    return skv__fail(error, SKV_INVALID, "--queries %lld: they are the last of %lld positions",
                     (long long)input->extents.q_tokens, (long long)keys);
  input->first_query = keys - input->extents.q_tokens;
  input->layout = input->extents.batch > 1 ? SKV__BTHD : SKV__THD;
  return SKV_OK;
}

/* Axes: as asked, else by their number. */
static skv_status_t choose_layout(skv__input_t *input, const skv__job_options_t *job,
                                  skv__error_t *error) {
  int32_t axes = input->files[SKV__Q].rank_count;
  if (job->tensor_layout >= 0)
    input->layout = (skv__tensor_layout_t)job->tensor_layout;
  else if (axes == 3 || axes == 4)
    input->layout = axes == 3 ? SKV__THD : SKV__BTHD;
  else
    return skv__fail(error, SKV_FORMAT,
                     "%s: has %d axes; Q, K and V have 3 (tokens, heads, dim) or 4 (batch first)",
                     input->files[SKV__Q].path, (int)axes);
  return SKV_OK;
}

static skv_status_t check_together(const skv__input_t *input, const skv__job_options_t *job,
                                   const skv__extents_t extents[3], skv__error_t *error) {
  const skv__extents_t *q = &extents[SKV__Q], *k = &extents[SKV__K], *v = &extents[SKV__V];
  const skv__tensor_file_t *files = input->files;
  for (int i = 0; i < 3; ++i)
    if (job->dtype >= 0 && (int)files[i].dtype != job->dtype)
      return skv__fail(error, SKV_INVALID, "%s holds %s, but --dtype says %s", files[i].path,
                       skv__dtype_word(files[i].dtype), skv__dtype_word((skv_dtype_t)job->dtype));
  if (files[SKV__Q].dtype != files[SKV__K].dtype || files[SKV__Q].dtype != files[SKV__V].dtype)
    return skv__fail(error, SKV_INVALID, "q is %s, k %s, v %s: they must be of one dtype",
                     skv__dtype_word(files[SKV__Q].dtype), skv__dtype_word(files[SKV__K].dtype),
                     skv__dtype_word(files[SKV__V].dtype));
  if (q->batch != k->batch || q->batch != v->batch)
    return skv__fail(error, SKV_INVALID, "q has %lld sequences, k %lld, v %lld",
                     (long long)q->batch, (long long)k->batch, (long long)v->batch);
  if (k->tokens != v->tokens || k->heads != v->heads)
    return skv__fail(error, SKV_INVALID,
                     "k has %lld tokens and %lld heads, v %lld and %lld: they must be alike; is "
                     "--tensor-layout right?",
                     (long long)k->tokens, (long long)k->heads, (long long)v->tokens,
                     (long long)v->heads);
  if (k->heads < 1 || q->heads < 1 || q->heads % k->heads != 0)
    return skv__fail(error, SKV_INVALID,
                     "q has %lld heads, k has %lld: the one must be a multiple of the other; is "
                     "--tensor-layout right?",
                     (long long)q->heads, (long long)k->heads);
  if (q->dim != k->dim)
    return skv__fail(error, SKV_INVALID, "q has head dim %lld, k has %lld", (long long)q->dim,
                     (long long)k->dim);
  return SKV_OK;
}

static skv_status_t open_files(skv__input_t *input, const skv__job_options_t *job,
                               skv__error_t *error) {
  const char *paths[3] = {job->q, job->k, job->v};
  skv__extents_t extents[3];
  skv_dtype_t u2_dtype = job->dtype == SKV_BF16 ? SKV_BF16 : SKV_FP32;
  for (; input->open_files < 3; ++input->open_files)
    SKV_TRY(skv__tensor_open(&input->files[input->open_files], paths[input->open_files], u2_dtype,
                             error));
  SKV_TRY(choose_layout(input, job, error));
  for (int i = 0; i < 3; ++i)
    SKV_TRY(skv__tensor_extents(&input->files[i], input->layout, &extents[i], error));
  SKV_TRY(check_together(input, job, extents, error));
  input->extents = (skv__job_extents_t){.batch = extents[SKV__Q].batch,
                                        .q_tokens = extents[SKV__Q].tokens,
                                        .k_tokens = extents[SKV__K].tokens,
                                        .q_heads = extents[SKV__Q].heads,
                                        .kv_heads = extents[SKV__K].heads,
                                        .head_dim = extents[SKV__Q].dim,
                                        .value_head_dim = extents[SKV__V].dim,
                                        .dtype = input->files[SKV__Q].dtype};
  return SKV_OK;
}

static skv_status_t read_sinks(skv__input_t *input, const char *path, skv__error_t *error) {
  skv__tensor_file_t file;
  SKV_TRY(skv__tensor_open(&file, path, SKV_FP32, error));
  int64_t heads = input->extents.q_heads, bytes = heads * (int64_t)sizeof(float);
  skv_status_t status = SKV_OK;
  if (file.dtype != SKV_FP32 || file.rank_count != 1 || file.shape[0] != heads)
    status =
        skv__fail(error, SKV_INVALID, "%s: sinks are one fp32 for each of the %lld query heads",
                  path, (long long)heads);
  else if (!(input->sinks = malloc((size_t)bytes)))
    status = skv__fail(error, SKV_MEMORY, "no memory for sinks");
  else
    status = skv__tensor_read(&file, 0, input->sinks, bytes, error);
  skv__tensor_close(&file);
  if (status == SKV_OK)
    input->sinks_digest = XXH64(input->sinks, (size_t)bytes, 0);
  return status;
}

skv_status_t skv__input_open(skv__input_t *input, const skv__job_options_t *job,
                             skv__error_t *error) {
  memset(input, 0, sizeof *input);
  SKV_TRY(job->shape ? open_seeded(input, job, error) : open_files(input, job, error));
  skv__job_extents_t *extents = &input->extents;
  int64_t keys = extents->k_tokens;
  if (job->kv_len > keys)
    return skv__fail(error, SKV_INVALID, "--kv-len %lld: the input has %lld keys",
                     (long long)job->kv_len, (long long)keys);
  extents->k_tokens = or_else(job->kv_len, keys);
  extents->capacity_tokens = or_else(job->capacity, keys);
  if (extents->capacity_tokens < extents->k_tokens)
    return skv__fail(error, SKV_INVALID, "--capacity %lld is less than the %lld keys",
                     (long long)job->capacity, (long long)extents->k_tokens);
  return job->sinks ? read_sinks(input, job->sinks, error) : SKV_OK;
}

void skv__input_close(skv__input_t *input) {
  while (input->open_files > 0)
    skv__tensor_close(&input->files[--input->open_files]);
  free(input->sinks);
  input->sinks = NULL;
}

size_t skv__input_facts(const skv__input_t *input, const skv__job_options_t *job,
                        skv__fact_t facts[SKV__INPUT_FACTS]) {
  const skv__job_extents_t *extents = &input->extents;
  const skv__fact_t all[] = {
      {"q file", input->files[SKV__Q].header_digest},
      {"k file", input->files[SKV__K].header_digest},
      {"v file", input->files[SKV__V].header_digest},
      {"--tensor-layout", input->layout},
      {"--sinks", input->sinks_digest},
      {"--seed", input->seed.seed},
      {"--outliers", (uint64_t)input->seed.outliers},
      {"queries", (uint64_t)extents->q_tokens},
      {"keys", (uint64_t)extents->k_tokens},
      {"--chunk", (uint64_t)job->chunk},
      {"decode", job->decode},
      {"--out", job->out != NULL},
      {"--lse", job->lse != NULL},
      {"--check", job->check},
      {"--order-log", job->order_log != NULL},
  };
  _Static_assert(sizeof all <= SKV__INPUT_FACTS * sizeof *all, "room for all facts");
  memcpy(facts, all, sizeof all);
  return sizeof all / sizeof *all;
}

int64_t skv__input_heads(const skv__input_t *input, skv__which_t which) {
  return which == SKV__Q ? input->extents.q_heads : input->extents.kv_heads;
}

int64_t skv__input_dim(const skv__input_t *input, skv__which_t which) {
  return which == SKV__V ? input->extents.value_head_dim : input->extents.head_dim;
}

int64_t skv__input_element_bytes(const skv__input_t *input) {
  return input->extents.dtype == SKV_FP32 ? 4 : 2;
}

skv_status_t skv__input_read(const skv__input_t *input, skv__which_t which, int64_t sequence,
                             int64_t begin, int64_t end, void *out, skv__error_t *error) {
  if (!input->seeded)
    return skv__tensor_read_tokens(&input->files[which], input->layout, sequence, begin, end, out,
                                   error);
  int64_t first = which == SKV__Q ? input->first_query : 0;
  skv__seeded_fill(&input->seed, which, sequence, first + begin, end - begin,
                   skv__input_heads(input, which), skv__input_dim(input, which),
                   input->extents.dtype, out);
  return SKV_OK;
}
