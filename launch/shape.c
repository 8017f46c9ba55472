/* shape.c: see shape.h. */
#include "launch/shape.h"

#include <stdio.h>
#include <string.h>

static const skv__model_t models[] = {
    {"llama2-7b", {32, 32, 128, 128}},
    {"llama3-8b", {32, 8, 128, 128}},
    {"llama3-70b", {64, 8, 128, 128}},
    {"llama3-405b", {128, 8, 128, 128}},
    {"mistral-7b", {32, 8, 128, 128}},
    {"qwen2-7b", {28, 4, 128, 128}},
    {"gemma-7b", {16, 16, 256, 256}},
    {"phi3-mini", {32, 32, 96, 96}},
    {"gpt2", {12, 12, 64, 64}},
    {"minilm-l6", {12, 12, 32, 32}},
    {NULL, {0, 0, 0, 0}},
};

const skv__model_t *skv__models(void) {
  return models;
}

/* Up to four decimal numbers with commas between them; how many, or 0 when it is something else. */
static int split_numbers(const char *text, int64_t numbers[4]) {
  int count = 0;
  do {
    const char *start = text;
    if (count == 4)
      return 0;
    numbers[count] = 0;
    for (; *text >= '0' && *text <= '9' && numbers[count] < 1 << 24; text++)
      numbers[count] = numbers[count] * 10 + (*text - '0');
    if (text == start)
      return 0;
    count++;
  } while (*text++ == ',');
  return text[-1] == '\0' ? count : 0;
}

static skv_status_t check_shape(const char *text, const skv__shape_t *shape, skv__error_t *error) {
  if (shape->q_heads < 1 || shape->kv_heads < 1 || shape->q_heads % shape->kv_heads != 0)
    return skv__fail(error, SKV_INVALID,
                     "shape '%.64s': %lld query heads are not a multiple of %lld KV heads", text,
                     (long long)shape->q_heads, (long long)shape->kv_heads);
  if (shape->q_heads > 65536)
    return skv__fail(error, SKV_INVALID, "shape '%.64s': more than 65536 heads", text);
  if (shape->head_dim < 1 || shape->head_dim > 256 || shape->value_head_dim < 1 ||
      shape->value_head_dim > 256)
    return skv__fail(error, SKV_INVALID, "shape '%.64s': head sizes are 1 to 256", text);
  return SKV_OK;
}

skv_status_t skv__shape_parse(const char *text, skv__shape_t *shape, skv__error_t *error) {
  for (const skv__model_t *model = models; model->name; model++)
    if (strcmp(text, model->name) == 0) {
      *shape = model->shape;
      return SKV_OK;
    }
  int64_t numbers[4];
  int count = split_numbers(text, numbers);
  if (count < 3) {
    char names[256] = "";
    for (const skv__model_t *model = models; model->name; model++)
      snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", names[0] ? ", " : "",
               model->name);
    return skv__fail(error, SKV_INVALID,
                     "'%.64s' is no shape: give QUERY_HEADS,KV_HEADS,HEAD_DIM[,VALUE_HEAD_DIM] or "
                     "one of %s",
                     text, names);
  }
  *shape = (skv__shape_t){numbers[0], numbers[1], numbers[2], numbers[count == 4 ? 3 : 2]};
  return check_shape(text, shape, error);
}
