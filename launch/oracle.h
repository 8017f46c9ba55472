/* oracle.h: plain attention of some rows, in fp64 and in fp32. It shares the 16-bit
 * formats (kernels/convert.h) with the kernels and nothing else. */
#ifndef SKV_ORACLE_H
#define SKV_ORACLE_H

#include "launch/input.h"

typedef struct skv__oracle_row {
  int64_t sequence, query, head; /* query: of the whole job */
} skv__oracle_row_t;

typedef struct skv__oracle {
  double *o, *lse; /* [rows][value_head_dim], [rows] */
  float *plain;    /* [rows][value_head_dim], by three plain passes in fp32 */
} skv__oracle_t;

/* Rows of one sequence. `sinks` may be NULL. narrow_weights: `plain` rounds its weights to the
 * inputs' type, as kernels on tensor cores must. Free the oracle whatever comes back. */
skv_status_t skv__oracle_rows(skv__oracle_t *oracle, const skv__input_t *input,
                              const skv_problem_t *problem, const float *sinks, bool narrow_weights,
                              const skv__oracle_row_t *rows, int64_t count, skv__error_t *error);
void skv__oracle_free(skv__oracle_t *oracle);

#endif
