/* safetensors files: what is read, and what is refused with one message and no time lost. */
#include <criterion/criterion.h>
#include <time.h>

#include "launch/tensor_file.h"
#include "tests/data/hostile/safetensors.h"
#include "tests/scratch.h"

TestSuite(safetensors, .init = scratch_create, .fini = scratch_remove);

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

static skv__tensor_file_t file;

static void refuse(const char *path, skv_status_t wanted, const char *says) {
  skv__error_t error = {0};
  skv_status_t status = skv__tensor_open(&file, path, SKV_FP32, &error);
  cr_expect_eq(status, wanted, "%s for: %s", skv_status_name(status), says);
  cr_expect_eq(error.status, status);
  cr_expect_not_null(strstr(error.text, says), "'%s' does not say '%s'", error.text, says);
  cr_expect_not_null(strstr(error.text, "x.safetensors"), "'%s' names no file", error.text);
  cr_expect_eq(file.fd, -1, "left open");
}

Test(safetensors, refuses_hostile_headers) {
  for (size_t i = 0; i < COUNT(hostile_safetensors); i++) {
    const hostile_safetensors_t *hostile = &hostile_safetensors[i];
    size_t bytes;
    unsigned char *data = hostile_safetensors_file(hostile->json, hostile->data_bytes, &bytes);
    const char *path = scratch_write("x.safetensors", data, bytes);
    char spec[4096];
    snprintf(spec, sizeof spec, "%s:a", path);
    skv__error_t error = {0};
    skv_status_t status = skv__tensor_open(&file, spec, SKV_FP32, &error);
    cr_expect_eq(status, SKV_FORMAT, "%s: %s", hostile->json, skv_status_name(status));
    cr_expect_not_null(strstr(error.text, hostile->says), "%s\n  '%s' does not say '%s'",
                       hostile->json, error.text, hostile->says);
    cr_expect_not_null(strstr(error.text, path));
    cr_expect_eq(file.fd, -1, "left open");
    free(data);
  }
}

Test(safetensors, refuses_hostile_prefixes) {
  for (size_t i = 0; i < COUNT(hostile_safetensors_prefixes); i++)
    refuse(scratch_write("x.safetensors", hostile_safetensors_prefixes[i].bytes,
                         hostile_safetensors_prefixes[i].count),
           SKV_FORMAT, hostile_safetensors_prefixes[i].says);
}

#define TENSOR(name, dtype, shape, offsets)                                                        \
  "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

Test(safetensors, refuses_each_truncation) {
  const char *json = "{\"__metadata__\":{\"x\":\"y\"}," TENSOR("a", "F32", "[2]", "[0,8]") "}  ";
  size_t bytes;
  unsigned char *data = hostile_safetensors_file(json, 9, &bytes);
  for (size_t cut = 0; cut <= bytes; cut++)
    if (cut != bytes - 1) {
      skv__error_t error = {0};
      const char *path = scratch_write("x.safetensors", data, cut);
      cr_expect_eq(skv__tensor_open(&file, path, SKV_FP32, &error), SKV_FORMAT, "cut at %zu", cut);
    }
  free(data);
}

/* As many tensors as a header of the largest size can name: refused for the last one, in a second
 * and 16 MiB. */
Test(safetensors, refuses_large_headers_cheaply) {
  size_t limit = SKV__SAFETENSORS_HEADER_MAX, used = 8;
  char *data = malloc(limit + 8);
  cr_assert_not_null(data);
  data[used++] = '{';
  for (int i = 0; used < limit - 64; i++)
    used += (size_t)sprintf(data + used,
                            "\"%x\":{\"dtype\":\"\",\"shape\":[],\"data_offsets\":[0,0]},", i);
  data[used - 1] = '}';
  memset(data + used, ' ', limit + 8 - used);
  for (int i = 0; i < 8; i++)
    data[i] = (char)(limit >> 8 * i);
  const char *path = scratch_write("x.safetensors", data, limit + 8);
  cr_assert_eq(truncate(path, (off_t)limit + 9), 0); /* one trailing byte */
  free(data);
  struct timespec begin, end;
  long before_kib = scratch_peak_kib();
  clock_gettime(CLOCK_MONOTONIC, &begin);
  refuse(path, SKV_FORMAT, "trailing");
  clock_gettime(CLOCK_MONOTONIC, &end);
  cr_expect_lt((double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec),
               1.0);
  /* The buffer above was in the peak already. */
  cr_expect_lt(scratch_peak_kib() - before_kib, (16 << 10) - (long)(limit >> 10));
}

Test(safetensors, refuses_huge_files_cheaply) {
  static const char length[] = "\x00\x00\x00\x00\x01\x00\x00\x00{"; /* 4 GiB, in a sparse file */
  const char *path = scratch_write("x.safetensors", length, sizeof length - 1);
  cr_assert_eq(truncate(path, (off_t)5 << 30), 0);
  long before_kib = scratch_peak_kib();
  refuse(path, SKV_FORMAT, "over the limit");
  cr_expect_lt(scratch_peak_kib() - before_kib, 16 << 10);
}

static skv_status_t open_json(const char *json, int64_t data_bytes, const char *name,
                              skv__error_t *error) {
  size_t bytes;
  char spec[4096];
  unsigned char *data = hostile_safetensors_file(json, data_bytes, &bytes);
  snprintf(spec, sizeof spec, "%s%s", scratch_write("x.safetensors", data, bytes), name);
  free(data);
  skv_status_t status = skv__tensor_open(&file, spec, SKV_FP32, error);
  skv__tensor_close(&file);
  return status;
}

static void accept(const char *json, int64_t data_bytes, const char *name, skv_dtype_t dtype,
                   int64_t begin, int64_t bytes) {
  skv__error_t error = {0};
  cr_expect_eq(open_json(json, data_bytes, name, &error), SKV_OK, "%s: %s", json, error.text);
  cr_expect_eq(file.dtype, dtype);
  cr_expect_eq(file.data_offset, (int64_t)strlen(json) + 8 + begin);
  cr_expect_eq(file.data_bytes, bytes);
}

Test(safetensors, accepts_what_the_format_allows) {
  accept("{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 8, "", SKV_FP32, 0, 8);
  accept("{" TENSOR("a", "F16", "[2,2]", "[0,8]") "}", 8, ":a", SKV_FP16, 0, 8);
  accept("{" TENSOR("a", "BF16", "[4]", "[0,8]") "}    ", 8, ":a", SKV_BF16, 0, 8);
  accept("{" TENSOR("a", "F32", "[]", "[0,4]") "}", 4, ":a", SKV_FP32, 0, 4);
  accept("{" TENSOR("a", "F32", "[0]", "[0,0]") "}", 0, ":a", SKV_FP32, 0, 0);
  accept("{" TENSOR("a", "F32", "[3,0]", "[0,0]") "," TENSOR("b", "F32", "[2]", "[0,8]") "}", 8,
         ":b", SKV_FP32, 0, 8);
  accept("{" TENSOR("b", "F32", "[2]", "[8,16]") "," TENSOR("a", "F32", "[2]", "[0,8]") "}", 16,
         ":b", SKV_FP32, 8, 8);
  accept("{" TENSOR("i", "I64", "[1]", "[0,8]") "," TENSOR("a", "F32", "[1]", "[8,12]") "}", 12,
         ":a", SKV_FP32, 8, 4);
  accept("{" TENSOR("i", "NEW9", "[1]", "[0,8]") "," TENSOR("a", "F32", "[1]", "[8,12]") "}", 12,
         ":a", SKV_FP32, 8, 4);
  accept(
      "{\"__metadata__\":{\"format\":\"\\u0000\\ud83d\\ude00\\n\"},"
      " \"a\" : { \"shape\" : [ 2 , 1 ] ,\n\"data_offsets\" : [ 0 , 8 ] ,\t\"dtype\" : \"F32\" } }",
      8, "", SKV_FP32, 0, 8);
  accept("{\"__metadata__\":{}," TENSOR("a", "F32", "[2]", "[0,8]") "}", 8, "", SKV_FP32, 0, 8);
}

Test(safetensors, compares_names_as_decoded) {
  accept("{" TENSOR("caf\\u00e9", "F32", "[2]", "[0,8]") "}", 8, ":caf\xc3\xa9", SKV_FP32, 0, 8);
  cr_expect_str_eq(file.name, "caf\xc3\xa9");
  accept("{" TENSOR("\xf0\x9f\x98\x80", "F32", "[2]", "[0,8]") "}", 8, "", SKV_FP32, 0, 8);
  accept("{" TENSOR("\\ud83d\\ude00", "F32", "[2]", "[0,8]") "}", 8, ":\xf0\x9f\x98\x80", SKV_FP32,
         0, 8);
  accept("{" TENSOR("a\\\"\\\\\\/:b", "F32", "[2]", "[0,8]") "}", 8, ":a\"\\/:b", SKV_FP32, 0, 8);
  accept("{" TENSOR("\\u07ff\\u0800\\uffff", "F32", "[2]", "[0,8]") "}", 8,
         ":\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf", SKV_FP32, 0, 8);
  accept("{" TENSOR("", "F32", "[2]", "[0,8]") "}", 8, "", SKV_FP32, 0, 8);
}

Test(safetensors, limits_names) {
  char json[1024], name[300];
  skv__error_t error = {0};
  for (int letters = 255; letters <= 256; letters++) {
    memset(name, 'n', sizeof name);
    name[letters] = '\0';
    snprintf(json, sizeof json, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
             name);
    cr_expect_eq(open_json(json, 8, "", &error), letters == 255 ? SKV_OK : SKV_FORMAT);
  }
}

Test(safetensors, asks_for_a_name) {
  const char *json =
      "{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[2]", "[8,16]") "}";
  const struct {
    const char *json;
    int64_t data_bytes;
    const char *name, *says;
  } cases[] = {{json, 16, "", "holds 2 tensors"}, {json, 16, ":c", "no tensor 'c'"},
               {json, 16, ":", "is missing"},     {json, 16, ":__metadata__", "no tensor"},
               {"{}", 0, "", "holds 0 tensors"},  {"{}", 0, ":a", "no tensor 'a'"}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    skv__error_t error = {0};
    cr_expect_eq(open_json(cases[i].json, cases[i].data_bytes, cases[i].name, &error), SKV_INVALID);
    cr_expect_not_null(strstr(error.text, cases[i].says), "%s", error.text);
  }
}

/* Ranks compare digests: another tensor of the same file must differ. */
Test(safetensors, digests_header_and_name) {
  const char *json =
      "{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[2]", "[8,16]") "}";
  accept(json, 16, ":a", SKV_FP32, 0, 8);
  uint64_t digest = file.header_digest;
  accept(json, 16, ":b", SKV_FP32, 8, 8);
  cr_expect_neq(file.header_digest, digest);
  accept(json, 16, ":a", SKV_FP32, 0, 8);
  cr_expect_eq(file.header_digest, digest);
}

Test(safetensors, writes_headers_that_it_reads) {
  const skv__named_tensor_t tensors[] = {{"q", SKV_FP32, 3, {2, 3, 4}},
                                         {"k", SKV_BF16, 2, {5, 0}},
                                         {"v", SKV_FP16, 8, {1, 1, 1, 1, 1, 1, 1, 9}}};
  const int64_t begins[] = {0, 96, 96}, ends[] = {96, 96, 114};
  skv__error_t error = {0};
  char *head;
  int64_t bytes;
  cr_assert_eq(skv__safetensors_header(&head, &bytes, tensors, 3, &error), SKV_OK);
  cr_expect_eq(bytes % 8, 0);
  for (int i = 0; i < 3; i++) {
    cr_expect_eq(skv__safetensors_parse(&file, (unsigned char *)head, (size_t)bytes, bytes + 114,
                                        tensors[i].name, &error),
                 SKV_OK, "%s", error.text);
    cr_expect_eq(file.data_offset, bytes + begins[i]);
    cr_expect_eq(file.data_bytes, ends[i] - begins[i]);
    cr_expect_eq(file.dtype, tensors[i].dtype);
    cr_expect_arr_eq(file.shape, tensors[i].shape, sizeof file.shape);
  }
  free(head);
}

Test(safetensors, refuses_to_write_what_it_would_not_read) {
  const skv__named_tensor_t bad[] = {{"a\"b", SKV_FP32, 1, {2}},
                                     {"", SKV_FP32, 1, {2}},
                                     {"a", SKV_FP32, 1, {-2}},
                                     {"a", SKV_FP32, 2, {INT64_C(1) << 40, INT64_C(1) << 40}}};
  for (size_t i = 0; i < COUNT(bad); i++) {
    char *head;
    int64_t bytes;
    cr_expect_eq(skv__safetensors_header(&head, &bytes, &bad[i], 1, NULL), SKV_INVALID);
    cr_expect_null(head);
  }
}

Test(safetensors, reads_the_real_file) {
  skv__error_t error = {0};
  skv__extents_t extents;
  for (const char *name = "qkv"; *name; name++) {
    char spec[4096];
    snprintf(spec, sizeof spec, "%s/tests/data/real.safetensors:%c", SKV_TEST_SOURCE, *name);
    cr_assert_eq(skv__tensor_open(&file, spec, SKV_FP32, &error), SKV_OK, "%s", error.text);
    cr_expect_eq(file.dtype, SKV_FP16);
    cr_assert_eq(skv__tensor_extents(&file, SKV__THD, &extents, &error), SKV_OK);
    cr_expect(extents.tokens == 400 && extents.heads == 12 && extents.dim == 32);
    skv__tensor_close(&file);
  }
}
