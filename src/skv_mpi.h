/* skv_mpi.h: a context over an MPI communicator. */
#ifndef SKV_MPI_H
#define SKV_MPI_H

#include <mpi.h>

#include "skv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Collective over `communicator`, which is duplicated; MPI is initialised by the caller
 * (MPI_THREAD_FUNNELED or more) and must outlive the context. Every rank must pass the same
 * timeout. On failure *context is as skv_context_create leaves it, and all ranks fail alike. */
SKV_API skv_status_t skv_context_create_mpi(skv_context_t **context, MPI_Comm communicator,
                                            const skv_context_options_t *options);

#ifdef __cplusplus
}
#endif
#endif
