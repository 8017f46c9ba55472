/* test_options.c: command lines are read strictly, and mean to the library what they say. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

#include "launch/attention.h"
#include "launch/exit_codes.h"
#include "launch/job_options.h"
#include "launch/options.h"

typedef struct parsed {
  const char *out;
  int64_t tokens;
  double timeout;
  int backend;
  bool check;
  skv__arguments_t arguments;
  skv__error_t error;
} parsed_t;

/* Reads a line of words with one space between them. */
static skv_status_t parse(parsed_t *parsed, const char *line, int32_t words_most) {
  static char copy[512];
  const char *argv[32];
  int argc = 0;
  char *rest = NULL;
  *parsed = (parsed_t){.tokens = 5, .timeout = 60.0, .arguments = {.words_most = words_most}};
  const skv__option_t table[] = {
      {NULL, SKV__FLAG, NULL, NULL, "a heading", 0},
      {"out", SKV__TEXT, &parsed->out, "FILE", "", 0},
      {"tokens", SKV__SIZE, &parsed->tokens, "N", "", 1},
      {"timeout", SKV__NUMBER, &parsed->timeout, "S", "", 0},
      {"backend", SKV__CHOICE, &parsed->backend, "auto|cpu|cuda", "", 0},
      {"check", SKV__FLAG, &parsed->check, "", "", 0},
  };
  snprintf(copy, sizeof copy, "%s", line);
  argv[argc++] = "diff";
  for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
    argv[argc++] = word;
  argv[argc] = NULL;
  return skv__options_read("diff", table, sizeof table / sizeof *table, &parsed->arguments, argc,
                           argv, &parsed->error);
}

static void refuse(const char *line, const char *text) {
  parsed_t parsed;
  cr_expect(eq(int, parse(&parsed, line, 1), SKV_INVALID), "%s", line);
  cr_expect(strstr(parsed.error.text, text) != NULL, "\"%s\" gives \"%s\", which lacks \"%s\"",
            line, parsed.error.text, text);
  skv__arguments_free(&parsed.arguments);
}

Test(options, values_arrive) {
  parsed_t parsed;
  cr_assert(eq(int,
               parse(&parsed, "--out x.npy --tokens=16k a --timeout 2.5 --backend cuda --check", 1),
               SKV_OK));
  cr_expect(eq(str, (char *)parsed.out, "x.npy"));
  cr_expect(eq(i64, parsed.tokens, 16384));
  cr_expect(eq(dbl, parsed.timeout, 2.5));
  cr_expect(eq(int, parsed.backend, 2));
  cr_expect(parsed.check);
  cr_expect(eq(int, parsed.arguments.word_count, 1));
  cr_expect(eq(str, (char *)parsed.arguments.words[0], "a"));
  skv__arguments_free(&parsed.arguments);
}

Test(options, what_is_not_given_stays) {
  parsed_t parsed;
  cr_assert(eq(int, parse(&parsed, "", 0), SKV_OK));
  cr_expect(eq(i64, parsed.tokens, 5));
  cr_expect(eq(dbl, parsed.timeout, 60.0));
  cr_expect(not(parsed.check));
  cr_expect(eq(ptr, (void *)parsed.out, NULL));
  skv__arguments_free(&parsed.arguments);
}

Test(options, help_stops_the_reading) {
  parsed_t parsed;
  cr_assert(eq(int, parse(&parsed, "--help", 0), SKV_OK));
  cr_expect(parsed.arguments.help);
  skv__arguments_free(&parsed.arguments);
}

Test(options, mistakes_are_named) {
  refuse("--tokns 4", "did you mean --tokens?");
  refuse("--tokns=4", "did you mean --tokens?");
  refuse("--back cpu", "did you mean --backend?"); /* no abbreviations: a suggestion */
  refuse("--xyzzy", "knows no option --xyzzy; see");
  refuse("-x", "knows no option -x;");
  refuse("--backend cpux", "did you mean cpu?");
  refuse("--backend gpu", "it takes auto|cpu|cuda");
  refuse("--tokens 0", "at least 1");
  refuse("--tokens 4q", "--tokens:");
  refuse("--tokens -4", "--tokens:");
  refuse("--tokens 9999999999999999999", "--tokens:");
  refuse("--tokens", "needs a value");
  refuse("--out --check", "--out needs a value");
  refuse("--out=", "--out needs a value");
  refuse("--check=yes", "takes no value");
  refuse("--check --check", "--check is given twice");
  refuse("--tokens 4 --tokens 4", "--tokens is given twice");
  refuse("--timeout nan", "not a decimal number above 0");
  refuse("--timeout inf", "not a decimal number above 0");
  refuse("--timeout 0x10", "not a decimal number above 0");
  refuse("--timeout 1e999", "not a decimal number above 0");
  refuse("--timeout 0", "not a decimal number above 0");
  refuse("--timeout -3", "not a decimal number above 0");
  refuse("a b", "unexpected word \"b\"");
}

Test(options, suggestions) {
  const char *words[] = {"prefill", "decode", "verify", "plan"};
  cr_expect(eq(str, (char *)skv__suggest("prefil", words, 4), "prefill"));
  cr_expect(eq(str, (char *)skv__suggest("pan", words, 4), "plan"));
  cr_expect(eq(str, (char *)skv__suggest("plna", words, 4), "plan")); /* a swap is one edit */
  cr_expect(eq(str, (char *)skv__suggest("dec", words, 4), "decode"));
  cr_expect(eq(ptr, (void *)skv__suggest("x", words, 4), NULL));
  cr_expect(eq(ptr, (void *)skv__suggest("merge", words, 4), NULL));
  cr_expect(eq(ptr, (void *)skv__suggest("", words, 4), NULL));
}

Test(options, every_status_has_an_exit_code) {
  cr_expect(eq(int, skv__exit_code(SKV_OK), 0));
  cr_expect(eq(int, skv__exit_code(SKV_INVALID), 3));
  cr_expect(eq(int, skv__exit_code(SKV_FORMAT), 3));
  cr_expect(eq(int, skv__exit_code(SKV_DISAGREE), 4));
  cr_expect(eq(int, skv__exit_code(SKV_TIMEOUT), 5));
  cr_expect(eq(int, skv__exit_code(SKV_PEER), 5));
  cr_expect(eq(int, skv__exit_code(SKV_TRANSPORT), 5));
  cr_expect(eq(int, skv__exit_code(SKV_MEMORY), 6));
  cr_expect(eq(int, skv__exit_code(SKV_IO), 7));
  cr_expect(eq(int, skv__exit_code(SKV_UNSUPPORTED), 8));
  cr_expect(eq(int, skv__exit_code(SKV_INTERNAL), 70));
}

static skv__job_options_t seeded_job(void) {
  skv__job_options_t job = skv__job_defaults(false);
  job.shape = "8,2,64";
  job.tokens = 1000;
  return job;
}

static void refuse_job(const skv__job_options_t *job, const char *text) {
  skv__error_t error = {0};
  cr_expect(eq(int, skv__job_check(job, &error), SKV_INVALID), "%s", text);
  cr_expect(strstr(error.text, text) != NULL, "\"%s\" lacks \"%s\"", error.text, text);
}

Test(job_options, contradictions_are_refused) {
  skv__error_t error = {0};
  skv__job_options_t job = seeded_job();
  cr_assert(eq(int, skv__job_check(&job, &error), SKV_OK));
  job.q = "q.npy";
  refuse_job(&job, "either seeded or from files");
  job = skv__job_defaults(false);
  refuse_job(&job, "no input");
  job.q = "q.npy";
  job.v = "v.npy";
  refuse_job(&job, "--k is missing");
  job.k = "k.npy";
  job.tokens = 5;
  refuse_job(&job, "--tokens");
  job = seeded_job();
  job.tokens = -1;
  refuse_job(&job, "needs --tokens");
  job = seeded_job();
  job.layout = "zigzga";
  refuse_job(&job, "did you mean zigzag?");
  job.layout = "blocks:0";
  refuse_job(&job, "blocks:N");
  job = seeded_job();
  job.out = job.lse = "same.npy";
  refuse_job(&job, "same file");
  job = seeded_job();
  job.partial = true;
  job.sinks = "s.npy";
  refuse_job(&job, "--partial");
}

Test(job_options, become_a_problem) {
  skv__error_t error = {0};
  skv_problem_t problem;
  skv__job_options_t job = seeded_job();
  skv__job_extents_t extents = {1, 10, 1000, 2000, 8, 2, 64, 48, SKV_BF16};
  job.window = "4k,-1";
  job.softcap = 30.0;
  job.leaf = 192;
  job.out_fp32 = 1;
  cr_assert(eq(int, skv__job_problem(&job, &extents, &problem, &error), SKV_OK));
  cr_expect(eq(i64, problem.window_left_tokens, 4096));
  cr_expect(eq(i64, problem.window_right_tokens, SKV_UNBOUNDED));
  cr_expect(eq(flt, problem.softcap, 30.0f));
  cr_expect(eq(flt, problem.scale, 0.125f));
  cr_expect(eq(i64, problem.leaf_tokens, 192));
  cr_expect(eq(i64, problem.block_tokens % 192, 0));
  cr_expect(eq(i64, problem.kv_capacity_tokens, 2000));
  cr_expect(eq(i64, problem.value_head_dim, 48));
  cr_expect(eq(int, problem.dtype, SKV_BF16));
  cr_expect(eq(int, problem.out_dtype, SKV_FP32));
  const char *wrong[] = {"5", "5,", ",5", "-2,0", "1,2,3", "a,b"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    skv__error_clear(&error);
    job.window = wrong[i];
    cr_expect(eq(int, skv__job_problem(&job, &extents, &problem, &error), SKV_INVALID), "%s",
              wrong[i]);
  }
}

Test(job_options, layouts) {
  skv__error_t error = {0};
  skv_plan_options_t options;
  skv__job_options_t job = seeded_job();
  cr_assert(eq(int, skv__job_plan_options(&job, &options, &error), SKV_OK));
  cr_expect(eq(int, options.layout, SKV_CONTIGUOUS));
  cr_expect(eq(int, options.row_owner, SKV_ROWS_BY_POSITION));
  job.causal = true;
  cr_assert(eq(int, skv__job_plan_options(&job, &options, &error), SKV_OK));
  cr_expect(eq(int, options.layout, SKV_ZIGZAG));
  job.layout = "blocks:16";
  job.decode = true;
  cr_assert(eq(int, skv__job_plan_options(&job, &options, &error), SKV_OK));
  cr_expect(eq(int, options.layout, SKV_BLOCKS));
  cr_expect(eq(i64, options.layout_run_blocks, 16));
  cr_expect(eq(int, options.row_owner, SKV_ROWS_ROUND_ROBIN));
}

/* Chunks cover all queries once, at the positions of one execute; causal ones need no later key. */
Test(job_options, chunks) {
  for (int64_t queries = 0; queries <= 12; ++queries)
    for (int64_t keys = 0; keys <= 12; ++keys)
      for (int64_t chunk = -1; chunk <= 5; chunk += chunk < 0 ? 2 : 1)
        for (int causal = 0; causal < 2; ++causal) {
          skv__job_options_t job = seeded_job();
          job.chunk = chunk;
          job.causal = causal;
          skv__job_extents_t extents = {.q_tokens = queries, .k_tokens = keys};
          int64_t next = 0, count = skv__step_count(&job, &extents);
          for (int64_t i = 0; i < count; ++i) {
            skv__step_t step = skv__step_at(&job, &extents, i);
            cr_assert(eq(i64, step.q_begin, next));
            cr_assert(eq(i64, step.q_start, keys - queries + next));
            next += step.q_count;
            int64_t last = step.q_start + step.q_count - 1;
            cr_assert(step.k_tokens <= keys);
            cr_assert(step.k_tokens == keys || (causal && step.k_tokens >= last + 1));
          }
          cr_assert(eq(i64, next, queries));
        }
}
