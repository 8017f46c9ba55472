/* stream.h: pass-KV. Keys and values travel in chunks to the ranks that own rows; each rank
 * evaluates every chunk for its own rows and inserts the nodes at their canonical place.
 *
 * A chunk is a node (small enough), one sequence and some KV heads: K [tokens][heads][head_dim],
 * then V. Every shard is cut into such chunks the same way on every rank. Positions of the stream:
 * for each chunk number, first the rank's own chunk of that number, then the chunk of that number
 * of every other shard, nearest rank first. Sends follow the same order, so that every rank's next
 * send is its neighbour's next receive, and two buffers are enough never to deadlock.
 */
#ifndef SKV_STREAM_H
#define SKV_STREAM_H

#include "bank.h"
#include "comm/comm.h"
#include "problem.h"
#include "schedule.h"

enum { SKV__STREAM_RECEIVE_BUFFERS = 3, SKV__STREAM_SEND_BUFFERS = 2 };

typedef struct skv__buffer {
  unsigned char *data;
  skv__request_t request;
  int64_t position; /* of the stream: what it holds */
  int32_t sends;    /* under way from it */
  bool busy, arrived, evaluated, forwarded;
} skv__buffer_t;

typedef struct skv__chunk_cut {
  int64_t head_groups, heads; /* KV heads of a chunk (the last group may have fewer) */
  int64_t chunk_bytes;        /* most bytes of a chunk */
} skv__chunk_cut_t;

typedef struct skv__stream {
  /* fixed by the plan */
  skv__comm_t *comm;
  const skv_problem_t *problem;
  skv_reduce_t reduce; /* SKV_RING or SKV_GATHER */
  int32_t rank, ranks;
  skv__chunk_cut_t cut;
  skv__node_t **nodes; /* [ranks]: the nodes of each shard's chunks, ascending */
  int32_t *node_count;
  int64_t
      *own_offset; /* [node_count[rank]]: where the node's first key lies along the token axis */
  int64_t chunk_numbers; /* most chunks of a shard */
  int32_t slots, set_capacity, peak_nodes;
  /* of the execute */
  skv__bank_t *bank;
  const skv_inputs_t *inputs;
  const int64_t *k_tokens;
  const skv__run_t *runs; /* all own runs, ascending by sequence */
  int64_t run_count;
  int32_t *open_slot; /* [ranks] slot of the node of that shard that is being filled */
  skv__buffer_t receive[SKV__STREAM_RECEIVE_BUFFERS], send[SKV__STREAM_SEND_BUFFERS];
  int64_t positions, next_receive, next_send;
} skv__stream_t;

/* Cuts all shards. `work` are the frontiers of all ranks. Allocates; close also after a failure. */
skv_status_t skv__stream_open(skv__stream_t *stream, const skv__shard_t *shard,
                              skv__node_t *const *work, const int32_t *work_count,
                              int64_t target_bytes, skv__error_t *error);
void skv__stream_close(skv__stream_t *stream);
int64_t skv__stream_bytes(const skv__stream_t *stream); /* of workspace, besides states */
int64_t skv__whole_bytes(double bytes);                 /* INT64_MAX for more than 2^62 */
/* Bytes that this rank sends in one execute at full size. */
int64_t skv__stream_sent_bytes(const skv__stream_t *stream);

/* Evaluate all chunks for the bank's runs. Leaves the root in the bank's set of this rank. */
skv_status_t skv__stream_run(skv__stream_t *stream, skv__bank_t *bank, const skv_inputs_t *inputs,
                             const int64_t *k_tokens, void *scratch, unsigned char *buffers,
                             skv_times_t *times, skv__error_t *error);

#endif
