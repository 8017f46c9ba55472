/* mpi_session.c: see mpi_session.h. */
#include "launch/mpi_session.h"

#include <stdio.h>
#include <string.h>

#include "context.h"
#include "launch/exit_codes.h"
#include "launch/launcher.h"
#include "launch/options.h"
#include "launch/siblings.h"
#ifdef SKV_HAVE_MPI
#include "launch/watchdog.h"
#include "skv_mpi.h"
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

static skv_status_t create_context(skv__session_t *session, const skv_context_options_t *options) {
  if (session->mpi)
    return skv_context_create_mpi(&session->context, MPI_COMM_WORLD, options);
  return skv_context_create(&session->context, options);
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

static skv_status_t create_context(skv__session_t *session, const skv_context_options_t *options) {
  return skv_context_create(&session->context, options);
}

static void end_mpi(const skv__session_t *session, bool by_force, int code) {
  (void)session, (void)by_force, (void)code;
}
#endif

static skv_status_t start_transport(skv__session_t *session, skv__transport_choice_t choice,
                                    skv__error_t *error) {
  skv__launcher_t launcher = skv__launcher();
  if (choice == SKV__TRANSPORT_NCCL)
    return skv__fail(error, SKV_UNSUPPORTED,
                     "this build has no NCCL transport: use --transport mpi or self");
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

skv_status_t skv__session_open(skv__session_t *session, const skv__session_options_t *options,
                               skv__error_t *error) {
  *session =
      (skv__session_t){.ranks = 1, .local_ranks = 1, .timeout_seconds = options->timeout_seconds};
  SKV_TRY(start_transport(session, options->transport, error));
  const skv__seat_t seat = {.local_rank = session->local_rank, .local_ranks = session->local_ranks};
  session->binding = skv__bind(&seat, options->threads, options->bind);
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

int skv__session_close(skv__session_t *session, int code) {
  bool by_force = is_broken(session) || (session->ranks > 1 && code == SKV__EXIT_PEER);
  skv_context_destroy(session->context);
  session->context = NULL;
  if (session->mpi)
    end_mpi(session, by_force, code);
  session->mpi = false;
  return code;
}
