/* window.h: windows over NCCL. How kernels of different GPUs meet in them is in meet.cuh. */
#ifndef SKV_CUDA_WINDOW_H
#define SKV_CUDA_WINDOW_H

#include "kernels/peers.h"

enum {
  SKV__WINDOW_CTAS = 160,    /* of kernels that meet, at most */
  SKV__WINDOW_HEADER = 8192, /* bytes before each rank's memory, where they meet; 0 at first */
};

#ifdef __cplusplus
extern "C" {
#endif

/* As in skv__peers_t; `native` is an ncclComm_t. */
bool skv__window_available(void *native, skv__error_t *error);
skv_status_t skv__window_reserve(skv__window_t **window, void *native, int64_t bytes,
                                 skv__error_t *error);
skv_status_t skv__window_open(skv__window_t *window, double timeout_seconds, skv__error_t *error);
void skv__window_close(skv__window_t *window);

#ifdef __cplusplus
}
#endif
#endif
