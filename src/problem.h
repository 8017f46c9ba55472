/* problem.h: what a problem must be. */
#ifndef SKV_PROBLEM_H
#define SKV_PROBLEM_H

#include "error.h"

/* A window side without a bound, inside the library. */
#define SKV__FAR (INT64_MAX / 4)

skv_status_t skv__problem_check(const skv_problem_t *problem, skv__error_t *error);
int64_t skv__problem_blocks(const skv_problem_t *problem); /* of the tree over the capacity */
/* Window sides with causal folded in, SKV__FAR where unbounded. */
int64_t skv__problem_left(const skv_problem_t *problem);
int64_t skv__problem_right(const skv_problem_t *problem);

#endif
