/* map.c: see map.h. CUDA names the GPUs and their peers, hwloc knows what is near a PCI device. */
#include "launch/map.h"

#include <hwloc.h>
#include <stdio.h>
#include <string.h>

static void append(char *text, size_t text_bytes, const char *more) {
  size_t used = strlen(text);
  snprintf(text + used, text_bytes - used, "%s", more);
}

/* "GPU 1", "GPUs 1 and 2", "GPUs 1, 2 and 3" */
static void append_gpus(uint64_t set, char *text, size_t text_bytes) {
  int32_t count = __builtin_popcountll(set), told = 0;
  append(text, text_bytes, count == 1 ? "GPU " : "GPUs ");
  for (int32_t gpu = 0; gpu < SKV__ADAPTERS_MAX; ++gpu)
    if (set >> gpu & 1) {
      char number[24];
      snprintf(number, sizeof number, "%s%d",
               told == 0          ? ""
               : told + 1 < count ? ", "
                                  : " and ",
               (int)gpu);
      append(text, text_bytes, number);
      ++told;
    }
}

void skv__gpu_place_text(const skv__gpu_place_t *place, char *text, size_t text_bytes) {
  snprintf(text, text_bytes, "PCI %s, ", place->bus_id);
  char near[128] = "NUMA node not known";
  if (place->numa != SKV__NO_NUMA)
    snprintf(near, sizeof near, "NUMA node %d (CPUs %s)", (int)place->numa, place->cpus);
  append(text, text_bytes, near);
  uint64_t others = place->peers & ~place->nvlink;
  if (place->nvlink) {
    append(text, text_bytes, ", NVLink to ");
    append_gpus(place->nvlink, text, text_bytes);
  }
  if (others) {
    append(text, text_bytes, ", PCI loads from ");
    append_gpus(others, text, text_bytes);
  }
  if (!place->peers)
    append(text, text_bytes, ", no peers");
}

#ifdef SKV_HAVE_CUDA

#include <cuda_runtime_api.h>

/* The one NUMA node near the PCI device, or NULL: a device that hangs on the whole machine, as far
 * as hwloc can see, has none. */
static hwloc_obj_t node_by_bus(hwloc_topology_t topology, const char *bus_id) {
  hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topology, bus_id);
  hwloc_obj_t near = device ? hwloc_get_non_io_ancestor_obj(topology, device) : NULL;
  if (!near || hwloc_bitmap_weight(near->nodeset) != 1)
    return NULL;
  return hwloc_get_numanode_obj_by_os_index(topology, (unsigned)hwloc_bitmap_first(near->nodeset));
}

static void find_numa(hwloc_topology_t topology, int gpu, skv__gpu_place_t *place) {
  hwloc_obj_t node = node_by_bus(topology, place->bus_id);
  int number = -1;
  if (!node && cudaDeviceGetAttribute(&number, cudaDevAttrHostNumaId, gpu) == cudaSuccess &&
      number >= 0)
    node = hwloc_get_numanode_obj_by_os_index(topology, (unsigned)number);
  place->numa = SKV__NO_NUMA;
  if (!node)
    return;
  place->numa = (int32_t)node->os_index;
  hwloc_bitmap_list_snprintf(place->cpus, sizeof place->cpus, node->cpuset);
}

static void find_peers(int gpu, int gpus, skv__gpu_place_t *place) {
  for (int peer = 0; peer < gpus; ++peer) {
    int reads = 0, atomics = 0;
    if (peer == gpu || cudaDeviceCanAccessPeer(&reads, gpu, peer) != cudaSuccess || !reads)
      continue;
    place->peers |= UINT64_C(1) << peer;
    if (cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, gpu, peer) ==
            cudaSuccess &&
        atomics)
      place->nvlink |= UINT64_C(1) << peer;
  }
}

void skv__gpu_map(skv__gpu_map_t *map) {
  memset(map, 0, sizeof *map);
  hwloc_topology_t topology;
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || hwloc_topology_init(&topology) != 0) {
    cudaGetLastError(); /* no GPU: an empty map says so */
    return;
  }
  gpus = gpus < SKV__ADAPTERS_MAX ? gpus : SKV__ADAPTERS_MAX;
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(topology) == 0) {
    map->count = gpus;
    for (int gpu = 0; gpu < gpus; ++gpu) {
      skv__gpu_place_t *place = &map->each[gpu];
      if (cudaDeviceGetPCIBusId(place->bus_id, (int)sizeof place->bus_id, gpu) != cudaSuccess)
        snprintf(place->bus_id, sizeof place->bus_id, "?");
      find_numa(topology, gpu, place);
      find_peers(gpu, gpus, place);
    }
  }
  hwloc_topology_destroy(topology);
  cudaGetLastError(); /* what could not be asked is told as not known */
}

#else

void skv__gpu_map(skv__gpu_map_t *map) {
  memset(map, 0, sizeof *map);
}

#endif
