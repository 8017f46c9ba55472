/* test_context.c: contexts of one rank and of several, and what they say when they cannot be made.
 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <math.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>

#include "context.h"
#include "kit/kit.h"

static void expect_refused(skv_context_options_t options, skv_status_t status, const char *text) {
  skv_context_t *context = NULL;
  skv_status_t got = skv_context_create(&context, &options);
  cr_expect_eq(got, status, "%s, not %s", skv_status_name(got), skv_status_name(status));
  cr_assert_not_null(context);
  cr_expect(strstr(skv_context_error(context), text), "'%s'", skv_context_error(context));
  cr_expect_str_eq(skv_context_kernel(context), "");
  skv_context_destroy(context);
}

Test(context, options_are_checked) {
  size_t bytes = sizeof(skv_context_options_t);
  expect_refused((skv_context_options_t){.struct_bytes = 0}, SKV_INVALID, "struct_bytes is 0");
  expect_refused((skv_context_options_t){.struct_bytes = bytes + 1}, SKV_INVALID, "struct_bytes");
  expect_refused((skv_context_options_t){bytes, .threads = -1}, SKV_INVALID, "threads is -1");
  expect_refused((skv_context_options_t){bytes, .threads = INT32_MAX}, SKV_INVALID, "threads");
  expect_refused((skv_context_options_t){bytes, .timeout_seconds = -1}, SKV_INVALID,
                 "timeout_seconds is -1");
  expect_refused((skv_context_options_t){bytes, .timeout_seconds = (double)NAN}, SKV_INVALID,
                 "timeout_seconds");
  expect_refused((skv_context_options_t){bytes, .timeout_seconds = (double)INFINITY}, SKV_INVALID,
                 "timeout_seconds");
  expect_refused((skv_context_options_t){bytes, .kernel = "no.such"}, SKV_INVALID, "no.such");
}

Test(context, defaults) {
  skv_context_t *context = NULL;
  cr_assert_eq(skv_context_create(&context, NULL), SKV_OK, "%s", skv_context_error(context));
  cpu_set_t cpus;
  cr_assert_eq(sched_getaffinity(0, sizeof cpus, &cpus), 0);
  cr_expect_eq(context->threads, CPU_COUNT(&cpus));
  cr_expect_eq(context->comm->timeout_seconds, 60.0);
  cr_expect_eq(skv_context_rank(context), 0);
  cr_expect_eq(skv_context_ranks(context), 1);
  cr_expect_eq(strncmp(skv_context_kernel(context), "cpu.", 4), 0, "a GPU that nobody asked for");
  cr_expect_str_eq(skv_context_error(context), "");
  skv_context_destroy(context);
  skv_context_destroy(NULL);
}

Test(context, a_gpu_is_there_or_it_says_why_not) {
  skv_context_options_t options = {.struct_bytes = sizeof options, .backend = SKV_BACKEND_CUDA};
  skv_context_t *context = NULL;
  skv_status_t status = skv_context_create(&context, &options);
  if (status == SKV_OK)
    cr_expect_eq(strncmp(skv_context_kernel(context), "cuda.", 5), 0);
  else
    cr_expect(status == SKV_UNSUPPORTED && strstr(skv_context_error(context), "CUDA"), "%s",
              skv_context_error(context));
  skv_context_destroy(context);
}

/* A caller that was compiled against a shorter struct: what it does not know is left at default. */
Test(context, shorter_options_are_taken) {
  skv_context_options_t options = {.struct_bytes = offsetof(skv_context_options_t, backend),
                                   .threads = 1,
                                   .timeout_seconds = 5,
                                   .kernel = "no.such"};
  skv_context_t *context = NULL;
  cr_expect_eq(skv_context_create(&context, &options), SKV_OK, "%s", skv_context_error(context));
  cr_expect_eq(context->threads, 1);
  cr_expect_eq(context->comm->timeout_seconds, 5.0);
  skv_context_destroy(context);
}

Test(context, kernels_in_windows_are_told_when_ranks_are_lost) {
  skv_context_t *context = NULL;
  volatile uint32_t stop[2] = {0, 0};
  skv__window_t second = {.stop = &stop[1]}, first = {.stop = &stop[0], .next = &second};
  cr_assert_eq(skv_context_create(&context, NULL), SKV_OK);
  context->windows = &first;
  skv__comm_break(context->wire);
  cr_expect(stop[0] && stop[1]);
  skv_context_destroy(context);
}

static int body(int32_t rank, skv_context_t *context, void *user) {
  int64_t *seen = user;
  seen[rank] = skv_context_rank(context) + 100 * skv_context_ranks(context);
  return rank == 2 ? 42 : 0;
}

Test(context, the_kit_runs_ranks) {
  int64_t seen[5] = {0};
  cr_expect_eq(kit_run_ranks(5, 1, NULL, 9, body, seen), 42);
  for (int32_t rank = 0; rank < 5; rank++)
    cr_expect_eq(seen[rank], rank + 500);
}
