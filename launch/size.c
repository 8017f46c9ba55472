/* size.c: see size.h. */
#include "launch/size.h"

skv_status_t skv__size_parse(const char *text, int64_t *value, skv__error_t *error) {
  const char *at = text;
  int64_t count = 0, unit = 1;
  for (; *at >= '0' && *at <= '9'; at++)
    if (__builtin_mul_overflow(count, 10, &count) ||
        __builtin_add_overflow(count, *at - '0', &count))
      return skv__fail(error, SKV_INVALID, "'%.64s' is too large", text);
  if (at > text && *at != '\0') {
    unit = *at == 'k' ? 1 << 10 : *at == 'M' ? 1 << 20 : *at == 'G' ? 1 << 30 : 0;
    at++;
  }
  if (at == text || unit == 0 || *at != '\0')
    return skv__fail(error, SKV_INVALID, "'%.64s' is not a count such as 4096, 16k or 1M", text);
  if (__builtin_mul_overflow(count, unit, value))
    return skv__fail(error, SKV_INVALID, "'%.64s' is too large", text);
  return SKV_OK;
}
