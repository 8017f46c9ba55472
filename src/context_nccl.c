/* context_nccl.c: a context over an MPI communicator whose device memory goes through NCCL. */
#include "comm/comm_nccl.h"
#include "context.h"
#include "skv_nccl.h"

skv_status_t skv_context_create_nccl(skv_context_t **context, MPI_Comm communicator,
                                     const skv_context_options_t *options) {
  SKV_TRY(skv__context_create(context, skv__context_open_mpi, &communicator, skv__comm_create_nccl,
                              options));
  if ((*context)->kernel->backend == SKV_BACKEND_CUDA)
    return SKV_OK;
  (*context)->agreed = false;
  return skv__fail(&(*context)->error, SKV_INVALID,
                   "NCCL passes device memory: set the context options' backend to "
                   "SKV_BACKEND_CUDA");
}
