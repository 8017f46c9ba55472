/* machine.c: figures of hardware that the cost model works with. */
#include <xxhash.h>

#include "cost.h"

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

_Static_assert(sizeof(skv_machine_t) == sizeof(size_t) + 11 * sizeof(double) + 2 * sizeof(int32_t),
               "padding would enter the digest");

uint64_t skv__machine_digest(const skv_machine_t *machine) {
  return XXH64(machine, sizeof *machine, 0);
}

skv_status_t skv__machine_check(const skv_machine_t *machine, skv__error_t *error) {
  const struct {
    const char *name;
    double value;
    bool may_be_zero;
  } figures[] = {{"flop_per_second", machine->flop_per_second, false},
                 {"read_bytes_per_second", machine->read_bytes_per_second, false},
                 {"merge_bytes_per_second", machine->merge_bytes_per_second, false},
                 {"prefill_seconds", machine->prefill_seconds, true},
                 {"decode_seconds", machine->decode_seconds, true},
                 {"round_seconds", machine->round_seconds, true},
                 {"message_seconds", machine->message_seconds, true},
                 {"bytes_per_second", machine->bytes_per_second, false},
                 {"far_round_seconds", machine->far_round_seconds, true},
                 {"far_message_seconds", machine->far_message_seconds, true},
                 {"far_bytes_per_second", machine->far_bytes_per_second, false}};
  if (machine->struct_bytes != sizeof *machine)
    return skv__fail(error, SKV_INVALID,
                     "machine: struct_bytes is %zu, not sizeof(skv_machine_t), %zu",
                     machine->struct_bytes, sizeof *machine);
  for (size_t i = 0; i < sizeof figures / sizeof *figures; ++i) {
    double value = figures[i].value;
    if (!(value >= 0 && value <= 1e30) || (value == 0 && !figures[i].may_be_zero))
      return skv__fail(error, SKV_INVALID, "machine: %s is %g: give a number %s", figures[i].name,
                       value, figures[i].may_be_zero ? "from 0 on" : "above 0");
  }
  if (machine->node_ranks < 0 || (unsigned)machine->overlaps > 1)
    return skv__fail(error, SKV_INVALID, "machine: node_ranks is %d, overlaps is %d",
                     (int)machine->node_ranks, (int)machine->overlaps);
  return SKV_OK;
}
