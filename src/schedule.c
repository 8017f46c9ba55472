/* schedule.c: the hop lists of the reductions, and the steps of pass-KV. What they cost is in
 * traffic.c. Every function writes the hops of one slice in the order of their rounds. */
#include "schedule.h"

/* Rounds of halving that `ranks` ranks need: the logarithm rounded down. */
static int32_t log2_floor(int32_t ranks) {
  return 31 - __builtin_clz((uint32_t)ranks);
}

static int32_t log2_ceil(int32_t ranks) {
  return log2_floor(ranks) + ((ranks & (ranks - 1)) != 0);
}

int32_t skv__schedule_rounds(skv_reduce_t reduce, int32_t ranks) {
  if (ranks == 1)
    return 0;
  switch (reduce) {
  case SKV_GATHER:
    return 2;
  case SKV_SCATTER:
    return 1;
  case SKV_TREE:
    return log2_ceil(ranks) + 1;
  case SKV_BUTTERFLY: /* fold and unfold, unless all ranks pair up */
    return log2_floor(ranks) + ((ranks & (ranks - 1)) != 0 ? 2 : 0);
  case SKV_RING:
    return ranks - 1;
  case SKV_REDUCE_AUTO:
    break;
  }
  return 0;
}

int32_t skv__schedule_hop_bound(int32_t ranks) {
  return 2 * ranks; /* ranks - 1 to bring the parts together, 1 to the owner, ranks - 1 results */
}

typedef struct hop_list {
  skv__hop_t *hops;
  int32_t count;
} hop_list_t;

static void add_hop(hop_list_t *list, int32_t round, int32_t from, int32_t to, bool copies) {
  list->hops[list->count++] = (skv__hop_t){round, from, to, copies};
}

/* Everybody to `to` in one round. */
static void add_star(hop_list_t *list, int32_t round, int32_t ranks, int32_t to) {
  for (int32_t rank = 0; rank < ranks; ++rank)
    if (rank != to)
      add_hop(list, round, rank, to, false);
}

static void add_tree(hop_list_t *list, int32_t ranks) {
  int32_t rounds = log2_ceil(ranks);
  for (int32_t round = 0; round < rounds; ++round)
    for (int64_t rank = (int64_t)1 << round; rank < ranks; rank += (int64_t)2 << round)
      add_hop(list, round, (int32_t)rank, (int32_t)(rank - ((int64_t)1 << round)), false);
}

/* Recursive halving of the rows: in round k a rank keeps the slices whose owner agrees with it in
 * bit k and sends the others to its partner across that bit. So one slice gathers, round by round,
 * at the ranks that agree with its owner in ever more low bits. Ranks beyond a power of two first
 * fold into their left neighbour; seats number those that take part. */
static void add_butterfly(hop_list_t *list, int32_t ranks, int32_t owner) {
  int32_t halvings = log2_floor(ranks), seats = (int32_t)1 << halvings, folded = ranks - seats;
  int32_t round = 0, owner_seat = owner < 2 * folded ? owner / 2 : owner - folded;
  for (int32_t seat = 0; seat < folded; ++seat)
    add_hop(list, round, 2 * seat + 1, 2 * seat, false);
  round += folded > 0;
  for (int32_t bit = 1; bit < seats; bit *= 2, ++round)
    for (int32_t seat = (owner_seat & (bit - 1)) | (~owner_seat & bit); seat < seats;
         seat += 2 * bit) {
      int32_t partner = seat ^ bit;
      add_hop(list, round, seat < folded ? 2 * seat : seat + folded,
              partner < folded ? 2 * partner : partner + folded, false);
    }
  if (owner < 2 * folded && owner % 2 == 1)
    add_hop(list, round, owner - 1, owner, false);
}

static void add_ring(hop_list_t *list, int32_t ranks, int32_t owner) {
  int32_t from = (owner + 1) % ranks;
  for (int32_t round = 0; round < ranks - 1; ++round) {
    int32_t to = (from + 1) % ranks;
    add_hop(list, round, from, to, false);
    from = to;
  }
}

static void add_results(hop_list_t *list, skv_results_t results, int32_t round, int32_t ranks,
                        int32_t owner) {
  int32_t receivers = results == SKV_RESULTS_ALL ? ranks : results == SKV_RESULTS_ROOT ? 1 : 0;
  for (int32_t rank = 0; rank < receivers; ++rank)
    if (rank != owner)
      add_hop(list, round, owner, rank, true);
}

int32_t skv__schedule_hops(skv_reduce_t reduce, skv_results_t results, int32_t ranks, int32_t owner,
                           skv__hop_t *hops) {
  hop_list_t list = {hops, 0};
  if (ranks == 1)
    return 0;
  int32_t rounds = skv__schedule_rounds(reduce, ranks);
  switch (reduce) {
  case SKV_GATHER:
    add_star(&list, 0, ranks, 0);
    break;
  case SKV_SCATTER:
    add_star(&list, 0, ranks, owner);
    break;
  case SKV_TREE:
    add_tree(&list, ranks);
    break;
  case SKV_BUTTERFLY:
    add_butterfly(&list, ranks, owner);
    break;
  case SKV_RING:
    add_ring(&list, ranks, owner);
    break;
  case SKV_REDUCE_AUTO:
    break;
  }
  if ((reduce == SKV_GATHER || reduce == SKV_TREE) && owner != 0)
    add_hop(&list, rounds - 1, 0, owner, false);
  add_results(&list, results, rounds, ranks, owner);
  return list.count;
}

skv__kv_step_t skv__schedule_kv_step(skv_reduce_t reduce, int32_t ranks, int32_t rank,
                                     int32_t step) {
  int32_t source = rank >= step ? rank - step : rank - step + ranks;
  if (reduce == SKV_RING)
    return (skv__kv_step_t){source, step == 0 ? -1 : (rank + ranks - 1) % ranks,
                            step == ranks - 1 ? -1 : (rank + 1) % ranks};
  return (skv__kv_step_t){source, step == 0 ? -1 : source, -1};
}

skv__kv_step_t skv__schedule_kv_send(skv_reduce_t reduce, int32_t ranks, int32_t rank,
                                     int32_t step) {
  if (reduce == SKV_RING)
    return (skv__kv_step_t){(rank - (step - 1) + ranks) % ranks, -1, (rank + 1) % ranks};
  return (skv__kv_step_t){rank, -1, (rank + step) % ranks};
}
