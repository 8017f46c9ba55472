/* staged.c: device memory through pinned host memory and MPI, where GPUs cannot pass it to each
 * other: more ranks than GPUs, or no NCCL.
 *
 * A message goes in chunks, each through a slot of pinned memory. A send's chunk is copied to its
 * slot on the message's stream and given to MPI when an event says that the copy is done. A
 * receive takes a slot only when its bytes have come: slots never wait for a rank that has not sent
 * yet, so they cannot run out in a circle. Nothing here waits. */
#include <stdlib.h>

#include "comm/staged.h"

static void on(void *impl, void *stream) {
  skv__staged_t *staged = impl;
  staged->stream = stream;
}

static skv_status_t start(void *impl, skv__request_t *request, size_t offset, size_t bytes,
                          skv__error_t *error) {
  skv__staged_t *staged = impl;
  cudaStream_t stream = offset ? skv__staged_piece(request)->stream : staged->stream;
  *skv__staged_piece(request) = (skv__piece_t){.stream = stream, .offset = offset, .bytes = bytes};
  skv__staged_append(staged, request);
  return request->way == SKV__SEND ? skv__staged_copy_out(staged, error) : SKV_OK;
}

/* No message waits for its caller to look at it: all that have slots move, and the receives are
 * looked after in turn. */
static skv_status_t test(void *impl, skv__request_t *request, bool *done, skv__error_t *error) {
  skv__staged_t *staged = impl;
  for (int32_t i = 0; i < SKV__SLOTS; i++) {
    SKV_TRY(skv__staged_move_send(staged, &staged->slots[SKV__SEND][i], error));
    SKV_TRY(skv__staged_move_receive(staged, &staged->slots[SKV__RECEIVE][i], error));
  }
  SKV_TRY(skv__staged_copy_out(staged, error));
  if (request->way == SKV__RECEIVE)
    SKV_TRY(skv__staged_accept(staged, request, error));
  if (!staged->look)
    staged->look = staged->first[SKV__RECEIVE];
  if (staged->look) {
    SKV_TRY(skv__staged_accept(staged, staged->look, error));
    staged->look = skv__staged_piece(staged->look)->next;
  }
  *done = skv__staged_piece(request)->finished == skv__staged_piece(request)->bytes;
  return SKV_OK;
}

/* Chunks of a send that are being copied hold it up; a receive, only when they hold all slots. */
static skv__stall_t stall(void *impl, const skv__request_t *request) {
  const skv__staged_t *staged = impl;
  const skv__slot_t *slots = staged->slots[request->way];
  skv__stage_t copying = request->way == SKV__SEND ? SKV__COPYING_OUT : SKV__COPYING_IN;
  skv__stall_t found = SKV__STALL_PEER;
  for (int32_t i = 0; i < SKV__SLOTS; i++) {
    if (request->way == SKV__RECEIVE && slots[i].stage != SKV__COPYING_IN)
      return SKV__STALL_PEER;
    if (slots[i].stage != copying || cudaEventQuery(slots[i].copied) != cudaErrorNotReady)
      continue;
    if (cudaEventQuery(slots[i].before) == cudaErrorNotReady)
      return SKV__STALL_COMPUTE;
    found = SKV__STALL_COPY;
  }
  return found;
}

static void cancel(void *impl, skv__request_t *request) {
  skv__staged_t *staged = impl;
  staged->abandoned = true;
  for (int32_t i = 0; i < SKV__SLOTS; i++)
    if (staged->slots[request->way][i].request == request)
      staged->slots[request->way][i].request = NULL;
  skv__staged_remove(staged, request);
}

/* Pinned memory that MPI may still write to stays until the process ends; and giving it back would
 * wait for a device that may never answer. */
static void destroy(void *impl, bool healthy) {
  skv__staged_t *staged = impl;
  bool frees = healthy && !staged->abandoned;
  for (int32_t i = 0; frees && i < 2 * SKV__SLOTS; i++) {
    skv__slot_t *slot = &staged->slots[i / SKV__SLOTS][i % SKV__SLOTS];
    if (slot->before)
      cudaEventDestroy(slot->before);
    if (slot->copied)
      cudaEventDestroy(slot->copied);
  }
  if (frees)
    cudaFreeHost(staged->memory);
  free(staged);
}

static const skv__transport_t staged_transport = {.name = "staged",
                                                  .piece_bytes =
                                                      (size_t)SKV__PIECE_CHUNKS * SKV__CHUNK_BYTES,
                                                  .start = start,
                                                  .test = test,
                                                  .cancel = cancel,
                                                  .on = on,
                                                  .stall = stall,
                                                  .destroy = destroy};

static skv_status_t open_slots(skv__staged_t *staged, skv__error_t *error) {
  size_t bytes = (size_t)2 * SKV__SLOTS * SKV__CHUNK_BYTES;
  cudaError_t code = cudaHostAlloc((void **)&staged->memory, bytes, cudaHostAllocDefault);
  if (code != cudaSuccess) {
    cudaGetLastError();
    return skv__fail(error, SKV_MEMORY,
                     "%zu bytes of pinned host memory for messages between GPUs: %s", bytes,
                     cudaGetErrorString(code));
  }
  for (int32_t i = 0; code == cudaSuccess && i < 2 * SKV__SLOTS; i++) {
    skv__slot_t *slot = &staged->slots[i / SKV__SLOTS][i % SKV__SLOTS];
    slot->memory = staged->memory + (size_t)i * SKV__CHUNK_BYTES;
    code = cudaEventCreateWithFlags(&slot->before, cudaEventDisableTiming);
    if (code == cudaSuccess)
      code = cudaEventCreateWithFlags(&slot->copied, cudaEventDisableTiming);
  }
  return skv__staged_check(staged, code, "events for messages between GPUs", error);
}

skv_status_t skv__comm_create_staged(skv__comm_t **wire, skv__comm_t *comm, skv__error_t *error) {
  skv__staged_t *staged = calloc(1, sizeof *staged);
  *wire = NULL;
  if (!staged)
    return skv__fail(error, SKV_MEMORY, "no memory for a communicator");
  staged->communicator = skv__comm_mpi_of(comm);
  staged->rank = comm->rank;
  skv_status_t status = open_slots(staged, error);
  if (status != SKV_OK) {
    destroy(staged, true);
    return status;
  }
  SKV_TRY(skv__comm_create(wire, &staged_transport, staged, comm->rank, comm->ranks,
                           comm->timeout_seconds, comm->error));
  (*wire)->control = comm;
  return SKV_OK;
}
