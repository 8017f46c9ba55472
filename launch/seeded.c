/* Elements are counters run through Philox4x32-10. The 128 random bits become twelve uniform
 * integers of ten bits, whose sum has variance 2^20 - 1, and eight bits below it: an integer over
 * 2^19, so nothing is rounded and every compiler makes the same bits. */
#include "launch/seeded.h"

#include <Random123/philox.h>

#include "kernels/convert.h"

#define OUTLIER_FACTOR 8.0f

static float element(philox4x32_ctr_t counter, philox4x32_key_t key) {
  philox4x32_ctr_t bits = philox4x32_R(10, counter, key);
  int32_t sum = 0;
  for (int word = 0; word < 4; word++)
    sum += (int32_t)((bits.v[word] & 1023u) + (bits.v[word] >> 10 & 1023u) +
                     (bits.v[word] >> 20 & 1023u));
  uint32_t below = 0;
  for (int word = 0; word < 4; word++)
    below = below << 2 | bits.v[word] >> 30;
  int32_t doubled = 2 * (sum * 256 + (int32_t)below) - (2 * 6138 * 256 + 255); /* mean 0 */
  return (float)doubled * 0x1p-19f;
}

static philox4x32_key_t key_of(const skv__seeded_t *seeded) {
  return (philox4x32_key_t){{(uint32_t)seeded->seed, (uint32_t)(seeded->seed >> 32)}};
}

/* Tokens below 2^48, sequences below 2^32, heads below 2^30 and channels below 2^16 have counters
 * of their own. */
static philox4x32_ctr_t counter_of(skv__which_t which, int64_t sequence, int64_t token,
                                   int64_t head, int64_t d) {
  return (philox4x32_ctr_t){{(uint32_t)token, (uint32_t)(token >> 32) << 16 | (uint32_t)d,
                             (uint32_t)sequence, (uint32_t)which << 30 | (uint32_t)head}};
}

static float value_at(const skv__seeded_t *seeded, philox4x32_key_t key, skv__which_t which,
                      int64_t sequence, int64_t token, int64_t head, int64_t d) {
  float value = element(counter_of(which, sequence, token, head, d), key);
  return which != SKV__V && d < seeded->outliers ? value * OUTLIER_FACTOR : value;
}

float skv__seeded_value(const skv__seeded_t *seeded, skv__which_t which, int64_t sequence,
                        int64_t token, int64_t head, int64_t d) {
  return value_at(seeded, key_of(seeded), which, sequence, token, head, d);
}

void skv__seeded_fill(const skv__seeded_t *seeded, skv__which_t which, int64_t sequence,
                      int64_t token_begin, int64_t tokens, int64_t heads, int64_t dim,
                      skv_dtype_t dtype, void *out) {
  philox4x32_key_t key = key_of(seeded);
#pragma omp parallel for schedule(static) num_threads(seeded->threads > 0 ? seeded->threads : 1)
  for (int64_t i = 0; i < tokens; i++) {
    int64_t index = i * heads * dim;
    for (int64_t head = 0; head < heads; head++)
      for (int64_t d = 0; d < dim; d++)
        skv__store(dtype, out, index++,
                   value_at(seeded, key, which, sequence, token_begin + i, head, d));
  }
}
