/* staged.h: what the staged transport is made of. */
#ifndef SKV_COMM_STAGED_H
#define SKV_COMM_STAGED_H

#include <cuda_runtime_api.h>

#include "comm/comm_mpi.h"

enum { SKV__SLOTS = 8, SKV__CHUNK_BYTES = 2 << 20, SKV__PIECE_CHUNKS = 8 };

/* What a slot is busy with, in order; a send's and a receive's. */
typedef enum stage {
  SKV__FREE,
  SKV__COPYING_OUT,
  SKV__SENDING,
  SKV__ARRIVING,
  SKV__COPYING_IN
} skv__stage_t;

typedef struct slot {
  skv__stage_t stage;
  unsigned char *memory;      /* [SKV__CHUNK_BYTES], pinned */
  cudaEvent_t before, copied; /* on the stream: just before the copy, and after it */
  MPI_Request flight;         /* SKV__SENDING, SKV__ARRIVING */
  skv__request_t *request;    /* until its chunk is finished */
  size_t offset, bytes;       /* the chunk, in the request's data */
  uint64_t ticket;            /* chunks of one stream of messages go in this order */
} skv__slot_t;

/* A transport's part of a request: the piece under way. */
typedef struct piece {
  skv__request_t *next; /* among those of its way that are under way, in order of their start */
  cudaStream_t stream;
  size_t offset, bytes;
  size_t taken, finished; /* of the piece's bytes: given to slots; through */
} skv__piece_t;

typedef struct staged {
  MPI_Comm communicator; /* the comm's */
  int32_t rank;
  cudaStream_t stream;
  skv__slot_t slots[2][SKV__SLOTS]; /* by skv__way_t */
  skv__request_t *first[2];         /* by skv__way_t */
  skv__request_t *look; /* the next receive to be looked after while another is tested */
  uint64_t tickets;
  unsigned char *memory;
  bool abandoned; /* MPI may still read or write slots */
} skv__staged_t;

skv__piece_t *skv__staged_piece(const skv__request_t *request);
skv_status_t skv__staged_check(const skv__staged_t *staged, cudaError_t code, const char *doing,
                               skv__error_t *error);
/* A request is under way from its start until it is done or cancelled. */
void skv__staged_append(skv__staged_t *staged, skv__request_t *request);
void skv__staged_remove(skv__staged_t *staged, skv__request_t *request);
/* Give free slots to sends. */
skv_status_t skv__staged_copy_out(skv__staged_t *staged, skv__error_t *error);
/* Take what has come for this stream of messages. */
skv_status_t skv__staged_accept(skv__staged_t *staged, const skv__request_t *of,
                                skv__error_t *error);
/* What the slot's chunk has come to. */
skv_status_t skv__staged_move_send(skv__staged_t *staged, skv__slot_t *slot, skv__error_t *error);
skv_status_t skv__staged_move_receive(skv__staged_t *staged, skv__slot_t *slot,
                                      skv__error_t *error);

#endif
