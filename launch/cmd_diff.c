/* cmd_diff.c: splitkv diff A B: two tensors, bit by bit. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch/checked.h"
#include "launch/exit_codes.h"
#include "launch/options.h"
#include "launch/report.h"
#include "launch/tensor_file.h"

#define PIECE_BYTES (1 << 20)

typedef struct difference {
  int64_t elements, differing; /* differing: bits are not the same */
  int64_t nan_only_one;        /* differing, and just one of the two is NaN */
  uint64_t most_ulps;          /* over differing elements of which neither is NaN */
  int64_t first;               /* index of the first differing element, or -1 */
  uint32_t first_bits[2];
} difference_t;

typedef struct format {
  const char *name;
  int digits; /* hexadecimal */
  uint32_t sign, infinity;
} format_t;

static const format_t formats[] = {[SKV_FP32] = {"fp32", 8, 0x80000000u, 0x7f800000u},
                                   [SKV_FP16] = {"fp16", 4, 0x8000u, 0x7c00u},
                                   [SKV_BF16] = {"bf16", 4, 0x8000u, 0x7f80u}};

/* Numbers in order: neighbours differ by one, and both zeros are 0. */
static int64_t ordered(const format_t *format, uint32_t bits) {
  int64_t magnitude = bits & ~format->sign;
  return bits & format->sign ? -magnitude : magnitude;
}

static void count_difference(difference_t *difference, const format_t *format, int64_t index,
                             uint32_t a, uint32_t b) {
  bool a_nan = (a & ~format->sign) > format->infinity,
       b_nan = (b & ~format->sign) > format->infinity;
  if (difference->differing++ == 0) {
    difference->first = index;
    difference->first_bits[0] = a;
    difference->first_bits[1] = b;
  }
  difference->nan_only_one += a_nan != b_nan;
  if (a_nan || b_nan)
    return;
  int64_t apart = ordered(format, a) - ordered(format, b);
  uint64_t ulps = (uint64_t)(apart < 0 ? -apart : apart);
  if (ulps > difference->most_ulps)
    difference->most_ulps = ulps;
}

static void compare_piece(difference_t *difference, skv_dtype_t dtype, int64_t begin, int64_t count,
                          const void *a, const void *b) {
  if (memcmp(a, b, (size_t)(count * skv__dtype_bytes(dtype))) == 0)
    return;
  for (int64_t i = 0; i < count; i++) {
    uint32_t left = dtype == SKV_FP32 ? ((const uint32_t *)a)[i] : ((const uint16_t *)a)[i];
    uint32_t right = dtype == SKV_FP32 ? ((const uint32_t *)b)[i] : ((const uint16_t *)b)[i];
    if (left != right)
      count_difference(difference, &formats[dtype], begin + i, left, right);
  }
}

static skv_status_t compare(difference_t *difference, const skv__tensor_file_t *a,
                            const skv__tensor_file_t *b, skv__error_t *error) {
  int64_t element = skv__dtype_bytes(a->dtype);
  char *pieces = malloc(2 * PIECE_BYTES);
  if (!pieces)
    return skv__fail(error, SKV_MEMORY, "out of memory");
  skv_status_t status = SKV_OK;
  difference->first = -1;
  difference->elements = a->data_bytes / element;
  for (int64_t offset = 0; offset < a->data_bytes && status == SKV_OK; offset += PIECE_BYTES) {
    int64_t left = a->data_bytes - offset, bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
    status = skv__tensor_read(a, offset, pieces, bytes, error);
    if (status == SKV_OK)
      status = skv__tensor_read(b, offset, pieces + PIECE_BYTES, bytes, error);
    if (status == SKV_OK)
      compare_piece(difference, a->dtype, offset / element, bytes / element, pieces,
                    pieces + PIECE_BYTES);
  }
  free(pieces);
  return status;
}

/* "[2, 0, 17]" */
static void list_text(char *text, size_t text_bytes, int32_t count, const int64_t *values) {
  size_t used = 0;
  text[used++] = '[';
  for (int32_t i = 0; i < count; i++)
    used +=
        (size_t)snprintf(text + used, text_bytes - used, "%s%" PRId64, i ? ", " : "", values[i]);
  snprintf(text + used, text_bytes - used, "]");
}

static void place_of(const skv__tensor_file_t *file, int64_t index, int64_t place[8]) {
  for (int32_t i = file->rank_count - 1; i >= 0; i--) {
    place[i] = index % file->shape[i];
    index /= file->shape[i];
  }
}

static int print_comparison(const skv__tensor_file_t *a, const difference_t *difference) {
  const format_t *format = &formats[a->dtype];
  char shape[200], place[200];
  int64_t first[8];
  list_text(shape, sizeof shape, a->rank_count, a->shape);
  if (difference->differing == 0) {
    printf("equal: %" PRId64 " elements of %s %s\n", difference->elements, format->name, shape);
    return SKV__EXIT_OK;
  }
  place_of(a, difference->first, first);
  list_text(place, sizeof place, a->rank_count, first);
  printf("different: %" PRId64 " of %" PRId64 " elements of %s %s, at most %" PRIu64 " ulps",
         difference->differing, difference->elements, format->name, shape, difference->most_ulps);
  if (difference->nan_only_one)
    printf(", %" PRId64 " where only one is NaN", difference->nan_only_one);
  printf("\nfirst at %s: 0x%0*x and 0x%0*x\n", place, format->digits, difference->first_bits[0],
         format->digits, difference->first_bits[1]);
  return SKV__EXIT_DIFFERENT;
}

static int print_comparison_json(const skv__tensor_file_t *a, const difference_t *difference) {
  char bits[2][12];
  int64_t place[8];
  cJSON *object = cJSON_CreateObject();
  cJSON_AddBoolToObject(object, "equal", difference->differing == 0);
  cJSON_AddStringToObject(object, "dtype", formats[a->dtype].name);
  cJSON *shape = cJSON_AddArrayToObject(object, "shape");
  for (int32_t i = 0; i < a->rank_count; i++)
    cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)a->shape[i]));
  cJSON_AddNumberToObject(object, "elements", (double)difference->elements);
  cJSON_AddNumberToObject(object, "differing", (double)difference->differing);
  cJSON_AddNumberToObject(object, "max_ulps", (double)difference->most_ulps);
  cJSON_AddNumberToObject(object, "nan_only_one", (double)difference->nan_only_one);
  if (difference->first >= 0) {
    cJSON *index = cJSON_AddArrayToObject(object, "first");
    place_of(a, difference->first, place);
    for (int32_t i = 0; i < a->rank_count; i++)
      cJSON_AddItemToArray(index, cJSON_CreateNumber((double)place[i]));
    cJSON *values = cJSON_AddArrayToObject(object, "first_bits");
    for (int side = 0; side < 2; side++) {
      snprintf(bits[side], sizeof bits[side], "%0*x", formats[a->dtype].digits,
               difference->first_bits[side]);
      cJSON_AddItemToArray(values, cJSON_CreateString(bits[side]));
    }
  }
  int code = skv__print_json(object);
  return code != SKV__EXIT_OK ? code : difference->differing ? SKV__EXIT_DIFFERENT : SKV__EXIT_OK;
}

/* Tensors that cannot be compared element by element. */
static int print_mismatch(const skv__tensor_file_t *a, const skv__tensor_file_t *b, bool json) {
  char shapes[2][200], reason[480];
  list_text(shapes[0], sizeof shapes[0], a->rank_count, a->shape);
  list_text(shapes[1], sizeof shapes[1], b->rank_count, b->shape);
  snprintf(reason, sizeof reason, "%s %s and %s %s", formats[a->dtype].name, shapes[0],
           formats[b->dtype].name, shapes[1]);
  if (!json) {
    printf("different: %s\n", reason);
    return SKV__EXIT_DIFFERENT;
  }
  cJSON *object = cJSON_CreateObject();
  cJSON_AddBoolToObject(object, "equal", 0);
  cJSON_AddStringToObject(object, "mismatch", reason);
  int code = skv__print_json(object);
  return code == SKV__EXIT_OK ? SKV__EXIT_DIFFERENT : code;
}

static int diff_opened(const skv__tensor_file_t *a, const skv__tensor_file_t *b, bool json,
                       skv__error_t *error) {
  difference_t difference = {0};
  if (a->dtype != b->dtype || a->rank_count != b->rank_count ||
      memcmp(a->shape, b->shape, (size_t)a->rank_count * sizeof a->shape[0]) != 0)
    return print_mismatch(a, b, json);
  if (compare(&difference, a, b, error) != SKV_OK)
    return skv__complain(error);
  return json ? print_comparison_json(a, &difference) : print_comparison(a, &difference);
}

int skv__cmd_diff(int argc, const char **argv) {
  bool json = false;
  const skv__option_t options[] = {
      {"json", SKV__FLAG, &json, NULL, "print one JSON object", 0},
  };
  skv__arguments_t arguments = {.words_least = 2, .words_most = 2};
  int code = skv__options_parse("diff", options, sizeof options / sizeof options[0], &arguments,
                                argc, argv);
  skv__tensor_file_t *files = code < 0 ? calloc(2, sizeof *files) : NULL;
  if (files) {
    skv__error_t error = {0};
    /* 16 bits without a float dtype can only be bf16 here. */
    files[1].fd = -1;
    code = SKV__EXIT_OK;
    for (int i = 0; i < 2 && code == SKV__EXIT_OK; i++)
      if (skv__tensor_open(&files[i], arguments.words[i], SKV_BF16, &error) != SKV_OK)
        code = skv__complain(&error);
    if (code == SKV__EXIT_OK)
      code = diff_opened(&files[0], &files[1], json, &error);
    skv__tensor_close(&files[0]);
    skv__tensor_close(&files[1]);
    free(files);
  }
  skv__arguments_free(&arguments);
  if (code < 0)
    code = skv__complain(&(skv__error_t){.status = SKV_MEMORY});
  return code;
}
