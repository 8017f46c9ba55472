/* map.h: where the GPUs of this host are: on the PCI bus, near which cores, and whose memory each
 * of them reads. */
#ifndef SKV_MAP_H
#define SKV_MAP_H

#include "launch/gpu.h"
#include "launch/place.h"

typedef struct skv__gpu_place {
  char bus_id[20]; /* "0000:1b:00.0" */
  int32_t numa;    /* the node near it, as the system numbers it, or SKV__NO_NUMA */
  char cpus[64];   /* of that node, "0-31" */
  uint64_t peers;  /* bit g: it reads the memory of GPU g */
  uint64_t nvlink; /* bit g: over a link with atomics, as NVLink has and PCI has not */
} skv__gpu_place_t;

typedef struct skv__gpu_map {
  int32_t count;
  skv__gpu_place_t each[SKV__ADAPTERS_MAX];
} skv__gpu_map_t;

/* Of all GPUs that this process sees; none in a build without CUDA. */
void skv__gpu_map(skv__gpu_map_t *map);
/* "PCI 0000:1b:00.0, NUMA node 0 (CPUs 0-31), NVLink to GPUs 1, 2 and 3" */
void skv__gpu_place_text(const skv__gpu_place_t *place, char *text, size_t text_bytes);

#endif
