/* mpi_session.c: see mpi_session.h. */
#include "launch/mpi_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "context.h"
#include "launch/exit_codes.h"
#include "launch/gpu.h"
#include "launch/launcher.h"
#include "launch/options.h"
#include "launch/place.h"
#include "launch/siblings.h"
#ifdef SKV_HAVE_MPI
#include "launch/watchdog.h"
#include "skv_mpi.h"
#endif
#ifdef SKV_HAVE_NCCL
#include "skv_nccl.h"
#endif

enum { ABORT_SECONDS = 3 };

#ifdef SKV_HAVE_MPI
/* Where this rank stands among all and among those of its host. */
static skv_status_t find_place(skv__session_t *session, skv__error_t *error) {
  MPI_Comm host = MPI_COMM_NULL;
  int rank = 0, ranks = 1, local_rank = 0, local_ranks = 1;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (MPI_Comm_rank(MPI_COMM_WORLD, &rank) || MPI_Comm_size(MPI_COMM_WORLD, &ranks) ||
      MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host) ||
      MPI_Comm_rank(host, &local_rank) || MPI_Comm_size(host, &local_ranks) || MPI_Comm_free(&host))
    return skv__fail(error, SKV_TRANSPORT, "MPI could not tell the ranks of this host");
  session->rank = rank;
  session->ranks = ranks;
  session->local_rank = local_rank;
  session->local_ranks = local_ranks;
  return SKV_OK;
}

static skv_status_t start_mpi(skv__session_t *session, skv__error_t *error) {
  int level = MPI_THREAD_SINGLE;
  skv__watchdog_start("MPI_Init", session->timeout_seconds, SKV__EXIT_PEER);
  int failed = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
  session->mpi = !failed;
  skv_status_t status =
      failed ? skv__fail(error, SKV_TRANSPORT, "MPI_Init failed") : find_place(session, error);
  skv__watchdog_stop();
  return status;
}

/* Everybody's station to everybody: before there is a context, so that all choose one kind. */
static skv_status_t share_stations(skv__session_t *session, const skv__station_t *mine,
                                   skv__error_t *error) {
  if (!session->mpi) {
    *session->stations = *mine;
    return SKV_OK;
  }
  skv__watchdog_start("telling the others where this rank is", session->timeout_seconds,
                      SKV__EXIT_PEER);
  int failed = MPI_Allgather(mine, sizeof *mine, MPI_BYTE, session->stations, sizeof *mine,
                             MPI_BYTE, MPI_COMM_WORLD);
  skv__watchdog_stop();
  return failed ? skv__fail(error, SKV_TRANSPORT, "MPI could not tell where the ranks are")
                : SKV_OK;
}

static void end_mpi(const skv__session_t *session, bool by_force, int code) {
  fflush(stdout);
  if (by_force) {
    skv__watchdog_start("MPI_Abort", ABORT_SECONDS, code);
    MPI_Abort(MPI_COMM_WORLD, code);
  }
  skv__watchdog_start("MPI_Finalize", session->timeout_seconds, SKV__EXIT_PEER);
  MPI_Finalize();
  skv__watchdog_stop();
}
#else
static skv_status_t start_mpi(skv__session_t *session, skv__error_t *error) {
  (void)session;
  return skv__fail(error, SKV_UNSUPPORTED,
                   "this build has no MPI: install it (libopenmpi-dev) and build again, or run one "
                   "process");
}

static skv_status_t share_stations(skv__session_t *session, const skv__station_t *mine,
                                   skv__error_t *error) {
  (void)error;
  *session->stations = *mine;
  return SKV_OK;
}

static void end_mpi(const skv__session_t *session, bool by_force, int code) {
  (void)session, (void)by_force, (void)code;
}
#endif

static skv_status_t start_transport(skv__session_t *session, skv__transport_choice_t choice,
                                    skv__error_t *error) {
  skv__launcher_t launcher = skv__launcher();
  if (choice == SKV__TRANSPORT_SELF && launcher.ranks > 1)
    return skv__fail(error, SKV_INVALID,
                     "--transport self is for one process, but the launcher started %d (%s)",
                     (int)launcher.ranks, launcher.name);
  if (choice == SKV__TRANSPORT_SELF || (choice == SKV__TRANSPORT_AUTO && !launcher.present))
    return SKV_OK;
  SKV_TRY(start_mpi(session, error));
  if (session->ranks == 1 && launcher.ranks > 1)
    return skv__fail(error, SKV_INVALID,
                     "the launcher started %d processes (%s), but to MPI each of them is rank 0 of "
                     "1: the launcher belongs to another MPI than this build; see splitkv info "
                     "and use the mpirun of that MPI",
                     (int)launcher.ranks, launcher.name);
  return SKV_OK;
}

/* This rank's GPU, where it is to compute on one, and where all others are. */
static skv_status_t find_stations(skv__session_t *session, const skv__session_options_t *options,
                                  skv__error_t *error) {
  skv__station_t mine;
  memset(&mine, 0, sizeof mine); /* it travels as bytes */
  gethostname(mine.host, sizeof mine.host - 1);
  mine.number = SKV__NO_GPU;
  mine.numa = SKV__NO_NUMA;
  mine.wants_cuda = options->backend == SKV_BACKEND_CUDA;
  mine.transport = (int32_t)options->transport;
  session->stations = calloc((size_t)session->ranks, sizeof *session->stations);
  if (!session->stations)
    return skv__fail(error, SKV_MEMORY, "no memory for the places of %d ranks",
                     (int)session->ranks);
  if (mine.wants_cuda)
    skv__gpu_take(&mine, session->local_rank, session->local_ranks);
  SKV_TRY(share_stations(session, &mine, error));
#ifdef SKV_HAVE_NCCL
  const bool nccl = true;
#else
  const bool nccl = false;
#endif
  return skv__stations_transport(session->stations, session->ranks, session->mpi, nccl,
                                 &session->chosen, error);
}

/* Threads near the GPUs, where every rank of this host has one. */
static skv_status_t bind(skv__session_t *session, const skv__session_options_t *options,
                         skv__error_t *error) {
  const skv__station_t *mine = &session->stations[session->rank];
  int32_t *numa = calloc((size_t)session->local_ranks, sizeof *numa), count = 0;
  if (!numa)
    return skv__fail(error, SKV_MEMORY, "no memory for the places of this host's ranks");
  for (int32_t rank = 0; rank < session->ranks && count < session->local_ranks; ++rank)
    if (skv__same_host(mine, &session->stations[rank]))
      numa[count++] = session->stations[rank].numa;
  bool known = mine->number != SKV__NO_GPU && count == session->local_ranks;
  const skv__seat_t seat = {session->local_rank, session->local_ranks, known ? numa : NULL};
  session->binding = skv__bind(&seat, options->threads, options->bind);
  free(numa);
  return SKV_OK;
}

#ifdef SKV_HAVE_MPI
skv_status_t skv__session_join(skv__session_t *session, MPI_Comm communicator,
                               const skv_context_options_t *options) {
#ifdef SKV_HAVE_NCCL
  if (session->chosen.transport == SKV__TRANSPORT_NCCL)
    return skv_context_create_nccl(&session->context, communicator, options);
#endif
  return skv_context_create_mpi(&session->context, communicator, options);
}
#endif

static skv_status_t create_context(skv__session_t *session, const skv_context_options_t *options) {
#ifdef SKV_HAVE_MPI
  if (session->mpi)
    return skv__session_join(session, MPI_COMM_WORLD, options);
#endif
  return skv_context_create(&session->context, options);
}

skv_status_t skv__session_open(skv__session_t *session, const skv__session_options_t *options,
                               skv__error_t *error) {
  *session =
      (skv__session_t){.ranks = 1, .local_ranks = 1, .timeout_seconds = options->timeout_seconds};
  SKV_TRY(start_transport(session, options->transport, error));
  SKV_TRY(find_stations(session, options, error));
  SKV_TRY(bind(session, options, error));
  skv_context_options_t context_options = {.struct_bytes = sizeof context_options,
                                           .threads = session->binding.threads,
                                           .timeout_seconds = options->timeout_seconds,
                                           .backend = options->backend};
  skv_status_t status = create_context(session, &context_options);
  if (status != SKV_OK)
    return skv__fail(error, status, "%s", skv_context_error(session->context));
  return SKV_OK;
}

static bool is_fatal(skv_status_t status) {
  return status == SKV_TIMEOUT || status == SKV_PEER || status == SKV_TRANSPORT;
}

skv_status_t skv__session_agree(skv__session_t *session, const skv__fact_t *facts, size_t count,
                                skv__error_t *error) {
  skv_context_t *context = session->context;
  skv__error_t mine = *error;
  if (is_fatal(mine.status)) /* somebody is missing: no use in asking everybody */
    return mine.status;
  if (context->comm->broken)
    return skv__fail(error, context->error.status, "%s", context->error.text);
  skv__error_clear(error);
  if (skv__comm_agree(context->comm, facts, count, mine.status, mine.text) == SKV_OK)
    return SKV_OK;
  *error = context->error;
  if (session->ranks == 1) /* "rank 0: " says nothing then */
    *error = mine.status != SKV_OK ? mine : *error;
  return error->status;
}

bool skv__session_speaks(const skv__session_t *session) {
  return session->mpi ? session->rank == 0 && skv__launcher_first() : skv__launcher_first();
}

/* The ranks can no longer talk to each other, or never could. */
static bool is_broken(const skv__session_t *session) {
  const skv_context_t *context = session->context;
  return context && session->ranks > 1 && (!context->comm || context->comm->broken);
}

int skv__session_complain(const skv__session_t *session, const skv__error_t *error, bool usage) {
  skv__error_t told = *error;
  char cause[64];
  if (is_fatal(error->status) && skv__siblings_blame(cause, sizeof cause, false)) {
    size_t bytes = strlen(told.text);
    snprintf(told.text + bytes, sizeof told.text - bytes, "; %s", cause);
  }
  if (is_fatal(error->status) || is_broken(session) || skv__session_speaks(session))
    skv__complain(&told);
  return usage && error->status == SKV_INVALID ? SKV__EXIT_USAGE : skv__exit_code(error->status);
}

/* The ranks part in order, or this one says who does not come. */
static int leave(skv__session_t *session, int code) {
  skv__error_t error = {0};
  skv_status_t status = session->context ? skv__context_leave(session->context) : SKV_OK;
  if (status == SKV_OK)
    return code;
  skv__fail(&error, status, "%s", skv_context_error(session->context));
  return skv__session_complain(session, &error, false);
}

int skv__session_close(skv__session_t *session, int code) {
  if (!is_broken(session) && code != SKV__EXIT_PEER)
    code = leave(session, code);
  bool by_force = is_broken(session) || (session->ranks > 1 && code == SKV__EXIT_PEER);
  skv_context_destroy(session->context);
  session->context = NULL;
  if (session->mpi)
    end_mpi(session, by_force, code);
  session->mpi = false;
  free(session->stations);
  session->stations = NULL;
  return code;
}
