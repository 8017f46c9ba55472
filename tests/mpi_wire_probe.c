/* mpi_wire_probe.c: what tests/faults/gpu.sh starts under mpirun: messages of device memory.
 *   mpi_wire_probe TIMEOUT staged|nccl MODE [ARGUMENT [PHASE]]
 *   mpi_wire_probe 0 - hog BYTES
 * Ranks take the GPUs in turn. It exits with the status of what it did; a failure is one line on
 * stderr. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm_mpi.h"
#ifdef SKV_HAVE_NCCL
#include "comm/comm_nccl.h"
#endif
#include "context.h"
#include "launch/watchdog.h"

enum { TAG = 7, MOST_RANKS = 8 };

typedef struct probe {
  skv_context_t context; /* for skv_wait */
  cudaStream_t stream;
  const char *argument, *phase;
  double timeout_seconds;
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
  skv__comm_t *wire = probe->context.wire;
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
  SKV_TRY(skv_wait(&probe->context, probe->stream));
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
  return wrong ? skv__fail(&probe->context.error, SKV_INTERNAL,
                           "rank %d: %d of %d messages are wrong", (int)me, wrong, messages - count)
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
  skv__comm_t *wire = probe->context.wire;
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
      SKV_TRY(skv_wait(&probe->context, probe->stream));
      begin = skv__comm_now();
    }
    SKV_TRY(skv__comm_group_begin(wire));
    SKV_TRY(skv__comm_send(wire, &out.request, peer, out.device, bytes, TAG));
    SKV_TRY(skv__comm_receive(wire, &in.request, peer, in.device, bytes, TAG));
    SKV_TRY(skv__comm_group_end(wire));
    SKV_TRY(skv__comm_wait(wire, &out.request, 1, "rate"));
    SKV_TRY(skv__comm_wait(wire, &in.request, 1, "rate"));
  }
  SKV_TRY(skv_wait(&probe->context, probe->stream));
  double seconds = (skv__comm_now() - begin) / TURNS;
  if (wire->rank == 0)
    printf("%s: %zu bytes: %.1f us a turn, %.2f GB/s each way\n", wire->transport->name, bytes,
           1e6 * seconds, 1e-9 * (double)bytes / seconds);
  cudaFree(out.device);
  cudaFree(in.device);
  return SKV_OK;
}

/* The last rank gets signal ARGUMENT in PHASE, or sleeps there when it is 0. */
static void lose_in(const probe_t *probe, const char *phase) {
  if (!probe->phase || strcmp(probe->phase, phase) != 0 ||
      probe->context.comm->rank != probe->context.comm->ranks - 1)
    return;
  if (atoi(probe->argument))
    raise(atoi(probe->argument));
  sleep(30);
}

/* Something to lose a rank in. */
static skv_status_t lose(probe_t *probe) {
  static const size_t three[] = {100, 5 << 20, 20 << 20};
  SKV_TRY(exchange(probe, three, 3));
  lose_in(probe, "exchange");
  return exchange(probe, three, 3);
}

static void CUDART_CB be_long(void *user) {
  usleep((useconds_t)(1e6 * *(const double *)user));
}

/* Rank 0's stream is busy for two and a half timeouts before an exchange. */
static skv_status_t busy(probe_t *probe) {
  static const size_t two[] = {100, 5 << 20};
  double seconds = 2.5 * probe->timeout_seconds;
  if (probe->context.wire->rank == 0)
    cudaLaunchHostFunc(probe->stream, be_long, &seconds);
  return exchange(probe, two, 2);
}

static skv_status_t swap(probe_t *probe, message_t *out, message_t *in) {
  skv__comm_t *wire = probe->context.wire;
  int32_t to = (wire->rank + 1) % wire->ranks, from = (wire->rank + wire->ranks - 1) % wire->ranks;
  SKV_TRY(skv__comm_group_begin(wire));
  SKV_TRY(skv__comm_send(wire, &out->request, to, out->device, out->bytes, TAG));
  SKV_TRY(skv__comm_receive(wire, &in->request, from, in->device, in->bytes, TAG));
  SKV_TRY(skv__comm_group_end(wire));
  SKV_TRY(skv__comm_wait(wire, &out->request, 1, "swap"));
  return skv__comm_wait(wire, &in->request, 1, "swap");
}

/* A CUDA graph of an exchange, captured in the strictest way, as the first that a wire is used for.
 */
static skv_status_t capture(probe_t *probe) {
  enum { WORDS = 1000, REPLAYS = 200 };
  message_t out = {0}, in = {0};
  cudaGraph_t graph = NULL;
  cudaGraphExec_t executable = NULL;
  uint64_t words[WORDS];
  unsigned char scratch[sizeof words + 1];
  int32_t me = probe->context.wire->rank, ranks = probe->context.wire->ranks;
  fill(words, sizeof words, me, 0, 3);
  SKV_TRY(make(&out, sizeof words, words));
  SKV_TRY(make(&in, sizeof words, NULL));
  cudaError_t code = cudaStreamBeginCapture(probe->stream, cudaStreamCaptureModeGlobal);
  skv_status_t status = swap(probe, &out, &in);
  if (code == cudaSuccess)
    code = cudaStreamEndCapture(probe->stream, &graph);
  if (code == cudaSuccess)
    code = cudaGraphInstantiate(&executable, graph, 0);
  if (status != SKV_OK || code != cudaSuccess)
    return skv__fail(&probe->context.error, SKV_INTERNAL, "capture: %s", cudaGetErrorString(code));
  double begin = skv__comm_now();
  for (int i = 0; i < REPLAYS; i++)
    cudaGraphLaunch(executable, probe->stream);
  SKV_TRY(skv_wait(&probe->context, probe->stream));
  if (me == 0)
    printf("capture: %.1f us a replay\n", 1e6 * (skv__comm_now() - begin) / REPLAYS);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  fill(words, sizeof words, (me + ranks - 1) % ranks, 0, 3);
  return holds(&in, words, scratch) ? SKV_OK : SKV_INTERNAL;
}

/* Rank 0 sends 50 bytes where 100 are expected. */
static skv_status_t unequal(probe_t *probe) {
  message_t message = {0};
  skv__comm_t *wire = probe->context.wire;
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
} modes[] = {{"sizes", sizes},     {"rate", rate},       {"lose", lose},      {"busy", busy},
             {"capture", capture}, {"unequal", unequal}, {"nothing", nothing}};

static skv_status_t finished(void *stream, bool *yes, skv__error_t *error) {
  cudaError_t code = cudaStreamQuery(stream);
  *yes = code == cudaSuccess;
  return *yes || code == cudaErrorNotReady
             ? SKV_OK
             : skv__fail(error, SKV_INTERNAL, "stream: %s", cudaGetErrorString(code));
}
/* The memory of the GPU, but for so many bytes. The last pages are hard to come by at once. */
static void take_memory(size_t left) {
  size_t free_bytes = 0, all_bytes;
  void *memory;
  cudaMemGetInfo(&free_bytes, &all_bytes);
  for (size_t step = free_bytes; step >= 1 << 20 && free_bytes > left;) {
    if (step + left > free_bytes || cudaMalloc(&memory, step) != cudaSuccess)
      step /= 2;
    cudaMemGetInfo(&free_bytes, &all_bytes);
  }
  cudaGetLastError();
}

/* All that skv_wait asks of a kernel. */
static const skv__streams_t streams = {.finished = finished};
static const skv__kernel_t kernel = {.backend = SKV_BACKEND_CUDA, .streams = &streams};

static skv_status_t open_wire(probe_t *probe, const char *kind) {
  skv_context_t *context = &probe->context;
  int devices = 0;
  SKV_TRY(skv__comm_create_mpi(&context->comm, MPI_COMM_WORLD, probe->timeout_seconds,
                               &context->error));
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
    return skv__fail(&context->error, SKV_UNSUPPORTED, "no GPU");
  cudaSetDevice(context->comm->rank % devices);
  context->kernel = &kernel;
  cudaStreamCreateWithFlags(&probe->stream, cudaStreamNonBlocking);
  lose_in(probe, "open");
  if (probe->phase && !strcmp(probe->phase, "full"))
    take_memory((size_t)atoll(probe->argument));
  skv_status_t status = SKV_INVALID;
  if (!strcmp(kind, "staged"))
    status = skv__comm_create_staged(&context->wire, context->comm, &context->error);
#ifdef SKV_HAVE_NCCL
  if (!strcmp(kind, "nccl"))
    status = skv__comm_create_nccl(&context->wire, context->comm, &context->error);
#endif
  if (status != SKV_OK)
    return status;
  skv__comm_on(context->wire, probe->stream);
  return SKV_OK;
}

/* Signals that come in the middle of something: after PHASE milliseconds. */
static void *lose_later(void *user) {
  const probe_t *probe = user;
  usleep((useconds_t)atoi(probe->phase) * 1000);
  raise(atoi(probe->argument));
  return NULL;
}

/* Holds the memory of GPU 0, but for `left` bytes, until somebody ends it. */
static int hog(size_t left) {
  take_memory(left);
  printf("%zu bytes left\n", left);
  fflush(stdout);
  return (int)sleep(100);
}

int main(int count, char **arguments) {
  if (count < 4)
    return 99;
  if (!strcmp(arguments[3], "hog"))
    return hog(count > 4 ? (size_t)atoll(arguments[4]) : 0);
  int level;
  pthread_t thread;
  probe_t probe = {.timeout_seconds = atof(arguments[1]),
                   .argument = count > 4 ? arguments[4] : "0",
                   .phase = count > 5 ? arguments[5] : NULL};
  MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (probe.phase && rank == ranks - 1 && atoi(probe.phase))
    pthread_create(&thread, NULL, lose_later, &probe);
  double begin = skv__comm_now();
  skv_status_t status = open_wire(&probe, arguments[2]);
  if (status == SKV_OK && rank == 0)
    printf("opened in %.2f s\n", skv__comm_now() - begin);
  for (size_t i = 0; status == SKV_OK && i < sizeof modes / sizeof *modes; i++)
    if (!strcmp(modes[i].name, arguments[3]))
      status = modes[i].run(&probe);
  if (status == SKV_OK) {
    lose_in(&probe, "leave");
    status = skv__comm_leave(probe.context.wire);
  }
  skv__comm_destroy(probe.context.wire);
  skv__comm_destroy(probe.context.comm);
  if (status != SKV_OK)
    fprintf(stderr, "%s: %s\n", skv_status_name(status), probe.context.error.text);
  fflush(NULL);
  if (status == SKV_OK) {
    skv__watchdog_start("MPI_Finalize", probe.timeout_seconds, SKV_TIMEOUT);
    MPI_Finalize();
  }
  _exit((int)status);
}
