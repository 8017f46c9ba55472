/* seeded.h: inputs made from a seed by a counter-based generator (Random123's Philox), so that any
 * rank makes its own part. An element depends on (seed, tensor, sequence, token, head, d) alone.
 * Nearly normal, mean 0, variance 1, exact in fp32; outlier channels (`outliers` of them per head,
 * the same for Q and K) are 8 times larger. */
#ifndef SKV_SEEDED_H
#define SKV_SEEDED_H

#include "skv.h"

typedef enum skv__which { SKV__Q = 0, SKV__K = 1, SKV__V = 2 } skv__which_t;

typedef struct skv__seeded {
  uint64_t seed;
  int32_t outliers;
  int32_t threads; /* that fill may use; 0: one */
} skv__seeded_t;

float skv__seeded_value(const skv__seeded_t *seeded, skv__which_t which, int64_t sequence,
                        int64_t token, int64_t head, int64_t d);
/* Fill [tokens][heads][dim] (dense, of `dtype`) with tokens [token_begin, ...) of one sequence. */
void skv__seeded_fill(const skv__seeded_t *seeded, skv__which_t which, int64_t sequence,
                      int64_t token_begin, int64_t tokens, int64_t heads, int64_t dim,
                      skv_dtype_t dtype, void *out);

#endif
