/* wait.h: signs of life between ranks. */
#ifndef SKV_COMM_WAIT_H
#define SKV_COMM_WAIT_H

#include "comm/comm.h"

/* What one other rank is told, and what it told: how many waits lie between the sender and a rank
 * that computes. */
struct skv__pulse {
  skv__request_t out, in;
  int32_t told, heard;
};

void skv__comm_pause(uint32_t *idle);

#endif
