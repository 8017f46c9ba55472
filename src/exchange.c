#include "exchange.h"

#include <stdlib.h>

enum { STATE_TAG = 1 };

skv_status_t skv__exchange_open(skv__exchange_t *exchange, skv__error_t *error) {
  size_t parcels = (size_t)exchange->rehearsal->peak_messages;
  exchange->parcels = calloc(parcels + 1, sizeof *exchange->parcels);
  if (!exchange->parcels)
    return skv__fail(error, SKV_MEMORY, "out of memory for %zu messages", parcels);
  return SKV_OK;
}

void skv__exchange_close(skv__exchange_t *exchange) {
  free(exchange->parcels);
}

static bool wants_results(const skv__exchange_t *exchange, int32_t slice) {
  int32_t rank = exchange->bank->rank;
  return exchange->results == SKV_RESULTS_ALL ||
         rank == (exchange->results == SKV_RESULTS_ROOT ? 0 : slice);
}

/* A root is at hand. The owner counts the bits; whoever is to have the results writes them. */
static skv_status_t finish_slice(skv__exchange_t *exchange, int32_t slice) {
  skv__finish_t finish = *exchange->finish;
  if (!wants_results(exchange, slice)) {
    finish.o.data = NULL;
    finish.lse = NULL;
  }
  if (slice != exchange->bank->rank)
    finish.bits = NULL;
  return skv__bank_finish(exchange->bank, slice, &finish, exchange->error);
}

/* Take the nodes of a sending move out of the pending set, and start them on their way. */
static skv_status_t post_sends(skv__exchange_t *exchange, const skv__move_t *move) {
  skv__bank_t *bank = exchange->bank;
  skv__pending_t *set = &bank->sets[move->slice];
  size_t bytes = (size_t)skv__slice_bytes(bank->slice_rows[move->slice], bank->job.value_head_dim);
  for (int32_t i = 0; i < set->count; i++) {
    if (set->held[i].slot == SKV__NO_SLOT)
      continue;
    skv__parcel_t *parcel = &exchange->parcels[exchange->parcel_count++];
    *parcel =
        (skv__parcel_t){.slice = move->slice, .slot = set->held[i].slot, .copies = move->copies};
    SKV_TRY(skv__comm_send(exchange->comm, &parcel->request, move->peer,
                           skv__bank_slot(bank, parcel->slot), bytes, STATE_TAG));
  }
  if (!move->copies)
    set->count = 0;
  return SKV_OK;
}

static skv_status_t post_receives(skv__exchange_t *exchange, const skv__move_t *move) {
  skv__bank_t *bank = exchange->bank;
  size_t bytes = (size_t)skv__slice_bytes(bank->slice_rows[move->slice], bank->job.value_head_dim);
  for (int32_t i = 0; i < move->node_count; i++) {
    skv__node_t node = exchange->rehearsal->nodes[move->first_node + i];
    if (!skv__bank_stores(bank, node, move->slice)) {
      skv__bank_insert(bank, move->slice, node, SKV__NO_SLOT);
      continue;
    }
    skv__parcel_t *parcel = &exchange->parcels[exchange->parcel_count++];
    *parcel = (skv__parcel_t){.slice = move->slice,
                              .node = node,
                              .slot = skv__bank_acquire(bank),
                              .copies = move->copies};
    SKV_TRY(skv__comm_receive(exchange->comm, &parcel->request, move->peer,
                              skv__bank_slot(bank, parcel->slot), bytes, STATE_TAG));
  }
  return SKV_OK;
}

/* Sends go first: a slice's set is taken before anything new lands in it. */
static skv_status_t post_round(skv__exchange_t *exchange) {
  const skv__rehearsal_t *rehearsal = exchange->rehearsal;
  int32_t first = exchange->next_move, end = first;
  exchange->parcel_count = 0;
  while (end < rehearsal->move_count && rehearsal->moves[end].round == exchange->round)
    end++;
  exchange->next_move = end;
  SKV_TRY(skv__comm_group_begin(exchange->comm));
  for (int32_t i = first; i < end; i++)
    if (rehearsal->moves[i].sends)
      SKV_TRY(post_sends(exchange, &rehearsal->moves[i]));
  for (int32_t i = first; i < end; i++)
    if (!rehearsal->moves[i].sends)
      SKV_TRY(post_receives(exchange, &rehearsal->moves[i]));
  exchange->open = exchange->parcel_count;
  return skv__comm_group_end(exchange->comm);
}

static void land(skv__exchange_t *exchange, skv__parcel_t *parcel) {
  parcel->done = true;
  exchange->open--;
  if (parcel->request.way == SKV__RECEIVE)
    skv__bank_insert(exchange->bank, parcel->slice, parcel->node, parcel->slot);
  else if (!parcel->copies)
    skv__bank_release(exchange->bank, parcel->slot);
}

/* Rows that a result hop brought are finished at once, so that their slots are free again. */
static skv_status_t finish_copies(skv__exchange_t *exchange) {
  const skv__rehearsal_t *rehearsal = exchange->rehearsal;
  for (int32_t i = exchange->next_move - 1; i >= 0 && rehearsal->moves[i].round == exchange->round;
       i--)
    if (rehearsal->moves[i].copies && !rehearsal->moves[i].sends)
      SKV_TRY(finish_slice(exchange, rehearsal->moves[i].slice));
  return SKV_OK;
}

static skv_status_t test_parcels(skv__exchange_t *exchange, bool *moved) {
  for (int32_t i = 0; i < exchange->parcel_count; i++) {
    skv__parcel_t *parcel = &exchange->parcels[i];
    bool done = false;
    if (parcel->done)
      continue;
    SKV_TRY(skv__comm_test(exchange->comm, &parcel->request, &done));
    if (!done)
      continue;
    land(exchange, parcel);
    *moved = true;
  }
  return SKV_OK;
}

skv_status_t skv__exchange_begin(skv__exchange_t *exchange, skv__bank_t *bank,
                                 const skv__finish_t *finish) {
  exchange->bank = bank;
  exchange->finish = finish;
  exchange->round = 0;
  exchange->next_move = 0;
  exchange->running = !exchange->direct || !skv__direct_takes(exchange->direct, bank, finish);
  skv__comm_on(exchange->comm, bank->stream);
  if (exchange->running)
    return post_round(exchange);
  SKV_TRY(skv__direct_reduce(exchange->direct, bank, finish, exchange->error));
  return skv__comm_settle(exchange->comm);
}

skv_status_t skv__exchange_advance(skv__exchange_t *exchange, bool *moved) {
  *moved = false;
  if (!exchange->running)
    return SKV_OK;
  SKV_TRY(test_parcels(exchange, moved));
  while (exchange->open == 0) {
    SKV_TRY(finish_copies(exchange));
    if (++exchange->round >= exchange->rehearsal->rounds) {
      exchange->running = false;
      *moved = true;
      return finish_slice(exchange, exchange->bank->rank);
    }
    SKV_TRY(post_round(exchange));
    SKV_TRY(test_parcels(exchange, moved));
  }
  return SKV_OK;
}

static const skv__request_t *first_open(const skv__exchange_t *exchange) {
  for (int32_t i = 0; i < exchange->parcel_count; i++)
    if (!exchange->parcels[i].done)
      return &exchange->parcels[i].request;
  return NULL;
}

skv_status_t skv__exchange_end(skv__exchange_t *exchange, double *wait_seconds) {
  skv__wait_t wait = {0};
  while (exchange->running) {
    bool moved;
    SKV_TRY(skv__exchange_advance(exchange, &moved));
    if (moved) {
      skv__wait_moved(&wait);
      continue;
    }
    double begin = skv__comm_now();
    SKV_TRY(skv__wait_idle(exchange->comm, &wait, first_open(exchange), "state exchange"));
    *wait_seconds += skv__comm_now() - begin;
  }
  return SKV_OK;
}
