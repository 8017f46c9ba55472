/* comm_bodies.h: what ranks do to try out a comm, over threads and over MPI. */
#ifndef KIT_COMM_BODIES_H
#define KIT_COMM_BODIES_H

#include "comm/comm.h"

/* Every rank sends every other one 24 messages of 0 to 4000 bytes on two tags, all under way at
 * once. SKV_INTERNAL when a byte is wrong. At most 8 ranks. */
skv_status_t kit_comm_everybody(skv__comm_t *comm);
/* Barrier, sum, gather and broadcast. SKV_INTERNAL when a result is wrong. */
skv_status_t kit_comm_collect(skv__comm_t *comm);

/* How the last rank differs from the others, or fails (so does rank 1, from KIT_ONE_FAILED on). */
typedef enum kit_difference {
  KIT_NONE,
  KIT_VALUE,
  KIT_NEGATIVE,
  KIT_DIGEST,
  KIT_NAME,
  KIT_NUMBER,
  KIT_ONE_FAILED,
  KIT_TWO_FAILED,
  KIT_FAILED_AND_DIFFERENT
} kit_difference_t;
/* What skv__comm_agree says; SKV_INTERNAL when the comm is of no use afterwards. */
skv_status_t kit_comm_agree(skv__comm_t *comm, kit_difference_t difference);

#endif
