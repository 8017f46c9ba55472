/* wait.c: waiting with a deadline that real work does not trip.
 *
 * A rank that computes says so to everybody eight times within a deadline. A rank that waits
 * listens to the rank it waits for; when it hears of work there, its deadline starts again, and it
 * passes the word on, one step further from the work. So a chain of waits lives as long as its last
 * rank works, and a chain that ends in a rank that is dead or stopped, or in a circle (where the
 * steps grow until nobody believes them), does not.
 */
#include "comm/wait.h"

#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "comm/blame.h"

enum { TAG_PULSE = SKV__TAG_MAX + 5 };

double skv__comm_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void skv__comm_pause(uint32_t *idle) {
  enum { YIELDS = 200 };
  if (*idle < YIELDS) {
    ++*idle;
    sched_yield();
    return;
  }
  nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

skv_status_t skv__pulse_tell(skv__comm_t *comm, int32_t steps) {
  for (int32_t rank = 0; rank < comm->ranks; rank++) {
    struct skv__pulse *pulse = &comm->pulses[rank];
    bool done = true;
    if (rank == comm->rank)
      continue;
    if (pulse->out.active)
      SKV_TRY(skv__comm_test(comm, &pulse->out, &done));
    if (!done)
      continue;
    pulse->told = (skv__word_t){.steps = steps, .watches = comm->watches_ended};
    SKV_TRY(skv__comm_send(comm, &pulse->out, rank, &pulse->told, sizeof pulse->told, TAG_PULSE));
  }
  return SKV_OK;
}

skv_status_t skv__pulse_listen(skv__comm_t *comm, int32_t peer, int32_t *steps) {
  struct skv__pulse *pulse = &comm->pulses[peer];
  for (;;) {
    bool done;
    if (!pulse->in.active)
      SKV_TRY(
          skv__comm_receive(comm, &pulse->in, peer, &pulse->heard, sizeof pulse->heard, TAG_PULSE));
    SKV_TRY(skv__comm_test(comm, &pulse->in, &done));
    if (!done)
      return SKV_OK;
    pulse->heard_at = skv__comm_now();
    if ((int32_t)(pulse->heard.watches - pulse->watches) > 0)
      pulse->watches = pulse->heard.watches;
    if (pulse->heard.steps < *steps)
      *steps = pulse->heard.steps;
  }
}

skv_status_t skv__comm_pulse(skv__comm_t *comm) {
  double now = skv__comm_now();
  if (comm->ranks == 1 || now < comm->next_pulse)
    return SKV_OK;
  comm->next_pulse = now + comm->timeout_seconds / SKV__LOOKS;
  return skv__pulse_tell(comm, 0);
}

static skv_status_t expired(skv__comm_t *comm, const skv__request_t *request, const char *operation,
                            double seconds) {
  skv__request_t late = *request; /* breaking the comm ends it */
  int32_t culprit = skv__comm_blame(comm, late.peer);
  char chain[64] = "";
  if (culprit != late.peer)
    snprintf(chain, sizeof chain, ", which in turn waits for rank %d", (int)culprit);
  return skv__fail(comm->error, SKV_TIMEOUT,
                   "rank %d: waited %.1f s for rank %d (%s '%s', %zu bytes)%s; rank %d has died, "
                   "stopped, or is in other work: see its output, or raise --timeout",
                   (int)comm->rank, seconds, (int)late.peer,
                   late.way == SKV__SEND ? "send" : "receive", operation, late.bytes, chain,
                   (int)culprit);
}

void skv__wait_moved(skv__wait_t *wait) {
  *wait = (skv__wait_t){0};
}

/* The peer has no part in it, so nobody else is blamed. */
static skv_status_t copy_expired(skv__comm_t *comm, const skv__request_t *late,
                                 const char *operation, double seconds) {
  return skv__fail(comm->error, SKV_TIMEOUT,
                   "rank %d: waited %.1f s for its own GPU to copy data (%s '%s' %s rank %d, %zu "
                   "bytes): the GPU does not respond, or raise --timeout",
                   (int)comm->rank, seconds, late->way == SKV__SEND ? "send" : "receive", operation,
                   late->way == SKV__SEND ? "to" : "from", (int)late->peer, late->bytes);
}

static skv_status_t idle(skv__comm_t *comm, skv__wait_t *wait, const skv__request_t *late,
                         skv__stall_t stall, const char *operation) {
  double now = skv__comm_now();
  if (wait->since == 0) {
    wait->since = now;
    wait->next_look = now + comm->timeout_seconds / SKV__LOOKS;
  }
  if (now >= wait->next_look) {
    int32_t steps = comm->ranks;
    SKV_TRY(skv__pulse_listen(comm, late->peer, &steps));
    if (wait->looked && steps < comm->ranks) { /* the first look only clears what is old */
      wait->since = now;
      SKV_TRY(skv__pulse_tell(comm, steps + 1));
    }
    wait->looked = true;
    wait->next_look = now + comm->timeout_seconds / SKV__LOOKS;
  }
  if (now - wait->since > comm->timeout_seconds)
    return stall == SKV__STALL_COPY ? copy_expired(comm, late, operation, now - wait->since)
                                    : expired(comm, late, operation, now - wait->since);
  skv__comm_pause(&wait->idle);
  return SKV_OK;
}

/* Its own device has not come to the message yet: that is work, which the others are told. */
static skv_status_t computes(skv__comm_t *comm, skv__wait_t *wait) {
  wait->since = 0;
  wait->looked = false;
  SKV_TRY(skv__comm_pulse(comm));
  skv__comm_pause(&wait->idle);
  return SKV_OK;
}

skv_status_t skv__wait_idle(skv__comm_t *comm, skv__wait_t *wait, const skv__request_t *late,
                            const char *operation) {
  skv__stall_t stall =
      comm->transport->stall ? comm->transport->stall(comm->impl, late) : SKV__STALL_PEER;
  skv_status_t status = stall == SKV__STALL_COMPUTE
                            ? computes(comm->control, wait)
                            : idle(comm->control, wait, late, stall, operation);
  if (status != SKV_OK)
    skv__comm_break(comm);
  return status;
}
