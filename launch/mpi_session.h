/* mpi_session.h: from process start to process end: MPI where a launcher started us, the binding,
 * the context, agreement, and the way out. No wait is without a deadline. */
#ifndef SKV_MPI_SESSION_H
#define SKV_MPI_SESSION_H

#include "comm/comm.h"
#include "launch/bind.h"
#include "launch/stations.h"
#include "skv.h"
#ifdef SKV_HAVE_MPI
#include <mpi.h>
#endif

typedef struct skv__session_options {
  skv__transport_choice_t transport;
  skv_backend_t backend;
  int32_t threads; /* 0: the rank's share of the host */
  double timeout_seconds;
  bool bind;
} skv__session_options_t;

typedef struct skv__session {
  skv_context_t *context;
  int32_t rank, ranks;
  int32_t local_rank, local_ranks; /* on this host */
  bool mpi;                        /* MPI is running */
  double timeout_seconds;
  skv__station_t *stations; /* [ranks]; owned by the session that was opened, not by parts of it */
  skv__transport_chosen_t chosen;
  skv__binding_t binding;
} skv__session_t;

/* Collective where MPI runs. SKV_INVALID means that the launcher or an option is wrong. Call close
 * whatever comes back. */
skv_status_t skv__session_open(skv__session_t *session, const skv__session_options_t *options,
                               skv__error_t *error);

#ifdef SKV_HAVE_MPI
/* Collective over the communicator: a context of the session's transport on it. */
skv_status_t skv__session_join(skv__session_t *session, MPI_Comm communicator,
                               const skv_context_options_t *options);
#endif

/* Collective: every rank gets the status and text of the lowest rank that failed, or SKV_DISAGREE
 * when a fact differs. `error` holds this rank's failure on entry. */
skv_status_t skv__session_agree(skv__session_t *session, const skv__fact_t *facts, size_t count,
                                skv__error_t *error);

/* Whether this rank should print what all ranks know. */
bool skv__session_speaks(const skv__session_t *session);

/* Prints the error once: by rank 0 when all have it, by whoever met it when the ranks can no longer
 * talk. Returns the exit code; `usage`: SKV_INVALID means that the command line is wrong. */
int skv__session_complain(const skv__session_t *session, const skv__error_t *error, bool usage);

/* Ends MPI (by force when the ranks can no longer talk) and returns the exit code. */
int skv__session_close(skv__session_t *session, int code);

#endif
