/* test_rehearsal.c: what each rank rehearsed fits what every other rank rehearsed, whatever order
 * the messages of a round land in. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "check.h"
#include "rehearsal.h"

enum { RANKS_MAX = 9 };

typedef struct play {
  skv__shard_t shard;
  skv_reduce_t reduce;
  skv_results_t results;
  skv__node_t *start[RANKS_MAX];
  int32_t start_count[RANKS_MAX];
  skv__rehearsal_t rank[RANKS_MAX];
  skv__pending_t sets[RANKS_MAX]; /* of the slice being played */
} play_t;

static int32_t hops(void *user, int32_t owner, skv__hop_t *list) {
  const play_t *play = user;
  return skv__schedule_hops(play->reduce, play->results, play->shard.ranks, owner, list);
}

static void open_play(play_t *play) {
  int32_t ranks = play->shard.ranks;
  for (int32_t r = 0; r < ranks; r++) {
    play->start_count[r] = (int32_t)skv__shard_frontier(&play->shard, r, NULL);
    play->start[r] = calloc((size_t)play->start_count[r] + 1, sizeof(skv__node_t));
    skv__shard_frontier(&play->shard, r, play->start[r]);
  }
  for (int32_t r = 0; r < ranks; r++) {
    skv__cast_t cast = {.blocks = play->shard.blocks,
                        .ranks = ranks,
                        .rank = r,
                        .start = play->start,
                        .start_count = play->start_count};
    skv_status_t status =
        skv__rehearse(&play->rank[r], &cast, hops, play, skv__schedule_hop_bound(ranks), NULL);
    cr_assert_eq(status, SKV_OK);
    play->sets[r].blocks = play->shard.blocks;
    play->sets[r].capacity = play->rank[r].peak_nodes;
    play->sets[r].held = calloc((size_t)play->rank[r].peak_nodes + 1, sizeof(skv__held_t));
  }
}

static void close_play(play_t *play) {
  for (int32_t r = 0; r < play->shard.ranks; r++) {
    free(play->start[r]);
    free(play->sets[r].held);
    skv__rehearsal_free(&play->rank[r]);
  }
}

/* The sender's set is what its move says; the receiver's move says the same. Then it is on its way.
 */
static void check_sender(play_t *play, int32_t sender, const skv__move_t *move) {
  skv__pending_t *set = &play->sets[sender];
  const skv__rehearsal_t *mine = &play->rank[sender];
  CHECK(set->count == move->node_count);
  for (int32_t i = 0; i < set->count; i++) {
    skv__node_t node = mine->nodes[move->first_node + i];
    CHECK(node.begin == set->held[i].node.begin && node.end == set->held[i].node.end);
  }
  if (!move->copies)
    set->count = 0;
}

static void land(play_t *play, int32_t receiver, const skv__move_t *move, bool backwards) {
  for (int32_t i = 0; i < move->node_count; i++) {
    int32_t at = backwards ? move->node_count - 1 - i : i;
    CHECK(play->sets[receiver].count < play->sets[receiver].capacity);
    skv__pending_insert(&play->sets[receiver], play->rank[receiver].nodes[move->first_node + at], 0,
                        NULL, NULL);
  }
}

static void play_round(play_t *play, int32_t slice, int32_t round, bool backwards) {
  for (int32_t r = 0; r < play->shard.ranks; r++)
    for (int32_t m = 0; m < play->rank[r].move_count; m++) {
      const skv__move_t *move = &play->rank[r].moves[m];
      if (move->slice == slice && move->round == round && move->sends)
        check_sender(play, r, move);
    }
  for (int32_t r = 0; r < play->shard.ranks; r++) {
    const skv__rehearsal_t *mine = &play->rank[r];
    for (int32_t m = 0; m < mine->move_count; m++) {
      const skv__move_t *move = &mine->moves[backwards ? mine->move_count - 1 - m : m];
      if (move->slice != slice || move->round != round || move->sends)
        continue;
      land(play, r, move, backwards);
      if (move->copies) {
        CHECK(skv__pending_complete(&play->sets[r]));
        play->sets[r].count = 0;
      }
    }
  }
}

static void play_slice(play_t *play, int32_t slice, bool backwards) {
  int32_t rounds = 0;
  for (int32_t r = 0; r < play->shard.ranks; r++) {
    play->sets[r].count = 0;
    for (int32_t i = 0; i < play->start_count[r]; i++)
      skv__pending_insert(&play->sets[r], play->start[r][i], 0, NULL, NULL);
    rounds = play->rank[r].rounds > rounds ? play->rank[r].rounds : rounds;
  }
  for (int32_t round = 0; round < rounds; round++)
    play_round(play, slice, round, backwards);
  CHECK(skv__pending_complete(&play->sets[slice]));
}

Test(rehearsal, ranks_agree_and_sets_have_room) {
  static const skv__layout_t layouts[] = {
      {SKV_CONTIGUOUS, 0}, {SKV_ZIGZAG, 0}, {SKV_BLOCKS, 1}, {SKV_BLOCKS, 2}};
  for (int32_t ranks = 1; ranks <= RANKS_MAX; ranks++)
    for (int64_t blocks = 1; blocks <= 40; blocks += 13)
      for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++)
        for (int reduce = SKV_GATHER; reduce <= SKV_RING; reduce++)
          for (int results = SKV_RESULTS_OWNER; results <= SKV_RESULTS_ALL; results++) {
            play_t play = {.shard = {blocks, ranks, layouts[l]},
                           .reduce = (skv_reduce_t)reduce,
                           .results = (skv_results_t)results};
            open_play(&play);
            for (int32_t slice = 0; slice < ranks; slice++) {
              play_slice(&play, slice, false);
              play_slice(&play, slice, true);
            }
            close_play(&play);
          }
}
