/* The commands that only touch files: make, diff, merge; run as a user runs them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdarg.h>
#include <sys/wait.h>

#include "launch/exit_codes.h"
#include "launch/seeded.h"
#include "launch/tensor_file.h"
#include "tests/scratch.h"

TestSuite(file_commands, .init = scratch_create, .fini = scratch_remove);

static char printed[8192]; /* by the last run: stdout and stderr */

/* splitkv with these arguments, in the scratch folder. */
static int run(const char *format, ...) {
  char line[4096];
  int used = snprintf(line, sizeof line, "cd '%s' && '%s' ", scratch_folder, SKV_TEST_COMMAND);
  va_list arguments;
  va_start(arguments, format);
  used += vsnprintf(line + used, sizeof line - (size_t)used, format, arguments);
  va_end(arguments);
  snprintf(line + used, sizeof line - (size_t)used, " 2>&1");
  FILE *pipe = popen(line, "r");
  cr_assert_not_null(pipe);
  size_t got = fread(printed, 1, sizeof printed - 1, pipe);
  printed[got] = '\0';
  int status = pclose(pipe);
  cr_assert(WIFEXITED(status), "%s: ended by a signal: %s", line, printed);
  return WEXITSTATUS(status);
}

static void write_tensor(const char *name, skv_dtype_t dtype, int32_t rank_count,
                         const int64_t *shape, const void *data) {
  char file[4096 + 4096];
  int64_t bytes = dtype == SKV_FP32 ? 4 : 2;
  int64_t head_bytes = skv__npy_header(file, dtype, rank_count, shape);
  for (int32_t i = 0; i < rank_count; i++)
    bytes *= shape[i];
  memcpy(file + head_bytes, data, (size_t)bytes);
  scratch_write(name, file, (size_t)(head_bytes + bytes));
}

static void read_tensor(const char *spec, void *data, int64_t bytes, skv__tensor_file_t *file) {
  skv__error_t error = {0};
  cr_assert_eq(skv__tensor_open(file, scratch_path(spec), SKV_BF16, &error), SKV_OK, "%s",
               error.text);
  cr_assert_eq(file->data_bytes, bytes);
  cr_assert_eq(skv__tensor_read(file, 0, data, bytes, &error), SKV_OK);
  skv__tensor_close(file);
}

Test(file_commands, make_writes_what_any_rank_would_make) {
  static float made[2 * 10 * 2 * 5], wanted[2 * 10 * 2 * 5];
  skv__tensor_file_t file;
  const skv__seeded_t seeded = {.seed = 77, .outliers = 1};
  cr_assert_eq(
      run("make --shape 4,2,8,5 --tokens 10 --batch 2 --seed 77 --outliers 1 --out x.safetensors"),
      0, "%s", printed);
  cr_expect_str_empty(printed);
  read_tensor("x.safetensors:v", made, sizeof made, &file);
  cr_expect_eq(file.rank_count, 4);
  cr_expect_arr_eq(file.shape, ((int64_t[]){2, 10, 2, 5}), 4 * sizeof(int64_t));
  for (int64_t sequence = 0; sequence < 2; sequence++)
    skv__seeded_fill(&seeded, SKV__V, sequence, 0, 10, 2, 5, SKV_FP32, wanted + sequence * 100);
  cr_expect_arr_eq(made, wanted, sizeof made);
}

Test(file_commands, make_writes_one_tensor) {
  for (int i = 0; i < 3; i++) {
    const char *dtype = (const char *[]){"fp32", "fp16", "bf16"}[i];
    cr_assert_eq(run("make --shape 4,2,8 --tokens 1k --dtype %s --out x.safetensors", dtype), 0);
    cr_assert_eq(run("make --shape 4,2,8 --tokens 1k --dtype %s --tensor k --out k.npy", dtype), 0);
    cr_expect_eq(run("diff x.safetensors:k k.npy"), 0, "%s", printed);
    char wanted[80];
    snprintf(wanted, sizeof wanted, "equal: 16384 elements of %s [1024, 2, 8]\n", dtype);
    cr_expect_str_eq(printed, wanted);
    cr_expect_eq(run("diff x.safetensors:v k.npy"), SKV__EXIT_DIFFERENT);
  }
}

Test(file_commands, make_refuses) {
  const struct {
    const char *line;
    int code;
    const char *says;
  } cases[] = {
      {"make", SKV__EXIT_USAGE, "needs --shape"},
      {"make --shape 4,2,8 --tokens 4", SKV__EXIT_USAGE, "needs --shape"},
      {"make --shape 4,3,8 --tokens 4 --out x.safetensors", SKV__EXIT_USAGE, "not a multiple"},
      {"make --shape 4,2,8 --tokens -4 --out x.safetensors", SKV__EXIT_USAGE, "not a count"},
      {"make --shape 4,2,8 --tokens 4 --out x.npy", SKV__EXIT_USAGE, "--tensor"},
      {"make --shape 4,2,8 --tokens 4 --tensor q --out x.safetensors", SKV__EXIT_USAGE, ".npy"},
      {"make --shape 4,2,8 --tokens 4 --out .safetensors", SKV__EXIT_USAGE, "--out"},
      {"make --shape 4,2,8 --tokens 4 --outliers 9 --out x.safetensors", SKV__EXIT_USAGE,
       "at most"},
      {"make --shape 4,2,8 --tokens 4 --value-dim 257 --out x.safetensors", SKV__EXIT_USAGE, "256"},
      {"make --shape 4,2,8 --tokens 4 --dtype fp8 --out x.safetensors", SKV__EXIT_USAGE, "fp16"},
      {"make --shape 4,2,8 --tokens 9000000000G --out x.safetensors", SKV__EXIT_USAGE, "too large"},
      {"make --shape 4,2,8 --tokens 200000G --out x.safetensors", SKV__EXIT_IO, "the disk has"},
      {"make --shape 4,2,8 --tokens 4 --out x.safetensors y", SKV__EXIT_USAGE, "unexpected word"},
      {"make --shape 4,2,8 --tokenz 4 --out x.safetensors", SKV__EXIT_USAGE,
       "did you mean --tokens"},
      {"make --shape 4,2,8 --tokens 4 --out no/x.safetensors", SKV__EXIT_IO, "folder"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    cr_expect_eq(run("%s", cases[i].line), cases[i].code, "%s: %s", cases[i].line, printed);
    cr_expect_not_null(strstr(printed, cases[i].says), "%s: %s", cases[i].line, printed);
  }
  cr_expect_eq(scratch_count(NULL), 0);
}

static void expect_diff(const float *a, const float *b, const char *text) {
  const int64_t shape[] = {2, 3};
  write_tensor("a.npy", SKV_FP32, 2, shape, a);
  write_tensor("b.npy", SKV_FP32, 2, shape, b);
  cr_expect_eq(run("diff a.npy b.npy"), strncmp(text, "equal", 5) == 0 ? 0 : 1);
  cr_expect_str_eq(printed, text);
}

Test(file_commands, diff_counts_bits_and_ulps) {
  const float base[6] = {1.0f, -1.0f, 0.0f, NAN, INFINITY, 3.0f};
  float other[6];
  expect_diff(base, base, "equal: 6 elements of fp32 [2, 3]\n");
  memcpy(other, base, sizeof other);
  other[5] = nextafterf(nextafterf(3.0f, 4.0f), 4.0f);
  expect_diff(base, other,
              "different: 1 of 6 elements of fp32 [2, 3], at most 2 ulps\n"
              "first at [1, 2]: 0x40400000 and 0x40400002\n");
  other[2] = -0.0f;
  expect_diff(base, other,
              "different: 2 of 6 elements of fp32 [2, 3], at most 2 ulps\n"
              "first at [0, 2]: 0x00000000 and 0x80000000\n");
  other[1] = 1.0f; /* 2 * 0x3f800000 apart */
  other[3] = 0.0f;
  expect_diff(
      base, other,
      "different: 4 of 6 elements of fp32 [2, 3], at most 2130706432 ulps, 1 where only one "
      "is NaN\nfirst at [0, 1]: 0xbf800000 and 0x3f800000\n");
}

Test(file_commands, diff_tells_shapes_and_dtypes_apart) {
  const float zeros[6] = {0};
  write_tensor("a.npy", SKV_FP32, 2, (int64_t[]){2, 3}, zeros);
  write_tensor("b.npy", SKV_FP32, 2, (int64_t[]){3, 2}, zeros);
  write_tensor("c.npy", SKV_BF16, 2, (int64_t[]){2, 3}, zeros);
  write_tensor("d.npy", SKV_FP32, 1, (int64_t[]){6}, zeros);
  write_tensor("e.npy", SKV_FP32, 2, (int64_t[]){2, 0}, zeros);
  cr_expect_eq(run("diff a.npy b.npy"), 1);
  cr_expect_str_eq(printed, "different: fp32 [2, 3] and fp32 [3, 2]\n");
  cr_expect_eq(run("diff a.npy c.npy"), 1);
  cr_expect_str_eq(printed, "different: fp32 [2, 3] and bf16 [2, 3]\n");
  cr_expect_eq(run("diff a.npy d.npy"), 1);
  cr_expect_eq(run("diff e.npy e.npy"), 0);
  cr_expect_eq(run("diff a.npy b.npy --json"), 1);
  cr_expect_str_eq(printed, "{\"equal\":false,\"mismatch\":\"fp32 [2, 3] and fp32 [3, 2]\"}\n");
  cr_expect_eq(run("diff a.npy a.npy --json"), 0);
  cr_expect_not_null(strstr(printed, "{\"equal\":true"), "%s", printed);
  cr_expect_eq(run("diff a.npy"), SKV__EXIT_USAGE);
  cr_expect_eq(run("diff a.npy absent.npy"), SKV__EXIT_IO);
  scratch_write("bad.npy", "no tensor", 9);
  cr_expect_eq(run("diff bad.npy a.npy"), SKV__EXIT_INPUT);
}

/* A difference past the first mebibyte has its own index. */
Test(file_commands, diff_finds_late_differences) {
  cr_assert_eq(run("make --shape 4,2,64 --tokens 4k --tensor k --out a.npy"), 0);
  cr_assert_eq(run("make --shape 4,2,64 --tokens 4k --tensor k --out b.npy"), 0);
  FILE *file = fopen(scratch_path("b.npy"), "r+b");
  fseek(file, 128 + ((4000 * 2 + 1) * 64 + 17) * 4, SEEK_SET);
  int low = fgetc(file);
  fseek(file, -1, SEEK_CUR);
  fputc(low ^ 1, file);
  fclose(file);
  cr_expect_eq(run("diff a.npy b.npy"), 1);
  cr_expect_not_null(strstr(printed, "1 of 524288 elements"), "%s", printed);
  cr_expect_not_null(strstr(printed, "at most 1 ulps"), "%s", printed);
  cr_expect_not_null(strstr(printed, "first at [4000, 1, 17]"), "%s", printed);
}

/* LSE 0 and 100 (base e): far beyond exp's range; and the halves of equal weights. */
Test(file_commands, merge_weighs_by_lse) {
  const float o_a[] = {0.0f, 2.0f, 0.0f, 2.0f, 7.0f, 8.0f}, lse_a[] = {0.0f, 1.0f, -INFINITY};
  const float o_b[] = {10.0f, 4.0f, 10.0f, 4.0f, 1.0f, 2.0f}, lse_b[] = {100.0f, 1.0f, 5.0f};
  const float o[] = {10.0f, 4.0f, 5.0f, 3.0f, 1.0f, 2.0f};
  const double lse[2][3] = {{100.0, 1.6931471805599453, 5.0}, {100.0, 2.0, 5.0}};
  float got[6], got_lse[3];
  skv__tensor_file_t file;
  write_tensor("a.npy", SKV_FP32, 2, (int64_t[]){3, 2}, o_a);
  write_tensor("al.npy", SKV_FP32, 1, (int64_t[]){3}, lse_a);
  write_tensor("b.npy", SKV_FP32, 2, (int64_t[]){3, 2}, o_b);
  write_tensor("bl.npy", SKV_FP32, 1, (int64_t[]){3}, lse_b);
  for (int base = 0; base < 2; base++) {
    cr_assert_eq(run("merge --a-out a.npy --a-lse al.npy --b-out b.npy --b-lse bl.npy --out o.npy "
                     "--lse l.npy --lse-base %s",
                     base ? "2" : "e"),
                 0, "%s", printed);
    read_tensor("o.npy", got, sizeof got, &file);
    cr_expect_eq(file.rank_count, 2);
    read_tensor("l.npy", got_lse, sizeof got_lse, &file);
    cr_expect_eq(file.rank_count, 1);
    for (int i = 0; i < 6; i++)
      cr_expect_float_eq(got[i], o[i], 1e-5, "o[%d] is %g", i, (double)got[i]);
    for (int i = 0; i < 3; i++)
      cr_expect_float_eq((double)got_lse[i], lse[base][i], 1e-5, "lse[%d]", i);
  }
}

Test(file_commands, merge_refuses) {
  const float zeros[6] = {0};
  write_tensor("a.npy", SKV_FP32, 2, (int64_t[]){3, 2}, zeros);
  write_tensor("t.npy", SKV_FP32, 2, (int64_t[]){2, 3}, zeros);
  write_tensor("l.npy", SKV_FP32, 1, (int64_t[]){3}, zeros);
  write_tensor("h.npy", SKV_FP16, 1, (int64_t[]){3}, zeros);
  write_tensor("s.npy", SKV_FP32, 0, NULL, zeros);
  int files = scratch_count(NULL);
  const struct {
    const char *line;
    int code;
    const char *says;
  } cases[] = {
      {"--a-out a.npy", SKV__EXIT_USAGE, "needs --a-lse"},
      {"--a-out a.npy --a-lse l.npy --b-out a.npy --b-lse l.npy --out o.npy", SKV__EXIT_USAGE,
       "needs --out and --lse"},
      {"--a-out a.npy --a-lse l.npy --b-out t.npy --b-lse l.npy --out o.npy --lse ol.npy",
       SKV__EXIT_INPUT, "differ in shape"},
      {"--a-out a.npy --a-lse h.npy --b-out a.npy --b-lse l.npy --out o.npy --lse ol.npy",
       SKV__EXIT_INPUT, "h.npy: LSE is fp32"},
      {"--a-out a.npy --a-lse l.npy --b-out a.npy --b-lse a.npy --out o.npy --lse ol.npy",
       SKV__EXIT_INPUT, "a.npy: LSE is fp32"},
      {"--a-out s.npy --a-lse l.npy --b-out s.npy --b-lse l.npy --out o.npy --lse ol.npy",
       SKV__EXIT_INPUT, "last axis"},
      {"--a-out a.npy --a-lse l.npy --b-out a.npy --b-lse l.npy --out a.npy --lse ol.npy",
       SKV__EXIT_INPUT, "is an input"},
      {"--a-out a.npy --a-lse l.npy --b-out a.npy --b-lse l.npy --out o.npy --lse ./l.npy",
       SKV__EXIT_INPUT, "is an input"},
      {"--a-out a.npy --a-lse l.npy --b-out a.npy --b-lse l.npy --out o.npy --lse o.npy",
       SKV__EXIT_INPUT, "same file"},
      {"--a-out a.npy --a-lse l.npy --b-out a.npy --b-lse l.npy --out o.npy --lse no/ol.npy",
       SKV__EXIT_IO, "folder"},
      {"--a-out a.npy --a-lse l.npy --b-out a.npy --b-lse l.npy --out o.npy --lse ol.npy "
       "--lse-base 10",
       SKV__EXIT_USAGE, "e|2"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    cr_expect_eq(run("merge %s", cases[i].line), cases[i].code, "%s: %s", cases[i].line, printed);
    cr_expect_not_null(strstr(printed, cases[i].says), "%s: %s", cases[i].line, printed);
  }
  cr_expect_eq(scratch_count(NULL), files, "something was written");
}
