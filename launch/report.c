/* report.c: figures with units. */
#include "launch/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "launch/exit_codes.h"

skv__text_t skv__bytes_text(double bytes) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  skv__text_t text;
  int unit = 0;
  while (bytes >= 1024.0 && unit < 6) {
    bytes /= 1024.0;
    ++unit;
  }
  snprintf(text.text, sizeof text.text, unit ? "%.3f %s" : "%.0f %s", bytes, units[unit]);
  return text;
}

skv__text_t skv__seconds_text(double seconds) {
  skv__text_t text;
  if (seconds < 1e-3)
    snprintf(text.text, sizeof text.text, "%.1f us", seconds * 1e6);
  else if (seconds < 1.0)
    snprintf(text.text, sizeof text.text, "%.*f ms", seconds < 1e-2 ? 2 : 1, seconds * 1e3);
  else
    snprintf(text.text, sizeof text.text, "%.2f s", seconds);
  return text;
}

skv__text_t skv__rate_text(double per_second, const char *unit) {
  static const char *const prefixes[] = {"", "k", "M", "G", "T", "P"};
  skv__text_t text;
  int prefix = 0;
  while (per_second >= 1000.0 && prefix < 5) {
    per_second /= 1000.0;
    ++prefix;
  }
  snprintf(text.text, sizeof text.text, "%.4g %s%s/s", per_second, prefixes[prefix], unit);
  return text;
}

skv__text_t skv__bits_text(uint64_t bits) {
  skv__text_t text;
  snprintf(text.text, sizeof text.text, "%016" PRIx64, bits);
  return text;
}

int skv__print_json(cJSON *object) {
  char *line = object ? cJSON_PrintUnformatted(object) : NULL;
  cJSON_Delete(object);
  if (!line) {
    fprintf(stderr, "splitkv: out of memory while writing the report\n");
    return SKV__EXIT_MEMORY;
  }
  puts(line);
  free(line);
  return SKV__EXIT_OK;
}
