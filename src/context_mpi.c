/* context_mpi.c: a context over an MPI communicator. */
#include "comm/comm_mpi.h"
#include "context.h"
#include "skv_mpi.h"

skv_status_t skv__context_open_mpi(skv__comm_t **comm, double timeout_seconds, void *argument,
                                   skv__error_t *error) {
  const MPI_Comm *communicator = argument;
  return skv__comm_create_mpi(comm, *communicator, timeout_seconds, error);
}

#ifdef SKV_HAVE_CUDA
static const skv__wire_opener_t device_wire = skv__comm_create_staged;
#else
static const skv__wire_opener_t device_wire = NULL;
#endif

skv_status_t skv_context_create_mpi(skv_context_t **context, MPI_Comm communicator,
                                    const skv_context_options_t *options) {
  return skv__context_create(context, skv__context_open_mpi, &communicator, device_wire, options);
}
