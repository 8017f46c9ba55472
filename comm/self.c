/* self.c: one rank. It has nobody to talk to, so nothing ever starts. */
#include "comm/comm.h"

static const skv__transport_t self_transport = {.name = "self", .piece_bytes = SIZE_MAX};

skv_status_t skv__comm_create_self(skv__comm_t **comm, double timeout_seconds,
                                   skv__error_t *error) {
  return skv__comm_create(comm, &self_transport, NULL, 0, 1, timeout_seconds, error);
}
