/* Layouts: whoever asks gets the same answer, every block and key has one place, and shares are
 * even. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "shard.h"

static const int64_t block_counts[] = {0,   1,   2,   3,   7,    8,    9,    13,   31,  32,  33,
                                       63,  64,  65,  97,  127,  128,  129,  255,  256, 257, 509,
                                       511, 512, 513, 997, 1023, 1024, 1025, 4093, 6000};
static const skv__layout_t layouts[] = {{SKV_CONTIGUOUS, 0}, {SKV_ZIGZAG, 0}, {SKV_BLOCKS, 1},
                                        {SKV_BLOCKS, 3},     {SKV_BLOCKS, 4}, {SKV_BLOCKS, 5000}};
static const int32_t many_ranks[] = {100, 127, 128, 129, 1000, 2047, 2048, 4095, 4096};

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* Frontier nodes partition the intervals. */
static void check_frontier(const skv__shard_t *shard, int32_t rank, const skv__node_t *intervals,
                           int64_t count) {
  static skv__node_t nodes[8192];
  int64_t frontier = skv__shard_frontier(shard, rank, nodes), next = 0;
  CHECK(skv__shard_frontier(shard, rank, NULL) == frontier);
  for (int64_t index = 0; index < count; ++index)
    for (int64_t at = intervals[index].begin; at < intervals[index].end; at = nodes[next++].end) {
      CHECK(next < frontier);
      CHECK(nodes[next].begin == at);
      CHECK(nodes[next].end <= intervals[index].end);
      CHECK(skv__order_is_node(shard->blocks, nodes[next]));
    }
  CHECK(next == frontier);
}

static void check_shard(const skv__shard_t *shard) {
  static skv__node_t intervals[8192];
  static int32_t owner[8192];
  memset(owner, 0xff, sizeof owner);
  for (int32_t rank = 0; rank < shard->ranks; ++rank) {
    int64_t count = skv__shard_intervals(shard, rank, intervals), blocks = 0;
    CHECK(count <= skv__shard_interval_bound(shard));
    for (int64_t index = 0; index < count; ++index) {
      CHECK(intervals[index].begin < intervals[index].end);
      if (index > 0)
        CHECK(intervals[index].begin > intervals[index - 1].end);
      CHECK(intervals[index].end <= shard->blocks);
      blocks += intervals[index].end - intervals[index].begin;
      for (int64_t block = intervals[index].begin; block < intervals[index].end; ++block) {
        CHECK(owner[block] == -1, "block %ld belongs to ranks %d and %d", block, owner[block],
              rank);
        owner[block] = rank;
      }
    }
    CHECK(skv__shard_blocks(shard, rank) == blocks);
    check_frontier(shard, rank, intervals, count);
  }
  for (int64_t block = 0; block < shard->blocks; ++block)
    CHECK(skv__shard_owner(shard, block) == owner[block],
          "layout %d of %ld blocks over %d ranks: block %ld", shard->layout.kind, shard->blocks,
          shard->ranks, block);
}

Test(shard, every_block_has_one_owner) {
  for (int layout = 0; layout < COUNT(layouts); ++layout)
    for (int index = 0; index < COUNT(block_counts); ++index) {
      for (int32_t ranks = 1; ranks <= 64; ++ranks)
        check_shard(&(skv__shard_t){block_counts[index], ranks, layouts[layout]});
      for (int many = index % 3; many < COUNT(many_ranks); many += 3)
        check_shard(&(skv__shard_t){block_counts[index], many_ranks[many], layouts[layout]});
    }
}

/* Keys: a leaf is [i * leaf, (i + 1) * leaf), a block is whole leaves, the last one may be cut. */
Test(shard, every_key_is_in_one_leaf_of_one_rank) {
  enum { LEAF = 64, LEAVES = 3, MOST = 9000 };
  static int seen[MOST];
  static skv__node_t intervals[64];
  for (int64_t keys = 0; keys < MOST; keys += keys < 400 ? 67 : 1013)
    for (int32_t ranks = 1; ranks <= 9; ++ranks)
      for (int layout = 0; layout < COUNT(layouts); ++layout) {
        int64_t block_keys = LEAF * LEAVES, blocks = (keys + block_keys - 1) / block_keys;
        skv__shard_t shard = {blocks, ranks, layouts[layout]};
        memset(seen, 0, sizeof seen);
        for (int32_t rank = 0; rank < ranks; ++rank) {
          int64_t count = skv__shard_intervals(&shard, rank, intervals);
          for (int64_t index = 0; index < count; ++index)
            for (int64_t leaf = intervals[index].begin * LEAVES;
                 leaf < intervals[index].end * LEAVES; ++leaf)
              for (int64_t key = leaf * LEAF; key < (leaf + 1) * LEAF && key < keys; ++key) {
                ++seen[key];
                CHECK(skv__shard_owner(&shard, key / block_keys) == rank);
              }
        }
        for (int64_t key = 0; key < keys; ++key)
          CHECK(seen[key] == 1, "key %ld of %ld", key, keys);
      }
}

static int64_t largest_share(const skv__shard_t *shard) {
  int64_t most = 0;
  for (int32_t rank = 0; rank < shard->ranks; ++rank) {
    int64_t blocks = skv__shard_blocks(shard, rank);
    most = blocks > most ? blocks : most;
  }
  return most;
}

/* At most 1.09 of the mean once there are 16 blocks to a run; below that, at most one block more
 * than an even share (two runs each: two). */
Test(shard, shares_are_even) {
  for (int32_t ranks = 1; ranks <= 64; ++ranks)
    for (int64_t blocks = 1; blocks < 5000; blocks += 1 + blocks / 40) {
      for (int zigzag = 0; zigzag <= 1; ++zigzag) {
        int64_t runs = (int64_t)ranks << zigzag;
        skv__shard_t shard = {blocks, ranks, {zigzag ? SKV_ZIGZAG : SKV_CONTIGUOUS, 0}};
        int64_t most = largest_share(&shard), even = (blocks + runs - 1) / runs << zigzag;
        if (blocks >= 16 * runs)
          CHECK(100 * most * ranks <= 109 * blocks, "%ld blocks over %d ranks: %ld", blocks, ranks,
                most);
        else
          CHECK(most <= even);
      }
    }
}

/* At most 2 log2 n nodes for a contiguous shard; about 3.5 on average thanks to the snapping. */
Test(shard, contiguous_frontiers_are_short) {
  double sum = 0, shards = 0;
  for (int32_t ranks = 1; ranks <= 64; ++ranks)
    for (int64_t blocks = 2; blocks < 2000000; blocks = blocks * 5 / 3 + 1) {
      int log2_blocks = 0;
      while (blocks >> (log2_blocks + 1))
        ++log2_blocks;
      skv__shard_t shard = {blocks, ranks, {SKV_CONTIGUOUS, 0}};
      for (int32_t rank = 0; rank < ranks; ++rank) {
        int64_t count = skv__shard_frontier(&shard, rank, NULL);
        CHECK(count <= 2 * log2_blocks);
        if (ranks > 1 && blocks >= 16 * ranks) {
          sum += (double)count;
          ++shards;
        }
      }
    }
  cr_assert_float_eq(sum / shards, 3.5, 0.35, "mean frontier %.3f", sum / shards);
}

/* A power of two of blocks to a run: every run is one node. */
Test(shard, aligned_runs_are_single_nodes) {
  for (int32_t ranks = 1; ranks <= 64; ++ranks)
    for (int64_t width = 1; width <= 4096; width *= 8) {
      skv__shard_t contiguous = {ranks * width, ranks, {SKV_CONTIGUOUS, 0}};
      skv__shard_t zigzag = {2 * ranks * width, ranks, {SKV_ZIGZAG, 0}};
      for (int32_t rank = 0; rank < ranks; ++rank) {
        CHECK(skv__shard_frontier(&contiguous, rank, NULL) == 1);
        CHECK(skv__shard_frontier(&zigzag, rank, NULL) <= 2);
        CHECK(skv__shard_blocks(&contiguous, rank) == width);
        CHECK(skv__shard_blocks(&zigzag, rank) == 2 * width);
      }
    }
}

Test(shard, zigzag_pairs_the_ends) {
  skv__shard_t shard = {16, 4, {SKV_ZIGZAG, 0}};
  int32_t expected[16] = {0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 2, 2, 1, 1, 0, 0};
  for (int64_t block = 0; block < 16; ++block)
    CHECK(skv__shard_owner(&shard, block) == expected[block]);
  skv__node_t intervals[2];
  CHECK(skv__shard_intervals(&shard, 3, intervals) == 1, "runs that touch are one interval");
  CHECK(intervals[0].begin == 6 && intervals[0].end == 10);
}

Test(shard, round_robin_deals_whole_runs) {
  skv__shard_t shard = {11, 2, {SKV_BLOCKS, 3}};
  int32_t expected[11] = {0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1};
  for (int64_t block = 0; block < 11; ++block)
    CHECK(skv__shard_owner(&shard, block) == expected[block]);
  skv__shard_t alone = {11, 1, {SKV_BLOCKS, 3}};
  skv__node_t interval;
  CHECK(skv__shard_intervals(&alone, 0, &interval) == 1);
  CHECK(interval.begin == 0 && interval.end == 11);
}

Test(shard, extents_near_the_limits_do_not_overflow) {
  int64_t sizes[] = {((int64_t)1 << 57) - 1, (int64_t)1 << 57, 100000000000000003};
  for (int index = 0; index < 3; ++index)
    for (int zigzag = 0; zigzag <= 1; ++zigzag) {
      skv__shard_t shard = {sizes[index], 4099, {zigzag ? SKV_ZIGZAG : SKV_CONTIGUOUS, 0}};
      int64_t sum = 0, mean = shard.blocks / shard.ranks;
      skv__node_t intervals[2];
      for (int32_t rank = 0; rank < shard.ranks; ++rank) {
        int64_t count = skv__shard_intervals(&shard, rank, intervals);
        for (int64_t at = 0; at < count; ++at) {
          CHECK(skv__shard_owner(&shard, intervals[at].begin) == rank);
          CHECK(skv__shard_owner(&shard, intervals[at].end - 1) == rank);
        }
        CHECK(skv__shard_blocks(&shard, rank) <= mean + mean / 100 * 9 + 1);
        sum += skv__shard_blocks(&shard, rank);
      }
      CHECK(sum == shard.blocks);
    }
  skv__shard_t wide = {1000, 3, {SKV_BLOCKS, INT64_MAX}};
  CHECK(skv__shard_blocks(&wide, 0) == 1000);
  CHECK(skv__shard_owner(&wide, 999) == 0);
  CHECK(skv__shard_blocks(&wide, 1) == 0);
}
