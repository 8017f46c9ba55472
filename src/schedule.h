/* schedule.h: a reduction is a list of hops. Pure integers.
 *
 * Rows are cut into slices by their owner: slice o holds the rows that rank o owns. Every rank
 * starts with its frontier in the slice's pending set. A hop moves the sender's whole pending set
 * of one slice to the receiver (afterwards the sender holds nothing, unless the hop copies). Hops
 * of one round happen together, after those of the round before. After the last reducing round the
 * owner holds the root; result hops then copy it to root or all.
 */
#ifndef SKV_SCHEDULE_H
#define SKV_SCHEDULE_H

#include "pending.h"
#include "shard.h"
#include "skv.h"

typedef struct skv__hop {
  int32_t round, from, to;
  bool copies; /* the sender keeps what it sent (result hops) */
} skv__hop_t;

/* Rounds of pass-Q reduction, without result hops (which add one round when results is root or
 * all). */
int32_t skv__schedule_rounds(skv_reduce_t reduce, int32_t ranks);
/* Most hops of a slice, result hops included. */
int32_t skv__schedule_hop_bound(int32_t ranks);
/* The hops of slice `owner`, by round. Returns how many. reduce is not AUTO. */
int32_t skv__schedule_hops(skv_reduce_t reduce, skv_results_t results, int32_t ranks, int32_t owner,
                           skv__hop_t *hops);
/* Where pass-KV rank `rank` gets the shard that it works on at step 0..ranks-1 from, and whose
 * shard that is. Step 0 is its own. Ring: always from the left neighbour, the shard of rank - step.
 * Gather: straight from the owner. */
typedef struct skv__kv_step {
  int32_t source;   /* whose shard */
  int32_t from, to; /* neighbours: receive from, and (ring) forward to; -1: none */
} skv__kv_step_t;
skv__kv_step_t skv__schedule_kv_step(skv_reduce_t reduce, int32_t ranks, int32_t rank,
                                     int32_t step);
/* The other side of it: whose shard this rank sends at step 1..ranks-1, and to whom. */
skv__kv_step_t skv__schedule_kv_send(skv_reduce_t reduce, int32_t ranks, int32_t rank,
                                     int32_t step);

/* What a reduction costs, by simulating pending sets; node-states are per row of a slice. */
typedef struct skv__traffic {
  int64_t node_states;          /* sent, summed over slices and ranks; result hops excluded */
  int64_t max_rank_node_states; /* most that one rank sends */
  int64_t max_rank_received;    /* most that one rank receives */
  int64_t max_slice_received;   /* most that one rank receives of one slice */
  int64_t max_pending;          /* most states that a rank holds of one slice at once */
  double per_row;               /* node_states / (ranks * (ranks - 1)): free order = 1 */
  double far_share;             /* of node_states: that cross from one node of ranks to another */
} skv__traffic_t;
/* False when memory runs out. `slices` > 0 samples that many slices evenly instead of all (for
 * thousands of ranks). Every `node_ranks` ranks are on one node; 0: all are. */
bool skv__schedule_traffic(const skv__shard_t *shard, skv_reduce_t reduce, int32_t slices,
                           int32_t node_ranks, skv__traffic_t *traffic);

#endif
