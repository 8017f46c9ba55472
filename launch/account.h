/* account.h: what attention costs in FLOP and bytes, and how fast a GPU could at best be. Pure
 * functions. A byte is counted once for each time that it crosses the memory boundary. */
#ifndef SKV_ACCOUNT_H
#define SKV_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct skv__gpu {
  const char *name;
  double flop_per_second;  /* dense fp16 or bf16 on tensor cores */
  double bytes_per_second; /* of device memory */
} skv__gpu_t;

extern const skv__gpu_t skv__gpus[]; /* ends with a NULL name */

typedef struct skv__account_case {
  int64_t q_heads, kv_heads, head_dim, value_head_dim;
  int64_t queries, keys, batch, layers;
  int64_t element_bytes; /* of Q, K, V, O and, where they are stored, of the scores */
  bool causal;           /* bottom-right */
} skv__account_case_t;

/* Figures of one layer, but for the times, which are of all layers. */
typedef struct skv__account {
  double pairs;              /* (query, key) pairs that see each other, per head and sequence */
  double flop;               /* 2 for each multiply-add of Q K^T and P V */
  double score_bytes;        /* of one stored score matrix */
  double materialised_bytes; /* scores written, read, written as P, read; and Q, K, V, O */
  double compulsory_bytes;   /* Q, K, V, O once */
  double materialised_intensity, compulsory_intensity; /* FLOP per byte */
  double head_intensity; /* compulsory, when every query head reads keys of its own */
  double ridge;          /* of the GPU: where memory and arithmetic take equally long */
  double materialised_seconds, compulsory_seconds; /* memory floors */
  double compute_seconds;                          /* arithmetic floor */
  double merge_bytes, merge_flop;                  /* of one row: two (O, LSE) in, one O out */
} skv__account_t;

/* Layers of a model that shape.h knows by name; 1 for anything else. */
int64_t skv__account_layers(const char *shape);

skv__account_t skv__account_of(const skv__account_case_t *work, const skv__gpu_t *gpu);

#endif
