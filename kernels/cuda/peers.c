/* peers.c: windows and the one-kernel reduction, as the library knows them. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/reduce.h"

#if defined(SKV_HAVE_NCCL)
const skv__peers_t skv__cuda_peers = {.available = skv__window_available,
                                      .reserve = skv__window_reserve,
                                      .open = skv__window_open,
                                      .close = skv__window_close,
                                      .finishes = skv__reduce_finishes,
                                      .reduce = skv__launch_reduce};
#endif
