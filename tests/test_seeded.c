/* Seeded inputs: known values, and a part is the same whoever makes it. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "kernels/convert.h"
#include "launch/seeded.h"
#include "launch/shape.h"
#include "launch/size.h"

/* Philox4x32-10 written again, from its definition. */
static void philox(uint32_t c[4], uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; round++) {
    uint64_t a = (uint64_t)c[0] * 0xD2511F53u, b = (uint64_t)c[2] * 0xCD9E8D57u;
    uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b,
                        (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
    memcpy(c, next, sizeof next);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

static double expected(uint64_t seed, int which, int64_t sequence, int64_t token, int64_t head,
                       int64_t d) {
  uint32_t c[4] = {(uint32_t)token, (uint32_t)(token >> 32) << 16 | (uint32_t)d, (uint32_t)sequence,
                   (uint32_t)which << 30 | (uint32_t)head};
  philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
  double sum = 0.0, below = 0.0;
  for (int word = 0; word < 4; word++) {
    for (int part = 0; part < 3; part++)
      sum += (double)(c[word] >> 10 * part & 1023);
    below = 4.0 * below + (double)(c[word] >> 30);
  }
  return (sum - 6138.0) / 1024.0 + (below - 127.5) / 262144.0;
}

Test(seeded, follows_its_definition) {
  const uint64_t seeds[] = {0, 7, UINT64_C(0xfedcba9876543210)};
  for (int i = 0; i < 3; i++)
    for (int which = 0; which < 3; which++)
      for (int64_t token = 0; token < INT64_C(1) << 47; token = token * 5 + 3) {
        skv__seeded_t seeded = {.seed = seeds[i], .outliers = 0};
        float value = skv__seeded_value(&seeded, (skv__which_t)which, token % 7, token, token % 129,
                                        token % 256);
        cr_expect_eq((double)value,
                     expected(seeds[i], which, token % 7, token, token % 129, token % 256));
      }
}

Test(seeded, parts_equal_the_whole) {
  enum { TOKENS = 37, HEADS = 3, DIM = 5 };
  static float whole[TOKENS * HEADS * DIM], part[TOKENS * HEADS * DIM];
  const skv__seeded_t seeded = {.seed = 99, .outliers = 2, .threads = 3};
  skv__seeded_fill(&seeded, SKV__K, 1, 0, TOKENS, HEADS, DIM, SKV_FP32, whole);
  for (int64_t begin = 0; begin < TOKENS; begin += 8) {
    int64_t count = TOKENS - begin < 8 ? TOKENS - begin : 8;
    skv__seeded_fill(&seeded, SKV__K, 1, begin, count, HEADS, DIM, SKV_FP32,
                     part + begin * HEADS * DIM);
  }
  cr_expect_arr_eq(whole, part, sizeof whole);
  for (int64_t i = 0; i < TOKENS * HEADS * DIM; i++)
    cr_expect_eq(whole[i], skv__seeded_value(&seeded, SKV__K, 1, i / (HEADS * DIM), i / DIM % HEADS,
                                             i % DIM));
}

Test(seeded, narrows_what_it_makes) {
  enum { COUNT = 64 };
  float wide[COUNT];
  uint16_t half[COUNT], brain[COUNT];
  const skv__seeded_t seeded = {.seed = 3, .outliers = 8};
  skv__seeded_fill(&seeded, SKV__Q, 0, 5, 1, 1, COUNT, SKV_FP32, wide);
  skv__seeded_fill(&seeded, SKV__Q, 0, 5, 1, 1, COUNT, SKV_FP16, half);
  skv__seeded_fill(&seeded, SKV__Q, 0, 5, 1, 1, COUNT, SKV_BF16, brain);
  for (int i = 0; i < COUNT; i++) {
    cr_expect_eq(half[i], skv__narrow_fp16(wide[i]));
    cr_expect_eq(brain[i], skv__narrow_bf16(wide[i]));
  }
}

Test(seeded, is_nearly_normal) {
  double sum = 0.0, squares = 0.0, fourths = 0.0;
  const skv__seeded_t seeded = {.seed = 1, .outliers = 0};
  const int64_t count = 200000;
  for (int64_t i = 0; i < count; i++) {
    double value = skv__seeded_value(&seeded, SKV__V, 0, i / 64, 0, i % 64);
    sum += value;
    squares += value * value;
    fourths += value * value * value * value;
  }
  cr_expect_lt(fabs(sum / (double)count), 0.01);
  cr_expect_lt(fabs(squares / (double)count - 1.0), 0.02);
  cr_expect_lt(fabs(fourths / (double)count - 2.9), 0.1); /* 3 for a normal; twelve uniforms: 2.9 */
}

Test(seeded, outliers_are_the_same_channels_of_q_and_k) {
  const skv__seeded_t plain = {.seed = 5, .outliers = 0}, seeded = {.seed = 5, .outliers = 3};
  for (int64_t d = 0; d < 16; d++)
    for (int which = 0; which < 3; which++) {
      float ratio = which < 2 && d < 3 ? 8.0f : 1.0f;
      cr_expect_eq(skv__seeded_value(&seeded, (skv__which_t)which, 0, 11, 2, d),
                   ratio * skv__seeded_value(&plain, (skv__which_t)which, 0, 11, 2, d));
    }
}

Test(size, takes_counts) {
  const struct {
    const char *text;
    int64_t value;
  } good[] = {{"0", 0},
              {"1", 1},
              {"007", 7},
              {"16k", 16384},
              {"1M", 1048576},
              {"2G", INT64_C(2) << 30},
              {"9223372036854775807", INT64_MAX},
              {"9007199254740991k", INT64_C(9007199254740991) << 10}};
  const char *const bad[] = {"",
                             "-1",
                             "+1",
                             " 1",
                             "1 ",
                             "1.5",
                             "1e3",
                             "0x10",
                             "k",
                             "1K",
                             "1m",
                             "1kk",
                             "1kB",
                             "1k ",
                             "nan",
                             "9223372036854775808",
                             "9007199254740992k",
                             "99999999999999999999999999",
                             "1,000"};
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    int64_t value = -1;
    cr_expect_eq(skv__size_parse(good[i].text, &value, NULL), SKV_OK, "%s", good[i].text);
    cr_expect_eq(value, good[i].value, "%s", good[i].text);
  }
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    int64_t value;
    skv__error_t error = {0};
    cr_expect_eq(skv__size_parse(bad[i], &value, &error), SKV_INVALID, "%s", bad[i]);
    cr_expect_not_null(strstr(error.text, bad[i]));
  }
}

Test(shape, takes_numbers_and_models) {
  const struct {
    const char *text;
    skv__shape_t shape;
  } good[] = {{"32,8,128", {32, 8, 128, 128}},
              {"16,16,192,128", {16, 16, 192, 128}},
              {"1,1,1", {1, 1, 1, 1}},
              {"llama3-8b", {32, 8, 128, 128}},
              {"minilm-l6", {12, 12, 32, 32}}};
  const char *const bad[] = {"",           "32",
                             "32,8",       "32,8,128,64,1",
                             "32,8,",      "32,,128",
                             ",8,128",     "32,8,128 ",
                             "a,b,c",      "33,2,64",
                             "3,2,64",     "0,1,64",
                             "1,0,64",     "1,1,0",
                             "1,1,257",    "1,1,64,0",
                             "-1,1,64",    "1,1,64,257",
                             "llama",      "Llama3-8b",
                             "32x8x128",   "1e1,1,64",
                             "70000,1,64", "4,8,64",
                             "32;8;128",   "99999999999999999999,1,64"};
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    skv__shape_t shape;
    cr_expect_eq(skv__shape_parse(good[i].text, &shape, NULL), SKV_OK, "%s", good[i].text);
    cr_expect_arr_eq(&shape, &good[i].shape, sizeof shape);
  }
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    skv__shape_t shape;
    skv__error_t error = {0};
    cr_expect_eq(skv__shape_parse(bad[i], &shape, &error), SKV_INVALID, "%s", bad[i]);
  }
}
