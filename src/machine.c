/* machine.c: figures of hardware that the cost model works with. */
#include <string.h>
#include <xxhash.h>

#include "cost.h"

#define FIGURE(name, may_be_zero)                                                                  \
  { #name, offsetof(skv_machine_t, name), may_be_zero }
const skv__figure_t skv__figures[SKV__FIGURES] = {
    FIGURE(flop_per_second, false),        FIGURE(read_bytes_per_second, false),
    FIGURE(merge_bytes_per_second, false), FIGURE(prefill_seconds, true),
    FIGURE(decode_seconds, true),          FIGURE(round_seconds, true),
    FIGURE(message_seconds, true),         FIGURE(bytes_per_second, false),
    FIGURE(far_round_seconds, true),       FIGURE(far_message_seconds, true),
    FIGURE(far_bytes_per_second, false)};

double skv__figure(const skv_machine_t *machine, int figure) {
  double value;
  memcpy(&value, (const char *)machine + skv__figures[figure].offset, sizeof value);
  return value;
}

skv_machine_t skv__machine_typical(skv_backend_t backend) {
  if (backend == SKV_BACKEND_CUDA)
    return (skv_machine_t){.struct_bytes = sizeof(skv_machine_t),
                           .flop_per_second = 6.6e14,
                           .read_bytes_per_second = 4.4e12,
                           .merge_bytes_per_second = 4.2e12,
                           .prefill_seconds = 28e-6,
                           .decode_seconds = 3e-6,
                           .round_seconds = 7e-6,
                           .message_seconds = 0.5e-6,
                           .bytes_per_second = 3.2e11,
                           .far_round_seconds = 15e-6,
                           .far_message_seconds = 1e-6,
                           .far_bytes_per_second = 4.5e10,
                           .node_ranks = 8,
                           .overlaps = 1};
  return (skv_machine_t){.struct_bytes = sizeof(skv_machine_t),
                         .flop_per_second = 5e10,
                         .read_bytes_per_second = 1e10,
                         .merge_bytes_per_second = 8e9,
                         .round_seconds = 2e-6,
                         .message_seconds = 2e-6,
                         .bytes_per_second = 5e9,
                         .far_round_seconds = 2e-5,
                         .far_message_seconds = 2e-6,
                         .far_bytes_per_second = 1e9};
}

_Static_assert(sizeof(skv_machine_t) ==
                   sizeof(size_t) + SKV__FIGURES * sizeof(double) + 2 * sizeof(int32_t),
               "padding would enter the digest");

uint64_t skv__machine_digest(const skv_machine_t *machine) {
  return XXH64(machine, sizeof *machine, 0);
}

skv_status_t skv__machine_check(const skv_machine_t *machine, skv__error_t *error) {
  if (machine->struct_bytes != sizeof *machine)
    return skv__fail(error, SKV_INVALID,
                     "machine: struct_bytes is %zu, not sizeof(skv_machine_t), %zu",
                     machine->struct_bytes, sizeof *machine);
  for (int i = 0; i < SKV__FIGURES; ++i) {
    const skv__figure_t *figure = &skv__figures[i];
    double value = skv__figure(machine, i);
    if (!(value >= 0 && value <= 1e30) || (value == 0 && !figure->may_be_zero))
      return skv__fail(error, SKV_INVALID, "machine: %s is %g: give a number %s", figure->name,
                       value, figure->may_be_zero ? "from 0 on" : "above 0");
  }
  if (machine->node_ranks < 0 || (unsigned)machine->overlaps > 1)
    return skv__fail(error, SKV_INVALID, "machine: node_ranks is %d, overlaps is %d",
                     (int)machine->node_ranks, (int)machine->overlaps);
  return SKV_OK;
}
