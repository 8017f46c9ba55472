/* staged_move.c: chunks of messages, from a stream to MPI and from MPI to a stream. */
#include "comm/staged.h"

skv__piece_t *skv__staged_piece(const skv__request_t *request) {
  _Static_assert(sizeof(skv__piece_t) <= sizeof request->handle, "a handle holds a piece");
  return (skv__piece_t *)(void *)(uintptr_t)request->handle;
}

skv_status_t skv__staged_check(const skv__staged_t *staged, cudaError_t code, const char *doing,
                               skv__error_t *error) {
  if (code == cudaSuccess)
    return SKV_OK;
  cudaGetLastError(); /* it is reported here, once */
  return skv__fail(error, SKV_INTERNAL, "rank %d: %s: %s", (int)staged->rank, doing,
                   cudaGetErrorString(code));
}

/* An event that has not come is no error. */
static skv_status_t passed(const skv__staged_t *staged, cudaEvent_t event, bool *yes,
                           skv__error_t *error) {
  cudaError_t code = cudaEventQuery(event);
  *yes = code == cudaSuccess;
  return code == cudaErrorNotReady
             ? SKV_OK
             : skv__staged_check(staged, code, "work on the GPU before a copy", error);
}

/* ---- requests under way ---- */

static bool same_messages(const skv__request_t *a, const skv__request_t *b) {
  return a->peer == b->peer && a->tag == b->tag;
}

void skv__staged_append(skv__staged_t *staged, skv__request_t *request) {
  skv__request_t **link = &staged->first[request->way];
  while (*link)
    link = &skv__staged_piece(*link)->next;
  *link = request;
}

void skv__staged_remove(skv__staged_t *staged, skv__request_t *request) {
  skv__request_t **link = &staged->first[request->way];
  while (*link && *link != request)
    link = &skv__staged_piece(*link)->next;
  if (*link)
    *link = skv__staged_piece(request)->next;
  if (staged->look == request)
    staged->look = skv__staged_piece(request)->next;
}

static skv__slot_t *free_slot(skv__staged_t *staged, skv__way_t way) {
  for (int32_t i = 0; i < SKV__SLOTS; i++)
    if (staged->slots[way][i].stage == SKV__FREE)
      return &staged->slots[way][i];
  return NULL;
}

/* The next chunk of the request goes through this slot. */
static void take_slot(skv__staged_t *staged, skv__slot_t *slot, skv__request_t *request,
                      skv__stage_t stage) {
  skv__piece_t *piece = skv__staged_piece(request);
  size_t left = piece->bytes - piece->taken;
  slot->stage = stage;
  slot->request = request;
  slot->offset = piece->offset + piece->taken;
  slot->bytes = left < SKV__CHUNK_BYTES ? left : SKV__CHUNK_BYTES;
  slot->ticket = staged->tickets++;
  piece->taken += slot->bytes;
}

static void finish_chunk(skv__staged_t *staged, skv__slot_t *slot, skv__stage_t stage) {
  skv__piece_t *piece = skv__staged_piece(slot->request);
  piece->finished += slot->bytes;
  if (piece->finished == piece->bytes)
    skv__staged_remove(staged, slot->request);
  slot->request = NULL;
  slot->stage = stage;
}

/* The slot's chunk, to the host or from it, in the order of the stream. */
static skv_status_t copy(skv__staged_t *staged, skv__slot_t *slot, skv__error_t *error) {
  const skv__request_t *request = slot->request;
  cudaStream_t stream = skv__staged_piece(request)->stream;
  unsigned char *data = (unsigned char *)request->data + slot->offset;
  bool out = request->way == SKV__SEND;
  cudaError_t code = cudaEventRecord(slot->before, stream);
  if (code == cudaSuccess)
    code = cudaMemcpyAsync(out ? slot->memory : data, out ? data : slot->memory, slot->bytes,
                           out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream);
  if (code == cudaSuccess)
    code = cudaEventRecord(slot->copied, stream);
  return skv__staged_check(
      staged, code, out ? "copying a message from the GPU" : "copying a message to the GPU", error);
}

/* ---- sends ---- */

skv_status_t skv__staged_copy_out(skv__staged_t *staged, skv__error_t *error) {
  for (skv__request_t *request = staged->first[SKV__SEND]; request;
       request = skv__staged_piece(request)->next)
    while (skv__staged_piece(request)->taken < skv__staged_piece(request)->bytes) {
      skv__slot_t *slot = free_slot(staged, SKV__SEND);
      if (!slot)
        return SKV_OK;
      take_slot(staged, slot, request, SKV__COPYING_OUT);
      SKV_TRY(copy(staged, slot, error));
    }
  return SKV_OK;
}

/* MPI keeps the order of what it is given, so that chunks of one stream must be given in order. */
static bool overtakes(const skv__staged_t *staged, const skv__slot_t *slot) {
  for (int32_t i = 0; i < SKV__SLOTS; i++) {
    const skv__slot_t *other = &staged->slots[SKV__SEND][i];
    if (other->stage == SKV__COPYING_OUT && other->ticket < slot->ticket &&
        same_messages(other->request, slot->request))
      return true;
  }
  return false;
}

skv_status_t skv__staged_move_send(skv__staged_t *staged, skv__slot_t *slot, skv__error_t *error) {
  bool copied = false;
  int sent = 0;
  if (slot->stage == SKV__COPYING_OUT) {
    SKV_TRY(passed(staged, slot->copied, &copied, error));
    if (!copied || overtakes(staged, slot))
      return SKV_OK;
    int code = MPI_Isend(slot->memory, (int)slot->bytes, MPI_BYTE, slot->request->peer,
                         slot->request->tag, staged->communicator, &slot->flight);
    if (code != MPI_SUCCESS)
      return skv__mpi_failed(code, "MPI_Isend", error);
    slot->stage = SKV__SENDING;
  }
  if (slot->stage == SKV__SENDING) {
    int code = MPI_Test(&slot->flight, &sent, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS)
      return skv__mpi_failed(code, "MPI_Test of a send", error);
    if (sent)
      finish_chunk(staged, slot, SKV__FREE);
  }
  return SKV_OK;
}

/* ---- receives ---- */

/* The oldest receive of the same stream of messages that still wants bytes. */
static skv__request_t *oldest(const skv__staged_t *staged, const skv__request_t *request) {
  for (skv__request_t *other = staged->first[SKV__RECEIVE]; other;
       other = skv__staged_piece(other)->next)
    if (same_messages(other, request) &&
        skv__staged_piece(other)->taken < skv__staged_piece(other)->bytes)
      return other;
  return NULL;
}

static skv_status_t check_count(const skv__request_t *request, MPI_Status *status, size_t wanted,
                                skv__error_t *error) {
  int bytes = 0;
  MPI_Get_count(status, MPI_BYTE, &bytes);
  if ((size_t)bytes == wanted)
    return SKV_OK;
  return skv__fail(error, SKV_PEER, "rank %d sent %d bytes where %zu were expected of it",
                   (int)request->peer, bytes, wanted);
}

skv_status_t skv__staged_accept(skv__staged_t *staged, const skv__request_t *of,
                                skv__error_t *error) {
  skv__request_t *request;
  skv__slot_t *slot;
  while ((request = oldest(staged, of)) && (slot = free_slot(staged, SKV__RECEIVE))) {
    MPI_Message message;
    MPI_Status status;
    int come = 0;
    int code =
        MPI_Improbe(request->peer, request->tag, staged->communicator, &come, &message, &status);
    if (code != MPI_SUCCESS)
      return skv__mpi_failed(code, "MPI_Improbe", error);
    if (!come)
      return SKV_OK;
    take_slot(staged, slot, request, SKV__ARRIVING);
    slot->flight = MPI_REQUEST_NULL;
    SKV_TRY(check_count(request, &status, slot->bytes, error));
    code = MPI_Imrecv(slot->memory, (int)slot->bytes, MPI_BYTE, &message, &slot->flight);
    if (code != MPI_SUCCESS)
      return skv__mpi_failed(code, "MPI_Imrecv", error);
  }
  return SKV_OK;
}

skv_status_t skv__staged_move_receive(skv__staged_t *staged, skv__slot_t *slot,
                                      skv__error_t *error) {
  int come = 0;
  bool copied = false;
  if (slot->stage == SKV__ARRIVING) {
    int code = MPI_Test(&slot->flight, &come, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS)
      return skv__mpi_failed(code, "MPI_Test of a receive", error);
    if (!come)
      return SKV_OK;
    SKV_TRY(copy(staged, slot, error));
    finish_chunk(staged, slot, SKV__COPYING_IN);
  }
  if (slot->stage == SKV__COPYING_IN) {
    SKV_TRY(passed(staged, slot->copied, &copied, error));
    if (copied)
      slot->stage = SKV__FREE;
  }
  return SKV_OK;
}
