/* tensor_header.c: the headers of files that the command writes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch/checked.h"
#include "launch/tensor_file.h"

int64_t skv__npy_header(char *head, skv_dtype_t dtype, int32_t rank_count, const int64_t *shape) {
  static const char *const descr[] = {[SKV_FP32] = "<f4", [SKV_FP16] = "<f2", [SKV_BF16] = "<u2"};
  char *literal = head + 10;
  int used =
      snprintf(literal, 256, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr[dtype]);
  for (int32_t i = 0; i < rank_count; i++)
    used += snprintf(literal + used, 32, "%" PRId64 "%s", shape[i],
                     i + 1 < rank_count ? ", "
                     : rank_count == 1  ? ","
                                        : "");
  used += snprintf(literal + used, 32, "), }");
  int64_t head_bytes = (10 + used + 1 + 63) / 64 * 64, literal_bytes = head_bytes - 10;
  memset(literal + used, ' ', (size_t)(literal_bytes - used));
  literal[literal_bytes - 1] = '\n';
  memcpy(head, "\x93NUMPY\x01\x00", 8);
  head[8] = (char)(literal_bytes & 0xff);
  head[9] = (char)(literal_bytes >> 8);
  return head_bytes;
}

/* One tensor's entry, without a comma; returns its bytes, as snprintf does. */
static int format_entry(char *text, size_t text_bytes, const skv__named_tensor_t *tensor,
                        int64_t begin, int64_t end) {
  static const char *const dtypes[] = {[SKV_FP32] = "F32", [SKV_FP16] = "F16", [SKV_BF16] = "BF16"};
  char shape[8 * 21 + 1] = "";
  int used = 0;
  for (int32_t i = 0; i < tensor->rank_count; i++)
    used += snprintf(shape + used, sizeof shape - (size_t)used, "%s%" PRId64, i ? "," : "",
                     tensor->shape[i]);
  return snprintf(text, text_bytes,
                  "\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%" PRId64 ",%" PRId64
                  "]}",
                  tensor->name, dtypes[tensor->dtype], shape, begin, end);
}

static bool plain_name(const char *name) {
  size_t count = strlen(name);
  for (size_t i = 0; i < count; i++)
    if (name[i] < ' ' || name[i] > '~' || name[i] == '"' || name[i] == '\\')
      return false;
  return count > 0 && count < 256;
}

static skv_status_t fill_entries(char *text, size_t text_bytes, const skv__named_tensor_t *tensors,
                                 int32_t count, size_t *used, skv__error_t *error) {
  int64_t begin = 0;
  text[(*used)++] = '{';
  for (int32_t i = 0; i < count; i++) {
    int64_t bits, end;
    const skv__named_tensor_t *tensor = &tensors[i];
    if (!plain_name(tensor->name) ||
        !skv__checked_bits(tensor->rank_count, tensor->shape, skv__dtype_bytes(tensor->dtype) * 8,
                           &bits) ||
        __builtin_add_overflow(begin, bits / 8, &end))
      return skv__fail(error, SKV_INVALID, "tensor %d cannot be described in a safetensors file",
                       i);
    if (i > 0)
      text[(*used)++] = ',';
    *used += (size_t)format_entry(text + *used, text_bytes - *used, tensor, begin, end);
    begin = end;
  }
  text[(*used)++] = '}';
  return SKV_OK;
}

skv_status_t skv__safetensors_header(char **head, int64_t *head_bytes,
                                     const skv__named_tensor_t *tensors, int32_t count,
                                     skv__error_t *error) {
  size_t capacity = 32 + (size_t)count * 640, used = 0; /* an entry has at most 256 + 168 + 90 */
  *head = malloc(capacity);
  if (!*head)
    return skv__fail(error, SKV_MEMORY, "out of memory for a header of %d tensors", count);
  skv_status_t status = fill_entries(*head + 8, capacity - 8, tensors, count, &used, error);
  if (status != SKV_OK) {
    free(*head);
    *head = NULL;
    return status;
  }
  while (used % 8 != 0)
    (*head)[8 + used++] = ' ';
  for (int i = 0; i < 8; i++)
    (*head)[i] = (char)(used >> 8 * i & 0xff);
  *head_bytes = (int64_t)used + 8;
  return SKV_OK;
}
