/* json_cursor.c: see json_cursor.h. */
#include "launch/json_cursor.h"

bool skv__json_take(skv__json_cursor_t *cursor, char wanted) {
  while (cursor->at < cursor->end &&
         (*cursor->at == ' ' || *cursor->at == '\t' || *cursor->at == '\n' || *cursor->at == '\r'))
    cursor->at++;
  if (cursor->at == cursor->end || *cursor->at != (unsigned char)wanted)
    return false;
  cursor->at++;
  return true;
}

/* The bytes of one UTF-8 sequence that is neither overlong nor a surrogate; 0 when it is not. */
static size_t utf8_bytes(const unsigned char *at, size_t left) {
  unsigned char first = at[0];
  if (first < 0x80)
    return 1;
  size_t count = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || left < count)
    return 0;
  for (size_t i = 1; i < count; i++)
    if ((at[i] & 0xc0) != 0x80)
      return 0;
  if ((first == 0xe0 && at[1] < 0xa0) || (first == 0xed && at[1] > 0x9f) ||
      (first == 0xf0 && at[1] < 0x90) || (first == 0xf4 && at[1] > 0x8f))
    return 0;
  return count;
}

static bool hex4(skv__json_cursor_t *cursor, uint32_t *unit) {
  if (cursor->end - cursor->at < 4)
    return false;
  *unit = 0;
  for (int i = 0; i < 4; i++) {
    unsigned char digit = *cursor->at++;
    uint32_t value = digit >= '0' && digit <= '9'   ? digit - 48u
                     : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10u
                     : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10u
                                                    : 16u;
    if (value > 15)
      return false;
    *unit = *unit << 4 | value;
  }
  return true;
}

static size_t encode(uint32_t code, char out[4]) {
  if (code < 0x80) {
    out[0] = (char)code;
    return 1;
  }
  size_t count = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  for (size_t i = count - 1; i > 0; i--, code >>= 6)
    out[i] = (char)(0x80u | (code & 0x3fu));
  out[0] = (char)(0xf00u >> count | code); /* 0xc0, 0xe0, 0xf0 once cut to a byte's low bits */
  return count;
}

/* After the backslash. Returns the bytes written to out; 0 when it is no escape. */
static size_t take_escape(skv__json_cursor_t *cursor, char out[4]) {
  static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
  if (cursor->at == cursor->end)
    return 0;
  unsigned char name = *cursor->at++;
  for (size_t i = 0; i < sizeof names - 1; i++)
    if (name == (unsigned char)names[i]) {
      out[0] = values[i];
      return 1;
    }
  uint32_t code, low;
  if (name != 'u' || !hex4(cursor, &code) || (code >= 0xdc00 && code <= 0xdfff))
    return 0;
  if (code < 0xd800 || code > 0xdbff)
    return encode(code, out);
  if (cursor->end - cursor->at < 6 || cursor->at[0] != '\\' || cursor->at[1] != 'u')
    return 0;
  cursor->at += 2;
  if (!hex4(cursor, &low) || low < 0xdc00 || low > 0xdfff)
    return 0;
  return encode(0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00), out);
}

/* One character of a string as UTF-8; 0 when it is malformed. */
static size_t take_character(skv__json_cursor_t *cursor, char out[4]) {
  if (*cursor->at == '\\') {
    cursor->at++;
    return take_escape(cursor, out);
  }
  size_t count =
      *cursor->at < 0x20 ? 0 : utf8_bytes(cursor->at, (size_t)(cursor->end - cursor->at));
  for (size_t i = 0; i < count; i++)
    out[i] = (char)*cursor->at++;
  return count;
}

/* text NULL: skip. */
static bool take_string(skv__json_cursor_t *cursor, char *text, size_t text_bytes) {
  if (!skv__json_take(cursor, '"'))
    return false;
  size_t used = 0;
  while (cursor->at < cursor->end && *cursor->at != '"') {
    char bytes[4];
    size_t count = take_character(cursor, bytes);
    if (count == 0)
      return false;
    if (!text)
      continue;
    if ((bytes[0] >= '\0' && bytes[0] < ' ') || bytes[0] == 0x7f || used + count >= text_bytes)
      return false;
    for (size_t i = 0; i < count; i++)
      text[used++] = bytes[i];
  }
  if (text)
    text[used] = '\0';
  return cursor->at < cursor->end && *cursor->at++ == '"';
}

bool skv__json_string(skv__json_cursor_t *cursor, char *text, size_t text_bytes) {
  return take_string(cursor, text, text_bytes);
}

bool skv__json_skip_string(skv__json_cursor_t *cursor) {
  return take_string(cursor, NULL, 0);
}

bool skv__json_integer(skv__json_cursor_t *cursor, int64_t *value) {
  if (skv__json_take(cursor, '0')) {
    *value = 0;
    return cursor->at == cursor->end || *cursor->at < '0' || *cursor->at > '9';
  }
  const unsigned char *start = cursor->at; /* spaces are behind: take has skipped them */
  *value = 0;
  for (; cursor->at < cursor->end && *cursor->at >= '0' && *cursor->at <= '9'; cursor->at++)
    if (__builtin_mul_overflow(*value, 10, value) ||
        __builtin_add_overflow(*value, *cursor->at - '0', value))
      return false;
  return cursor->at > start;
}
