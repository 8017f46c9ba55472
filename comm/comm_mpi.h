/* comm_mpi.h: opens a comm over an MPI communicator. */
#ifndef SKV_COMM_MPI_H
#define SKV_COMM_MPI_H

#include <mpi.h>

#include "comm/comm.h"

/* Collective. The communicator is duplicated; MPI is refused when it is not running or when this
 * thread may not call it. */
skv_status_t skv__comm_create_mpi(skv__comm_t **comm, MPI_Comm communicator, double timeout_seconds,
                                  skv__error_t *error);

#endif
