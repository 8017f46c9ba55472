/* json_cursor.h: the JSON that safetensors headers are made of, read without building a tree:
 * strings (escapes decoded, UTF-8 checked) and non-negative integers (exact to 63 bits, which a
 * parser that keeps numbers as doubles is not). */
#ifndef SKV_JSON_CURSOR_H
#define SKV_JSON_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct skv__json_cursor {
  const unsigned char *at, *end;
} skv__json_cursor_t;

/* Skip spaces, then take `wanted` if it is next. */
bool skv__json_take(skv__json_cursor_t *cursor, char wanted);
/* A string, decoded into text (NUL-terminated). False when it does not fit or holds control
 * characters: what is kept may be printed. */
bool skv__json_string(skv__json_cursor_t *cursor, char *text, size_t text_bytes);
/* A string of any length whose text does not matter. */
bool skv__json_skip_string(skv__json_cursor_t *cursor);
/* Decimal digits without sign, leading zeros, fraction or exponent. */
bool skv__json_integer(skv__json_cursor_t *cursor, int64_t *value);

#endif
