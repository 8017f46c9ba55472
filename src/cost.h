/* cost.h: predicts the seconds of an execute for each direction and reduction, and picks for
 * `auto`. No choice changes a bit of the result, so the model need only rank the choices. It is
 * arithmetic on the arguments alone: ranks with the same arguments choose alike, and must be given
 * the same machine.
 *
 * Symbols: P ranks; R rows; s = 4 (value_head_dim + 2) bytes of a row's state; r, m, b: seconds of
 * a round and of a message, and bytes a second, of the machine.
 *   compute    the busiest rank's max(2 pairs (head_dim + value_head_dim) / flop rate,
 *              K and V bytes read / read rate), pairs: visible (row, key) pairs; and what each
 *              evaluation takes besides
 *   pass-Q     N node-states at the busiest rank (schedule.h, sampled), slices of R/P rows:
 *              transfer = r rounds + m N min(1, R/P) + N (R/P) s / b, merge = 3 N (R/P) s / merge
 *              rate. With fewer rows than ranks, the busiest rank of the one slice counts instead
 *              when it is busier.
 *   pass-KV    P - 1 steps of K and V of the largest shard: (P - 1) (r + m + shard bytes / b). Ring
 *              and gather cost the same on one node; ring talks to neighbours only and is
 * preferred. nodes      m and b are those of the links that carry the messages: near ones and far
 * ones by the share of node-states that cross nodes. Every step of a ring waits for the hop that
 * does; a gather crosses for the shards of other nodes only. seconds    the sum; where the machine
 * overlaps, work in n parts takes the larger of compute and all else, and one part of the smaller.
 * Parts are KV heads (pass-KV), or passes whose states are 32 MiB (pass-Q).
 */
#ifndef SKV_COST_H
#define SKV_COST_H

#include "error.h"
#include "schedule.h"

typedef struct skv__cost {
  double compute_seconds, transfer_seconds, merge_seconds, seconds;
} skv__cost_t;

/* What `auto` assumes: a few cores of one host, or Hopper GPUs with NVLink, eight in a node, and a
 * network of 400 Gbit/s for each. */
skv_machine_t skv__machine_typical(skv_backend_t backend);
/* Its doubles by name, for files and messages. */
typedef struct skv__figure {
  const char *name;
  size_t offset; /* in skv_machine_t */
  bool may_be_zero;
} skv__figure_t;
enum { SKV__FIGURES = 11 };
extern const skv__figure_t skv__figures[SKV__FIGURES];
double skv__figure(const skv_machine_t *machine, int figure);
/* All that choices depend on, in one number. */
uint64_t skv__machine_digest(const skv_machine_t *machine);
skv_status_t skv__machine_check(const skv_machine_t *machine, skv__error_t *error);

/* At full size: q_tokens queries at the end of kv_capacity_tokens keys in each sequence. direction
 * and reduce are not AUTO. False when memory runs out. */
bool skv__cost_predict(const skv_machine_t *machine, const skv_problem_t *problem,
                       const skv__shard_t *shard, skv_row_owner_t row_owner,
                       skv_direction_t direction, skv_reduce_t reduce, skv__cost_t *cost);
/* Replaces AUTO in *direction and *reduce by the cheapest; what is not AUTO stays. Never picks the
 * ring for pass-Q, whose states it would carry past every rank. When equal: scatter before
 * butterfly before tree before gather, pass-Q before pass-KV. False when memory runs out, or when
 * the direction does not know the reduction: nothing has changed then. */
bool skv__cost_choose(const skv_machine_t *machine, const skv_problem_t *problem,
                      const skv__shard_t *shard, skv_row_owner_t row_owner,
                      skv_direction_t *direction, skv_reduce_t *reduce, skv__cost_t *cost);

#endif
