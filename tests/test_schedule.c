/* Schedules, played on virtual ranks: every slice is reduced along exactly the canonical tree. */
#include <string.h>

#include "check.h"
#include "schedule.h"

enum { MOST_RANKS = 4096, MOST_NODES = 16384 };
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static const skv_reduce_t reduces[] = {SKV_GATHER, SKV_SCATTER, SKV_TREE, SKV_BUTTERFLY, SKV_RING};
static const skv__layout_t layouts[] = {
    {SKV_CONTIGUOUS, 0}, {SKV_ZIGZAG, 0}, {SKV_BLOCKS, 1}, {SKV_BLOCKS, 4}};

/* All ranks' sets of one slice, in one pool. */
typedef struct play {
  skv__shard_t shard;
  skv__pending_t sets[MOST_RANKS];
  skv__held_t pool[2 * MOST_NODES];
  int32_t pool_used;
  int64_t nodes, merges;
  bool merged_at[MOST_NODES];
} play_t;

static play_t play;
static skv__hop_t hops[2 * MOST_RANKS];

static void record_merge(void *user, skv__held_t left, skv__held_t right) {
  skv__node_t parent = {left.node.begin, right.node.end};
  (void)user;
  CHECK(left.node.end == right.node.begin);
  CHECK(skv__order_is_node(play.shard.blocks, parent));
  CHECK(skv__order_split(parent) == right.node.begin);
  CHECK(!play.merged_at[right.node.begin], "twice at %ld", right.node.begin);
  play.merged_at[right.node.begin] = true;
  ++play.merges;
}

static void deal(const skv__shard_t *shard) {
  static skv__node_t nodes[MOST_NODES];
  play.shard = *shard;
  play.pool_used = 0;
  play.nodes = play.merges = 0;
  memset(play.merged_at, 0, sizeof play.merged_at);
  for (int32_t rank = 0; rank < shard->ranks; ++rank) {
    int64_t count = skv__shard_frontier(shard, rank, nodes);
    play.sets[rank] = (skv__pending_t){shard->blocks, false, (int32_t)count, (int32_t)count,
                                       play.pool + play.pool_used};
    for (int64_t index = 0; index < count; ++index)
      play.pool[play.pool_used++] = (skv__held_t){nodes[index], rank};
    play.nodes += count;
  }
}

/* The set moves to the end of the pool, where there is room for more; a full pool is compacted. */
static void make_room(skv__pending_t *set, int32_t more) {
  static skv__held_t packed[2 * MOST_NODES];
  if (play.pool_used + set->count + more > COUNT(play.pool)) {
    play.pool_used = 0;
    for (int32_t rank = 0; rank < play.shard.ranks; ++rank) {
      skv__pending_t *other = &play.sets[rank];
      if (other->count > 0)
        memcpy(packed + play.pool_used, other->held, (size_t)other->count * sizeof *packed);
      other->held = play.pool + play.pool_used;
      play.pool_used += other->count;
    }
    memcpy(play.pool, packed, (size_t)play.pool_used * sizeof *packed);
  }
  CHECK(play.pool_used + set->count + more <= COUNT(play.pool));
  memmove(play.pool + play.pool_used, set->held, (size_t)set->count * sizeof *set->held);
  set->held = play.pool + play.pool_used;
  set->capacity = set->count + more;
  play.pool_used += set->capacity;
}

static void move_set(int32_t from_rank, int32_t to_rank) {
  skv__pending_t *from = &play.sets[from_rank], *to = &play.sets[to_rank];
  if (from->count > 0)
    make_room(to, from->count);
  for (int32_t index = 0; index < from->count; ++index)
    skv__pending_insert(to, from->held[index].node, from->held[index].slot, record_merge, NULL);
  from->count = 0;
}

static int32_t expected_hops(skv_reduce_t reduce, int32_t ranks, int32_t owner) {
  int32_t seats = 1;
  if (ranks == 1)
    return 0;
  while (2 * seats <= ranks)
    seats *= 2;
  int32_t folded = ranks - seats;
  if (reduce == SKV_GATHER || reduce == SKV_TREE)
    return ranks - 1 + (owner != 0);
  if (reduce == SKV_BUTTERFLY)
    return ranks - 1 + (owner < 2 * folded && owner % 2 == 1);
  return ranks - 1;
}

/* Rounds ascend, and in a round nobody passes on what it receives in that round. */
static void check_rounds(int32_t count, int32_t rounds, int32_t ranks) {
  static int32_t sent_in[MOST_RANKS], received_in[MOST_RANKS];
  memset(sent_in, 0xff, sizeof sent_in);
  memset(received_in, 0xff, sizeof received_in);
  for (int32_t index = 0; index < count; ++index) {
    const skv__hop_t *hop = &hops[index];
    CHECK(hop->round >= 0 && hop->round < rounds);
    CHECK(index == 0 || hop->round >= hops[index - 1].round);
    CHECK(hop->from >= 0 && hop->from < ranks && hop->to >= 0 && hop->to < ranks);
    CHECK(hop->from != hop->to && !hop->copies);
    CHECK(sent_in[hop->from] != hop->round, "one message a round");
    sent_in[hop->from] = hop->round;
    received_in[hop->to] = hop->round;
    CHECK(sent_in[hop->to] != hop->round && received_in[hop->from] != hop->round);
  }
}

static void check_slice(const skv__shard_t *shard, skv_reduce_t reduce, int32_t owner) {
  int32_t count = skv__schedule_hops(reduce, SKV_RESULTS_OWNER, shard->ranks, owner, hops);
  CHECK(count == expected_hops(reduce, shard->ranks, owner));
  CHECK(count <= skv__schedule_hop_bound(shard->ranks));
  check_rounds(count, skv__schedule_rounds(reduce, shard->ranks), shard->ranks);
  deal(shard);
  for (int32_t index = 0; index < count; ++index)
    move_set(hops[index].from, hops[index].to);
  CHECK(skv__pending_complete(&play.sets[owner]), "reduce %d, %ld blocks, %d ranks, owner %d",
        reduce, shard->blocks, shard->ranks, owner);
  for (int32_t rank = 0; rank < shard->ranks; ++rank)
    CHECK(rank == owner || play.sets[rank].count == 0);
  CHECK(play.merges == (play.nodes > 0 ? play.nodes - 1 : 0));
}

Test(schedule, every_slice_is_reduced_along_the_tree) {
  const int64_t blocks[] = {0,  1,  2,  3,   7,   8,   9,   13,  31,  32,
                            33, 61, 64, 127, 128, 129, 255, 256, 257, 509};
  for (int32_t ranks = 1; ranks <= 64; ++ranks)
    for (int size = 0; size < COUNT(blocks); ++size)
      for (int layout = 0; layout < COUNT(layouts); ++layout)
        for (int reduce = 0; reduce < COUNT(reduces); ++reduce) {
          skv__shard_t shard = {blocks[size], ranks, layouts[layout]};
          for (int32_t owner = 0; owner < ranks; owner += ranks <= 17 ? 1 : 1 + ranks / 7)
            check_slice(&shard, reduces[reduce], owner);
        }
}

Test(schedule, thousands_of_ranks) {
  const int32_t ranks[] = {100, 127, 128, 129, 1000, 1023, 2049, 4095, 4096};
  const int64_t blocks[] = {0, 5, 1021, 4096, 6007};
  for (int count = 0; count < COUNT(ranks); ++count)
    for (int size = 0; size < COUNT(blocks); ++size)
      for (int layout = 0; layout < COUNT(layouts); ++layout)
        for (int reduce = 0; reduce < COUNT(reduces); ++reduce) {
          skv__shard_t shard = {blocks[size], ranks[count], layouts[layout]};
          check_slice(&shard, reduces[reduce], (ranks[count] / 3 * (size + 1)) % ranks[count]);
        }
}

Test(schedule, rounds) {
  for (int reduce = 0; reduce < COUNT(reduces); ++reduce)
    cr_assert_eq(skv__schedule_rounds(reduces[reduce], 1), 0);
  const int32_t expected[][6] = {/* ranks, gather, scatter, tree, butterfly, ring */
                                 {2, 2, 1, 2, 1, 1},        {3, 2, 1, 3, 3, 2}, {4, 2, 1, 3, 2, 3},
                                 {5, 2, 1, 4, 4, 4},        {8, 2, 1, 4, 3, 7}, {9, 2, 1, 5, 5, 8},
                                 {4096, 2, 1, 13, 12, 4095}};
  for (int row = 0; row < COUNT(expected); ++row)
    for (int reduce = 0; reduce < COUNT(reduces); ++reduce)
      cr_assert_eq(skv__schedule_rounds(reduces[reduce], expected[row][0]),
                   expected[row][1 + reduce]);
}

/* All slices together: in a halving round a rank has one partner, the nearest first. */
Test(schedule, butterfly_halves_with_one_partner_a_round) {
  for (int32_t ranks = 2; ranks <= 64; ranks *= 2)
    for (int32_t owner = 0; owner < ranks; ++owner) {
      int32_t count = skv__schedule_hops(SKV_BUTTERFLY, SKV_RESULTS_OWNER, ranks, owner, hops);
      for (int32_t index = 0; index < count; ++index)
        CHECK((hops[index].from ^ hops[index].to) == 1 << hops[index].round);
    }
}

Test(schedule, results_are_copied_from_the_owner) {
  for (int32_t ranks = 1; ranks <= 9; ++ranks)
    for (int32_t owner = 0; owner < ranks; ++owner)
      for (int reduce = 0; reduce < COUNT(reduces); ++reduce) {
        int32_t reducing = expected_hops(reduces[reduce], ranks, owner);
        int32_t rounds = skv__schedule_rounds(reduces[reduce], ranks);
        int32_t root = skv__schedule_hops(reduces[reduce], SKV_RESULTS_ROOT, ranks, owner, hops);
        CHECK(root == reducing + (owner != 0));
        CHECK(owner == 0 || (hops[root - 1].from == owner && hops[root - 1].to == 0 &&
                             hops[root - 1].copies && hops[root - 1].round == rounds));
        int32_t all = skv__schedule_hops(reduces[reduce], SKV_RESULTS_ALL, ranks, owner, hops);
        CHECK(all == reducing + ranks - 1 && all <= skv__schedule_hop_bound(ranks));
        bool reached[9] = {false};
        for (int32_t index = reducing; index < all; ++index) {
          CHECK(hops[index].from == owner && hops[index].copies && hops[index].round == rounds);
          reached[hops[index].to] = true;
        }
        for (int32_t rank = 0; rank < ranks; ++rank)
          CHECK(reached[rank] == (rank != owner));
      }
}

/* Every rank works on every shard once, and gets it from a rank that has it then. */
Test(schedule, pass_kv_steps) {
  for (int32_t ranks = 1; ranks <= 33; ++ranks)
    for (int32_t rank = 0; rank < ranks; ++rank) {
      bool seen[33] = {false};
      for (int32_t step = 0; step < ranks; ++step) {
        skv__kv_step_t ring = skv__schedule_kv_step(SKV_RING, ranks, rank, step);
        skv__kv_step_t gather = skv__schedule_kv_step(SKV_GATHER, ranks, rank, step);
        CHECK(ring.source >= 0 && ring.source < ranks && !seen[ring.source]);
        CHECK(step > 0 || (ring.source == rank && ring.from == -1 && gather.from == -1));
        CHECK(gather.source == ring.source && gather.to == -1);
        CHECK(step == 0 || gather.from == gather.source);
        CHECK((ring.to == -1) == (step == ranks - 1));
        seen[ring.source] = true;
        if (step == 0)
          continue;
        skv__kv_step_t before = skv__schedule_kv_step(SKV_RING, ranks, ring.from, step - 1);
        CHECK(before.source == ring.source && before.to == rank);
      }
    }
}

static skv__traffic_t traffic_of(int64_t blocks, int32_t ranks, skv__layout_t layout,
                                 skv_reduce_t reduce) {
  skv__traffic_t traffic;
  CHECK(skv__schedule_traffic(&(skv__shard_t){blocks, ranks, layout}, reduce, 0, 0, &traffic));
  return traffic;
}

Test(schedule, traffic_by_hand) {
  skv__layout_t contiguous = {SKV_CONTIGUOUS, 0};
  for (int32_t ranks = 2; ranks <= 64; ranks *= 2) {
    int64_t pairs = (int64_t)ranks * (ranks - 1);
    cr_assert_eq(traffic_of(8 * ranks, ranks, contiguous, SKV_SCATTER).node_states, pairs);
    cr_assert_eq(traffic_of(8 * ranks, ranks, contiguous, SKV_BUTTERFLY).node_states, pairs);
    cr_assert_eq(traffic_of(8 * ranks, ranks, contiguous, SKV_GATHER).node_states,
                 pairs + ranks - 1);
    cr_assert_eq(traffic_of(8 * ranks, ranks, contiguous, SKV_TREE).node_states, pairs + ranks - 1);
    cr_assert_eq(traffic_of(8 * ranks, ranks, contiguous, SKV_SCATTER).max_rank_node_states,
                 ranks - 1);
  }
  /* scatter: an owner receives one state from every other; gather: the root all of every slice */
  skv__traffic_t scatter = traffic_of(64, 8, contiguous, SKV_SCATTER);
  cr_assert(scatter.max_rank_received == 7 && scatter.max_slice_received == 7);
  skv__traffic_t gather = traffic_of(64, 8, contiguous, SKV_GATHER);
  cr_assert(gather.max_rank_received == 56 && gather.max_slice_received == 7);
  skv__traffic_t butterfly = traffic_of(64, 8, contiguous, SKV_BUTTERFLY);
  cr_assert(butterfly.max_rank_received == 7 && butterfly.max_slice_received == 3);
  /* ring of 4 aligned ranks, slice by slice: 1+2+2, 1+1+2, 1+2+2, 1+1+2 */
  cr_assert_eq(traffic_of(4, 4, contiguous, SKV_RING).node_states, 18);
  cr_assert_float_eq(traffic_of(4, 4, contiguous, SKV_RING).per_row, 1.5, 1e-12);
  cr_assert_eq(traffic_of(4, 4, contiguous, SKV_RING).max_pending, 3);
  cr_assert_eq(traffic_of(100, 1, contiguous, SKV_TREE).node_states, 0);
  cr_assert_eq(traffic_of(0, 5, contiguous, SKV_TREE).node_states, 0);
}

/* Scatter on 8 ranks, 2 nodes of 4: of the 7 ranks that a rank sends to, 4 are on the other node.
 * Butterfly halves with the nearest first: of 7 parts, 4 + 2 + 1, the last exchange, of 4 slices
 * merged into one, crosses. */
Test(schedule, traffic_between_nodes) {
  const skv__shard_t shard = {64, 8, {SKV_CONTIGUOUS, 0}};
  skv__traffic_t traffic;
  const struct {
    skv_reduce_t reduce;
    int32_t node_ranks;
    double share;
  } cases[] = {{SKV_SCATTER, 4, 4.0 / 7}, {SKV_SCATTER, 1, 1},         {SKV_SCATTER, 8, 0},
               {SKV_SCATTER, 0, 0},       {SKV_BUTTERFLY, 4, 1.0 / 7}, {SKV_BUTTERFLY, 2, 3.0 / 7}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    CHECK(skv__schedule_traffic(&shard, cases[i].reduce, 0, cases[i].node_ranks, &traffic));
    cr_assert_float_eq(traffic.far_share, cases[i].share, 1e-12, "case %zu: %g", i,
                       traffic.far_share);
  }
}

/* Scatter is linear in the slices, so a sample of them must give the same total. */
Test(schedule, sampled_traffic) {
  skv__shard_t shard = {8192 + 17, 1024, {SKV_CONTIGUOUS, 0}};
  skv__traffic_t sampled;
  int64_t frontiers = 0;
  for (int32_t rank = 0; rank < shard.ranks; ++rank)
    frontiers += skv__shard_frontier(&shard, rank, NULL);
  cr_assert(skv__schedule_traffic(&shard, SKV_SCATTER, 16, 0, &sampled));
  double expected = (double)frontiers * (shard.ranks - 1);
  cr_assert_float_eq((double)sampled.node_states / expected, 1, 0.01);
  cr_assert_leq(sampled.max_rank_received, frontiers, "an owner receives its own slice alone");
}

/* Mean over 2 to 16 ranks of node-states sent per row over (ranks - 1). */
static double mean_per_row(int64_t blocks, int64_t blocks_of_a_rank, skv__layout_t layout,
                           skv_reduce_t reduce) {
  double sum = 0;
  for (int32_t ranks = 2; ranks <= 16; ++ranks)
    sum += traffic_of(blocks + ranks * blocks_of_a_rank, ranks, layout, reduce).per_row;
  return sum / 15;
}

/* The figures on which the choice of layouts rests: docs/layouts.md. */
Test(schedule, traffic_of_layouts) {
  const struct {
    int64_t blocks, blocks_of_a_rank;
    skv__layout_t layout;
    double scatter, tree, butterfly, ring, tolerance;
  } cases[] = {
      {10007, 0, {SKV_CONTIGUOUS, 0}, 3.5, 4.0, 3.8, 5.4, 0.08},
      {20011, 0, {SKV_CONTIGUOUS, 0}, 3.5, 4.0, 3.8, 5.4, 0.08},
      {0, 128, {SKV_CONTIGUOUS, 0}, 1.0, 1.1, 1.0, 2.1, 0.12},
      {0, 128, {SKV_ZIGZAG, 0}, 2.0, 2.1, 2.0, 4.3, 0.06},
  };
  for (int index = 0; index < COUNT(cases); ++index) {
    double expected[] = {cases[index].scatter, cases[index].tree, cases[index].butterfly,
                         cases[index].ring};
    for (int reduce = 1; reduce < COUNT(reduces); ++reduce) {
      double mean = mean_per_row(cases[index].blocks, cases[index].blocks_of_a_rank,
                                 cases[index].layout, reduces[reduce]);
      cr_assert_float_eq(mean / expected[reduce - 1], 1, cases[index].tolerance,
                         "case %d, reduce %d: %.3f", index, reduces[reduce], mean);
    }
  }
  cr_assert_geq(mean_per_row(0, 17, (skv__layout_t){SKV_BLOCKS, 1}, SKV_SCATTER), 17);
}
