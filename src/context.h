/* context.h: what a context holds. Transports build one from their comm with skv__context_create.
 */
#ifndef SKV_CONTEXT_H
#define SKV_CONTEXT_H

#include <stdbool.h>

#include "comm/comm.h"
#include "error.h"
#include "kernels/kernel.h"

struct skv_context {
  skv__error_t error;
  skv__comm_t *comm; /* owned; stays open when ranks disagree, so that they can part in order */
  skv__comm_t *wire; /* owned; moves states, keys and values: `comm` itself where they are host
                        memory */
  bool agreed;       /* all ranks want this context: plans may be made with it */
  const skv__kernel_t *kernel;
  int32_t threads;
  skv__window_t *windows; /* of its plans, borrowed */
};

/* Other ranks are lost: kernels that wait for them in a window are to end. A wire that breaks calls
 * it, before NCCL waits for what runs on the device. */
void skv__context_stop(void *context);

/* Opens the comm of a context: called with the context's error, the timeout and `argument`. */
typedef skv_status_t (*skv__comm_opener_t)(skv__comm_t **comm, double timeout_seconds,
                                           void *argument, skv__error_t *error);
/* Opens the wire of a context, beside its open comm. Called on every rank, or on none. */
typedef skv_status_t (*skv__wire_opener_t)(skv__comm_t **wire, skv__comm_t *comm,
                                           skv__error_t *error);
/* Opens the comm, agrees with the other ranks, then opens the wire (NULL: it is the comm): what
 * fails on one rank fails on all. `device_wire` is for kernels whose states are device memory. A
 * failed create leaves a context that only holds the error text, as the public constructors do. */
skv_status_t skv__context_create(skv_context_t **context, skv__comm_opener_t open, void *argument,
                                 skv__wire_opener_t device_wire,
                                 const skv_context_options_t *given);

/* As skv_wait, but leaves an older error. `counted`: all ranks come here as often, so that one
 * whose wait is over may do what it likes while others still wait. */
skv_status_t skv__context_wait(skv_context_t *context, void *stream, bool counted);

/* Opens a comm over `argument`, an MPI_Comm. */
skv_status_t skv__context_open_mpi(skv__comm_t **comm, double timeout_seconds, void *argument,
                                   skv__error_t *error);
/* Collective: parts from the other ranks in order, within the deadline. Destroy does it too, but
 * has no way to say what went wrong. */
skv_status_t skv__context_leave(skv_context_t *context);

#endif
