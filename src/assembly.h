/* assembly.h: pass-KV on a device. Keys and values of all ranks are put together in buffers, a
 * group of KV heads in each, so that a rank's own rows are attended over the whole tree at once.
 *
 * A buffer holds K, then V, each dense [sequence][position][heads of the group][dim]: a shard lies
 * there as it lies in the sequence, and what travels goes straight from place to place. Messages of
 * a shard are its intervals of each sequence, as far as there are keys: first K, then V. Pure
 * integers, but for the moves of assembly_move.c. */
#ifndef SKV_ASSEMBLY_H
#define SKV_ASSEMBLY_H

#include "comm/comm.h"
#include "lanes.h"
#include "schedule.h"

enum {
  SKV__ASSEMBLY_BUFFERS = 3,   /* one is attended, one has come, one comes */
  SKV__ASSEMBLY_MESSAGES = 256 /* each way, that move together */
};

typedef struct skv__assembly {
  /* fixed by the plan */
  skv__comm_t *comm;
  const skv_problem_t *problem;
  skv_reduce_t reduce; /* SKV_RING or SKV_GATHER */
  int32_t rank, ranks;
  skv__node_t *intervals;  /* of all shards, in blocks */
  int64_t *held;           /* tokens that the shard's rank holds before each */
  int64_t *first_interval; /* [ranks + 1] */
  int64_t groups, heads;   /* KV heads of a group (the last group may have fewer) */
  int32_t buffers;
  int64_t buffer_bytes;
  skv__request_t *requests; /* [2 * SKV__ASSEMBLY_MESSAGES] */
} skv__assembly_t;

/* Groups are as large as three of them fit `target_bytes`, but at least four where there are so
 * many heads: one is attended while the next comes. `whole`: one group of all heads. Allocates;
 * close also after a failure. */
skv_status_t skv__assembly_open(skv__assembly_t *assembly, const skv__shard_t *shard,
                                int64_t target_bytes, bool whole, skv__error_t *error);
void skv__assembly_close(skv__assembly_t *assembly);
int64_t skv__assembly_bytes(const skv__assembly_t *assembly); /* of workspace */
/* Bytes that this rank sends in one execute at full size. */
double skv__assembly_sent_bytes(const skv__assembly_t *assembly);

/* KV heads of a group. */
typedef struct skv__head_range {
  int64_t begin, end;
} skv__head_range_t;
skv__head_range_t skv__assembly_heads(const skv__assembly_t *assembly, int64_t group);
/* K and V as a group's buffer holds them. */
void skv__assembly_tensors(const skv__assembly_t *assembly, int64_t group, unsigned char *buffer,
                           skv_tensor_t *k, skv_tensor_t *v);
int64_t skv__assembly_message_count(const skv__assembly_t *assembly, int32_t source);

/* A part of a shard: the keys, or the values, of one interval of one sequence. */
typedef struct skv__part {
  int64_t sequence, begin, end; /* positions; end is begin where the sequence has no key here */
  int64_t held;                 /* where position `begin` lies among the tokens that the shard's
                                   rank holds of the sequence */
  bool values;
  int64_t offset, bytes; /* in the buffer */
} skv__part_t;
skv__part_t skv__assembly_part(const skv__assembly_t *assembly, int64_t group, int32_t source,
                               int64_t index, const int64_t *k_tokens);

/* Fill a group's buffer, on the second lane. Over a wire that streams do not keep in order, waits
 * for what comes. */
skv_status_t skv__assembly_fetch(const skv__assembly_t *assembly, const skv__lanes_t *lanes,
                                 const skv_inputs_t *inputs, const int64_t *k_tokens, int64_t group,
                                 unsigned char *buffer);

#endif
