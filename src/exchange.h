/* exchange.h: the hops of one pass, as rehearsed, advanced by polling. Rounds follow one another;
 * within a round messages land in any order, and each is merged as it lands. */
#ifndef SKV_EXCHANGE_H
#define SKV_EXCHANGE_H

#include "bank.h"
#include "comm/comm.h"
#include "direct.h"
#include "rehearsal.h"

/* A node-state under way. */
typedef struct skv__parcel {
  skv__request_t request;
  skv__node_t node;
  int32_t slice, slot;
  bool copies, done;
} skv__parcel_t;

typedef struct skv__exchange {
  /* fixed by the plan */
  skv__comm_t *comm; /* the context's wire */
  const skv__rehearsal_t *rehearsal;
  const skv__direct_path_t *direct; /* or NULL: always by messages */
  skv_results_t results;
  skv__error_t *error;
  skv__parcel_t *parcels; /* [rehearsal.peak_messages] */
  /* of the pass */
  skv__bank_t *bank;
  const skv__finish_t *finish; /* where results go */
  int32_t round, next_move;    /* next_move: of the next round */
  int32_t parcel_count, open;  /* parcels of the round, and those not done */
  bool running;
} skv__exchange_t;

skv_status_t skv__exchange_open(skv__exchange_t *exchange, skv__error_t *error);
void skv__exchange_close(skv__exchange_t *exchange);
/* Begin with what lies in the bank's sets. The exchange before has ended. */
skv_status_t skv__exchange_begin(skv__exchange_t *exchange, skv__bank_t *bank,
                                 const skv__finish_t *finish);
/* Do what can be done without waiting. *moved tells whether anything happened. */
skv_status_t skv__exchange_advance(skv__exchange_t *exchange, bool *moved);
/* Wait, within the deadline, until all rounds are over; the rows are then finished. */
skv_status_t skv__exchange_end(skv__exchange_t *exchange, double *wait_seconds);

#endif
