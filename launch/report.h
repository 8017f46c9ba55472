/* report.h: how figures are written, and the one JSON object of --json. */
#ifndef SKV_REPORT_H
#define SKV_REPORT_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "error.h"

typedef struct skv__text {
  char text[48];
} skv__text_t;

skv__text_t skv__bytes_text(double bytes);                       /* "16.156 GiB" */
skv__text_t skv__seconds_text(double seconds);                   /* "5.18 ms" */
skv__text_t skv__rate_text(double per_second, const char *unit); /* "34.2 G" + unit + "/s" */
skv__text_t skv__bits_text(uint64_t bits);                       /* 16 hex digits */

/* Prints the object as one line on stdout and frees it. Returns an exit code. */
int skv__print_json(cJSON *object);

/* progress.c: a line on stderr that says what is being done, redrawn while it lasts. Nothing is
 * shown before a second has passed, or when stderr is no terminal, or when `quiet`. */
typedef struct skv__progress skv__progress_t;
skv__progress_t *skv__progress_start(bool quiet); /* NULL when nothing would be shown */
/* `phase` is a static string. `done` of `total` steps; total 0: not known. */
void skv__progress_set(skv__progress_t *progress, const char *phase, int64_t done, int64_t total);
void skv__progress_stop(skv__progress_t *progress);

#endif
