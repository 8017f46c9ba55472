#include "rehearsal.h"

#include <stdlib.h>
#include <string.h>

/* One slice being played. */
typedef struct stage {
  const skv__cast_t *cast;
  skv__pending_t *sets; /* [ranks], each with memory of its own */
  skv__hop_t *hops;
  int32_t *first_node, *node_count; /* [hop_bound] what each hop of the round carries */
  skv__node_t *carried;             /* of the round */
  int32_t carried_capacity;
  int32_t *load,
      *messages; /* [load_rounds] states held, node-states moved, by this rank, all slices */
  int32_t load_rounds;
} stage_t;

static bool grow(void **array, int32_t *capacity, int32_t needed, size_t item_bytes) {
  if (needed <= *capacity)
    return true;
  int32_t larger = needed + needed / 2 + 16;
  void *moved = realloc(*array, (size_t)larger * item_bytes);
  if (!moved)
    return false;
  *array = moved;
  *capacity = larger;
  return true;
}

static bool insert(stage_t *stage, int32_t rank, skv__node_t node) {
  skv__pending_t *set = &stage->sets[rank];
  if (!grow((void **)&set->held, &set->capacity, set->count + 1, sizeof *set->held))
    return false;
  skv__pending_insert(set, node, 0, NULL, NULL);
  return true;
}

static bool start_slice(stage_t *stage, int32_t owner) {
  const skv__cast_t *cast = stage->cast;
  for (int32_t rank = 0; rank < cast->ranks; rank++) {
    stage->sets[rank].count = 0;
    stage->sets[rank].blocks = cast->blocks;
    stage->sets[rank].free_order = cast->free_order;
    for (int32_t i = 0; !cast->roots && i < cast->start_count[rank]; i++)
      if (!insert(stage, rank, cast->start[rank][i]))
        return false;
  }
  return !cast->roots || cast->blocks == 0 || insert(stage, owner, (skv__node_t){0, cast->blocks});
}

/* What each hop of a round carries: the sender's set as the round begins. */
static bool load_hops(stage_t *stage, int32_t count) {
  int32_t carried = 0;
  for (int32_t i = 0; i < count; i++) {
    skv__pending_t *set = &stage->sets[stage->hops[i].from];
    if (!grow((void **)&stage->carried, &stage->carried_capacity, carried + set->count,
              sizeof *stage->carried))
      return false;
    stage->first_node[i] = carried;
    stage->node_count[i] = set->count;
    for (int32_t n = 0; n < set->count; n++)
      stage->carried[carried++] = set->held[n].node;
  }
  for (int32_t i = 0; i < count; i++)
    if (!stage->hops[i].copies)
      stage->sets[stage->hops[i].from].count = 0;
  return true;
}

static bool record_move(skv__rehearsal_t *rehearsal, const stage_t *stage, int32_t hop,
                        int32_t slice) {
  const skv__hop_t *h = &stage->hops[hop];
  int32_t count = stage->node_count[hop];
  bool sends = h->from == stage->cast->rank;
  if (!grow((void **)&rehearsal->moves, &rehearsal->move_capacity, rehearsal->move_count + 1,
            sizeof *rehearsal->moves) ||
      !grow((void **)&rehearsal->nodes, &rehearsal->node_capacity, rehearsal->node_count + count,
            sizeof *rehearsal->nodes))
    return false;
  rehearsal->moves[rehearsal->move_count++] = (skv__move_t){.round = h->round,
                                                            .slice = slice,
                                                            .peer = sends ? h->to : h->from,
                                                            .sends = sends,
                                                            .copies = h->copies,
                                                            .first_node = rehearsal->node_count,
                                                            .node_count = count};
  if (count)
    memcpy(rehearsal->nodes + rehearsal->node_count, stage->carried + stage->first_node[hop],
           (size_t)count * sizeof *rehearsal->nodes);
  rehearsal->node_count += count;
  stage->messages[h->round] += count;
  stage->load[h->round] += sends ? 0 : count;
  if (sends)
    rehearsal->sent_states += count;
  return true;
}

/* Messages of a round land in any order: all of them may have to wait in the set. */
static void measure_set(skv__rehearsal_t *rehearsal, const stage_t *stage, int32_t count) {
  int32_t me = stage->cast->rank, waiting = stage->sets[me].count;
  for (int32_t i = 0; i < count; i++)
    if (stage->hops[i].to == me)
      waiting += stage->node_count[i];
  if (waiting > rehearsal->peak_nodes)
    rehearsal->peak_nodes = waiting;
}

static bool land_hops(skv__rehearsal_t *rehearsal, stage_t *stage, int32_t count, int32_t slice) {
  int32_t me = stage->cast->rank;
  measure_set(rehearsal, stage, count);
  for (int32_t i = 0; i < count; i++) {
    const skv__hop_t *hop = &stage->hops[i];
    if ((hop->from == me || hop->to == me) && !record_move(rehearsal, stage, i, slice))
      return false;
    for (int32_t n = 0; n < stage->node_count[i]; n++)
      if (!insert(stage, hop->to, stage->carried[stage->first_node[i] + n]))
        return false;
    if (hop->copies) /* the receiver finishes the rows and lets them go */
      stage->sets[hop->to].count = 0;
  }
  return true;
}

static bool play_slice(skv__rehearsal_t *rehearsal, stage_t *stage, int32_t slice,
                       int32_t hop_count) {
  skv__hop_t *all = stage->hops;
  int32_t me = stage->cast->rank, done = 0;
  bool fine = start_slice(stage, slice);
  if (fine)
    measure_set(rehearsal, stage, 0);
  for (int32_t round = 0; fine && round < stage->load_rounds; round++) {
    int32_t count = 0;
    while (done + count < hop_count && all[done + count].round == round)
      count++;
    stage->hops = all + done;
    stage->load[round] +=
        stage->sets[me].count; /* held, and sent slots stay until the round ends */
    fine = load_hops(stage, count) && land_hops(rehearsal, stage, count, slice);
    done += count;
    if (count && round + 1 > rehearsal->rounds)
      rehearsal->rounds = round + 1;
  }
  stage->hops = all;
  return fine;
}

static int compare_moves(const void *a, const void *b) {
  const skv__move_t *x = a, *y = b;
  if (x->round != y->round)
    return x->round < y->round ? -1 : 1;
  if (x->slice != y->slice)
    return x->slice < y->slice ? -1 : 1;
  return x->first_node < y->first_node ? -1 : x->first_node > y->first_node;
}

static bool stage_open(stage_t *stage, const skv__cast_t *cast, int32_t hop_bound) {
  *stage = (stage_t){.cast = cast, .load_rounds = 2 * cast->ranks + 64};
  stage->sets = calloc((size_t)cast->ranks, sizeof *stage->sets);
  stage->hops = malloc(((size_t)hop_bound + 1) * sizeof *stage->hops);
  stage->first_node = malloc(((size_t)hop_bound + 1) * sizeof *stage->first_node);
  stage->node_count = malloc(((size_t)hop_bound + 1) * sizeof *stage->node_count);
  stage->load = calloc((size_t)stage->load_rounds, sizeof *stage->load);
  stage->messages = calloc((size_t)stage->load_rounds, sizeof *stage->messages);
  return stage->sets && stage->hops && stage->first_node && stage->node_count && stage->load &&
         stage->messages;
}

static void stage_close(stage_t *stage) {
  for (int32_t rank = 0; stage->sets && rank < stage->cast->ranks; rank++)
    free(stage->sets[rank].held);
  free(stage->sets);
  free(stage->hops);
  free(stage->first_node);
  free(stage->node_count);
  free(stage->carried);
  free(stage->load);
  free(stage->messages);
}

skv_status_t skv__rehearse(skv__rehearsal_t *rehearsal, const skv__cast_t *cast,
                           skv__hop_source_t source, void *user, int32_t hop_bound,
                           skv__error_t *error) {
  *rehearsal = (skv__rehearsal_t){0};
  stage_t stage;
  bool fine = stage_open(&stage, cast, hop_bound);
  for (int32_t slice = 0; fine && slice < cast->ranks; slice++)
    fine = play_slice(rehearsal, &stage, slice, source(user, slice, stage.hops));
  for (int32_t round = 0; fine && round < stage.load_rounds; round++) {
    if (stage.load[round] > rehearsal->peak_slots)
      rehearsal->peak_slots = stage.load[round];
    if (stage.messages[round] > rehearsal->peak_messages)
      rehearsal->peak_messages = stage.messages[round];
  }
  stage_close(&stage);
  if (!fine)
    return skv__fail(error, SKV_MEMORY, "out of memory while planning for %d ranks",
                     (int)cast->ranks);
  if (rehearsal->move_count)
    qsort(rehearsal->moves, (size_t)rehearsal->move_count, sizeof *rehearsal->moves, compare_moves);
  return SKV_OK;
}

void skv__rehearsal_free(skv__rehearsal_t *rehearsal) {
  free(rehearsal->moves);
  free(rehearsal->nodes);
  *rehearsal = (skv__rehearsal_t){0};
}
