/* comm_nccl.h: messages between GPUs through NCCL. */
#ifndef SKV_COMM_NCCL_H
#define SKV_COMM_NCCL_H

#include <nccl.h>

#include "comm/comm.h"

/* Collective, beside a comm of the same ranks, which must outlive it and carries what opening needs
 * and signs of life. The device that is current in the calling thread is the rank's own. Messages
 * are device memory; they belong to the stream that skv__comm_on named last, move when their group
 * ends (one outside a group is a group), and are done then for whatever comes later on the stream.
 * Both sides must name the same number of bytes: nobody checks. CUDA graphs
 * that hold messages must be destroyed first: closing waits for them. Two ranks with one GPU are
 * refused.
 */
skv_status_t skv__comm_create_nccl(skv__comm_t **wire, skv__comm_t *comm, skv__error_t *error);
/* NULL: the wire is another one. */
ncclComm_t skv__comm_nccl_of(const skv__comm_t *wire);
/* Polls a call that returned ncclInProgress until it is done, within the deadline. `operation`
 * names it. The caller breaks the wire when this fails. */
skv_status_t skv__nccl_settle(skv__comm_t *wire, const char *operation, skv__error_t *error);
int skv__nccl_version(void); /* of the library: 22809 is 2.28.9 */

/* nccl_end.c: ends a communicator in a thread of its own: by force, or (collective) in order. It is
 * NCCL's from then on. NULL: no thread. Drop it, ended or not. */
typedef struct skv__nccl_end skv__nccl_end_t;
skv__nccl_end_t *skv__nccl_end(ncclComm_t comm, int device, bool force);
bool skv__nccl_ended(const skv__nccl_end_t *end, ncclResult_t *result);
void skv__nccl_end_drop(skv__nccl_end_t *end);

/* nccl_gpus.c. Collective: each rank's GPU is told to rank 0, who refuses shared ones. `status` and
 * `text`: what has failed on this rank before. */
skv_status_t skv__nccl_check_gpus(skv__comm_t *comm, skv_status_t status, const char *text);

#endif
