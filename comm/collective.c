/* collective.c: small collectives, all through rank 0: what travels is a few kilobytes a rank, and
 * rank 0 can name the rank that is missing. */
#include <string.h>

#include "comm/comm.h"

enum { TAG_UP = SKV__TAG_MAX + 1, TAG_DOWN = SKV__TAG_MAX + 2 };

skv_status_t skv__comm_gather(skv__comm_t *comm, const void *mine, size_t bytes, void *all,
                              const char *operation) {
  if (comm->rank != 0) {
    SKV_TRY(skv__comm_send(comm, &comm->requests[0], 0, mine, bytes, TAG_UP));
    return skv__comm_wait(comm, comm->requests, 1, operation);
  }
  if (bytes)
    memcpy(all, mine, bytes);
  for (int32_t rank = 1; rank < comm->ranks; rank++)
    SKV_TRY(skv__comm_receive(comm, &comm->requests[rank - 1], rank,
                              (char *)all + (size_t)rank * bytes, bytes, TAG_UP));
  return skv__comm_wait(comm, comm->requests, (size_t)comm->ranks - 1, operation);
}

skv_status_t skv__comm_broadcast(skv__comm_t *comm, void *data, size_t bytes,
                                 const char *operation) {
  if (comm->rank != 0) {
    SKV_TRY(skv__comm_receive(comm, &comm->requests[0], 0, data, bytes, TAG_DOWN));
    return skv__comm_wait(comm, comm->requests, 1, operation);
  }
  for (int32_t rank = 1; rank < comm->ranks; rank++)
    SKV_TRY(skv__comm_send(comm, &comm->requests[rank - 1], rank, data, bytes, TAG_DOWN));
  return skv__comm_wait(comm, comm->requests, (size_t)comm->ranks - 1, operation);
}

skv_status_t skv__comm_barrier(skv__comm_t *comm, const char *operation) {
  uint64_t none = 0;
  return skv__comm_sum(comm, &none, 1, operation);
}

skv_status_t skv__comm_sum(skv__comm_t *comm, uint64_t *values, size_t count,
                           const char *operation) {
  enum { AT_ONCE = 64 };
  for (size_t begin = 0; begin < count; begin += AT_ONCE) {
    size_t part = count - begin < AT_ONCE ? count - begin : AT_ONCE;
    if (comm->rank != 0) {
      SKV_TRY(skv__comm_gather(comm, values + begin, part * sizeof *values, NULL, operation));
    } else {
      for (int32_t rank = 1; rank < comm->ranks; rank++) {
        uint64_t theirs[AT_ONCE];
        SKV_TRY(skv__comm_receive(comm, &comm->requests[0], rank, theirs, part * sizeof *values,
                                  TAG_UP));
        SKV_TRY(skv__comm_wait(comm, comm->requests, 1, operation));
        for (size_t i = 0; i < part; i++)
          values[begin + i] += theirs[i];
      }
    }
    SKV_TRY(skv__comm_broadcast(comm, values + begin, part * sizeof *values, operation));
  }
  return SKV_OK;
}
