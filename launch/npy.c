/* npy.c: the header of a .npy file, versions 1.0 to 3.0: magic, version, length, and a Python dict
 * literal of exactly three keys. The literal is read by a grammar of strings, booleans and tuples
 * of decimal integers; nothing else is accepted and nothing is evaluated. */
#include <stdbool.h>
#include <string.h>
#include <xxhash.h>

#include "launch/checked.h"
#include "launch/tensor_file.h"

#define LITERAL_MAX 10000 /* NumPy's own default */

typedef struct cursor {
  const char *at, *end;
} cursor_t;

typedef struct fields {
  char descr[16]; /* longer ones are cut: no supported dtype is as long */
  bool fortran_order;
  int32_t rank_count; /* -1: over 8 */
  int64_t shape[8];
  bool seen[3]; /* descr, fortran_order, shape */
} fields_t;

static void skip_spaces(cursor_t *cursor) {
  while (cursor->at < cursor->end &&
         (*cursor->at == ' ' || *cursor->at == '\t' || *cursor->at == '\n' || *cursor->at == '\r'))
    cursor->at++;
}

static bool take(cursor_t *cursor, char wanted) {
  skip_spaces(cursor);
  if (cursor->at == cursor->end || *cursor->at != wanted)
    return false;
  cursor->at++;
  return true;
}

static bool take_word(cursor_t *cursor, const char *word) {
  size_t word_bytes = strlen(word);
  skip_spaces(cursor);
  if ((size_t)(cursor->end - cursor->at) < word_bytes || memcmp(cursor->at, word, word_bytes) != 0)
    return false;
  cursor->at += word_bytes;
  return true;
}

/* A quoted string without escapes; what does not fit `text` is cut. */
static bool take_string(cursor_t *cursor, char *text, size_t text_bytes) {
  skip_spaces(cursor);
  if (cursor->at == cursor->end || (*cursor->at != '\'' && *cursor->at != '"'))
    return false;
  char quote = *cursor->at++;
  size_t count = 0;
  for (; cursor->at < cursor->end && *cursor->at != quote; cursor->at++) {
    if (*cursor->at == '\\' || *cursor->at < ' ' || *cursor->at > '~')
      return false;
    if (count + 1 < text_bytes)
      text[count++] = *cursor->at;
  }
  text[count] = '\0';
  return take(cursor, quote);
}

static bool take_integer(cursor_t *cursor, int64_t *value) {
  skip_spaces(cursor);
  const char *start = cursor->at;
  *value = 0;
  for (; cursor->at < cursor->end && *cursor->at >= '0' && *cursor->at <= '9'; cursor->at++)
    if (__builtin_mul_overflow(*value, 10, value) ||
        __builtin_add_overflow(*value, *cursor->at - '0', value))
      return false;
  return cursor->at > start;
}

/* (), (3,), (3, 4), (3, 4,). A number in parentheses without a comma is no tuple. */
static bool take_shape(cursor_t *cursor, fields_t *fields) {
  if (!take(cursor, '('))
    return false;
  int32_t count = 0;
  bool comma = true;
  while (!take(cursor, ')')) {
    int64_t extent;
    if (!comma || !take_integer(cursor, &extent))
      return false;
    if (count < 8)
      fields->shape[count] = extent;
    count++;
    comma = take(cursor, ',');
  }
  if (count == 1 && !comma)
    return false;
  fields->rank_count = count <= 8 ? count : -1;
  return true;
}

static bool take_value(cursor_t *cursor, const char *key, fields_t *fields) {
  static const char *const keys[] = {"descr", "fortran_order", "shape"};
  for (int i = 0; i < 3; i++) {
    if (strcmp(key, keys[i]) != 0)
      continue;
    if (fields->seen[i])
      return false;
    fields->seen[i] = true;
  }
  if (strcmp(key, "descr") == 0)
    return take_string(cursor, fields->descr, sizeof fields->descr);
  if (strcmp(key, "shape") == 0)
    return take_shape(cursor, fields);
  if (strcmp(key, "fortran_order") != 0)
    return false;
  fields->fortran_order = take_word(cursor, "True");
  return fields->fortran_order || take_word(cursor, "False");
}

static bool parse_literal(cursor_t cursor, fields_t *fields) {
  if (!take(&cursor, '{'))
    return false;
  bool comma = true;
  while (!take(&cursor, '}')) {
    char key[16];
    if (!comma || !take_string(&cursor, key, sizeof key) || !take(&cursor, ':') ||
        !take_value(&cursor, key, fields))
      return false;
    comma = take(&cursor, ',');
  }
  skip_spaces(&cursor);
  return cursor.at == cursor.end && fields->seen[0] && fields->seen[1] && fields->seen[2];
}

/* Where the literal lies: checks magic, version and length. */
static skv_status_t find_literal(const skv__tensor_file_t *file, const unsigned char *head,
                                 size_t head_bytes, int64_t file_bytes, cursor_t *literal,
                                 skv__error_t *error) {
  if (head_bytes < 10 || memcmp(head, "\x93NUMPY", 6) != 0)
    return skv__fail(error, SKV_FORMAT,
                     "%s: not a .npy file (it does not start with the NumPy magic); write it with "
                     "numpy.save",
                     file->path);
  if (head[6] < 1 || head[6] > 3 || head[7] != 0)
    return skv__fail(error, SKV_FORMAT,
                     "%s: .npy version %d.%d is not known (1.0, 2.0 and 3.0 are); write it again "
                     "with numpy.save",
                     file->path, head[6], head[7]);
  uint64_t prefix = head[6] == 1 ? 10 : 12, length = head[8] | (uint64_t)head[9] << 8;
  if (prefix == 12 && head_bytes >= 12)
    length |= (uint64_t)head[10] << 16 | (uint64_t)head[11] << 24;
  if (head_bytes < prefix || prefix + length > (uint64_t)file_bytes)
    return skv__fail(error, SKV_FORMAT,
                     "%s: the header claims %llu bytes but the file has %lld: truncated or damaged",
                     file->path, (unsigned long long)length, (long long)file_bytes);
  if (length > LITERAL_MAX)
    return skv__fail(error, SKV_FORMAT,
                     "%s: a header of %llu bytes is over the limit of %d; write the plain array "
                     "with numpy.save",
                     file->path, (unsigned long long)length, LITERAL_MAX);
  if (prefix + length > head_bytes)
    return skv__fail(error, SKV_FORMAT, "%s: the header is cut short", file->path);
  literal->at = (const char *)head + prefix;
  literal->end = literal->at + length;
  return SKV_OK;
}

static skv_status_t read_dtype(skv__tensor_file_t *file, const char *descr, skv_dtype_t u2_dtype,
                               skv__error_t *error) {
  if (strcmp(descr, "<f4") == 0)
    file->dtype = SKV_FP32;
  else if (strcmp(descr, "<f2") == 0)
    file->dtype = SKV_FP16;
  else if (strcmp(descr, "<u2") == 0 && u2_dtype != SKV_FP32)
    file->dtype = u2_dtype;
  else if (strcmp(descr, "<u2") == 0)
    return skv__fail(error, SKV_FORMAT,
                     "%s: dtype '<u2' could be bf16 bits; say so with --dtype bf16", file->path);
  else if (descr[0] == '>')
    return skv__fail(error, SKV_FORMAT,
                     "%s: dtype '%s' is big-endian; convert it with a.astype('<f4')", file->path,
                     descr);
  else
    return skv__fail(error, SKV_FORMAT,
                     "%s: dtype '%s' is not supported; use '<f4', '<f2', or bf16 bits as '<u2'",
                     file->path, descr);
  return SKV_OK;
}

/* Extents against the bytes that are there. */
static skv_status_t check_bytes(skv__tensor_file_t *file, int64_t file_bytes, skv__error_t *error) {
  int64_t bits;
  if (file->rank_count < 0)
    return skv__fail(error, SKV_FORMAT, "%s: more than 8 dimensions", file->path);
  if (!skv__checked_bits(file->rank_count, file->shape, skv__dtype_bytes(file->dtype) * 8, &bits))
    return skv__fail(error, SKV_FORMAT,
                     "%s: the shape's element count overflows 64 bits: the header lies",
                     file->path);
  file->data_bytes = bits / 8;
  int64_t held = file_bytes - file->data_offset;
  if (held < file->data_bytes)
    return skv__fail(error, SKV_FORMAT,
                     "%s: the shape needs %lld bytes of data but the file has %lld: truncated; "
                     "copy it again",
                     file->path, (long long)file->data_bytes, (long long)held);
  if (held > file->data_bytes)
    return skv__fail(error, SKV_FORMAT,
                     "%s: %lld bytes follow the data that the shape describes; write one array "
                     "with numpy.save",
                     file->path, (long long)(held - file->data_bytes));
  return SKV_OK;
}

skv_status_t skv__npy_parse(skv__tensor_file_t *file, const unsigned char *head, size_t head_bytes,
                            int64_t file_bytes, skv_dtype_t u2_dtype, skv__error_t *error) {
  cursor_t literal = {0};
  fields_t fields = {0};
  SKV_TRY(find_literal(file, head, head_bytes, file_bytes, &literal, error));
  if (!parse_literal(literal, &fields))
    return skv__fail(error, SKV_FORMAT,
                     "%s: the header is not a dict of descr (a plain dtype), fortran_order and "
                     "shape; write the plain array with numpy.save",
                     file->path);
  SKV_TRY(read_dtype(file, fields.descr, u2_dtype, error));
  if (fields.fortran_order)
    return skv__fail(error, SKV_FORMAT,
                     "%s: the array is in Fortran order; save numpy.ascontiguousarray(a)",
                     file->path);
  file->name[0] = '\0';
  file->rank_count = fields.rank_count;
  memcpy(file->shape, fields.shape, sizeof file->shape);
  file->data_offset = (const unsigned char *)literal.end - head;
  file->header_digest = XXH64(head, (size_t)file->data_offset, 0);
  return check_bytes(file, file_bytes, error);
}
