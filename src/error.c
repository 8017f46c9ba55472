#include "error.h"

#include <stdarg.h>
#include <stdio.h>

skv_status_t skv__fail(skv__error_t *error, skv_status_t status, const char *format, ...) {
  if (!error || error->status != SKV_OK)
    return status;
  error->status = status;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error->text, sizeof error->text, format, arguments);
  va_end(arguments);
  return status;
}

void skv__error_clear(skv__error_t *error) {
  error->status = SKV_OK;
  error->text[0] = '\0';
}

const char *skv_status_name(skv_status_t status) {
  switch (status) {
#define X(name, code, text)                                                                        \
  case SKV_##name:                                                                                 \
    return "SKV_" #name;
    SKV_STATUS_MAP(X)
#undef X
  }
  return "SKV_UNKNOWN";
}

const char *skv_status_text(skv_status_t status) {
  switch (status) {
#define X(name, code, text)                                                                        \
  case SKV_##name:                                                                                 \
    return text;
    SKV_STATUS_MAP(X)
#undef X
  }
  return "unknown status";
}

const char *skv_version(void) {
  return SKV_VERSION;
}
