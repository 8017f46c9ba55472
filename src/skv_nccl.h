/* skv_nccl.h: a context whose ranks have a GPU each and pass device memory through NCCL. */
#ifndef SKV_NCCL_H
#define SKV_NCCL_H

#include <mpi.h>

#include "skv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Collective over `communicator`, as skv_context_create_mpi; MPI carries what ranks agree on, NCCL
 * the states, keys and values. The device that is current in the calling thread is the rank's, no
 * other rank's, and the options' backend is CUDA. Executes only enqueue: wait with skv_wait. CUDA
 * graphs that captured executes must be destroyed before the context, which waits for them, though
 * not for longer than the timeout. CUDA loads a kernel when it is first launched, which may wait
 * for all that is in flight on the device, messages of a rank that has died among it, without a
 * deadline: so the first two executes of a plan wait for their messages with one, unless they are
 * being captured. */
SKV_API skv_status_t skv_context_create_nccl(skv_context_t **context, MPI_Comm communicator,
                                             const skv_context_options_t *options);

#ifdef __cplusplus
}
#endif
#endif
