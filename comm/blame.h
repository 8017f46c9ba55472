/* blame.h: names the rank that holds everybody up. */
#ifndef SKV_COMM_BLAME_H
#define SKV_COMM_BLAME_H

#include "comm/comm.h"

/* This rank's wait for `peer` has expired. Returns `peer`, or the rank that `peer` itself waits
 * for, and so on, when they say so within half a second. The comm is broken afterwards. */
int32_t skv__comm_blame(skv__comm_t *comm, int32_t peer);

#endif
