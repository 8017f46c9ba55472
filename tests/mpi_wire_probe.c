/* mpi_wire_probe.c: what tests/faults/gpu.sh starts under mpirun: messages of device memory.
 *   mpi_wire_probe TIMEOUT staged|nccl MODE [ARGUMENT]
 * Ranks take the GPUs in turn. It exits with the status of what it did; a failure is one line on
 * stderr. */
#include <cuda_runtime_api.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm_mpi.h"

enum { TAG = 7, MOST_RANKS = 8 };

typedef struct probe {
  skv__comm_t *comm, *wire;
  skv__error_t error;
  cudaStream_t stream;
  const char *argument;
} probe_t;

/* Word `i` of message `number` from one rank to another. */
static uint64_t word(int32_t from, int32_t to, int number, size_t i) {
  uint64_t seed = ((uint64_t)from << 48) + ((uint64_t)to << 40) + ((uint64_t)number << 32) + i + 1;
  return seed * 0x9e3779b97f4a7c15u;
}

static void fill(uint64_t *words, size_t bytes, int32_t from, int32_t to, int number) {
  for (size_t i = 0; i * sizeof *words < bytes; i++)
    words[i] = word(from, to, number, i);
}

/* A message in device memory, with a byte behind it that nobody may touch. */
typedef struct message {
  unsigned char *device;
  size_t bytes;
  skv__request_t request;
} message_t;

static skv_status_t make(message_t *message, size_t bytes, const uint64_t *words) {
  message->bytes = bytes;
  if (cudaMalloc((void **)&message->device, bytes + 1) != cudaSuccess)
    return SKV_MEMORY;
  cudaMemset(message->device, 0xa5, bytes + 1);
  if (words)
    cudaMemcpy(message->device, words, bytes, cudaMemcpyHostToDevice);
  return SKV_OK;
}

static bool holds(const message_t *message, const uint64_t *words, unsigned char *scratch) {
  cudaMemcpy(scratch, message->device, message->bytes + 1, cudaMemcpyDeviceToHost);
  return memcmp(scratch, words, message->bytes) == 0 && scratch[message->bytes] == 0xa5;
}

/* Messages of these sizes to everybody and from everybody, all under way at once. */
static skv_status_t exchange(probe_t *probe, const size_t *sizes, int count) {
  skv__comm_t *wire = probe->wire;
  int32_t me = wire->rank;
  size_t most = 8;
  for (int i = 0; i < count; i++)
    most = sizes[i] > most ? sizes[i] : most;
  message_t *out = calloc((size_t)count * (size_t)wire->ranks, sizeof *out);
  message_t *in = calloc((size_t)count * (size_t)wire->ranks, sizeof *in);
  uint64_t *words = malloc(most + 8);
  unsigned char *scratch = malloc(most + 1);
  int wrong = 0, messages = count * wire->ranks;
  for (int m = 0; m < messages; m++) {
    fill(words, sizes[m % count], me, m / count, m % count);
    SKV_TRY(make(&out[m], sizes[m % count], words));
    SKV_TRY(make(&in[m], sizes[m % count], NULL));
  }
  SKV_TRY(skv__comm_group_begin(wire));
  for (int m = 0; m < messages; m++)
    if (m / count != me) {
      SKV_TRY(skv__comm_send(wire, &out[m].request, m / count, out[m].device, out[m].bytes, TAG));
      SKV_TRY(skv__comm_receive(wire, &in[m].request, m / count, in[m].device, in[m].bytes, TAG));
    }
  SKV_TRY(skv__comm_group_end(wire));
  for (int m = messages - 1; m >= 0; m--) {
    SKV_TRY(skv__comm_wait(wire, &out[m].request, 1, "exchange"));
    SKV_TRY(skv__comm_wait(wire, &in[m].request, 1, "exchange"));
  }
  cudaStreamSynchronize(probe->stream);
  for (int m = 0; m < messages; m++) {
    fill(words, sizes[m % count], m / count, me, m % count);
    if (m / count != me && !holds(&in[m], words, scratch))
      wrong++;
    cudaFree(out[m].device);
    cudaFree(in[m].device);
  }
  free(out);
  free(in);
  free(words);
  free(scratch);
  return wrong ? skv__fail(&probe->error, SKV_INTERNAL, "rank %d: %d of %d messages are wrong",
                           (int)me, wrong, messages - count)
               : SKV_OK;
}

/* All sizes that chunks and pieces have edges at, and many of one stream. */
static skv_status_t sizes(probe_t *probe) {
  enum { MIB = 1 << 20, MANY = 300 };
  static const size_t edges[] = {0,       1,           37,           4096,         2 * MIB - 1,
                                 2 * MIB, 2 * MIB + 1, 16 * MIB - 1, 16 * MIB + 5, 37 * MIB + 3};
  size_t many[MANY];
  for (size_t i = 0; i < MANY; i++)
    many[i] = i * 997 % 70001;
  SKV_TRY(exchange(probe, edges, sizeof edges / sizeof *edges));
  return exchange(probe, many, MANY);
}

/* Pairs exchange ARGUMENT bytes both ways: GB/s one way, and microseconds of a turn. */
static skv_status_t rate(probe_t *probe) {
  enum { TURNS = 20 };
  skv__comm_t *wire = probe->wire;
  int32_t peer = wire->rank ^ 1;
  message_t out = {0}, in = {0};
  size_t bytes = (size_t)atoll(probe->argument);
  double begin = 0;
  if (peer >= wire->ranks)
    return SKV_OK;
  SKV_TRY(make(&out, bytes, NULL));
  SKV_TRY(make(&in, bytes, NULL));
  for (int turn = -2; turn < TURNS; turn++) {
    if (turn == 0) {
      cudaStreamSynchronize(probe->stream);
      begin = skv__comm_now();
    }
    SKV_TRY(skv__comm_group_begin(wire));
    SKV_TRY(skv__comm_send(wire, &out.request, peer, out.device, bytes, TAG));
    SKV_TRY(skv__comm_receive(wire, &in.request, peer, in.device, bytes, TAG));
    SKV_TRY(skv__comm_group_end(wire));
    SKV_TRY(skv__comm_wait(wire, &out.request, 1, "rate"));
    SKV_TRY(skv__comm_wait(wire, &in.request, 1, "rate"));
  }
  cudaStreamSynchronize(probe->stream);
  double seconds = (skv__comm_now() - begin) / TURNS;
  if (wire->rank == 0)
    printf("%s: %zu bytes: %.1f us a turn, %.2f GB/s each way\n", wire->transport->name, bytes,
           1e6 * seconds, 1e-9 * (double)bytes / seconds);
  cudaFree(out.device);
  cudaFree(in.device);
  return SKV_OK;
}

/* The last rank gets signal ARGUMENT in the middle of exchanges. */
static skv_status_t lose(probe_t *probe) {
  static const size_t three[] = {100, 5 << 20, 20 << 20};
  SKV_TRY(exchange(probe, three, 3));
  if (probe->wire->rank == probe->wire->ranks - 1)
    raise(atoi(probe->argument));
  return exchange(probe, three, 3);
}

/* Rank 0 sends 50 bytes where 100 are expected. */
static skv_status_t unequal(probe_t *probe) {
  message_t message = {0};
  skv__comm_t *wire = probe->wire;
  SKV_TRY(make(&message, 100, NULL));
  if (wire->rank > 1)
    return SKV_OK;
  SKV_TRY(wire->rank == 0 ? skv__comm_send(wire, &message.request, 1, message.device, 50, TAG)
                          : skv__comm_receive(wire, &message.request, 0, message.device, 100, TAG));
  return skv__comm_wait(wire, &message.request, 1, "unequal");
}

static skv_status_t nothing(probe_t *probe) {
  (void)probe;
  return SKV_OK;
}

static const struct {
  const char *name;
  skv_status_t (*run)(probe_t *probe);
} modes[] = {
    {"sizes", sizes}, {"rate", rate}, {"lose", lose}, {"unequal", unequal}, {"nothing", nothing}};

static skv_status_t open_wire(probe_t *probe, const char *kind, double timeout_seconds) {
  int devices = 0;
  SKV_TRY(skv__comm_create_mpi(&probe->comm, MPI_COMM_WORLD, timeout_seconds, &probe->error));
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
    return skv__fail(&probe->error, SKV_UNSUPPORTED, "no GPU");
  cudaSetDevice(probe->comm->rank % devices);
  if (strcmp(kind, "staged") != 0)
    return SKV_INVALID;
  SKV_TRY(skv__comm_create_staged(&probe->wire, probe->comm, &probe->error));
  cudaStreamCreateWithFlags(&probe->stream, cudaStreamNonBlocking);
  skv__comm_on(probe->wire, probe->stream);
  return SKV_OK;
}

int main(int count, char **arguments) {
  if (count < 4)
    return 99;
  int level;
  probe_t probe = {.argument = count > 4 ? arguments[4] : "0"};
  MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
  skv_status_t status = open_wire(&probe, arguments[2], atof(arguments[1]));
  for (size_t i = 0; status == SKV_OK && i < sizeof modes / sizeof *modes; i++)
    if (!strcmp(modes[i].name, arguments[3]))
      status = modes[i].run(&probe);
  skv__comm_destroy(probe.wire);
  skv__comm_destroy(probe.comm);
  if (status != SKV_OK)
    fprintf(stderr, "%s: %s\n", skv_status_name(status), probe.error.text);
  else
    MPI_Finalize();
  fflush(NULL);
  _exit((int)status);
}
