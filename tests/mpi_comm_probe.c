/* mpi_comm_probe.c: what test_comm_mpi starts under mpirun.
 *   mpi_comm_probe TIMEOUT PIECE_BYTES MODE ARGUMENT
 * It exits with the status of what it did; a failure is one line on stderr. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm_mpi.h"
#include "context.h"
#include "kit/comm_bodies.h"
#include "launch/watchdog.h"
#include "skv_mpi.h"

typedef struct probe {
  skv__comm_t *comm;
  long argument;
} probe_t;

static skv_status_t healthy(probe_t *probe) {
  SKV_TRY(kit_comm_everybody(probe->comm));
  SKV_TRY(kit_comm_collect(probe->comm));
  return kit_comm_agree(probe->comm, KIT_NONE);
}
static skv_status_t agree(probe_t *probe) {
  return kit_comm_agree(probe->comm, (kit_difference_t)probe->argument);
}

/* Rank 0 sends `argument` bytes where rank 1 expects 100. */
static skv_status_t unequal(probe_t *probe) {
  static char data[1 << 20];
  skv__request_t request;
  if (probe->comm->rank == 0) {
    SKV_TRY(skv__comm_send(probe->comm, &request, 1, data, (size_t)probe->argument, 0));
    return skv__comm_wait(probe->comm, &request, 1, "unequal");
  }
  SKV_TRY(skv__comm_receive(probe->comm, &request, 0, data, 100, 0));
  return skv__comm_wait(probe->comm, &request, 1, "unequal");
}

/* One message of `argument` words of 8 bytes and one byte from rank 0 to rank 1. */
static skv_status_t one_message(probe_t *probe) {
  uint64_t words = (uint64_t)probe->argument;
  size_t bytes = words * sizeof words + 1;
  uint64_t *data = calloc(words + 1, sizeof *data);
  skv__request_t request;
  if (!data)
    return SKV_MEMORY;
  for (uint64_t i = 0; probe->comm->rank == 0 && i <= words; i++)
    data[i] = (i + 1) * 0x9e3779b97f4a7c15u;
  skv_status_t status = probe->comm->rank == 0
                            ? skv__comm_send(probe->comm, &request, 1, data, bytes, 3)
                            : skv__comm_receive(probe->comm, &request, 0, data, bytes, 3);
  if (status == SKV_OK)
    status = skv__comm_wait(probe->comm, &request, 1, "one message");
  for (uint64_t i = 0; status == SKV_OK && i <= words; i++) {
    uint64_t want = (i + 1) * 0x9e3779b97f4a7c15u;
    if (memcmp(&data[i], &want, i < words ? sizeof want : 1))
      status = SKV_INTERNAL;
  }
  free(data);
  return status;
}

/* The last rank gets signal `argument`, or leaves when it is 0, in the middle of collectives. */
static skv_status_t lose_a_rank(probe_t *probe) {
  SKV_TRY(kit_comm_collect(probe->comm));
  if (probe->comm->rank == probe->comm->ranks - 1) {
    if (probe->argument == 0)
      _exit(0);
    raise((int)probe->argument);
  }
  return kit_comm_collect(probe->comm);
}

/* A chain: rank r waits for rank r + 1, and the last one is stopped. */
static skv_status_t chain(probe_t *probe) {
  skv__comm_t *comm = probe->comm;
  skv__request_t request;
  char byte = 0;
  SKV_TRY(skv__comm_barrier(comm, "start"));
  if (comm->rank == 0)
    usleep(100000); /* deadlines pass a little apart */
  if (comm->rank == comm->ranks - 1)
    raise((int)probe->argument);
  SKV_TRY(skv__comm_receive(comm, &request, comm->rank + 1, &byte, 1, 0));
  return skv__comm_wait(comm, &request, 1, "chain");
}

/* Watches a clock of its own that runs for `seconds`. */
static skv_status_t watch_for(skv__comm_t *comm, double seconds, bool limited) {
  skv__watch_t watch;
  double until = skv__comm_now() + seconds;
  SKV_TRY(skv__watch_begin(comm, &watch, !limited));
  while (skv__comm_now() < until)
    SKV_TRY(skv__watch_idle(comm, &watch, limited, "watching"));
  return skv__watch_end(comm, &watch);
}

/* Watches that last for longer than the timeout on all ranks, then on rank 0 alone, while the
 * others are silent; the last rank gets signal `argument` in the third, if it is none of these. */
static skv_status_t watches(probe_t *probe) {
  skv__comm_t *comm = probe->comm;
  double timeout_seconds = comm->timeout_seconds;
  SKV_TRY(watch_for(comm, 1.5 * timeout_seconds, false));
  for (int i = 0; i < 1000;
       i++) /* words of short ones must not pile up, nor excuse later silence */
    SKV_TRY(watch_for(comm, 0, false));
  SKV_TRY(skv__comm_barrier(comm, "between"));
  SKV_TRY(watch_for(comm, comm->rank == 0 ? 2 * timeout_seconds : 0.1, false));
  if (comm->rank != 0)
    usleep((useconds_t)(1.5e6 * timeout_seconds));
  SKV_TRY(skv__comm_barrier(comm, "after a long one"));
  if (probe->argument < 0)
    return watch_for(comm, 2 * timeout_seconds, true);
  if (probe->argument && comm->rank == comm->ranks - 1)
    raise((int)probe->argument);
  return watch_for(comm, 0.5 + (probe->argument ? 2 * timeout_seconds : 0), false);
}

/* Ping-pong of 8 bytes: microseconds one way on stdout. */
static skv_status_t latency(probe_t *probe) {
  skv__comm_t *comm = probe->comm;
  uint64_t ball = 0;
  skv__request_t request;
  if (comm->rank > 1)
    return skv__comm_barrier(comm, "end");
  double begin = skv__comm_now();
  for (long i = 0; i < 2 * probe->argument; i++) {
    bool sends = (i & 1) == comm->rank;
    SKV_TRY(sends ? skv__comm_send(comm, &request, 1 - comm->rank, &ball, sizeof ball, 0)
                  : skv__comm_receive(comm, &request, 1 - comm->rank, &ball, sizeof ball, 0));
    SKV_TRY(skv__comm_wait(comm, &request, 1, "ping-pong"));
  }
  if (comm->rank == 0)
    printf("%.1f us one way\n", 1e6 * (skv__comm_now() - begin) / (2 * (double)probe->argument));
  return skv__comm_barrier(comm, "end");
}

static const struct {
  const char *name;
  skv_status_t (*run)(probe_t *probe);
} modes[] = {{"healthy", healthy},     {"agree", agree},      {"unequal", unequal},
             {"message", one_message}, {"lose", lose_a_rank}, {"chain", chain},
             {"latency", latency},     {"watches", watches}};

static int report(skv_status_t status, const char *text) {
  if (status != SKV_OK)
    fprintf(stderr, "%s: %s\n", skv_status_name(status), text);
  return (int)status;
}

/* Contexts, made through the public constructor; the last rank is given other options. */
static int context_main(const char *difference, double timeout_seconds) {
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  skv_context_options_t options = {.struct_bytes = sizeof options,
                                   .timeout_seconds = timeout_seconds};
  MPI_Comm communicator = MPI_COMM_WORLD;
  if (rank == ranks - 1) {
    if (!strcmp(difference, "kernel"))
      options.kernel = "no.such";
    if (!strcmp(difference, "timeout"))
      options.timeout_seconds += 1;
    if (!strcmp(difference, "threads"))
      options.threads = -1;
    if (!strcmp(difference, "stopped"))
      raise(SIGSTOP);
  }
  if (!strcmp(difference, "null"))
    communicator = MPI_COMM_NULL;
  skv_context_t *context;
  skv_status_t status = skv_context_create_mpi(&context, communicator, &options);
  if (status == SKV_OK &&
      (skv_context_rank(context) != rank || skv_context_ranks(context) != ranks))
    status = SKV_INTERNAL;
  int code = report(status, skv_context_error(context));
  skv_context_destroy(context);
  return code;
}

static int comm_main(char **arguments, double timeout_seconds) {
  skv__error_t error = {0};
  probe_t probe = {.argument = atol(arguments[4])};
  skv_status_t status = skv__comm_create_mpi(&probe.comm, MPI_COMM_WORLD, timeout_seconds, &error);
  if (status != SKV_OK)
    return report(status, error.text);
  if (atol(arguments[2]))
    probe.comm->piece_bytes = (size_t)atol(arguments[2]);
  status = SKV_INVALID;
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
    if (!strcmp(modes[i].name, arguments[3]))
      status = modes[i].run(&probe);
  skv__comm_destroy(probe.comm);
  return report(status, error.text);
}

/* The last of three ranks stops before MPI_Init or MPI_Finalize, which a watchdog guards. */
static int watched_main(const char *phase, double timeout_seconds) {
  const char *rank = getenv("OMPI_COMM_WORLD_RANK");
  bool last = rank && !strcmp(rank, "2");
  int level;
  if (last && !strcmp(phase, "MPI_Init"))
    raise(SIGSTOP);
  skv__watchdog_start("MPI_Init", timeout_seconds, 77);
  MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
  skv__watchdog_stop();
  if (last && !strcmp(phase, "MPI_Finalize"))
    raise(SIGSTOP);
  skv__watchdog_start("MPI_Finalize", timeout_seconds, 77);
  MPI_Finalize();
  skv__watchdog_stop();
  return 0;
}

int main(int count, char **arguments) {
  if (count < 5)
    return 99;
  const char *mode = arguments[3];
  double timeout_seconds = atof(arguments[1]);
  int level;
  if (!strcmp(mode, "watched"))
    return watched_main(arguments[4], timeout_seconds);
  if (!strcmp(mode, "uninitialised"))
    return comm_main(arguments, timeout_seconds);
  MPI_Init_thread(NULL, NULL, strcmp(mode, "single") ? MPI_THREAD_FUNNELED : MPI_THREAD_SINGLE,
                  &level);
  if (!strcmp(mode, "finalized")) {
    MPI_Finalize();
    return comm_main(arguments, timeout_seconds);
  }
  int code = !strcmp(mode, "context") ? context_main(arguments[4], timeout_seconds)
                                      : comm_main(arguments, timeout_seconds);
  if (code == SKV_OK || code == SKV_DISAGREE || code == SKV_INVALID)
    MPI_Finalize(); /* all ranks are here; else nobody waits for the others */
  fflush(NULL);
  _exit(code);
}
