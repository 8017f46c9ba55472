/* cost.h: predicts the seconds of an execute for each direction and reduction, and picks for
 * `auto`. No choice changes a bit of the result, so the model need only rank the choices. It is
 * arithmetic on the arguments alone: ranks with the same arguments choose alike, and must be given
 * the same machine.
 *
 * Symbols: P ranks; R rows; s = 4 (value_head_dim + 2) bytes of a row's state; a, b: alpha_seconds
 * and bytes_per_second.
 *   compute    the busiest rank's max(2 pairs (head_dim + value_head_dim) / flop rate,
 *              K and V bytes read / read rate), pairs: visible (row, key) pairs
 *   pass-Q     N node-states at the busiest rank (schedule.h, sampled), slices of R/P rows:
 *              transfer = a (rounds + N min(1, R/P)) + N (R/P) s / b, merge = 3 N (R/P) s / merge
 *              rate. With fewer rows than ranks, the busiest rank of the one slice counts instead
 *              when it is busier.
 *   pass-KV    P - 1 steps of K and V of the largest shard: (P - 1) (2 a + shard bytes / b). Ring
 *              and gather cost the same here; ring talks to neighbours only and is preferred.
 *   seconds    the sum: overlap is left out, for it helps every choice.
 */
#ifndef SKV_COST_H
#define SKV_COST_H

#include "schedule.h"

/* Of one rank. */
typedef struct skv__machine {
  double alpha_seconds;    /* of a message, whatever it carries */
  double bytes_per_second; /* in each direction */
  double flop_per_second;
  double merge_bytes_per_second; /* read and written by merges */
  double read_bytes_per_second;  /* of K and V */
} skv__machine_t;

typedef struct skv__cost {
  double compute_seconds, transfer_seconds, merge_seconds, seconds;
} skv__cost_t;

/* A few cores of one host: what `auto` assumes. */
skv__machine_t skv__machine_typical(void);

/* At full size: q_tokens queries at the end of kv_capacity_tokens keys in each sequence. direction
 * and reduce are not AUTO. False when memory runs out. */
bool skv__cost_predict(const skv__machine_t *machine, const skv_problem_t *problem,
                       const skv__shard_t *shard, skv_row_owner_t row_owner,
                       skv_direction_t direction, skv_reduce_t reduce, skv__cost_t *cost);
/* Replaces AUTO in *direction and *reduce by the cheapest; what is not AUTO stays. Never picks the
 * ring for pass-Q, whose states it would carry past every rank. When equal: scatter before
 * butterfly before tree before gather, pass-Q before pass-KV. False when memory runs out, or when
 * the direction does not know the reduction: nothing has changed then. */
bool skv__cost_choose(const skv__machine_t *machine, const skv_problem_t *problem,
                      const skv__shard_t *shard, skv_row_owner_t row_owner,
                      skv_direction_t *direction, skv_reduce_t *reduce, skv__cost_t *cost);

#endif
