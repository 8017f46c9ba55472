/* Which GPU and which cores a rank gets: by hand, and for every count that hosts have. */
#define _GNU_SOURCE /* cpu_set_t */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "launch/bind.h"
#include "launch/place.h"

Test(place, one_rank_per_gpu_in_order) {
  for (int32_t gpus = 1; gpus <= 16; ++gpus)
    for (int32_t ranks = 1; ranks <= gpus; ++ranks)
      for (int32_t rank = 0; rank < ranks; ++rank)
        CHECK(skv__place_gpu(rank, ranks, gpus) == rank);
  CHECK(skv__place_gpu(0, 1, 0) == SKV__NO_GPU);
}

/* No GPU stays idle, none has two ranks more than another, and those who share are neighbours. */
Test(place, more_ranks_than_gpus_share_evenly) {
  for (int32_t gpus = 1; gpus <= 8; ++gpus)
    for (int32_t ranks = gpus; ranks <= 40; ++ranks) {
      int32_t count[8] = {0}, last = 0;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        int32_t gpu = skv__place_gpu(rank, ranks, gpus);
        CHECK(gpu == last || gpu == last + 1, "%d of %d ranks on %d GPUs: GPU %d", rank, ranks,
              gpus, gpu);
        last = gpu;
        ++count[gpu];
      }
      for (int32_t gpu = 0; gpu < gpus; ++gpu)
        CHECK(count[gpu] == ranks / gpus || count[gpu] == (ranks + gpus - 1) / gpus);
    }
}

static void check_cores(int32_t rank, const int32_t *numa, int32_t cores, int32_t begin,
                        int32_t end) {
  skv__core_range_t range = skv__place_cores(rank, 4, numa, cores);
  cr_assert(range.begin == begin && range.end == end, "rank %d: cores %d to %d, not %d to %d", rank,
            range.begin, range.end, begin, end);
}

Test(place, ranks_near_one_numa_node_divide_its_cores) {
  const int32_t numa[] = {1, 0, 1, 1}; /* three ranks near node 1, one near node 0 */
  check_cores(0, numa, 16, 0, 5);
  check_cores(1, numa, 16, 0, 16);
  check_cores(2, numa, 16, 5, 10);
  check_cores(3, numa, 16, 10, 16);
  check_cores(2, numa, 2, 0, 2); /* more ranks than cores */
  check_cores(3, numa, 3, 2, 3);
}

Test(place, shares_cover_the_node_and_never_overlap) {
  int32_t numa[24];
  for (int32_t ranks = 1; ranks <= 24; ++ranks)
    for (int32_t cores = ranks; cores <= 64; cores += 7) {
      int32_t end = 0;
      memset(numa, 0, sizeof numa);
      for (int32_t rank = 0; rank < ranks; ++rank) {
        skv__core_range_t range = skv__place_cores(rank, ranks, numa, cores);
        CHECK(range.begin == end && range.end > range.begin);
        end = range.end;
      }
      CHECK(end == cores);
    }
}

static void check_sharing(const uint64_t *gpu, int32_t ranks, const char *expected) {
  char text[256];
  skv__place_sharing(gpu, ranks, text, sizeof text);
  cr_assert_str_eq(text, expected);
}

Test(place, who_shares_is_said) {
  check_sharing((const uint64_t[]){7, 8, 9}, 3, "");
  check_sharing((const uint64_t[]){0, 0, 0}, 3, "");
  check_sharing((const uint64_t[]){7, 7, 9}, 3, "ranks 0 and 1 share a GPU");
  check_sharing((const uint64_t[]){7, 9, 0, 9, 7, 9}, 6,
                "ranks 0 and 4 share a GPU; ranks 1, 3 and 5 share a GPU");
  char text[20];
  skv__place_sharing((const uint64_t[]){7, 7, 7}, 3, text, sizeof text);
  cr_assert(strlen(text) == sizeof text - 1); /* cut, not overrun */
}

/* Each test is a process of its own, so what it binds and sets ends with it. */
static void run_on_cpu(int32_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0)
    cr_skip_test("this process may not run on CPU %d", cpu);
}

Test(place, a_rank_is_bound_near_its_gpu) {
  const int32_t numa[] = {0, 0};
  const skv__seat_t seat = {.local_rank = 1, .local_ranks = 2, .gpu_numa = numa};
  skv__host_t host = skv__host();
  if (host.numa_nodes != 1 || host.cores < 2)
    cr_skip_test("needs a host of one NUMA node and two cores");
  skv__binding_t binding = skv__bind(&seat, 0, true);
  cr_assert(binding.bound && !binding.far);
  cr_assert(binding.cores == host.cores - host.cores / 2, "%s", binding.text);
  cr_assert(strstr(binding.text, "; NUMA node 0"), "%s", binding.text);
}

Test(place, a_rank_far_from_its_gpu_is_said) {
  const int32_t numa[] = {1};
  const skv__seat_t seat = {.local_ranks = 1, .gpu_numa = numa};
  run_on_cpu(0);
  setenv("HWLOC_SYNTHETIC", "node:2 core:2 pu:1", 1); /* node 1 has CPUs 2 and 3 */
  setenv("HWLOC_THISSYSTEM", "1", 1);
  skv__binding_t binding = skv__bind(&seat, 1, true);
  cr_assert(binding.far);
  cr_assert(strstr(binding.text, "far from its GPU, on NUMA node 1"), "%s", binding.text);
}
