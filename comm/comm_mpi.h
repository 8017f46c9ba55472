/* comm_mpi.h: opens a comm over an MPI communicator. */
#ifndef SKV_COMM_MPI_H
#define SKV_COMM_MPI_H

#include <mpi.h>

#include "comm/comm.h"

/* Collective. The communicator is duplicated; MPI is refused when it is not running or when this
 * thread may not call it. */
skv_status_t skv__comm_create_mpi(skv__comm_t **comm, MPI_Comm communicator, double timeout_seconds,
                                  skv__error_t *error);
/* The communicator of such a comm, which keeps it. */
MPI_Comm skv__comm_mpi_of(const skv__comm_t *comm);
skv_status_t skv__mpi_failed(int code, const char *call, skv__error_t *error);

/* Collective, beside a comm of skv__comm_create_mpi, which must outlive it: messages of device
 * memory, through pinned host memory and MPI. Each belongs to the stream that skv__comm_on named
 * last: a send comes after what was given to the stream before; a receive is done once what comes
 * on that stream later finds the bytes. Ranks must post their receives no later than sends that
 * could fill all buffers. */
skv_status_t skv__comm_create_staged(skv__comm_t **wire, skv__comm_t *comm, skv__error_t *error);

#endif
