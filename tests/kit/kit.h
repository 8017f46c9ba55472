/* kit.h: what every test of attention needs: an independent fp64 oracle, a plain same-precision
 * implementation, the error rule, random problems, poison. The oracle is naive on purpose and
 * shares no code with the library.
 */
#ifndef KIT_H
#define KIT_H

#include <stdbool.h>

#include "skv.h"

/* One whole problem on one rank: dense tensors [batch][tokens][heads][dim], owned; free with
 * kit_case_free. */
typedef struct kit_case {
  skv_problem_t problem;
  int64_t *q_tokens, *k_tokens, *q_start; /* [batch] */
  float *sinks;                           /* [q_heads] or NULL */
  void *q, *k, *v;                        /* of problem.dtype; slots past a length hold NaN */
  uint64_t seed;
} kit_case_t;

/* Random tensors (launch/seeded.h) for problem and lengths; lengths NULL: full. Adds sinks when
 * with_sinks. */
kit_case_t *kit_case_create(const skv_problem_t *problem, const int64_t *q_tokens,
                            const int64_t *k_tokens, bool with_sinks, uint64_t seed);
/* A random small problem that covers shapes, masks, dtypes, softcap, sinks, empty rows, GQA ratios,
 * head dims. */
kit_case_t *kit_case_random(uint64_t seed);
void kit_case_free(kit_case_t *test);
int64_t kit_rows_seeing(const kit_case_t *test, int64_t keys); /* rows that see at least as many */
void kit_case_describe(const kit_case_t *test, char *text,
                       size_t text_bytes);            /* one line, with the seed */
skv_inputs_t kit_case_inputs(const kit_case_t *test); /* for a one-rank plan */
float kit_widen(skv_dtype_t dtype, const void *data, int64_t index);
void kit_narrow(skv_dtype_t dtype, void *data, int64_t index,
                float value); /* round to nearest even */

/* (O, LSE) in fp64: dense [batch][q_tokens][q_heads][value_head_dim] and
 * [batch][q_tokens][q_heads]. */
void kit_oracle(const kit_case_t *test, double *o, double *lse);
/* The same in fp32 by three plain passes (the "plain same-precision implementation" of the error
 * rule). */
void kit_plain(const kit_case_t *test, float *o, float *lse);

/* The rule: max|o - ref| <= 2 max|plain - ref| + 2 max|(ref + 0.3 - 0.3) - ref| (the last in
 * out_dtype's precision), and |lse - ref| <= 1e-5 max(1, |ref|), EMPTY rows exactly (0, -inf). `o`
 * holds out_dtype. Returns true when kept; else writes what broke into text. */
bool kit_check(const kit_case_t *test, const void *o, const float *lse, char *text,
               size_t text_bytes);

/* Memory between guard bytes, filled with a signalling pattern (NaN as floats). */
void *kit_poisoned(size_t bytes);
bool kit_guards_intact(const void *memory);
void kit_poisoned_free(void *memory);

/* Run `body(rank, context, user)` on `ranks` threads of this process, each with a context over an
 * in-process transport that can delay messages at random (delay_seed 0: no delays). Returns the
 * first non-zero result of body. */
typedef int (*kit_rank_body_t)(int32_t rank, skv_context_t *context, void *user);
int kit_run_ranks(int32_t ranks, int32_t threads, const char *kernel, uint64_t delay_seed,
                  kit_rank_body_t body, void *user);

#endif
