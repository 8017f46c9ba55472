/* mpi.c: bytes through MPI. MPI's own errors come back as texts instead of ending the process. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_mpi.h"
#include "comm/wait.h"

typedef struct mpi {
  MPI_Comm communicator;
} mpi_t;

skv_status_t skv__mpi_failed(int code, const char *call, skv__error_t *error) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length;
  MPI_Error_string(code, text, &length);
  return skv__fail(error, SKV_TRANSPORT, "%s: %s", call, text);
}

static MPI_Request *handle(skv__request_t *request) {
  _Static_assert(sizeof(MPI_Request) <= sizeof request->handle, "a handle holds an MPI_Request");
  return (MPI_Request *)(void *)request->handle;
}

static skv_status_t start(void *impl, skv__request_t *request, size_t offset, size_t bytes,
                          skv__error_t *error) {
  mpi_t *mpi = impl;
  char *data = (char *)request->data + offset;
  bool sends = request->way == SKV__SEND;
  int code = sends ? MPI_Isend(data, (int)bytes, MPI_BYTE, request->peer, request->tag,
                               mpi->communicator, handle(request))
                   : MPI_Irecv(data, (int)bytes, MPI_BYTE, request->peer, request->tag,
                               mpi->communicator, handle(request));
  return code == MPI_SUCCESS ? SKV_OK
                             : skv__mpi_failed(code, sends ? "MPI_Isend" : "MPI_Irecv", error);
}

static skv_status_t test(void *impl, skv__request_t *request, bool *done, skv__error_t *error) {
  (void)impl;
  int flag = 0, bytes = 0;
  MPI_Status status;
  int code = MPI_Test(handle(request), &flag, &status);
  int class = MPI_SUCCESS;
  if (code != MPI_SUCCESS) {
    MPI_Error_class(code, &class);
    if (class != MPI_ERR_TRUNCATE)
      return skv__mpi_failed(
          code, request->way == SKV__SEND ? "MPI_Test of a send" : "MPI_Test of a receive", error);
  }
  *done = flag;
  if (!flag || request->way == SKV__SEND)
    return SKV_OK;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (class == MPI_ERR_TRUNCATE || (size_t)bytes != request->flying_bytes)
    return skv__fail(error, SKV_PEER, "rank %d sent %s bytes than the %zu that were expected of it",
                     (int)request->peer, class == MPI_ERR_TRUNCATE ? "more" : "fewer",
                     request->flying_bytes);
  return SKV_OK;
}

static void cancel(void *impl, skv__request_t *request) {
  (void)impl;
  if (*handle(request) == MPI_REQUEST_NULL)
    return;
  if (request->way == SKV__RECEIVE)
    MPI_Cancel(handle(request)); /* sends cannot be cancelled in practice */
  MPI_Request_free(handle(request));
}

static void destroy(void *impl, bool healthy) {
  mpi_t *mpi = impl;
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (healthy && !finalized) /* freeing may wait for the others */
    MPI_Comm_free(&mpi->communicator);
  free(mpi);
}

static const skv__transport_t mpi_transport = {.name = "mpi",
                                               .piece_bytes = (size_t)1 << 30,
                                               .start = start,
                                               .test = test,
                                               .cancel = cancel,
                                               .destroy = destroy};

MPI_Comm skv__comm_mpi_of(const skv__comm_t *comm) {
  return ((const mpi_t *)comm->impl)->communicator;
}

static skv_status_t check_mpi(MPI_Comm communicator, skv__error_t *error) {
  int initialized = 0, finalized = 0, level = MPI_THREAD_SINGLE, main_thread = 0, inter = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (!initialized || finalized)
    return skv__fail(error, SKV_INVALID, "MPI %s; call MPI_Init_thread first",
                     finalized ? "has been finalized" : "is not initialised");
  MPI_Query_thread(&level);
  if (level < MPI_THREAD_FUNNELED)
    return skv__fail(error, SKV_INVALID,
                     "MPI was initialised for a single thread; ask MPI_Init_thread for "
                     "MPI_THREAD_FUNNELED or more");
  MPI_Is_thread_main(&main_thread);
  if (level < MPI_THREAD_SERIALIZED && !main_thread)
    return skv__fail(error, SKV_INVALID,
                     "only the thread that initialised MPI may call it at MPI_THREAD_FUNNELED");
  if (communicator == MPI_COMM_NULL)
    return skv__fail(error, SKV_INVALID, "the communicator is MPI_COMM_NULL");
  MPI_Comm_test_inter(communicator, &inter);
  if (inter)
    return skv__fail(error, SKV_INVALID, "the communicator is an intercommunicator");
  return SKV_OK;
}

/* Duplicate with a deadline: MPI_Comm_dup would wait for ever for a rank that does not come. */
static skv_status_t duplicate(MPI_Comm communicator, MPI_Comm *copy, double timeout_seconds,
                              skv__error_t *error) {
  MPI_Request request = MPI_REQUEST_NULL;
  int rank = 0, done = 0;
  MPI_Comm_rank(communicator, &rank);
  int code = MPI_Comm_idup(communicator, copy, &request);
  double since = skv__comm_now();
  for (uint32_t idle = 0; code == MPI_SUCCESS && !done; skv__comm_pause(&idle)) {
    double now = skv__comm_now();
    code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (!done && now - since > timeout_seconds)
      return skv__fail(error, SKV_TIMEOUT,
                       "rank %d: waited %.1f s for the other ranks to open a communicator; one has "
                       "died, stopped, or is in other work: see its output, or raise --timeout",
                       rank, now - since);
  }
  if (code == MPI_SUCCESS)
    code = MPI_Comm_set_errhandler(*copy, MPI_ERRORS_RETURN);
  return code == MPI_SUCCESS ? SKV_OK : skv__mpi_failed(code, "MPI_Comm_idup", error);
}

skv_status_t skv__comm_create_mpi(skv__comm_t **comm, MPI_Comm communicator, double timeout_seconds,
                                  skv__error_t *error) {
  int rank, ranks;
  *comm = NULL;
  SKV_TRY(check_mpi(communicator, error));
  mpi_t *mpi = calloc(1, sizeof *mpi);
  if (!mpi)
    return skv__fail(error, SKV_MEMORY, "no memory for a communicator");
  MPI_Errhandler before;
  MPI_Comm_get_errhandler(communicator, &before);
  MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
  skv_status_t status = duplicate(communicator, &mpi->communicator, timeout_seconds, error);
  MPI_Comm_set_errhandler(communicator, before);
  MPI_Errhandler_free(&before);
  if (status != SKV_OK) {
    free(mpi);
    return status;
  }
  MPI_Comm_rank(mpi->communicator, &rank);
  MPI_Comm_size(mpi->communicator, &ranks);
  return skv__comm_create(comm, &mpi_transport, mpi, rank, ranks, timeout_seconds, error);
}
