/* shard.h: which rank owns which blocks. A pure function of the capacity in blocks, never of
 * lengths. */
#ifndef SKV_SHARD_H
#define SKV_SHARD_H

#include <stdint.h>

#include "error.h"
#include "order.h"
#include "skv.h"

typedef struct skv__layout {
  skv_layout_kind_t kind;
  int64_t run_blocks; /* SKV_BLOCKS only */
} skv__layout_t;

typedef struct skv__shard {
  int64_t blocks; /* of the whole tree */
  int32_t ranks;
  skv__layout_t layout;
} skv__shard_t;

/* Whether runs of blocks:N are so many that lists of them would take minutes to make: SKV_INVALID.
 */
skv_status_t skv__shard_check(const skv__shard_t *shard, skv__error_t *error);
/* Most maximal intervals that a rank of this shard has (an upper bound that is cheap to compute).
 */
int64_t skv__shard_interval_bound(const skv__shard_t *shard);
/* The rank's maximal intervals of blocks, ascending, disjoint, not adjacent. Returns how many (0 is
 * legal). */
int64_t skv__shard_intervals(const skv__shard_t *shard, int32_t rank, skv__node_t *intervals);
int32_t skv__shard_owner(const skv__shard_t *shard, int64_t block);
int64_t skv__shard_blocks(const skv__shard_t *shard, int32_t rank); /* how many the rank owns */
/* The rank's frontier: maximal nodes inside its intervals, ascending. nodes may be NULL to count.
 */
int64_t skv__shard_frontier(const skv__shard_t *shard, int32_t rank, skv__node_t *nodes);

#endif
