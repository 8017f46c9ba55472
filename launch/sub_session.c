/* sub_session.c: see sub_session.h. */
#include "launch/sub_session.h"

#include "context.h"
#include "launch/exit_codes.h"
#ifdef SKV_HAVE_MPI
#include "launch/watchdog.h"
#endif

static skv_context_options_t options_of(const skv__session_t *world) {
  return (skv_context_options_t){.struct_bytes = sizeof(skv_context_options_t),
                                 .threads = world->binding.threads,
                                 .timeout_seconds = world->timeout_seconds,
                                 .backend = world->context->kernel->backend};
}

static skv_status_t take(skv__session_t *sub, skv_status_t status, skv__error_t *error) {
  if (status == SKV_OK)
    return SKV_OK;
  skv__fail(error, status, "%s", skv_context_error(sub->context));
  skv__sub_session_close(sub);
  return status;
}

skv_status_t skv__sub_session_alone(skv__session_t *sub, const skv__session_t *world,
                                    skv__error_t *error) {
  skv_context_options_t options = options_of(world);
  *sub = (skv__session_t){.ranks = 1,
                          .local_ranks = world->local_ranks, /* they share the host's memory */
                          .timeout_seconds = world->timeout_seconds,
                          .stations = world->stations + world->rank,
                          .chosen = {SKV__TRANSPORT_SELF, ""},
                          .binding = world->binding};
  return take(sub, skv_context_create(&sub->context, &options), error);
}

#ifdef SKV_HAVE_MPI
skv_status_t skv__sub_session_open(skv__session_t *sub, skv__session_t *world, int32_t ranks,
                                   skv__error_t *error) {
  if (!world->mpi)
    return skv__sub_session_alone(sub, world, error);
  MPI_Comm communicator = MPI_COMM_NULL;
  skv_status_t status = SKV_OK;
  skv_context_options_t options = options_of(world);
  *sub = *world;
  sub->context = NULL;
  sub->ranks = ranks;
  skv__watchdog_start("MPI_Comm_split", world->timeout_seconds, SKV__EXIT_PEER);
  if (MPI_Comm_split(MPI_COMM_WORLD, world->rank < ranks ? 0 : MPI_UNDEFINED, world->rank,
                     &communicator) != MPI_SUCCESS)
    status = skv__fail(error, SKV_TRANSPORT, "MPI could not form a group of %d ranks", (int)ranks);
  if (communicator != MPI_COMM_NULL) {
    status = take(sub, skv__session_join(sub, communicator, &options), error);
    MPI_Comm_free(&communicator);
  }
  skv__watchdog_stop();
  return status;
}
#else
skv_status_t skv__sub_session_open(skv__session_t *sub, skv__session_t *world, int32_t ranks,
                                   skv__error_t *error) {
  (void)ranks;
  return skv__sub_session_alone(sub, world, error);
}
#endif

void skv__sub_session_close(skv__session_t *sub) {
  skv_context_destroy(sub->context);
  sub->context = NULL;
}
