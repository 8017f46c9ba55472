/* pack.h: copies on the device that make strided rows dense. */
#ifndef SKV_CUDA_PACK_H
#define SKV_CUDA_PACK_H

#include <cuda_runtime_api.h>

#include "kernels/streams.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Enqueues; a CUDA graph may capture it. */
skv_status_t skv__launch_pack(const skv__pack_t *packs, int32_t count, cudaStream_t stream);
#ifdef __cplusplus
}
#endif

#endif
