/* test_digest.c: the digest for kernels is the library's XXH64. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <xxhash.h>

#include "kernels/digest.h"

enum { MOST_WORDS = 300 };

Test(digest, of_words_is_xxh64) {
  uint32_t words[MOST_WORDS];
  for (uint32_t i = 0; i < MOST_WORDS; ++i)
    words[i] = i * 2654435761u ^ i << 13;
  for (int64_t count = 0; count <= MOST_WORDS; ++count)
    for (uint64_t seed = 0; seed < UINT64_C(0xf000000000000000); seed += 0x3456789abcdef123) {
      uint64_t lanes[SKV__DIGEST_LANES];
      for (int lane = 0; lane < SKV__DIGEST_LANES; ++lane)
        lanes[lane] = skv__digest_lane(words, count, seed, lane);
      cr_assert_eq(skv__digest_end(lanes, words, count, seed),
                   XXH64(words, (size_t)count * sizeof *words, seed), "%" PRId64 " words", count);
    }
}

Test(digest, of_a_place_is_xxh64_of_three_numbers) {
  const int64_t places[][3] = {
      {0, 0, 0}, {1, 2, 3}, {7, -5, 31}, {INT64_C(1) << 40, -(INT64_C(1) << 45), 12345}};
  for (size_t i = 0; i < sizeof places / sizeof *places; ++i)
    cr_expect_eq(skv__digest_place(places[i][0], places[i][1], places[i][2]),
                 XXH64(places[i], sizeof places[i], 0));
}
