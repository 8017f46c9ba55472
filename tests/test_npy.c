/* .npy files: what is read, and what is refused with one message and no time lost. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "launch/tensor_file.h"
#include "tests/data/hostile/npy.h"
#include "tests/scratch.h"

TestSuite(npy, .init = scratch_create, .fini = scratch_remove);

static skv__tensor_file_t file;

static void refuse(const char *path, skv_status_t wanted, const char *says) {
  skv__error_t error = {0};
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  skv_status_t status = skv__tensor_open(&file, path, SKV_FP32, &error);
  clock_gettime(CLOCK_MONOTONIC, &end);
  cr_expect_eq(status, wanted, "%s for: %s", skv_status_name(status), says);
  cr_expect_eq(error.status, status);
  cr_expect_not_null(strstr(error.text, says), "'%s' does not say '%s'", error.text, says);
  cr_expect_not_null(strstr(error.text, path), "'%s' does not name the file", error.text);
  cr_expect_eq(file.fd, -1, "left open");
  cr_expect_lt(end.tv_sec - begin.tv_sec, 2);
}

Test(npy, refuses_hostile_headers) {
  for (size_t i = 0; i < HOSTILE_COUNT(hostile_npy); i++) {
    const hostile_npy_t *hostile = &hostile_npy[i];
    size_t bytes;
    unsigned char *data =
        hostile_npy_file(1 + (int)(i % 3), hostile->literal, hostile->data_bytes, &bytes);
    refuse(scratch_write("x.npy", data, bytes), SKV_FORMAT, hostile->says);
    free(data);
  }
}

Test(npy, refuses_hostile_prefixes) {
  for (size_t i = 0; i < HOSTILE_COUNT(hostile_npy_bytes); i++)
    refuse(scratch_write("x.npy", hostile_npy_bytes[i].bytes, hostile_npy_bytes[i].count),
           SKV_FORMAT, hostile_npy_bytes[i].says);
}

/* Every prefix of a good file, and every file with one more byte. */
Test(npy, refuses_each_truncation) {
  size_t bytes;
  unsigned char *data =
      hostile_npy_file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }", 17, &bytes);
  for (size_t cut = 0; cut <= bytes; cut++)
    if (cut != bytes - 1) {
      skv__error_t error = {0};
      const char *path = scratch_write("x.npy", data, cut);
      cr_expect_eq(skv__tensor_open(&file, path, SKV_FP32, &error), SKV_FORMAT, "cut at %zu", cut);
    }
  free(data);
}

Test(npy, refuses_long_headers) {
  static char literal[20000];
  memset(literal, ' ', sizeof literal - 1);
  memcpy(literal, "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }", 57);
  size_t bytes;
  unsigned char *data = hostile_npy_file(2, literal, 16, &bytes);
  refuse(scratch_write("x.npy", data, bytes), SKV_FORMAT, "over the limit");
  free(data);
}

/* A sparse file that is as long as its header claims to be. */
Test(npy, refuses_huge_files_cheaply) {
  const char *path = scratch_write("x.npy", "\x93NUMPY\x02\x00\xff\xff\xff\xff", 12);
  cr_assert_eq(truncate(path, (off_t)5 << 30), 0);
  long before_kib = scratch_peak_kib();
  refuse(path, SKV_FORMAT, "over the limit");
  cr_expect_lt(scratch_peak_kib() - before_kib, 16 << 10);
}

Test(npy, refuses_what_is_no_regular_file) {
  const char *folder = scratch_path("d.npy"), *pipe = scratch_path("p.npy");
  const char *link = scratch_path("l.npy");
  cr_assert_eq(mkdir(folder, 0700), 0);
  cr_assert_eq(mkfifo(pipe, 0600), 0);
  cr_assert_eq(symlink("/dev/zero", link), 0);
  refuse(folder, SKV_IO, "not a regular file");
  refuse(pipe, SKV_IO, "not a regular file");
  refuse(link, SKV_IO, "not a regular file");
  refuse(scratch_path("absent.npy"), SKV_IO, "No such file");
  refuse("tensor.txt", SKV_INVALID, "PATH.npy");
  refuse("", SKV_INVALID, "PATH.npy");
}

static void accept(int major, const char *literal, int64_t data_bytes, skv_dtype_t u2_dtype,
                   skv_dtype_t dtype, int32_t rank_count) {
  size_t bytes;
  unsigned char *data = hostile_npy_file(major, literal, data_bytes, &bytes);
  skv__error_t error = {0};
  cr_expect_eq(skv__tensor_open(&file, scratch_write("x.npy", data, bytes), u2_dtype, &error),
               SKV_OK, "%s: %s", literal, error.text);
  cr_expect_eq(file.dtype, dtype);
  cr_expect_eq(file.rank_count, rank_count, "%s", literal);
  cr_expect_eq(file.data_bytes, data_bytes);
  cr_expect_eq(file.data_offset + data_bytes, (int64_t)bytes);
  cr_expect_str_empty(file.name);
  skv__tensor_close(&file);
  free(data);
}

#define HEAD(descr, shape) "{'descr': '" descr "', 'fortran_order': False, 'shape': " shape ", }"

Test(npy, accepts_what_numpy_writes) {
  accept(1, HEAD("<f4", "(2, 3)"), 24, SKV_FP32, SKV_FP32, 2);
  accept(2, HEAD("<f2", "(2, 3)"), 12, SKV_FP32, SKV_FP16, 2);
  accept(3, HEAD("<u2", "(2, 3)"), 12, SKV_BF16, SKV_BF16, 2);
  accept(1, HEAD("<f4", "()"), 4, SKV_FP32, SKV_FP32, 0);
  accept(1, HEAD("<f4", "(7,)"), 28, SKV_FP32, SKV_FP32, 1);
  accept(1, HEAD("<f4", "(0,)"), 0, SKV_FP32, SKV_FP32, 1);
  accept(1, HEAD("<f4", "(3, 0, 5)"), 0, SKV_FP32, SKV_FP32, 3);
  accept(1, HEAD("<f4", "(1, 1, 1, 1, 1, 1, 1, 5)"), 20, SKV_FP32, SKV_FP32, 8);
  accept(1, "{\"shape\":(5,),\"fortran_order\":False,\"descr\":\"<f4\"}", 20, SKV_FP32, SKV_FP32,
         1);
  accept(1, "\t{ 'descr' : '<f4' , 'shape' : ( 5 , ) ,\r\n 'fortran_order' : False }", 20, SKV_FP32,
         SKV_FP32, 1);
}

Test(npy, reads_through_a_link) {
  size_t bytes;
  unsigned char *data = hostile_npy_file(1, HEAD("<f4", "(1,)"), 4, &bytes);
  skv__error_t error = {0};
  const char *link = scratch_path("l.npy");
  cr_assert_eq(symlink(scratch_write("x.npy", data, bytes), link), 0);
  cr_expect_eq(skv__tensor_open(&file, link, SKV_FP32, &error), SKV_OK, "%s", error.text);
  skv__tensor_close(&file);
  free(data);
}

Test(npy, reports_a_file_that_shrinks) {
  size_t bytes;
  unsigned char *data = hostile_npy_file(1, HEAD("<f4", "(1000,)"), 4000, &bytes);
  skv__error_t error = {0};
  char values[4000];
  const char *path = scratch_write("x.npy", data, bytes);
  cr_assert_eq(skv__tensor_open(&file, path, SKV_FP32, &error), SKV_OK);
  cr_expect_eq(skv__tensor_read(&file, 0, values, 4000, &error), SKV_OK);
  cr_assert_eq(truncate(path, (off_t)bytes - 1), 0);
  cr_expect_eq(skv__tensor_read(&file, 0, values, 4000, &error), SKV_IO);
  cr_expect_not_null(strstr(error.text, "shrank"), "%s", error.text);
  skv__error_clear(&error);
  cr_expect_eq(skv__tensor_read(&file, 1, values, 4000, &error), SKV_INTERNAL);
  skv__tensor_close(&file);
  free(data);
}

/* Element (sequence, token, head, d) holds its own indices, in every layout. */
static void check_layout(skv__tensor_layout_t layout, int32_t rank_count, const int64_t *shape,
                         const int *places, int64_t batch) {
  char head[4096];
  static float data[2 * 5 * 3 * 4], tokens[3 * 3 * 4];
  int64_t head_bytes = skv__npy_header(head, SKV_FP32, rank_count, shape);
  int64_t stride[4] = {0}, step = 1;
  for (int axis = rank_count - 1; axis >= 0; axis--) {
    stride[places[axis]] = step;
    step *= shape[axis];
  }
  for (int64_t i = 0; i < batch * 5 * 3 * 4; i++) {
    int64_t d = i % 4, h = i / 4 % 3, t = i / 12 % 5, s = i / 60;
    data[s * stride[0] + t * stride[1] + h * stride[2] + d * stride[3]] = (float)i;
  }
  const char *path = scratch_path("x.npy");
  FILE *out = fopen(path, "wb");
  fwrite(head, 1, (size_t)head_bytes, out);
  fwrite(data, sizeof(float), (size_t)(batch * 60), out);
  fclose(out);
  skv__error_t error = {0};
  skv__extents_t extents;
  cr_assert_eq(skv__tensor_open(&file, path, SKV_FP32, &error), SKV_OK, "%s", error.text);
  cr_assert_eq(skv__tensor_extents(&file, layout, &extents, &error), SKV_OK);
  cr_expect(extents.batch == batch && extents.tokens == 5 && extents.heads == 3 &&
            extents.dim == 4);
  for (int64_t s = 0; s < batch; s++) {
    cr_assert_eq(skv__tensor_read_tokens(&file, layout, s, 1, 4, tokens, &error), SKV_OK);
    for (int64_t i = 0; i < 36; i++)
      cr_expect_eq(tokens[i], (float)(s * 60 + 12 + i), "layout %d", layout);
  }
  cr_expect_eq(skv__tensor_read_tokens(&file, layout, batch, 0, 1, tokens, &error), SKV_INTERNAL);
  skv__error_clear(&error);
  cr_expect_eq(skv__tensor_read_tokens(&file, layout, 0, 3, 6, tokens, &error), SKV_INTERNAL);
  skv__tensor_close(&file);
}

Test(npy, reads_all_layouts) {
  check_layout(SKV__THD, 3, (int64_t[]){5, 3, 4}, (int[]){1, 2, 3}, 1);
  check_layout(SKV__HTD, 3, (int64_t[]){3, 5, 4}, (int[]){2, 1, 3}, 1);
  check_layout(SKV__BTHD, 4, (int64_t[]){2, 5, 3, 4}, (int[]){0, 1, 2, 3}, 2);
  check_layout(SKV__BHTD, 4, (int64_t[]){2, 3, 5, 4}, (int[]){0, 2, 1, 3}, 2);
}

Test(npy, refuses_the_wrong_number_of_axes) {
  skv__error_t error = {0};
  skv__extents_t extents;
  skv__tensor_file_t three = {.rank_count = 3, .shape = {5, 3, 4}, .path = "a.npy"};
  cr_expect_eq(skv__tensor_extents(&three, SKV__BTHD, &extents, &error), SKV_INVALID);
  cr_expect_not_null(strstr(error.text, "3 dimensions but layout bthd has 4"), "%s", error.text);
}

/* Ranks compare digests: other headers must have other digests. */
Test(npy, digests_headers) {
  uint64_t digests[2];
  const char *literals[] = {HEAD("<f4", "(2, 3)"), HEAD("<f4", "(3, 2)")};
  for (int i = 0; i < 2; i++) {
    size_t bytes;
    unsigned char *data = hostile_npy_file(1, literals[i], 24, &bytes);
    cr_assert_eq(skv__npy_parse(&file, data, bytes, (int64_t)bytes, SKV_FP32, NULL), SKV_OK);
    digests[i] = file.header_digest;
    free(data);
  }
  cr_expect_neq(digests[0], digests[1]);
}

Test(npy, writes_headers_that_it_reads) {
  static const int64_t shape[8] = {1, 9223372036854775807 / 64, 1, 1, 1, 1, 1, 1};
  for (int32_t rank_count = 0; rank_count <= 8; rank_count++)
    for (skv_dtype_t dtype = SKV_FP32; dtype <= SKV_BF16; dtype++) {
      char head[4096];
      int64_t bytes = skv__npy_header(head, dtype, rank_count, shape);
      int64_t data = (rank_count > 1 ? shape[1] : 1) * (dtype == SKV_FP32 ? 4 : 2);
      skv__error_t error = {0};
      cr_expect_eq(bytes % 64, 0);
      cr_expect_eq(skv__npy_parse(&file, (unsigned char *)head, (size_t)bytes, bytes + data,
                                  SKV_BF16, &error),
                   SKV_OK, "%s", error.text);
      cr_expect_eq(file.dtype, dtype);
      cr_expect_eq(file.rank_count, rank_count);
      cr_expect_eq(file.data_offset, bytes);
    }
}
