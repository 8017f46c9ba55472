/* reduce.h: the launcher of the kernel that merges the states of all ranks. */
#ifndef SKV_CUDA_REDUCE_H
#define SKV_CUDA_REDUCE_H

#include "kernels/cuda/launch.h"
#include "kernels/cuda/window.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As in skv__peers_t; `stream` is a cudaStream_t. */
bool skv__reduce_finishes(const skv__job_t *job, const skv__finish_t *finish);
skv_status_t skv__launch_reduce(const skv__window_t *window, const skv__reduce_t *reduce,
                                const skv__job_t *job, const skv__finish_t *finish, void *stream);

#ifdef __cplusplus
}
#endif
#endif
