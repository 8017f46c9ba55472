/* place.h: which GPU and which cores a rank of a host gets. Numbers in, numbers out: nothing is
 * asked of the machine. */
#ifndef SKV_PLACE_H
#define SKV_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SKV__NO_GPU (-1)
#define SKV__NO_NUMA (-1)

/* The GPU, of `gpus` that the rank sees, of rank `local_rank` of `local_ranks` of a host: one each,
 * in order. Where there are more ranks than GPUs, neighbours share one, as evenly as it goes.
 * SKV__NO_GPU when there are none. */
int32_t skv__place_gpu(int32_t local_rank, int32_t local_ranks, int32_t gpus);

/* Cores [begin, end) of those near a rank. */
typedef struct skv__core_range {
  int32_t begin, end;
} skv__core_range_t;

/* The share of one rank in the cores of the NUMA node that its GPU is near. `numa` [local_ranks] is
 * the node of each rank's GPU; ranks of one node divide its `cores` among them, in order. All of
 * them where there are more ranks than cores: the scheduler divides those better. */
skv__core_range_t skv__place_cores(int32_t local_rank, int32_t local_ranks, const int32_t *numa,
                                   int32_t cores);

/* Says in one line which of `ranks` share a GPU: "ranks 0 and 1 share a GPU; ranks 2, 3 and 4 share
 * a GPU". `gpu` [ranks] names the GPU of each, whatever its host, and 0 is none. "" where nobody
 * shares. */
void skv__place_sharing(const uint64_t *gpu, int32_t ranks, char *text, size_t text_bytes);

#endif
