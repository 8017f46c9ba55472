/* reduce.cu: states of two nodes a row, one on each of two GPUs, reduced to the rows' owners or to
 * all: by the one kernel that loads from its peer, by NCCL's send and receive with a merge kernel
 * after it, and in free order by NCCL's sums of rescaled states. Candidates in turns, medians of
 * the slower rank, one JSON object a line. Small ones run in a CUDA graph. mpirun -n 2 reduce */
#include <mpi.h>
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "kernels/cuda/merge.h"
#include "kernels/cuda/reduce.h"

enum { ROUNDS = 7, CANDIDATES = 3, DIM = 128, MOST_ROWS = 524288, GRAPH_ROWS = 2048 };

static int rank, ranks;

static void stop(const char *what, const char *why) {
  fprintf(stderr, "rank %d: %s: %s\n", rank, what, why);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check(cudaError_t status) {
  if (status != cudaSuccess)
    stop("cuda", cudaGetErrorString(status));
}

static void check_nccl(ncclResult_t result) {
  if (result != ncclSuccess)
    stop("nccl", ncclGetErrorString(result));
}

typedef struct bench {
  ncclComm_t comm;
  skv__window_t *window;
  cudaStream_t stream;
  cudaEvent_t begin, end;
  float *received, *scaled, *largest; /* a state, a state, and e of all rows */
  float *out[CANDIDATES];
  int64_t rows; /* of all owners */
  bool to_all;
} bench_t;

/* ---- the candidates ---- */

/* Slices lie one after another in each rank's memory. */
static float *slice_at(const bench_t *b, float *memory, int owner) {
  return memory + owner * (b->rows / ranks) * (DIM + 2);
}

static void direct(const bench_t *b, float *out) {
  skv__reduce_t reduce;
  memset(&reduce, 0, sizeof reduce);
  reduce.value_head_dim = DIM, reduce.nodes = ranks;
  for (int i = 1; i < ranks; ++i) /* two ranks: the canonical tree */
    reduce.folds[i - 1].right = (uint8_t)i;
  for (int owner = 0; owner < ranks; ++owner) {
    if (!b->to_all && owner != rank)
      continue;
    skv__reduce_part_t *part = &reduce.part[reduce.parts++];
    part->owner = owner, part->rows = b->rows / ranks;
    for (int i = 0; i < ranks; ++i)
      part->states[i] = slice_at(b, (float *)b->window->memory[i], owner);
    part->out = slice_at(b, out, owner);
    reduce.most_rows += part->rows;
  }
  if (skv__launch_reduce(b->window, &reduce, NULL, NULL, b->stream) != SKV_OK)
    stop("direct", "launch");
}

static void send_receive(const bench_t *b, float *out) {
  float *mine = (float *)b->window->memory[rank];
  const int64_t rows = b->rows / ranks;
  const int first = b->to_all ? 0 : rank, count = b->to_all ? ranks : 1, peer = 1 - rank;
  const size_t floats = (size_t)rows * (DIM + 2) * (size_t)count;
  check_nccl(ncclGroupStart());
  check_nccl(ncclSend(slice_at(b, mine, b->to_all ? 0 : peer), floats, ncclFloat, peer, b->comm,
                      b->stream));
  check_nccl(ncclRecv(b->received, floats, ncclFloat, peer, b->comm, b->stream));
  check_nccl(ncclGroupEnd());
  for (int i = 0; i < count; ++i) {
    const float *states[2];
    states[rank] = slice_at(b, mine, first + i);
    states[peer] = slice_at(b, b->received, i);
    skv__launch_merge(slice_at(b, out, first + i), states, 2, rows, DIM, b->stream);
  }
}

/* In free order: e of the sum is the largest, and O and l are scaled to it. */
static __global__ void rescale(float *to, const float *from, const float *largest, int64_t rows) {
  const int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32,
                lane = threadIdx.x % 32;
  if (row >= rows)
    return;
  const float weight = exp2f(from[rows * DIM + row] - largest[row]);
  float4 o = ((const float4 *)from)[row * 32 + lane];
  o.x *= weight, o.y *= weight, o.z *= weight, o.w *= weight;
  ((float4 *)to)[row * 32 + lane] = o;
  if (lane == 0)
    to[rows * DIM + row] = from[rows * (DIM + 1) + row] * weight;
}

/* Sums are to all; to owners, NCCL scatters them. */
static void free_order(const bench_t *b, float *out) {
  const float *mine = (const float *)b->window->memory[rank];
  const int64_t rows = b->rows / ranks;
  const size_t floats = (size_t)rows * (DIM + 2);
  for (int owner = 0; owner < ranks; ++owner)
    check(cudaMemcpyAsync(b->largest + owner * rows, mine + (size_t)owner * floats + rows * DIM,
                          (size_t)rows * sizeof(float), cudaMemcpyDeviceToDevice, b->stream));
  check_nccl(ncclAllReduce(b->largest, b->largest, (size_t)b->rows, ncclFloat, ncclMax, b->comm,
                           b->stream));
  for (int owner = 0; owner < ranks; ++owner)
    rescale<<<(unsigned)((rows + 7) / 8), 256, 0, b->stream>>>(b->scaled + (size_t)owner * floats,
                                                               mine + (size_t)owner * floats,
                                                               b->largest + owner * rows, rows);
  if (b->to_all)
    check_nccl(ncclAllReduce(b->scaled, out, floats * (size_t)ranks, ncclFloat, ncclSum, b->comm,
                             b->stream));
  else
    check_nccl(ncclReduceScatter(b->scaled, out + (size_t)rank * floats, floats, ncclFloat, ncclSum,
                                 b->comm, b->stream));
}

typedef void (*candidate_t)(const bench_t *, float *);
static const candidate_t CANDIDATE[CANDIDATES] = {direct, send_receive, free_order};
static const char *const NAME[CANDIDATES] = {"direct", "send/recv", "free order"};

/* ---- timing ---- */

static cudaGraphExec_t capture(const bench_t *b, int candidate, int times) {
  cudaGraph_t graph;
  cudaGraphExec_t made;
  check(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < times; ++i)
    CANDIDATE[candidate](b, b->out[candidate]);
  check(cudaStreamEndCapture(b->stream, &graph));
  check(cudaGraphInstantiate(&made, graph, 0));
  check(cudaGraphDestroy(graph));
  return made;
}

/* Of the slower rank; once before it to warm up. */
static double microseconds(const bench_t *b, int candidate, cudaGraphExec_t graph, int times) {
  float ms;
  MPI_Barrier(MPI_COMM_WORLD);
  for (int warm = 1; warm >= 0; --warm) {
    if (!warm)
      check(cudaEventRecord(b->begin, b->stream));
    for (int i = 0; i < (graph || warm ? 1 : times); ++i)
      if (graph)
        check(cudaGraphLaunch(graph, b->stream));
      else
        CANDIDATE[candidate](b, b->out[candidate]);
  }
  check(cudaEventRecord(b->end, b->stream));
  check(cudaEventSynchronize(b->end));
  check(cudaEventElapsedTime(&ms, b->begin, b->end));
  double mine = (double)ms * 1e3 / times, slower;
  MPI_Allreduce(&mine, &slower, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slower;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* How many of this rank's results differ from those of the first candidate. */
static int64_t differing(const bench_t *b, int candidate) {
  const size_t first = b->to_all ? 0 : (size_t)rank, count = b->to_all ? (size_t)ranks : 1;
  const size_t floats = (size_t)(b->rows / ranks) * (DIM + 2);
  float *one = (float *)malloc(2 * count * floats * sizeof(float)), *two = one + count * floats;
  int64_t mine = 0, all = 0;
  check(cudaMemcpy(one, b->out[0] + first * floats, count * floats * sizeof(float),
                   cudaMemcpyDeviceToHost));
  check(cudaMemcpy(two, b->out[candidate] + first * floats, count * floats * sizeof(float),
                   cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < count * floats; ++i)
    mine += i % floats < (size_t)(b->rows / ranks) * DIM && memcmp(one + i, two + i, sizeof *one);
  free(one);
  MPI_Allreduce(&mine, &all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  return all;
}

static void measure(bench_t *b, int64_t rows, bool to_all, const char *gpu) {
  const bool graphs = rows <= GRAPH_ROWS;
  const int times = graphs ? 20 : 5;
  cudaGraphExec_t graph[CANDIDATES] = {NULL};
  double us[CANDIDATES][ROUNDS];
  int nccl = 0;
  ncclGetVersion(&nccl);
  b->rows = rows, b->to_all = to_all;
  for (int i = 0; i < CANDIDATES; ++i) {
    CANDIDATE[i](b, b->out[i]); /* NCCL connects when first used */
    check(cudaStreamSynchronize(b->stream));
    if (graphs)
      graph[i] = capture(b, i, times);
  }
  for (int round = 0; round < ROUNDS; ++round)
    for (int i = 0; i < CANDIDATES; ++i)
      us[i][round] = microseconds(b, i, graph[i], times);
  for (int i = 0; i < CANDIDATES; ++i) {
    qsort(us[i], ROUNDS, sizeof us[i][0], by_value);
    const double median = us[i][ROUNDS / 2], crossing = (double)rows * (to_all ? 1 : 0.5);
    const int64_t differ = differing(b, i);
    if (rank == 0)
      printf("{\"gpu\": \"%s\", \"nccl\": \"%d.%d.%d\", \"bench\": \"reduce\", \"gpus\": %d, "
             "\"path\": \"%s\", "
             "\"results\": \"%s\", \"rows\": %lld, \"dim\": %d, \"graph\": %s, \"us\": %.2f, "
             "\"least_us\": %.2f, \"gbps_per_direction\": %.1f, \"o_differ\": %lld}\n",
             gpu, nccl / 10000, nccl / 100 % 100, nccl % 100, ranks, NAME[i],
             to_all ? "all" : "owners", (long long)rows, (int)DIM, graphs ? "true" : "false",
             median, us[i][0], crossing * (DIM + 2) * 4 / median / 1e3, (long long)differ);
    if (graph[i])
      check(cudaGraphExecDestroy(graph[i]));
  }
  fflush(stdout);
}

/* ---- the program ---- */

static void fill_states(const bench_t *b) {
  const size_t floats = (size_t)MOST_ROWS * (DIM + 2);
  float *host = (float *)malloc(floats * sizeof(float));
  for (size_t i = 0; i < floats; ++i) /* integers: any of them can be an e */
    host[i] = (float)(((i + (size_t)rank * 77) * 2654435761u >> 8) % 16) + 1;
  check(cudaMemcpy(b->window->memory[rank], host, floats * sizeof(float), cudaMemcpyHostToDevice));
  free(host);
}

static void open_bench(bench_t *b) {
  const size_t bytes = (size_t)MOST_ROWS * (DIM + 2) * sizeof(float);
  ncclUniqueId id;
  skv__error_t error = {};
  check(cudaSetDevice(rank));
  if (rank == 0)
    check_nccl(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  check_nccl(ncclCommInitRank(&b->comm, ranks, id, rank));
  if (!skv__window_available(b->comm, &error) ||
      skv__window_reserve(&b->window, b->comm, 2 * (int64_t)bytes, &error) != SKV_OK ||
      skv__window_open(b->window, 20, &error) != SKV_OK)
    stop("window", error.text);
  /* in the window too: NCCL 2.28 waits for ever where one side of a message is registered memory
   * and the other is not */
  b->received = (float *)(b->window->memory[rank] + bytes);
  check(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
  check(cudaEventCreate(&b->begin));
  check(cudaEventCreate(&b->end));
  check(cudaMalloc((void **)&b->scaled, bytes));
  check(cudaMalloc((void **)&b->largest, (size_t)MOST_ROWS * sizeof(float)));
  for (int i = 0; i < CANDIDATES; ++i)
    check(cudaMalloc((void **)&b->out[i], bytes));
  fill_states(b);
  check(cudaDeviceSynchronize());
  MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
  int level;
  bench_t b;
  cudaDeviceProp properties;
  memset(&b, 0, sizeof b);
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks != 2)
    stop("reduce", "for two ranks, a GPU each");
  open_bench(&b);
  check(cudaGetDeviceProperties(&properties, rank));
  static const int64_t rows[] = {32, 256, 2048, 16384, 65536, 262144, 524288};
  for (int to_all = 0; to_all < 2; ++to_all)
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i)
      measure(&b, rows[i], to_all, properties.name);
  MPI_Barrier(MPI_COMM_WORLD);
  skv__window_close(b.window);
  ncclCommDestroy(b.comm);
  MPI_Finalize();
  return 0;
}
