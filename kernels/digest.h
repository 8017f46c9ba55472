/* digest.h: XXH64 of whole 32-bit words, where the library's function is out of reach: in kernels.
 * Four lanes take every fourth pair of words, so that four threads may share the work. */
#ifndef SKV_DIGEST_H
#define SKV_DIGEST_H

#include "kernels/state.h"

#define SKV__DIGEST_P1 UINT64_C(0x9e3779b185ebca87)
#define SKV__DIGEST_P2 UINT64_C(0xc2b2ae3d27d4eb4f)
#define SKV__DIGEST_P3 UINT64_C(0x165667b19e3779f9)
#define SKV__DIGEST_P4 UINT64_C(0x85ebca77c2b2ae63)
#define SKV__DIGEST_P5 UINT64_C(0x27d4eb2f165667c5)

enum { SKV__DIGEST_LANES = 4, SKV__DIGEST_STRIPE_WORDS = 8 };

SKV_FN uint64_t skv__digest_rotate(uint64_t value, int bits) {
  return value << bits | value >> (64 - bits);
}

SKV_FN uint64_t skv__digest_round(uint64_t lane, uint64_t pair) {
  return skv__digest_rotate(lane + pair * SKV__DIGEST_P2, 31) * SKV__DIGEST_P1;
}

SKV_FN uint64_t skv__digest_pair(const uint32_t *words) {
  return words[0] | (uint64_t)words[1] << 32;
}

/* What lane `lane` makes of all whole stripes. */
SKV_FN uint64_t skv__digest_lane(const uint32_t *words, int64_t count, uint64_t seed, int lane) {
  uint64_t sum = lane == 0   ? seed + SKV__DIGEST_P1 + SKV__DIGEST_P2
                 : lane == 1 ? seed + SKV__DIGEST_P2
                 : lane == 2 ? seed
                             : seed - SKV__DIGEST_P1;
  for (int64_t at = 2 * lane; at < count / SKV__DIGEST_STRIPE_WORDS * SKV__DIGEST_STRIPE_WORDS;
       at += SKV__DIGEST_STRIPE_WORDS)
    sum = skv__digest_round(sum, skv__digest_pair(words + at));
  return sum;
}

/* The lanes joined, then the words after the last whole stripe. */
SKV_FN uint64_t skv__digest_end(const uint64_t lanes[SKV__DIGEST_LANES], const uint32_t *words,
                                int64_t count, uint64_t seed) {
  uint64_t hash = seed + SKV__DIGEST_P5;
  int64_t at = count / SKV__DIGEST_STRIPE_WORDS * SKV__DIGEST_STRIPE_WORDS;
  if (at > 0) {
    hash = skv__digest_rotate(lanes[0], 1) + skv__digest_rotate(lanes[1], 7) +
           skv__digest_rotate(lanes[2], 12) + skv__digest_rotate(lanes[3], 18);
    for (int lane = 0; lane < SKV__DIGEST_LANES; ++lane)
      hash = (hash ^ skv__digest_round(0, lanes[lane])) * SKV__DIGEST_P1 + SKV__DIGEST_P4;
  }
  hash += (uint64_t)count * sizeof *words;
  for (; at + 2 <= count; at += 2)
    hash = skv__digest_rotate(hash ^ skv__digest_round(0, skv__digest_pair(words + at)), 27) *
               SKV__DIGEST_P1 +
           SKV__DIGEST_P4;
  if (at < count)
    hash =
        skv__digest_rotate(hash ^ words[at] * SKV__DIGEST_P1, 23) * SKV__DIGEST_P2 + SKV__DIGEST_P3;
  hash = (hash ^ hash >> 33) * SKV__DIGEST_P2;
  hash = (hash ^ hash >> 29) * SKV__DIGEST_P3;
  return hash ^ hash >> 32;
}

/* The seed of a row's digest: who the row is. */
SKV_FN uint64_t skv__digest_place(int64_t sequence, int64_t position, int64_t head) {
  const uint32_t words[6] = {(uint32_t)sequence, (uint32_t)((uint64_t)sequence >> 32),
                             (uint32_t)position, (uint32_t)((uint64_t)position >> 32),
                             (uint32_t)head,     (uint32_t)((uint64_t)head >> 32)};
  const uint64_t none[SKV__DIGEST_LANES] = {0, 0, 0, 0};
  return skv__digest_end(none, words, 6, 0);
}

#endif
