/* finish.h: the launcher of the kernel that turns root states into outputs. */
#ifndef SKV_CUDA_FINISH_H
#define SKV_CUDA_FINISH_H

#include "kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As skv__kernel_t.finish, with finish->bits on the device too. Enqueues. */
skv_status_t skv__launch_finish(const skv__job_t *job, int32_t owner, const float *slice,
                                const skv__finish_t *finish, const skv__device_t *device,
                                cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
