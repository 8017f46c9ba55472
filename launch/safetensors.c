/* safetensors.c: the header of a safetensors file: eight bytes of length, then JSON that names
 * tensors and the bytes each holds. The whole header is checked, whichever tensor is wanted:
 * together the tensors cover the data exactly once, and no name comes twice. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "launch/checked.h"
#include "launch/json_cursor.h"
#include "launch/tensor_file.h"

typedef struct entry {
  XXH128_hash_t name_hash;
  int64_t begin, end;
} entry_t;

typedef struct described {
  char name[256], dtype[16];
  int32_t rank_count; /* -1: over 8 */
  int64_t shape[8];
  int64_t begin, end;
} described_t;

typedef struct parse {
  skv__tensor_file_t *file;
  skv__json_cursor_t cursor;
  const char *wanted; /* NULL: the only one */
  bool found, metadata_seen;
  described_t chosen, current;
  entry_t *entries;
  size_t count, capacity;
  skv__error_t *error;
} parse_t;

static skv_status_t malformed(const parse_t *parse, const char *what) {
  return skv__fail(parse->error, SKV_FORMAT,
                   "%s: %s (near header byte %td); write the file again with the safetensors "
                   "library",
                   parse->file->path, what,
                   parse->cursor.at - (parse->cursor.end - parse->file->data_offset));
}

/* Bits of an element; 0 for dtypes that this table does not know. */
static int64_t element_bits(const char *dtype) {
  static const struct {
    const char *name;
    int64_t bits;
  } known[] = {{"F32", 32},    {"F16", 16},    {"BF16", 16},   {"F64", 64},    {"I64", 64},
               {"I32", 32},    {"I16", 16},    {"I8", 8},      {"U64", 64},    {"U32", 32},
               {"U16", 16},    {"U8", 8},      {"BOOL", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8},
               {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},      {"C64", 64}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (strcmp(dtype, known[i].name) == 0)
      return known[i].bits;
  return 0;
}

/* [1, 2, 3] into at most `most` values; *count is how many there are. */
static bool take_integers(skv__json_cursor_t *cursor, int64_t *values, int32_t most,
                          int32_t *count) {
  *count = 0;
  if (!skv__json_take(cursor, '['))
    return false;
  if (skv__json_take(cursor, ']'))
    return true;
  do {
    int64_t value;
    if (!skv__json_integer(cursor, &value) || *count == INT32_MAX)
      return false;
    if (*count < most)
      values[*count] = value;
    ++*count;
  } while (skv__json_take(cursor, ','));
  return skv__json_take(cursor, ']');
}

static skv_status_t take_field(parse_t *parse, unsigned *seen) {
  described_t *current = &parse->current;
  int64_t offsets[2];
  int32_t count;
  char key[16];
  if (!skv__json_string(&parse->cursor, key, sizeof key) || !skv__json_take(&parse->cursor, ':'))
    return malformed(parse, "a field of a tensor cannot be read");
  unsigned bit = strcmp(key, "dtype") == 0          ? 1u
                 : strcmp(key, "shape") == 0        ? 2u
                 : strcmp(key, "data_offsets") == 0 ? 4u
                                                    : 0u;
  if (bit == 0 || (*seen & bit))
    return malformed(parse, "a field is unknown or comes twice");
  *seen |= bit;
  if (bit == 1)
    return skv__json_string(&parse->cursor, current->dtype, sizeof current->dtype)
               ? SKV_OK
               : malformed(parse, "dtype is not a short string");
  if (bit == 2) {
    if (!take_integers(&parse->cursor, current->shape, 8, &current->rank_count))
      return malformed(parse, "shape is not a list of non-negative 64-bit integers");
    if (current->rank_count > 8)
      current->rank_count = -1;
    return SKV_OK;
  }
  if (!take_integers(&parse->cursor, offsets, 2, &count) || count != 2)
    return malformed(parse, "data_offsets are not two non-negative 64-bit integers");
  current->begin = offsets[0];
  current->end = offsets[1];
  return SKV_OK;
}

/* Extents against offsets, and offsets against the file. */
static skv_status_t check_described(parse_t *parse, int64_t data_bytes) {
  const described_t *current = &parse->current;
  if (current->begin > current->end || current->end > data_bytes)
    return malformed(parse, "data_offsets are reversed or past the end of the file");
  int64_t bits, element = element_bits(current->dtype);
  if (element == 0 || current->rank_count < 0) /* neither can be the wanted one: see choose */
    return SKV_OK;
  if (!skv__checked_bits(current->rank_count, current->shape, element, &bits))
    return malformed(parse, "a shape's element count overflows 64 bits");
  if (bits % 8 != 0 || bits / 8 != current->end - current->begin)
    return malformed(parse, "data_offsets disagree with shape and dtype");
  return SKV_OK;
}

static skv_status_t remember(parse_t *parse) {
  if (parse->count == parse->capacity) {
    size_t capacity = parse->capacity ? parse->capacity * 2 : 64;
    entry_t *grown = realloc(parse->entries, capacity * sizeof *grown);
    if (!grown)
      return skv__fail(parse->error, SKV_MEMORY, "%s: out of memory for %zu tensors",
                       parse->file->path, capacity);
    parse->entries = grown;
    parse->capacity = capacity;
  }
  const described_t *current = &parse->current;
  parse->entries[parse->count++] =
      (entry_t){XXH3_128bits(current->name, strlen(current->name)), current->begin, current->end};
  if (parse->wanted ? strcmp(current->name, parse->wanted) == 0 : parse->count == 1) {
    parse->chosen = *current;
    parse->found = true;
  }
  return SKV_OK;
}

static skv_status_t take_tensor(parse_t *parse, int64_t data_bytes) {
  if (!skv__json_take(&parse->cursor, '{'))
    return malformed(parse, "a tensor is not described by an object");
  unsigned seen = 0;
  memset(parse->current.shape, 0, sizeof parse->current.shape);
  do
    SKV_TRY(take_field(parse, &seen));
  while (skv__json_take(&parse->cursor, ','));
  if (!skv__json_take(&parse->cursor, '}') || seen != 7u)
    return malformed(parse, "a tensor needs dtype, shape and data_offsets");
  SKV_TRY(check_described(parse, data_bytes));
  return remember(parse);
}

static skv_status_t take_metadata(parse_t *parse) {
  if (parse->metadata_seen)
    return malformed(parse, "__metadata__ comes twice");
  parse->metadata_seen = true;
  if (!skv__json_take(&parse->cursor, '{'))
    return malformed(parse, "__metadata__ is not an object");
  if (skv__json_take(&parse->cursor, '}'))
    return SKV_OK;
  do
    if (!skv__json_skip_string(&parse->cursor) || !skv__json_take(&parse->cursor, ':') ||
        !skv__json_skip_string(&parse->cursor))
      return malformed(parse, "__metadata__ may hold nothing but strings");
  while (skv__json_take(&parse->cursor, ','));
  return skv__json_take(&parse->cursor, '}') ? SKV_OK
                                             : malformed(parse, "__metadata__ does not end");
}

static skv_status_t take_header(parse_t *parse, int64_t data_bytes) {
  if (*parse->cursor.at != '{')
    return malformed(parse, "the header does not start with '{'");
  parse->cursor.at++;
  if (!skv__json_take(&parse->cursor, '}')) {
    do {
      if (!skv__json_string(&parse->cursor, parse->current.name, sizeof parse->current.name) ||
          !skv__json_take(&parse->cursor, ':'))
        return malformed(parse, "a tensor's name cannot be read (at most 255 bytes of UTF-8)");
      if (strcmp(parse->current.name, "__metadata__") == 0)
        SKV_TRY(take_metadata(parse));
      else
        SKV_TRY(take_tensor(parse, data_bytes));
    } while (skv__json_take(&parse->cursor, ','));
    if (!skv__json_take(&parse->cursor, '}'))
      return malformed(parse, "the header's object does not end");
  }
  skv__json_take(&parse->cursor, ' '); /* padding */
  return parse->cursor.at == parse->cursor.end
             ? SKV_OK
             : malformed(parse, "something follows the header's object");
}

static int by_offsets(const void *a, const void *b) {
  const entry_t *left = a, *right = b;
  if (left->begin != right->begin)
    return left->begin < right->begin ? -1 : 1;
  return left->end < right->end ? -1 : left->end > right->end;
}

static int by_name(const void *a, const void *b) {
  return XXH128_cmp(&((const entry_t *)a)->name_hash, &((const entry_t *)b)->name_hash);
}

/* No name twice; every byte of data in exactly one tensor. */
static skv_status_t check_entries(parse_t *parse, int64_t data_bytes) {
  if (parse->count == 0)
    return data_bytes == 0 ? SKV_OK : malformed(parse, "data follows the header (trailing bytes)");
  qsort(parse->entries, parse->count, sizeof *parse->entries, by_name);
  for (size_t i = 1; i < parse->count; i++)
    if (by_name(&parse->entries[i - 1], &parse->entries[i]) == 0)
      return malformed(parse, "a tensor's name comes twice");
  qsort(parse->entries, parse->count, sizeof *parse->entries, by_offsets);
  int64_t covered = 0;
  for (size_t i = 0; i < parse->count; i++) {
    if (parse->entries[i].begin != covered)
      return malformed(parse, parse->entries[i].begin < covered
                                  ? "the data of two tensors overlaps"
                                  : "data lies between two tensors that neither of them names");
    covered = parse->entries[i].end;
  }
  return covered == data_bytes ? SKV_OK
                               : malformed(parse, "data follows the last tensor (trailing bytes)");
}

static skv_status_t choose(const parse_t *parse) {
  skv__tensor_file_t *file = parse->file;
  const described_t *chosen = &parse->chosen;
  if (!parse->wanted && parse->count != 1)
    return skv__fail(parse->error, SKV_INVALID,
                     "%s: holds %zu tensors; name one as FILE.safetensors:NAME", file->path,
                     parse->count);
  if (!parse->found)
    return skv__fail(parse->error, SKV_INVALID, "%s: holds no tensor '%s' (among %zu)", file->path,
                     parse->wanted, parse->count);
  if (strcmp(chosen->dtype, "F32") == 0)
    file->dtype = SKV_FP32;
  else if (strcmp(chosen->dtype, "F16") == 0)
    file->dtype = SKV_FP16;
  else if (strcmp(chosen->dtype, "BF16") == 0)
    file->dtype = SKV_BF16;
  else
    return skv__fail(parse->error, SKV_FORMAT,
                     "%s: tensor '%s' has a dtype that is not supported; use F32, F16 or BF16",
                     file->path, chosen->name);
  if (chosen->rank_count < 0)
    return skv__fail(parse->error, SKV_FORMAT, "%s: tensor '%s' has more than 8 dimensions",
                     file->path, chosen->name);
  memcpy(file->name, chosen->name, sizeof file->name);
  memcpy(file->shape, chosen->shape, sizeof file->shape);
  file->rank_count = chosen->rank_count;
  file->data_offset += chosen->begin;
  file->data_bytes = chosen->end - chosen->begin;
  return SKV_OK;
}

static skv_status_t parse_header(parse_t *parse, int64_t data_bytes) {
  SKV_TRY(take_header(parse, data_bytes));
  SKV_TRY(check_entries(parse, data_bytes));
  return choose(parse);
}

skv_status_t skv__safetensors_parse(skv__tensor_file_t *file, const unsigned char *head,
                                    size_t head_bytes, int64_t file_bytes, const char *name,
                                    skv__error_t *error) {
  uint64_t length = 0;
  if (head_bytes < 8 || file_bytes < 10)
    return skv__fail(error, SKV_FORMAT, "%s: too short to be a safetensors file", file->path);
  for (int i = 7; i >= 0; i--)
    length = length << 8 | head[i];
  if (length > (uint64_t)file_bytes - 8)
    return skv__fail(error, SKV_FORMAT,
                     "%s: the header claims %" PRIu64 " bytes but the file has %" PRId64
                     ": truncated, or not a safetensors file",
                     file->path, length, file_bytes);
  if (length > SKV__SAFETENSORS_HEADER_MAX)
    return skv__fail(error, SKV_FORMAT,
                     "%s: a header of %" PRIu64 " bytes is over the limit of %d; store q, k and v "
                     "in a file of their own",
                     file->path, length, SKV__SAFETENSORS_HEADER_MAX);
  if (length < 2 || length + 8 > head_bytes)
    return skv__fail(error, SKV_FORMAT, "%s: the header is cut short", file->path);
  parse_t *parse = calloc(1, sizeof *parse);
  if (!parse)
    return skv__fail(error, SKV_MEMORY, "%s: out of memory", file->path);
  parse->file = file;
  parse->wanted = name && name[0] ? name : NULL;
  parse->error = error;
  parse->cursor = (skv__json_cursor_t){head + 8, head + 8 + length};
  file->data_offset = 8 + (int64_t)length;
  file->header_digest =
      XXH64(head, (size_t)file->data_offset, parse->wanted ? XXH64(name, strlen(name), 0) : 0);
  skv_status_t status = parse_header(parse, file_bytes - file->data_offset);
  free(parse->entries);
  free(parse);
  return status;
}
