/* traffic.c: what a reduction costs, by playing its hops on pending sets that hold no states. */
#include <stdlib.h>
#include <string.h>

#include "schedule.h"

/* One slice being played. Every rank's set starts as its frontier and grows when it must. */
typedef struct board {
  const skv__shard_t *shard;
  int32_t node_ranks; /* 0: all */
  int64_t far;        /* node-states that crossed nodes */
  skv__hop_t *hops;
  int64_t *frontier_begin; /* [ranks + 1] into frontier */
  skv__held_t *frontier;   /* of all ranks, one after the other */
  skv__pending_t *sets;    /* [ranks] */
  int64_t *sent;           /* [ranks] over all slices played */
  int64_t *received;       /* [ranks] over all slices played of other owners */
  int64_t *received_own;   /* [ranks] of its own slice */
  int64_t *slice_received; /* [ranks] of the slice being played */
} board_t;

static void board_free(board_t *board) {
  for (int32_t rank = 0; board->sets && rank < board->shard->ranks; ++rank)
    free(board->sets[rank].held);
  free(board->sets);
  free(board->hops);
  free(board->frontier_begin);
  free(board->frontier);
  free(board->sent);
  free(board->received);
  free(board->received_own);
  free(board->slice_received);
}

/* All frontiers, written once: `nodes` is scratch for the largest of them. */
static void fill_frontiers(board_t *board, skv__node_t *nodes) {
  for (int32_t rank = 0; rank < board->shard->ranks; ++rank) {
    int64_t count = skv__shard_frontier(board->shard, rank, nodes);
    for (int64_t index = 0; index < count; ++index)
      board->frontier[board->frontier_begin[rank] + index] = (skv__held_t){nodes[index], 0};
  }
}

static bool board_create(board_t *board, const skv__shard_t *shard, int32_t node_ranks) {
  size_t ranks = (size_t)shard->ranks;
  int64_t largest = 0;
  *board = (board_t){.shard = shard, .node_ranks = node_ranks};
  board->hops = malloc((size_t)skv__schedule_hop_bound(shard->ranks) * sizeof *board->hops);
  board->frontier_begin = calloc(ranks + 1, sizeof *board->frontier_begin);
  board->sets = calloc(ranks, sizeof *board->sets);
  board->sent = calloc(ranks, sizeof *board->sent);
  board->received = calloc(ranks, sizeof *board->received);
  board->received_own = calloc(ranks, sizeof *board->received_own);
  board->slice_received = calloc(ranks, sizeof *board->slice_received);
  if (!board->hops || !board->frontier_begin || !board->sets || !board->sent || !board->received ||
      !board->received_own || !board->slice_received)
    return false;
  for (int32_t rank = 0; rank < shard->ranks; ++rank) {
    int64_t count = skv__shard_frontier(shard, rank, NULL);
    largest = count > largest ? count : largest;
    board->frontier_begin[rank + 1] = board->frontier_begin[rank] + count;
  }
  board->frontier = malloc((size_t)(board->frontier_begin[ranks] + 1) * sizeof *board->frontier);
  skv__node_t *nodes = malloc((size_t)(largest + 1) * sizeof *nodes);
  bool made = board->frontier && nodes;
  if (made)
    fill_frontiers(board, nodes);
  free(nodes);
  return made;
}

/* Make room for `count` entries. */
static bool reserve(skv__pending_t *set, int64_t count) {
  if (count <= set->capacity)
    return true;
  int64_t capacity = count > INT32_MAX / 2 ? count : 2 * count;
  if (capacity > INT32_MAX)
    return false;
  skv__held_t *held = realloc(set->held, (size_t)capacity * sizeof *held);
  if (!held)
    return false;
  set->held = held;
  set->capacity = (int32_t)capacity;
  return true;
}

/* Every rank holds its frontier. */
static bool deal(board_t *board, skv__traffic_t *traffic) {
  for (int32_t rank = 0; rank < board->shard->ranks; ++rank) {
    skv__pending_t *set = &board->sets[rank];
    int64_t begin = board->frontier_begin[rank], count = board->frontier_begin[rank + 1] - begin;
    if (!reserve(set, count))
      return false;
    if (count > 0)
      memcpy(set->held, board->frontier + begin, (size_t)count * sizeof *set->held);
    set->blocks = board->shard->blocks;
    set->count = (int32_t)count;
    traffic->max_pending = count > traffic->max_pending ? count : traffic->max_pending;
  }
  return true;
}

/* The receiver holds all that arrived before it merges any of it. */
static bool play_hop(board_t *board, const skv__hop_t *hop, skv__traffic_t *traffic) {
  skv__pending_t *from = &board->sets[hop->from], *to = &board->sets[hop->to];
  int64_t together = (int64_t)from->count + to->count;
  if (!reserve(to, together))
    return false;
  for (int32_t index = 0; index < from->count; ++index)
    skv__pending_insert(to, from->held[index].node, 0, NULL, NULL);
  board->sent[hop->from] += from->count;
  board->slice_received[hop->to] += from->count;
  traffic->node_states += from->count;
  if (board->node_ranks > 0 && hop->from / board->node_ranks != hop->to / board->node_ranks)
    board->far += from->count;
  traffic->max_pending = together > traffic->max_pending ? together : traffic->max_pending;
  from->count = 0;
  return true;
}

/* Books what the slice brought to each rank. */
static void close_slice(board_t *board, int32_t owner, skv__traffic_t *traffic) {
  for (int32_t rank = 0; rank < board->shard->ranks; ++rank) {
    int64_t states = board->slice_received[rank];
    (rank == owner ? board->received_own : board->received)[rank] += states;
    if (states > traffic->max_slice_received)
      traffic->max_slice_received = states;
    board->slice_received[rank] = 0;
  }
}

static bool play_slice(board_t *board, skv_reduce_t reduce, int32_t owner,
                       skv__traffic_t *traffic) {
  int32_t count =
      skv__schedule_hops(reduce, SKV_RESULTS_OWNER, board->shard->ranks, owner, board->hops);
  bool played = deal(board, traffic);
  for (int32_t index = 0; played && index < count; ++index)
    played = play_hop(board, &board->hops[index], traffic);
  close_slice(board, owner, traffic);
  return played;
}

/* From the sampled slices to all of them, to the nearest. */
static int64_t scaled(int64_t states, int32_t ranks, int32_t slices) {
  return states / slices * ranks + (states % slices * ranks + slices / 2) / slices;
}

/* The totals over all slices from those over `slices` of them. A rank's own slice is one slice
 * however many were sampled. */
static void total(const board_t *board, int32_t slices, skv__traffic_t *traffic) {
  int32_t ranks = board->shard->ranks;
  if (ranks > 1)
    traffic->per_row = (double)traffic->node_states / ((double)slices * (ranks - 1));
  if (traffic->node_states > 0)
    traffic->far_share = (double)board->far / (double)traffic->node_states;
  traffic->node_states = scaled(traffic->node_states, ranks, slices);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    int64_t sent = scaled(board->sent[rank], ranks, slices);
    int64_t received = scaled(board->received[rank], ranks, slices) + board->received_own[rank];
    if (sent > traffic->max_rank_node_states)
      traffic->max_rank_node_states = sent;
    if (received > traffic->max_rank_received)
      traffic->max_rank_received = received;
  }
}

bool skv__schedule_traffic(const skv__shard_t *shard, skv_reduce_t reduce, int32_t slices,
                           int32_t node_ranks, skv__traffic_t *traffic) {
  int32_t ranks = shard->ranks;
  if (slices <= 0 || slices > ranks)
    slices = ranks;
  *traffic = (skv__traffic_t){0};
  board_t board;
  bool played = board_create(&board, shard, node_ranks);
  for (int32_t slice = 0; played && slice < slices; ++slice)
    played = play_slice(&board, reduce, (int32_t)((int64_t)slice * ranks / slices), traffic);
  if (played)
    total(&board, slices, traffic);
  board_free(&board);
  return played;
}
