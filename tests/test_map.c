/* The map of GPUs as `info` draws it, and names of GPUs. */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "launch/map.h"

static void check_text(const skv__gpu_place_t *place, const char *expected) {
  char text[256];
  skv__gpu_place_text(place, text, sizeof text);
  cr_assert_str_eq(text, expected);
}

Test(map, text) {
  skv__gpu_place_t place = {.bus_id = "0000:1b:00.0", .numa = 1, .cpus = "16-31"};
  check_text(&place, "PCI 0000:1b:00.0, NUMA node 1 (CPUs 16-31), no peers");
  place.peers = place.nvlink = 2;
  check_text(&place, "PCI 0000:1b:00.0, NUMA node 1 (CPUs 16-31), NVLink to GPU 1");
  place.peers = 0x2e, place.nvlink = 0xe, place.numa = SKV__NO_NUMA;
  check_text(&place, "PCI 0000:1b:00.0, NUMA node not known, NVLink to GPUs 1, 2 and 3, "
                     "PCI loads from GPU 5");
  char text[40];
  skv__gpu_place_text(&place, text, sizeof text);
  cr_assert(strlen(text) == sizeof text - 1); /* cut, not overrun */
}
