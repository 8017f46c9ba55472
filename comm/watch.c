/* watch.c: waiting together, with nothing to look at but each other's signs of life. */
#include <stdio.h>

#include "comm/blame.h"
#include "comm/wait.h"

static skv_status_t listen_to_all(skv__comm_t *comm) {
  for (int32_t rank = 0; rank < comm->ranks; rank++) {
    int32_t steps = comm->ranks;
    if (rank != comm->rank)
      SKV_TRY(skv__pulse_listen(comm, rank, &steps));
  }
  return SKV_OK;
}

skv_status_t skv__watch_begin(skv__comm_t *comm, skv__watch_t *watch, bool counted) {
  double now = skv__comm_now();
  *watch = (skv__watch_t){
      .since = now, .next_look = now + comm->timeout_seconds / SKV__LOOKS, .counted = counted};
  comm->watches_begun += counted;
  return listen_to_all(comm); /* words must not pile up where no watch lasts */
}

/* It has ended this watch already, and is in other work. */
static bool excused(const skv__comm_t *comm, const skv__watch_t *watch, int32_t rank) {
  return watch->counted && (int32_t)(comm->pulses[rank].watches - comm->watches_begun) >= 0;
}

/* Who has been silent for longest, and since when. */
static int32_t most_silent(const skv__comm_t *comm, const skv__watch_t *watch, double *since) {
  int32_t found = comm->rank;
  *since = skv__comm_now();
  for (int32_t rank = 0; rank < comm->ranks; rank++) {
    double heard_at = comm->pulses[rank].heard_at;
    if (rank == comm->rank || excused(comm, watch, rank))
      continue;
    if (heard_at < watch->since)
      heard_at = watch->since;
    if (heard_at < *since) {
      *since = heard_at;
      found = rank;
    }
  }
  return found;
}

static skv_status_t silent(skv__comm_t *comm, int32_t peer, double seconds, const char *operation) {
  int32_t culprit = skv__comm_blame(comm, peer);
  return skv__fail(comm->error, SKV_TIMEOUT,
                   "rank %d: no sign of life of rank %d for %.1f s ('%s'); rank %d has died, "
                   "stopped, or is in other work: see its output, or raise --timeout",
                   (int)comm->rank, (int)peer, seconds, operation, (int)culprit);
}

static skv_status_t look(skv__comm_t *comm, skv__watch_t *watch, bool limited, double now,
                         const char *operation) {
  double since;
  watch->next_look = now + comm->timeout_seconds / SKV__LOOKS;
  SKV_TRY(listen_to_all(comm));
  SKV_TRY(skv__pulse_tell(comm, 0));
  int32_t peer = most_silent(comm, watch, &since);
  if (now - since > comm->timeout_seconds)
    return silent(comm, peer, now - since, operation);
  if (limited && now - watch->since > comm->timeout_seconds)
    return skv__fail(comm->error, SKV_TIMEOUT,
                     "rank %d: '%s' took longer than %.1f s, though every rank answers: see what "
                     "NCCL_DEBUG=INFO tells, or raise --timeout",
                     (int)comm->rank, operation, now - watch->since);
  return SKV_OK;
}

skv_status_t skv__watch_idle(skv__comm_t *comm, skv__watch_t *watch, bool limited,
                             const char *operation) {
  double now = skv__comm_now();
  if (now >= watch->next_look)
    SKV_TRY(look(comm, watch, limited, now, operation));
  skv__comm_pause(&watch->idle);
  return SKV_OK;
}

skv_status_t skv__watch_end(skv__comm_t *comm, const skv__watch_t *watch) {
  if (!watch->counted)
    return SKV_OK;
  comm->watches_ended = comm->watches_begun;
  return skv__pulse_tell(comm, 0);
}
