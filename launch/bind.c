/* bind.c: hwloc gives each rank of a host its share of the cores, and each thread a core where
 * there are as many as threads. What a launcher has bound already is kept. */
#include "launch/bind.h"

#include <hwloc.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "launch/launcher.h"
#include "launch/place.h"

static int32_t cores_in(hwloc_topology_t topology, hwloc_const_cpuset_t set) {
  int cores = 0;
  for (hwloc_obj_t core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, NULL); core;
       core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core))
    cores += hwloc_bitmap_intersects(core->cpuset, set);
  if (cores == 0)
    cores = hwloc_bitmap_weight(set);
  return cores > 0 ? cores : 1;
}

/* The CPUs of the NUMA node that the rank's GPU is near, or NULL. */
static hwloc_const_cpuset_t near_gpu(hwloc_topology_t topology, const skv__seat_t *seat) {
  int32_t numa = seat->gpu_numa ? seat->gpu_numa[seat->local_rank] : SKV__NO_NUMA;
  hwloc_obj_t node = numa < 0 ? NULL : hwloc_get_numanode_obj_by_os_index(topology, (unsigned)numa);
  return node && !hwloc_bitmap_iszero(node->cpuset) ? node->cpuset : NULL;
}

/* Whether the GPU of every rank of the host has a known place: else shares would overlap. */
static bool all_near(const skv__seat_t *seat) {
  bool known = seat->gpu_numa != NULL;
  for (int32_t rank = 0; known && rank < seat->local_ranks; ++rank)
    known = seat->gpu_numa[rank] != SKV__NO_NUMA;
  return known;
}

/* Cores [begin, end) of those in `set`, into `share`. */
static void pick_cores(hwloc_topology_t topology, hwloc_const_cpuset_t set, skv__core_range_t range,
                       hwloc_bitmap_t share) {
  int32_t number = 0;
  hwloc_bitmap_zero(share);
  for (hwloc_obj_t core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, NULL); core;
       core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core))
    if (hwloc_bitmap_intersects(core->cpuset, set)) {
      if (number >= range.begin && number < range.end)
        hwloc_bitmap_or(share, share, core->cpuset);
      ++number;
    }
  hwloc_bitmap_and(share, share, set);
}

/* The share of a rank in the cores near its GPU; false when there are none that it may have. */
static bool take_near(hwloc_topology_t topology, const skv__seat_t *seat, hwloc_const_cpuset_t near,
                      hwloc_bitmap_t share) {
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  if (!set)
    return false;
  hwloc_bitmap_and(set, near, share);
  bool taken = !hwloc_bitmap_iszero(set);
  if (taken) {
    pick_cores(topology, set,
               skv__place_cores(seat->local_rank, seat->local_ranks, seat->gpu_numa,
                                cores_in(topology, set)),
               share);
    taken = hwloc_set_cpubind(topology, share, HWLOC_CPUBIND_PROCESS) == 0;
  }
  hwloc_bitmap_free(set);
  return taken;
}

/* The share of one rank of several; false when there is nothing to divide. */
static bool take_share(hwloc_topology_t topology, int32_t local_rank, int32_t local_ranks,
                       hwloc_bitmap_t share) {
  hwloc_obj_t root = hwloc_get_root_obj(topology);
  hwloc_bitmap_t *sets = calloc((size_t)local_ranks, sizeof *sets);
  if (!sets)
    return false;
  bool taken = hwloc_distrib(topology, &root, 1, sets, (unsigned)local_ranks, INT_MAX, 0) == 0;
  if (taken) {
    hwloc_bitmap_copy(share, sets[local_rank]);
    taken = hwloc_set_cpubind(topology, share, HWLOC_CPUBIND_PROCESS) == 0;
    for (int32_t i = 0; i < local_ranks; ++i)
      hwloc_bitmap_free(sets[i]);
  }
  free(sets);
  return taken;
}

/* Give each thread of the team that the kernels will use a core of its own. */
static bool bind_threads(hwloc_topology_t topology, hwloc_const_cpuset_t share, int32_t threads) {
  int failures = 0;
  hwloc_bitmap_t *sets = calloc((size_t)threads, sizeof *sets);
  if (!sets)
    return false;
  int32_t count = 0;
  for (hwloc_obj_t core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, NULL);
       core && count < threads; core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core))
    if (hwloc_bitmap_intersects(core->cpuset, share)) {
      sets[count] = hwloc_bitmap_alloc();
      if (sets[count])
        hwloc_bitmap_and(sets[count], core->cpuset, share);
      ++count;
    }
  if (count == threads) {
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : failures)
    for (int32_t thread = 0; thread < threads; ++thread)
      failures +=
          !sets[thread] || hwloc_set_cpubind(topology, sets[thread], HWLOC_CPUBIND_THREAD) != 0;
  }
  for (int32_t i = 0; i < count; ++i)
    hwloc_bitmap_free(sets[i]);
  free(sets);
  return count == threads && failures == 0;
}

/* The cores of the host that are this rank's by right. */
static int32_t fair_cores(hwloc_topology_t topology, int32_t local_ranks) {
  int32_t cores = cores_in(topology, hwloc_topology_get_allowed_cpuset(topology));
  return cores > local_ranks ? cores / local_ranks : 1;
}

/* What is wrong with the binding, or what was left undone. */
static const char *remark(const skv__binding_t *binding, bool enabled, int32_t fair) {
  if (binding->by_launcher && binding->cores == 1 && fair > 1)
    return "; bound to one core by the launcher: mpirun --bind-to none leaves it to splitkv";
  return binding->by_launcher ? "; bound by the launcher" : !enabled ? "; not bound" : "";
}

static void describe(skv__binding_t *binding, hwloc_const_cpuset_t share, bool own_cores,
                     const char *said, const skv__seat_t *seat, bool near) {
  char cpus[64], gpu[64] = "";
  hwloc_bitmap_list_snprintf(cpus, sizeof cpus, share);
  if (near)
    snprintf(gpu, sizeof gpu,
             binding->far ? "; far from its GPU, on NUMA node %d" : "; NUMA node %d",
             (int)seat->gpu_numa[seat->local_rank]);
  snprintf(binding->text, sizeof binding->text, "CPUs %s (%d core%s), %d thread%s%s%s%s", cpus,
           (int)binding->cores, binding->cores == 1 ? "" : "s", (int)binding->threads,
           binding->threads == 1 ? "" : "s", own_cores ? ", each on a core of its own" : "", said,
           gpu);
}

/* Keeps the rank to its share where nobody has done so. `share`: the CPUs that it may use. */
static bool keep_to_share(hwloc_topology_t topology, const skv__seat_t *seat,
                          hwloc_const_cpuset_t near, hwloc_bitmap_t share) {
  if (near && all_near(seat))
    return take_near(topology, seat, near, share);
  /* More ranks than cores: the scheduler divides them better than a fixed share. */
  return seat->local_ranks > 1 && cores_in(topology, share) >= seat->local_ranks &&
         take_share(topology, seat->local_rank, seat->local_ranks, share);
}

skv__binding_t skv__bind(const skv__seat_t *seat, int32_t threads, bool enabled) {
  skv__binding_t binding = {.threads = threads > 0 ? threads : 1, .cores = 1};
  hwloc_topology_t topology;
  snprintf(binding.text, sizeof binding.text, "not known");
  if (hwloc_topology_init(&topology) != 0)
    return binding;
  hwloc_bitmap_t share = hwloc_bitmap_alloc();
  if (share && hwloc_topology_load(topology) == 0 &&
      hwloc_get_cpubind(topology, share, HWLOC_CPUBIND_PROCESS) == 0) {
    hwloc_const_cpuset_t near = near_gpu(topology, seat);
    binding.bound = !hwloc_bitmap_isincluded(hwloc_topology_get_allowed_cpuset(topology), share);
    binding.by_launcher = binding.bound && skv__launcher().present;
    if (enabled && !binding.bound)
      binding.bound = keep_to_share(topology, seat, near, share);
    binding.cores = cores_in(topology, share);
    binding.far = near && !hwloc_bitmap_intersects(near, share);
    /* A launcher may have given several ranks the same cores: no more threads than is fair. */
    int32_t fair = fair_cores(topology, seat->local_ranks);
    if (threads == 0)
      binding.threads = binding.cores < fair ? binding.cores : fair;
    bool own_cores = enabled && binding.threads == binding.cores && binding.cores > 1 &&
                     bind_threads(topology, share, binding.threads);
    describe(&binding, share, own_cores, remark(&binding, enabled, fair), seat, near != NULL);
  }
  hwloc_bitmap_free(share);
  hwloc_topology_destroy(topology);
  return binding;
}

skv__host_t skv__host(void) {
  skv__host_t host = {.model = "not known"};
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0)
    return host;
  if (hwloc_topology_load(topology) == 0) {
    host.packages = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE);
    host.numa_nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
    host.cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    host.cpus = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
    hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
    const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    if (model)
      snprintf(host.model, sizeof host.model, "%s", model);
  }
  hwloc_topology_destroy(topology);
  return host;
}
