/* wait.h: signs of life between ranks. */
#ifndef SKV_COMM_WAIT_H
#define SKV_COMM_WAIT_H

#include "comm/comm.h"

/* A sign of life. */
typedef struct skv__word {
  int32_t steps;    /* how many waits lie between the sender and a rank that computes */
  uint32_t watches; /* counted ones that the sender has ended */
} skv__word_t;

/* What one other rank is told, and what it told. */
struct skv__pulse {
  skv__request_t out, in;
  skv__word_t told, heard;
  double heard_at;  /* when its last word was taken */
  uint32_t watches; /* the most it told of */
};

enum { SKV__LOOKS = 8 }; /* within a timeout, for words and to send them */
/* Tell everybody; whoever has not taken the last word yet is left out. */
skv_status_t skv__pulse_tell(skv__comm_t *comm, int32_t steps);
/* Take all words that have come from `peer`; *steps is the least of them, or stays. */
skv_status_t skv__pulse_listen(skv__comm_t *comm, int32_t peer, int32_t *steps);
void skv__comm_pause(uint32_t *idle);

#endif
