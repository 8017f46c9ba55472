/* main.c: `ladder`: the rungs side by side, as a table or as JSON lines. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/ladder/ladder.h"
#include "launch/size.h"

/* Logits of the large set have a standard deviation of about this: exp of the largest overflows. */
#define LARGE_GAIN 30.0f

typedef struct options {
  int64_t tokens, heads, dim, threads, repeats;
  bool json;
} options_t;

static const char usage[] =
    "ladder: attention from the textbook to splitkv, on the same seeded inputs\n"
    "  --tokens N    queries and keys, a multiple of 64 (4096; k and M as suffixes)\n"
    "  --heads N     (1)\n"
    "  --dim N       of a head, at most 256 (128)\n"
    "  --threads N   of the library's rung; the others have one (1)\n"
    "  --repeats N   the time is the median (3)\n"
    "  --json        one JSON object a rung instead of the table\n";

/* A name with a count as its value goes to *slot. */
static bool parse_count(const char *name, const char *text, int64_t *slot) {
  skv__error_t error = {.status = SKV_OK};
  if (skv__size_parse(text, slot, &error) == SKV_OK && *slot >= 1 && *slot <= 1 << 30)
    return true;
  fprintf(stderr, "ladder: --%s takes a count from 1, not '%s'\n", name, text);
  return false;
}

static bool parse(int argc, char **argv, options_t *options) {
  static const struct option names[] = {
      {"tokens", 1, NULL, 0},  {"heads", 1, NULL, 1}, {"dim", 1, NULL, 2},  {"threads", 1, NULL, 3},
      {"repeats", 1, NULL, 4}, {"json", 0, NULL, 5},  {"help", 0, NULL, 6}, {NULL, 0, NULL, 0}};
  int64_t *const slots[] = {&options->tokens, &options->heads, &options->dim, &options->threads,
                            &options->repeats};
  int which, index = 0;
  while ((which = getopt_long(argc, argv, "", names, &index)) != -1) {
    if (which >= 0 && which < 5 && !parse_count(names[which].name, optarg, slots[which]))
      return false;
    if (which == 5)
      options->json = true;
    if (which == 6 || which == '?') {
      fputs(usage, which == 6 ? stdout : stderr);
      exit(which == 6 ? 0 : 2);
    }
  }
  if (optind < argc)
    fprintf(stderr, "ladder: '%s' is not an option\n", argv[optind]);
  else if (options->tokens % LADDER_BLOCK != 0)
    fprintf(stderr, "ladder: --tokens must be a multiple of %d\n", LADDER_BLOCK);
  else if (options->dim > 256)
    fprintf(stderr, "ladder: --dim is at most 256\n");
  else
    return true;
  return false;
}

static void print_json(const ladder_rung_t *rung, const ladder_problem_t *problem,
                       const ladder_result_t *usual, const ladder_result_t *large) {
  printf("{\"bench\":\"ladder\",\"rung\":\"%s\",\"tokens\":%lld,\"heads\":%lld,\"head_dim\":%lld,"
         "\"threads\":%d,\"seconds\":%.6f,\"moved_bytes\":%.0f,\"buffer_bytes\":%.0f,"
         "\"resident_bytes\":%.0f,\"error\":%.3e,\"broken\":%lld,\"large_error\":%.3e,"
         "\"large_broken\":%lld}\n",
         rung->name, (long long)problem->tokens, (long long)problem->heads, (long long)problem->dim,
         rung->run == ladder_splitkv_run ? problem->threads : 1, usual->seconds, usual->moved_bytes,
         usual->buffer_bytes, usual->resident_bytes, usual->quality.error,
         (long long)usual->quality.broken, large->quality.error, (long long)large->quality.broken);
}

static void print_header(const ladder_problem_t *problem) {
  printf("%lld head%s, %lld queries x %lld keys, head_dim %lld, fp32, no mask\n\n",
         (long long)problem->heads, problem->heads == 1 ? "" : "s", (long long)problem->tokens,
         (long long)problem->tokens, (long long)problem->dim);
  printf("                                                             |   logits ~ N(0,1)    |   "
         "logits ~ N(0,%d^2)\n",
         (int)LARGE_GAIN);
  printf("%-10s %10s %10s %12s %14s |  error   inf or NaN  |  error   inf or NaN\n", "rung",
         "seconds", "speed-up", "MiB moved", "MiB resident");
}

static void print_row(const ladder_rung_t *rung, double first_seconds, const ladder_result_t *usual,
                      const ladder_result_t *large) {
  printf("%-10s %10.3f %10.2f %12.1f %14.2f | %7.1e %12lld | %7.1e %12lld\n", rung->name,
         usual->seconds, first_seconds / usual->seconds, usual->moved_bytes / 1048576.0,
         usual->resident_bytes / 1048576.0, usual->quality.error, (long long)usual->quality.broken,
         large->quality.error, (long long)large->quality.broken);
}

/* Both sets of logits for every rung. Returns how many rungs failed. */
static int climb(const options_t *options, const ladder_problem_t *usual,
                 const ladder_problem_t *large) {
  int failures = 0;
  double first_seconds = 0.0;
  if (!options->json)
    print_header(usual);
  for (int32_t i = 0; i < ladder_rung_count; i++) {
    const ladder_rung_t *rung = &ladder_rungs[i];
    ladder_result_t result = ladder_measure(rung, usual, (int32_t)options->repeats);
    ladder_result_t large_result = ladder_measure(rung, large, 1);
    if (!result.ran || !large_result.ran) {
      fprintf(stderr, "ladder: %s could not run (memory, or a failure of its own)\n", rung->name);
      failures++;
      continue;
    }
    if (first_seconds == 0.0)
      first_seconds = result.seconds;
    if (options->json)
      print_json(rung, usual, &result, &large_result);
    else
      print_row(rung, first_seconds, &result, &large_result);
    fflush(stdout);
  }
  return failures;
}

int main(int argc, char **argv) {
  options_t options = {.tokens = 4096, .heads = 1, .dim = 128, .threads = 1, .repeats = 3};
  if (!parse(argc, argv, &options))
    return 2;
  ladder_problem_t usual = {.heads = options.heads,
                            .tokens = options.tokens,
                            .dim = options.dim,
                            .threads = (int32_t)options.threads};
  ladder_problem_t large = usual;
  if (!ladder_problem_open(&usual, 1, 1.0f))
    return 3;
  if (!ladder_problem_open(&large, 1, LARGE_GAIN)) {
    ladder_problem_close(&usual);
    return 3;
  }
  int failures = climb(&options, &usual, &large);
  ladder_problem_close(&usual);
  ladder_problem_close(&large);
  return failures == 0 ? 0 : 1;
}
