/* context_mpi.c: a context over an MPI communicator. */
#include "comm/comm_mpi.h"
#include "context.h"
#include "skv_mpi.h"

static skv_status_t open_mpi(skv__comm_t **comm, double timeout_seconds, void *argument,
                             skv__error_t *error) {
  const MPI_Comm *communicator = argument;
  return skv__comm_create_mpi(comm, *communicator, timeout_seconds, error);
}

skv_status_t skv_context_create_mpi(skv_context_t **context, MPI_Comm communicator,
                                    const skv_context_options_t *options) {
  return skv__context_create(context, open_mpi, &communicator, NULL, options);
}
