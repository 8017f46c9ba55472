/* ladder.h: attention as it was learnt, one rung a step, all on the same inputs.
 *
 *   naive     S, P in memory; exp as it stands
 *   safe      S, P in memory; softmax in three passes, after subtracting the maximum
 *   two-pass  S, P in memory; maximum and sum in one pass (Milakov and Gimelshein,
 *             arXiv:1805.02867)
 *   one-pass  neither S nor P (the same recurrence carried to the output; Rabe and Staats,
 *             arXiv:2112.05682)
 *   splitkv   this library
 *
 * The first four are plain C on one thread, fp32, one key block of 64 after the other.
 */
#ifndef LADDER_H
#define LADDER_H

#include <stdbool.h>
#include <stdint.h>

/* Keys of a block, and queries of a tile that share one sweep over the keys. */
#define LADDER_BLOCK 64

/* Every query sees every key. Tokens are a multiple of LADDER_BLOCK. */
typedef struct ladder_problem {
  int64_t heads, tokens, dim;
  float scale;
  int32_t threads;  /* of the library's rung */
  float *q, *k, *v; /* [tokens][heads][dim] */
  float *k_blocks;  /* K again, [heads][tokens / 64][dim][64]: what the plain rungs read */
} ladder_problem_t;

/* What a rung did. Bytes: every pass reads or writes each byte of a buffer once. */
typedef struct ladder_work {
  void *buffer;
  double moved_bytes;
} ladder_work_t;

typedef struct ladder_rung {
  const char *name;
  int64_t (*buffer_bytes)(const ladder_problem_t *problem); /* -1: the rung cannot run */
  /* o [tokens][heads][dim]. False when it failed. */
  bool (*run)(const ladder_problem_t *problem, ladder_work_t *work, float *o);
} ladder_rung_t;

extern const ladder_rung_t ladder_rungs[];
extern const int32_t ladder_rung_count;

/* The library's rung, one head a KV head, default leaf and block. */
int64_t ladder_splitkv_bytes(const ladder_problem_t *problem);
bool ladder_splitkv_run(const ladder_problem_t *problem, ladder_work_t *work, float *o);

/* ---- inputs and truth ---- */

/* Seeded tensors; `gain` multiplies Q and with it the logits. False when memory runs out. */
bool ladder_problem_open(ladder_problem_t *problem, uint64_t seed, float gain);
void ladder_problem_close(ladder_problem_t *problem);

typedef struct ladder_quality {
  double error;   /* largest |o - fp64|, over the finite elements of every 64th query */
  int64_t broken; /* elements of O that are inf or NaN */
} ladder_quality_t;
ladder_quality_t ladder_judge(const ladder_problem_t *problem, const float *o);

/* ---- measuring ---- */

typedef struct ladder_result {
  bool ran;
  double seconds; /* median */
  double moved_bytes, buffer_bytes;
  double resident_bytes; /* growth of the peak resident set of a process of its own */
  ladder_quality_t quality;
} ladder_result_t;

/* Runs one rung in a child process, `repeats` times. */
ladder_result_t ladder_measure(const ladder_rung_t *rung, const ladder_problem_t *problem,
                               int32_t repeats);

#endif
