/* comm_threads.h: ranks that are threads of one process, with the library's own comm on top, so
 * that everything above the transport is tested without MPI, under sanitizers, with messages that
 * are late on purpose. */
#ifndef KIT_COMM_THREADS_H
#define KIT_COMM_THREADS_H

#include "comm/comm.h"

typedef struct kit_world kit_world_t;

/* `delay_seed` 0: no delays. Else each message is late by up to 300 us, and every other send is
 * done only once its receive is posted, as with long messages of a real transport. */
kit_world_t *kit_world_create(int32_t ranks, uint64_t delay_seed);
void kit_world_destroy(kit_world_t *world);
/* From now on what this rank sends is lost. */
void kit_world_mute(kit_world_t *world, int32_t rank);

/* A rank's seat: the argument of kit_world_open, which is a skv__comm_opener_t. */
typedef struct kit_seat {
  kit_world_t *world;
  int32_t rank;
} kit_seat_t;
skv_status_t kit_world_open(skv__comm_t **comm, double timeout_seconds, void *seat,
                            skv__error_t *error);

#endif
