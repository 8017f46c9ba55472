/* comm.c: requests, cut into pieces that the transport carries, and waiting with a deadline. */
#include "comm/comm.h"

#include <stdlib.h>

#include "comm/wait.h"

skv_status_t skv__comm_create(skv__comm_t **comm, const skv__transport_t *transport, void *impl,
                              int32_t rank, int32_t ranks, double timeout_seconds,
                              skv__error_t *error) {
  skv__comm_t *made = calloc(1, sizeof *made);
  skv__request_t *requests = calloc((size_t)ranks, sizeof *requests);
  skv__card_t *cards = calloc((size_t)ranks, sizeof *cards);
  struct skv__pulse *pulses = calloc((size_t)ranks, sizeof *pulses);
  *comm = made;
  if (!made || !requests || !cards || !pulses) {
    free(made);
    free(requests);
    free(cards);
    free(pulses);
    *comm = NULL;
    if (transport->destroy)
      transport->destroy(impl, true);
    return skv__fail(error, SKV_MEMORY, "no memory for a communicator of %d ranks", (int)ranks);
  }
  *made = (skv__comm_t){.transport = transport,
                        .impl = impl,
                        .rank = rank,
                        .ranks = ranks,
                        .timeout_seconds = timeout_seconds,
                        .control = made,
                        .piece_bytes = transport->piece_bytes,
                        .error = error,
                        .requests = requests,
                        .cards = cards,
                        .pulses = pulses};
  return SKV_OK;
}

static void let_go(skv__comm_t *comm) {
  while (comm->first) {
    skv__request_t *request = comm->first;
    if (request->flying_bytes)
      comm->transport->cancel(comm->impl, request);
    comm->first = request->next;
    request->active = false;
  }
  comm->last = NULL;
  comm->unstarted = 0;
}

void skv__comm_break(skv__comm_t *comm) {
  bool first = !comm->broken;
  comm->broken = true;
  if (first && comm->lost)
    comm->lost(comm->lost_user);
  let_go(comm);
  if (first && comm->transport->abandon)
    comm->transport->abandon(comm->impl);
  if (comm->control != comm)
    skv__comm_break(comm->control);
}

void skv__comm_destroy(skv__comm_t *comm) {
  if (!comm)
    return;
  bool healthy = !comm->broken && !comm->control->broken;
  let_go(comm); /* requests that were never waited for */
  if (comm->transport->destroy)
    comm->transport->destroy(comm->impl, healthy);
  free(comm->requests);
  free(comm->cards);
  free(comm->pulses);
  free(comm);
}

/* What every call on a broken comm returns. */
static skv_status_t refuse(skv__comm_t *comm) {
  if (comm->error && comm->error->status != SKV_OK)
    return comm->error->status;
  return skv__fail(comm->error, SKV_TRANSPORT,
                   "rank %d: communication failed before; this context can only be destroyed",
                   (int)comm->rank);
}

static skv_status_t breaks(skv__comm_t *comm, skv_status_t status) {
  if (status != SKV_OK)
    skv__comm_break(comm);
  return status;
}

static void append(skv__comm_t *comm, skv__request_t *request) {
  request->active = true;
  request->previous = comm->last;
  request->next = NULL;
  *(comm->last ? &comm->last->next : &comm->first) = request;
  comm->last = request;
  comm->unstarted++;
}

static void removes(skv__comm_t *comm, skv__request_t *request) {
  *(request->previous ? &request->previous->next : &comm->first) = request->next;
  *(request->next ? &request->next->previous : &comm->last) = request->previous;
  request->active = false;
}

/* The oldest request before `request` that must start its pieces first: pieces of two messages of
 * one stream may not mix. NULL if none. */
static skv__request_t *blocker(const skv__comm_t *comm, const skv__request_t *request) {
  if (comm->unstarted == 0)
    return NULL;
  for (skv__request_t *other = comm->first; other && other != request; other = other->next) {
    bool same_stream =
        other->way == request->way && other->peer == request->peer && other->tag == request->tag;
    if (same_stream && other->done_bytes + other->flying_bytes < other->bytes)
      return other;
  }
  return NULL;
}

static skv_status_t start_piece(skv__comm_t *comm, skv__request_t *request) {
  size_t left = request->bytes - request->done_bytes;
  size_t piece = left < comm->piece_bytes ? left : comm->piece_bytes;
  SKV_TRY(comm->transport->start(comm->impl, request, request->done_bytes, piece, comm->error));
  request->flying_bytes = piece;
  if (piece == left)
    comm->unstarted--;
  return SKV_OK;
}

/* Test the piece under way and start the next one. */
static skv_status_t advance(skv__comm_t *comm, skv__request_t *request) {
  bool done = false;
  SKV_TRY(comm->transport->test(comm->impl, request, &done, comm->error));
  if (!done)
    return SKV_OK;
  request->done_bytes += request->flying_bytes;
  request->flying_bytes = 0;
  if (request->done_bytes < request->bytes)
    return start_piece(comm, request);
  removes(comm, request);
  return SKV_OK;
}

static skv_status_t post(skv__comm_t *comm, skv__request_t *request, skv__request_t made) {
  *request = made;
  if (comm->broken)
    return refuse(comm);
  if (made.peer < 0 || made.peer >= comm->ranks || made.peer == comm->rank)
    return skv__fail(comm->error, SKV_INTERNAL, "rank %d of %d cannot exchange bytes with rank %d",
                     (int)comm->rank, (int)comm->ranks, (int)made.peer);
  if (made.bytes == 0)
    return SKV_OK;
  bool first = !blocker(comm, request);
  append(comm, request);
  return first ? breaks(comm, start_piece(comm, request)) : SKV_OK;
}

skv_status_t skv__comm_send(skv__comm_t *comm, skv__request_t *request, int32_t peer,
                            const void *data, size_t bytes, int32_t tag) {
  return post(
      comm, request,
      (skv__request_t){
          .way = SKV__SEND, .peer = peer, .tag = tag, .bytes = bytes, .data = (void *)data});
}

skv_status_t skv__comm_receive(skv__comm_t *comm, skv__request_t *request, int32_t peer, void *data,
                               size_t bytes, int32_t tag) {
  return post(comm, request,
              (skv__request_t){
                  .way = SKV__RECEIVE, .peer = peer, .tag = tag, .bytes = bytes, .data = data});
}

/* Start further pieces of long messages, whichever request is being tested: as with a transport's
 * own progress, no message waits for its caller to look at it. */
static skv_status_t move_long_messages(skv__comm_t *comm) {
  for (skv__request_t *request = comm->first; request && comm->unstarted; request = request->next) {
    if (request->done_bytes + request->flying_bytes == request->bytes)
      continue;
    if (request->flying_bytes)
      SKV_TRY(advance(comm, request));
    else if (!blocker(comm, request))
      SKV_TRY(start_piece(comm, request));
  }
  return SKV_OK;
}

static skv_status_t test(skv__comm_t *comm, skv__request_t *request) {
  SKV_TRY(move_long_messages(comm));
  return request->flying_bytes ? advance(comm, request) : SKV_OK;
}

skv_status_t skv__comm_test(skv__comm_t *comm, skv__request_t *request, bool *done) {
  *done = !request->active;
  if (comm->broken)
    return refuse(comm);
  if (*done)
    return SKV_OK;
  SKV_TRY(breaks(comm, test(comm, request)));
  *done = !request->active;
  return SKV_OK;
}

skv_status_t skv__comm_leave(skv__comm_t *comm) {
  if (comm->broken)
    return refuse(comm);
  if (!comm->transport->leave)
    return SKV_OK;
  return breaks(comm, comm->transport->leave(comm->impl, comm->error));
}

void skv__comm_on(skv__comm_t *comm, void *stream) {
  if (comm->transport->on)
    comm->transport->on(comm->impl, stream);
}

static skv_status_t group(skv__comm_t *comm, bool begins) {
  if (comm->broken)
    return refuse(comm);
  if (!comm->transport->group)
    return SKV_OK;
  SKV_TRY(breaks(comm, comm->transport->group(comm->impl, begins, comm->error)));
  return begins ? SKV_OK : skv__comm_settle(comm);
}

skv_status_t skv__comm_settle(skv__comm_t *comm) {
  if (!comm->settles || !comm->transport->settle)
    return SKV_OK;
  return breaks(comm, comm->transport->settle(comm->impl, comm->error));
}

skv_status_t skv__comm_group_begin(skv__comm_t *comm) {
  return group(comm, true);
}

skv_status_t skv__comm_group_end(skv__comm_t *comm) {
  return group(comm, false);
}

/* One round over the requests: how many bytes arrived, and the first that is not done. */
static skv_status_t poll(skv__comm_t *comm, skv__request_t *requests, size_t count,
                         size_t *arrived_bytes, const skv__request_t **waiting) {
  *arrived_bytes = 0;
  *waiting = NULL;
  for (size_t i = 0; i < count; i++) {
    size_t before = requests[i].done_bytes;
    bool done;
    SKV_TRY(skv__comm_test(comm, &requests[i], &done));
    *arrived_bytes += requests[i].done_bytes - before;
    if (!done && !*waiting)
      *waiting = &requests[i];
  }
  return SKV_OK;
}

skv_status_t skv__comm_wait(skv__comm_t *comm, skv__request_t *requests, size_t count,
                            const char *operation) {
  skv__wait_t wait = {0};
  for (;;) {
    size_t arrived_bytes;
    const skv__request_t *waiting;
    SKV_TRY(poll(comm, requests, count, &arrived_bytes, &waiting));
    if (!waiting)
      return SKV_OK;
    if (arrived_bytes)
      skv__wait_moved(&wait);
    else
      SKV_TRY(skv__wait_idle(comm, &wait, waiting, operation));
  }
}
