/* comm.h: moves bytes between ranks. Knows no attention, adds no numbers. Every wait has a
 * deadline.
 *
 * Messages between two ranks with one tag arrive in the order they were sent, and both sides name
 * the same number of bytes (else SKV_PEER). A rank sends to other ranks only. Requests are the
 * caller's memory and must stay in place, with their data, until they are done or the comm is
 * broken. A failed call leaves its text in the comm's error; after TIMEOUT, PEER or TRANSPORT the
 * comm is broken: its messages are cancelled, nothing else may be sent, and destroy does not wait
 * for anybody.
 */
#ifndef SKV_COMM_H
#define SKV_COMM_H

#include <stdbool.h>
#include <stddef.h>

#include "error.h"

typedef struct skv__comm skv__comm_t;

typedef enum skv__way { SKV__SEND, SKV__RECEIVE } skv__way_t;

/* Tags of callers are 0 to SKV__TAG_MAX; the collectives below use the few above it. */
#define SKV__TAG_MAX 32699

typedef struct skv__request {
  skv__way_t way;
  int32_t peer, tag;
  size_t bytes, done_bytes; /* done_bytes: pieces completed so far */
  size_t flying_bytes;      /* the piece under way; 0: none, an earlier message comes first */
  void *data;
  bool active;
  struct skv__request *previous, *next; /* among the comm's active requests */
  uint64_t handle[6];                   /* the transport's */
} skv__request_t;

/* What a piece that does not move is waiting for: its peer; work that was given to this rank's own
 * device before it; a copy on this rank's device. */
typedef enum skv__stall { SKV__STALL_PEER, SKV__STALL_COMPUTE, SKV__STALL_COPY } skv__stall_t;

/* What a transport provides. All calls return at once. */
typedef struct skv__transport {
  const char *name; /* "self", "mpi", "staged", "nccl" */
  /* Largest message that one start may carry; comm cuts longer ones into pieces. */
  size_t piece_bytes;
  skv_status_t (*start)(void *impl, skv__request_t *request, size_t offset, size_t bytes,
                        skv__error_t *error);
  skv_status_t (*test)(void *impl, skv__request_t *request, bool *done,
                       skv__error_t *error); /* the started piece */
  /* Let go of the started piece: a receive that no message has met yet never writes. Never waits.
   */
  void (*cancel)(void *impl, skv__request_t *request);
  /* Or NULL. The stream that the next messages belong to, for transports that move device memory.
   */
  void (*on)(void *impl, void *stream);
  /* Or NULL. Pieces started between begin and end move together. A transport that is ordered by a
   * stream has them done at end: whatever the stream does later comes after them. */
  skv_status_t (*group)(void *impl, bool begins, skv__error_t *error);
  /* Or NULL: always its peer. */
  skv__stall_t (*stall)(void *impl, const skv__request_t *request);
  /* Or NULL; for transports whose messages are part of a stream. What has gone wrong with them
   * meanwhile. */
  skv_status_t (*fault)(void *impl, skv__error_t *error);
  /* Or NULL. Wait, as a counted watch, until the stream is through with what it was given. */
  skv_status_t (*settle)(void *impl, skv__error_t *error);
  /* Or NULL. Collective: end what the ranks have together, before destroy. */
  skv_status_t (*leave)(void *impl, skv__error_t *error);
  /* Or NULL. The comm is broken: free the device of messages that will never come. Takes two
   * seconds at most. */
  void (*abandon)(void *impl);
  void (*destroy)(void *impl, bool healthy);
} skv__transport_t;

/* What a rank says of its work in an agreement. */
typedef struct skv__card {
  uint64_t status, count, digest; /* skv_status_t; of its facts */
} skv__card_t;

struct skv__comm {
  const skv__transport_t *transport;
  void *impl;
  skv__comm_t *control; /* whose signs of life its waits listen to: itself, or the comm of the same
                           ranks that a wire goes beside */
  int32_t rank, ranks;
  double timeout_seconds;
  size_t piece_bytes; /* transport->piece_bytes; tests lower it */
  bool broken;        /* a wait failed */
  bool settles; /* a group's end waits until its messages have moved, if only a stream knows */
  skv__error_t *error;      /* the context's, borrowed */
  void (*lost)(void *user); /* or NULL: told first when the comm breaks */
  void *lost_user;
  /* the comm's own */
  skv__request_t *first, *last; /* active requests, oldest first */
  size_t unstarted;             /* how many of them have pieces not started yet */
  skv__request_t *requests;     /* [ranks], for collectives */
  skv__card_t *cards;           /* [ranks], for agreements */
  int32_t waits_for;            /* told to the others when a wait expires */
  struct skv__pulse *pulses;    /* [ranks], of wait.c */
  double next_pulse;
  uint32_t watches_begun, watches_ended; /* counted ones */
};

/* For transports: takes `impl` (destroyed on failure). */
skv_status_t skv__comm_create(skv__comm_t **comm, const skv__transport_t *transport, void *impl,
                              int32_t rank, int32_t ranks, double timeout_seconds,
                              skv__error_t *error);
skv_status_t skv__comm_create_self(skv__comm_t **comm, double timeout_seconds, skv__error_t *error);
void skv__comm_destroy(skv__comm_t *comm);
/* Collective: part from the other ranks in order. Destroy does it too, but has no way to say what
 * went wrong. */
skv_status_t skv__comm_leave(skv__comm_t *comm);

/* Start a message. Zero bytes are done at once, and nothing is sent. */
skv_status_t skv__comm_send(skv__comm_t *comm, skv__request_t *request, int32_t peer,
                            const void *data, size_t bytes, int32_t tag);
skv_status_t skv__comm_receive(skv__comm_t *comm, skv__request_t *request, int32_t peer, void *data,
                               size_t bytes, int32_t tag);
/* The stream of the next messages; and a group of messages that move together, begun and ended by
 * every rank that has a part in them. Nothing where the transport has no use for it. */
void skv__comm_on(skv__comm_t *comm, void *stream);
skv_status_t skv__comm_group_begin(skv__comm_t *comm);
skv_status_t skv__comm_group_end(skv__comm_t *comm);
/* Wait, where the comm settles, until the stream is through with what it was given. */
skv_status_t skv__comm_settle(skv__comm_t *comm);
/* Advance one request; *done tells whether it has finished. Never waits. */
skv_status_t skv__comm_test(skv__comm_t *comm, skv__request_t *request, bool *done);
/* Wait for all of them, as skv__wait_t does. `operation` names the wait in texts. */
skv_status_t skv__comm_wait(skv__comm_t *comm, skv__request_t *requests, size_t count,
                            const char *operation);
double skv__comm_now(void); /* monotonic seconds */

/* wait.c: a wait by polling. Its deadline counts from the last sign of life: something moved, or
 * the rank that is waited for reported that it computes (or that it waits, in turn, for one that
 * does). Zero-initialise; after each poll call one of the two. */
typedef struct skv__wait {
  double since, next_look;
  uint32_t idle; /* polls that found nothing */
  bool looked;
} skv__wait_t;
void skv__wait_moved(skv__wait_t *wait);
/* Nothing moved: pause (yield at first, then sleep 50 us, so that more ranks than cores get on).
 * When the deadline has passed: SKV_TIMEOUT and a text with rank, peer, operation, bytes and
 * seconds; the comm is broken then. `late` is the first request that is not done. */
skv_status_t skv__wait_idle(skv__comm_t *comm, skv__wait_t *wait, const skv__request_t *late,
                            const char *operation);
/* Whoever computes for long calls this now and then: those who wait for this rank are told. */
skv_status_t skv__comm_pulse(skv__comm_t *comm);

/* watch.c: a wait for something that other ranks have a part in and no message shows: a device's
 * queue, the opening of a transport. All ranks do it alike, and each says all the while that it is
 * there; who has been silent for the timeout is to blame. A counted watch may last as long as it
 * likes on some ranks after it has ended on others, which then need not say anything. */
typedef struct skv__watch {
  double since, next_look;
  uint32_t idle;
  bool counted;
} skv__watch_t;
skv_status_t skv__watch_begin(skv__comm_t *comm, skv__watch_t *watch, bool counted);
/* Nothing moved: pause, as skv__wait_idle does. SKV_TIMEOUT when a rank has been silent for too
 * long, or, if `limited`, when the watch has lasted for the timeout. */
skv_status_t skv__watch_idle(skv__comm_t *comm, skv__watch_t *watch, bool limited,
                             const char *operation);
skv_status_t skv__watch_end(skv__comm_t *comm, const skv__watch_t *watch);

/* Cancel all messages and refuse new ones; of a wire, also of the comm beside it. */
void skv__comm_break(skv__comm_t *comm);

/* Small collectives, built from messages. */
skv_status_t skv__comm_barrier(skv__comm_t *comm, const char *operation);
skv_status_t skv__comm_sum(skv__comm_t *comm, uint64_t *values, size_t count,
                           const char *operation); /* mod 2^64, to all */
skv_status_t skv__comm_gather(skv__comm_t *comm, const void *mine, size_t bytes,
                              void *all /* [ranks][bytes] on 0 */, const char *operation);
skv_status_t skv__comm_broadcast(skv__comm_t *comm, void *data, size_t bytes,
                                 const char *operation); /* from 0 */

/* One thing that all ranks must have alike, e.g. {"causal", 1}. */
typedef struct skv__fact {
  char name[24];
  uint64_t value;
} skv__fact_t;
/* Collective. SKV_DISAGREE on every rank when any fact (or their number) differs, with one text
 * that names the lowest rank that differs from rank 0 and its first fact that does. `status` and
 * `text` of a rank that already failed are spread too: every rank then returns that status with the
 * text of the lowest failing rank ("rank 2: ..."; one rank alone is not named). Allocates nothing.
 */
skv_status_t skv__comm_agree(skv__comm_t *comm, const skv__fact_t *facts, size_t count,
                             skv_status_t status, const char *text);

#endif
