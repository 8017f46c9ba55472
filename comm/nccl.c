/* nccl.c: bytes from GPU to GPU through NCCL, as part of a stream. NCCL only sends and receives; it
 * never adds. All its calls return at once (ncclConfig_t.blocking is 0), and what they begin is
 * polled. */
#include "comm/comm_nccl.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/wait.h"

typedef struct nccl {
  ncclComm_t comm;
  skv__comm_t *control;
  cudaStream_t stream;
  int device;
  bool grouped;
} nccl_t;

int skv__nccl_version(void) {
  int version = 0;
  ncclGetVersion(&version);
  return version;
}

/* NCCL has no code for want of memory: it says last what CUDA said, or how many bytes it wanted. */
static skv_status_t status_of(const char *said) {
  bool memory = strstr(said, "out of memory") || strstr(said, "Failed to CUDA");
  return memory ? SKV_MEMORY : SKV_TRANSPORT;
}

static skv_status_t failed(const nccl_t *nccl, ncclResult_t code, const char *doing,
                           skv__error_t *error) {
  const char *said = ncclGetLastError(nccl->comm);
  size_t free_bytes = 0, all_bytes = 0;
  cudaMemGetInfo(&free_bytes, &all_bytes);
  cudaGetLastError();
  return skv__fail(error, status_of(said),
                   "rank %d: %s: NCCL says %s: %s (%zu of %zu bytes of GPU memory are free)",
                   (int)nccl->control->rank, doing, ncclGetErrorString(code), said, free_bytes,
                   all_bytes);
}

/* ---- waiting ---- */

/* A group takes NCCL's thread about 0.1 ms: no time to sleep. */
static const double brisk_seconds = 1e-3;

/* What was begun is still going on, done, or failed. */
static skv_status_t look(nccl_t *nccl, const char *operation, bool *settled, skv__error_t *error) {
  ncclResult_t state = ncclSuccess;
  *settled = true;
  if (!nccl->comm) /* left */
    return SKV_OK;
  ncclResult_t code = ncclCommGetAsyncError(nccl->comm, &state);
  *settled = state != ncclInProgress;
  if (code == ncclSuccess && (state == ncclSuccess || state == ncclInProgress))
    return SKV_OK;
  return failed(nccl, code == ncclSuccess ? state : code, operation, error);
}

static skv_status_t settle(nccl_t *nccl, const char *operation, skv__error_t *error) {
  skv__watch_t watch;
  bool settled = false;
  SKV_TRY(look(nccl, operation, &settled, error));
  if (settled)
    return SKV_OK;
  SKV_TRY(skv__watch_begin(nccl->control, &watch, false));
  while (!settled) {
    if (skv__comm_now() - watch.since < brisk_seconds)
      watch.idle = 0;
    SKV_TRY(skv__watch_idle(nccl->control, &watch, true, operation));
    SKV_TRY(look(nccl, operation, &settled, error));
  }
  return skv__watch_end(nccl->control, &watch);
}

/* What an NCCL call returned. */
static skv_status_t check(nccl_t *nccl, ncclResult_t code, const char *operation,
                          skv__error_t *error) {
  if (code == ncclSuccess)
    return SKV_OK;
  return code == ncclInProgress ? settle(nccl, operation, error)
                                : failed(nccl, code, operation, error);
}

/* `limited`: it has nothing else to do. */
static skv_status_t wait_for_stream(nccl_t *nccl, cudaStream_t stream, bool limited,
                                    const char *operation, skv__error_t *error) {
  skv__watch_t watch;
  cudaError_t code;
  bool settled;
  SKV_TRY(skv__watch_begin(nccl->control, &watch, !limited));
  while ((code = cudaStreamQuery(stream)) == cudaErrorNotReady) {
    SKV_TRY(look(nccl, operation, &settled, error));
    SKV_TRY(skv__watch_idle(nccl->control, &watch, limited, operation));
  }
  if (code != cudaSuccess)
    return skv__fail(error, SKV_TRANSPORT, "rank %d: %s: %s", (int)nccl->control->rank, operation,
                     cudaGetErrorString(code));
  return skv__watch_end(nccl->control, &watch);
}

/* ---- the ways out ---- */

/* The communicator's streams come free when NCCL has been told; that takes two seconds at most, or
 * goes on alone. */
static void abort_in_time(nccl_t *nccl) {
  enum { ABORT_MS = 2000 };
  ncclResult_t result;
  skv__nccl_end_t *end = nccl->comm ? skv__nccl_end(nccl->comm, nccl->device, true) : NULL;
  nccl->comm = NULL;
  if (!end)
    return;
  for (int ms = 0; ms < ABORT_MS && !skv__nccl_ended(end, &result); ms++)
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  skv__nccl_end_drop(end);
}

static skv_status_t watch_end(nccl_t *nccl, const skv__nccl_end_t *end, skv__error_t *error) {
  skv__watch_t watch;
  ncclResult_t result = ncclSuccess;
  SKV_TRY(skv__watch_begin(nccl->control, &watch, false));
  while (!skv__nccl_ended(end, &result))
    SKV_TRY(skv__watch_idle(nccl->control, &watch, true, "closing NCCL"));
  SKV_TRY(skv__watch_end(nccl->control, &watch));
  return result == ncclSuccess ? SKV_OK : failed(nccl, result, "closing NCCL", error);
}

static skv_status_t leave(void *impl, skv__error_t *error) {
  nccl_t *nccl = impl;
  if (!nccl->comm)
    return SKV_OK;
  skv__nccl_end_t *end = skv__nccl_end(nccl->comm, nccl->device, false);
  if (!end)
    return skv__fail(error, SKV_MEMORY, "rank %d: no thread to close NCCL in",
                     (int)nccl->control->rank);
  nccl->comm = NULL;
  skv_status_t status = watch_end(nccl, end, error);
  skv__nccl_end_drop(end);
  return status;
}

static void abandon(void *impl) {
  nccl_t *nccl = impl;
  if (nccl->grouped)
    ncclGroupEnd();
  nccl->grouped = false;
  abort_in_time(nccl);
}

/* ---- the transport ---- */

static void on(void *impl, void *stream) {
  nccl_t *nccl = impl;
  nccl->stream = stream;
}

static skv_status_t group(void *impl, bool begins, skv__error_t *error) {
  nccl_t *nccl = impl;
  nccl->grouped = begins;
  return check(nccl, begins ? ncclGroupStart() : ncclGroupEnd(), "a group of messages", error);
}

static skv_status_t start(void *impl, skv__request_t *request, size_t offset, size_t bytes,
                          skv__error_t *error) {
  nccl_t *nccl = impl;
  char *data = (char *)request->data + offset;
  ncclResult_t code =
      request->way == SKV__SEND
          ? ncclSend(data, bytes, ncclInt8, request->peer, nccl->comm, nccl->stream)
          : ncclRecv(data, bytes, ncclInt8, request->peer, nccl->comm, nccl->stream);
  if (code == ncclInProgress && nccl->grouped)
    return SKV_OK; /* its group's end tells */
  return check(nccl, code, request->way == SKV__SEND ? "a send" : "a receive", error);
}

static skv_status_t test(void *impl, skv__request_t *request, bool *done, skv__error_t *error) {
  (void)impl, (void)request, (void)error;
  *done = true;
  return SKV_OK;
}

static void cancel(void *impl, skv__request_t *request) {
  (void)impl, (void)request; /* it is the stream's */
}

static skv_status_t fault(void *impl, skv__error_t *error) {
  bool settled;
  return look(impl, "messages between GPUs", &settled, error);
}

/* A stream that is being captured has not begun anything, and must not be asked. */
static skv_status_t settle_stream(void *impl, skv__error_t *error) {
  nccl_t *nccl = impl;
  enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(nccl->stream, &capture) != cudaSuccess ||
      capture != cudaStreamCaptureStatusNone)
    return SKV_OK;
  return wait_for_stream(nccl, nccl->stream, false, "messages between GPUs", error);
}

static void destroy(void *impl, bool healthy) {
  nccl_t *nccl = impl;
  if (healthy)
    leave(nccl, NULL);
  abort_in_time(nccl); /* if it is still there */
  free(nccl);
}

static const skv__transport_t nccl_transport = {.name = "nccl",
                                                .piece_bytes = SIZE_MAX,
                                                .start = start,
                                                .test = test,
                                                .cancel = cancel,
                                                .on = on,
                                                .group = group,
                                                .fault = fault,
                                                .settle = settle_stream,
                                                .leave = leave,
                                                .abandon = abandon,
                                                .destroy = destroy};

ncclComm_t skv__comm_nccl_of(const skv__comm_t *wire) {
  return wire->transport == &nccl_transport ? ((const nccl_t *)wire->impl)->comm : NULL;
}

skv_status_t skv__nccl_settle(skv__comm_t *wire, const char *operation, skv__error_t *error) {
  return settle(wire->impl, operation, error);
}

/* ---- opening ---- */

/* A byte to and from everybody: NCCL connects two ranks when they first talk, for which it
 * allocates memory and waits for the other, and neither may happen in a CUDA graph's capture. */
static skv_status_t greet(nccl_t *nccl, cudaStream_t stream, char *bytes, skv__error_t *error) {
  int32_t ranks = nccl->control->ranks;
  ncclResult_t code = ncclGroupStart();
  for (int32_t rank = 0; rank < ranks; rank++) {
    if (rank == nccl->control->rank)
      continue;
    if (code == ncclSuccess || code == ncclInProgress)
      code = ncclSend(bytes + rank, 1, ncclInt8, rank, nccl->comm, stream);
    if (code == ncclSuccess || code == ncclInProgress)
      code = ncclRecv(bytes + ranks + rank, 1, ncclInt8, rank, nccl->comm, stream);
  }
  ncclResult_t end = ncclGroupEnd();
  SKV_TRY(check(nccl, code == ncclInProgress ? ncclSuccess : code, "the first messages", error));
  SKV_TRY(check(nccl, end, "the first messages", error));
  return wait_for_stream(nccl, stream, true, "the first messages between GPUs", error);
}

static skv_status_t connect(nccl_t *nccl, skv__error_t *error) {
  cudaStream_t stream = NULL;
  char *bytes = NULL;
  cudaError_t code = cudaMalloc((void **)&bytes, 2 * (size_t)nccl->control->ranks);
  if (code == cudaSuccess)
    code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  skv_status_t status =
      code == cudaSuccess
          ? greet(nccl, stream, bytes, error)
          : skv__fail(error, SKV_MEMORY, "rank %d: a stream and %d bytes for first messages: %s",
                      (int)nccl->control->rank, 2 * (int)nccl->control->ranks,
                      cudaGetErrorString(code));
  if (status != SKV_OK) /* freeing would wait for messages that may never come */
    return status;
  cudaStreamDestroy(stream);
  cudaFree(bytes);
  return SKV_OK;
}

static skv_status_t open_nccl(nccl_t *nccl, const ncclUniqueId *id, skv__error_t *error) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  SKV_TRY(check(
      nccl,
      ncclCommInitRankConfig(&nccl->comm, nccl->control->ranks, *id, nccl->control->rank, &config),
      "opening NCCL", error));
  return connect(nccl, error);
}

/* What every rank needs before NCCL is asked: the id, a GPU, a GPU of its own. */
static skv_status_t prepare(nccl_t *nccl, ncclUniqueId *id) {
  skv__error_t mine = {0};
  skv_status_t status = SKV_OK;
  if (cudaGetDevice(&nccl->device) != cudaSuccess)
    status = skv__fail(&mine, SKV_UNSUPPORTED, "there is no current CUDA device");
  ncclResult_t code = nccl->control->rank == 0 ? ncclGetUniqueId(id) : ncclSuccess;
  if (status == SKV_OK && code != ncclSuccess)
    status = failed(nccl, code, "ncclGetUniqueId", &mine);
  SKV_TRY(skv__nccl_check_gpus(nccl->control, status, mine.text));
  return skv__comm_broadcast(nccl->control, id, sizeof *id, "NCCL's id");
}

skv_status_t skv__comm_create_nccl(skv__comm_t **wire, skv__comm_t *comm, skv__error_t *error) {
  ncclUniqueId id;
  nccl_t *nccl = calloc(1, sizeof *nccl);
  *wire = NULL;
  if (!nccl)
    return skv__fail(error, SKV_MEMORY, "no memory for a communicator");
  nccl->control = comm;
  skv_status_t status = prepare(nccl, &id);
  if (status == SKV_OK) {
    status = open_nccl(nccl, &id, error);
    if (status != SKV_OK) { /* the others wait in NCCL, not for what this rank could tell them */
      skv__fail(comm->error, status, "%s", error->text);
      skv__comm_break(comm);
    }
  } else {
    skv__fail(error, status, "%s", comm->error->text);
  }
  if (status != SKV_OK) {
    destroy(nccl, false);
    return status;
  }
  SKV_TRY(skv__comm_create(wire, &nccl_transport, nccl, comm->rank, comm->ranks,
                           comm->timeout_seconds, comm->error));
  (*wire)->control = comm;
  return SKV_OK;
}
