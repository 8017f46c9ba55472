/* order_log.h: a record of every node that an execute evaluated, written as JSON lines.
 *
 * The first line describes the run; each further one is a node of one slice: which call and pass,
 * whose rows, which rank evaluated it, its interval of blocks, where it divides (0: a block, from a
 * kernel), the digests of both inputs and of the result. With states, PATH.states holds the state
 * of each block as it left the kernel, so that splitkv replay can evaluate all else again.
 */
#ifndef SKV_ORDER_LOG_H
#define SKV_ORDER_LOG_H

#include "comm/comm.h"
#include "skv.h"

typedef struct skv__order_log skv__order_log_t;

/* NULL when memory runs out. */
skv__order_log_t *skv__order_log_create(int32_t rank, int64_t value_head_dim, bool with_states);
void skv__order_log_free(skv__order_log_t *log);
/* Goes into skv_plan_options_t.observer, with the log as its user. */
void skv__order_log_observe(void *user, const skv_node_event_t *event);
/* The events that follow belong to the next execute. */
void skv__order_log_next_call(skv__order_log_t *log);
/* Collective: rank 0 collects what all ranks recorded and writes the file, or both files. */
skv_status_t skv__order_log_write(skv__order_log_t *log, skv__comm_t *comm, const char *path,
                                  uint64_t order_id, skv__error_t *error);

#endif
