/* cuda.h: the CUDA kernels in the table. They give the same bits on one device, and in fp32 those
 * of the CPU. */
#ifndef SKV_CUDA_H
#define SKV_CUDA_H

#include "kernels/kernel.h"
#include "kernels/peers.h"

#if defined(SKV_HAVE_NCCL)
extern const skv__peers_t skv__cuda_peers;
#define SKV__CUDA_PEERS (&skv__cuda_peers)
#else
#define SKV__CUDA_PEERS NULL
#endif
extern const skv__kernel_t skv__cuda_sm90;         /* "cuda.sm90": compute capability 9.0 */
extern const skv__kernel_t skv__cuda_plain_kernel; /* "cuda.plain": 8.0 and later */

#endif
