/* mpi_gpus_probe.c: what tests/gpu starts under mpirun: plans over several GPUs.
 *   mpi_gpus_probe mpi|nccl MODE [COUNT]
 * paths: every reduce, direction, layout and results against one GPU, or each COUNT-th. delays
 * COUNT: so many executes, each rank late by chance. graph: a captured decode step, replayed
 * (nccl). times: of prefill and decode on one GPU and on all. Ranks take the GPUs in turn; rank 0
 * prints, and all exit with the number of wrong answers, at most 99. */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chance.h"
#include "skv_mpi.h"
#include "skv_nccl.h"
#include "solve.h"

enum { POISON = 0xff };

typedef struct gpus {
  skv_context_t *alone, *all;
  int rank, ranks;
  bool nccl;
  cudaStream_t stream;
  uint64_t chance;
  int wrong, trials, seen;
  char what[512];
} gpus_t;

static void must(int good, const char *what, const char *text) {
  if (good)
    return;
  fprintf(stderr, "mpi_gpus_probe: %s: %s\n", what, text);
  MPI_Abort(MPI_COMM_WORLD, 98);
}

static void ok(cudaError_t code) {
  must(code == cudaSuccess, "CUDA", cudaGetErrorString(code));
}

static void *to_device(const void *host, size_t bytes) {
  void *device;
  ok(cudaMalloc(&device, bytes + 64));
  ok(cudaMemset(device, POISON, bytes + 64));
  if (host)
    ok(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
  return device;
}

/* A plan with its tensors on the device. */
typedef struct ready {
  skv_context_t *context;
  skv_plan_t *plan;
  skv_plan_info_t info;
  skv_inputs_t inputs;
  skv_outputs_t outputs;
  void *workspace;
  size_t o_bytes, lse_bytes;
} ready_t;

static size_t item_of(skv_dtype_t dtype) {
  return dtype == SKV_FP32 ? 4 : 2;
}

/* Numbers like any, of which nobody looks at the results. */
static void *some_numbers(size_t bytes) {
  enum { PIECE = 1 << 20 };
  static uint16_t piece[PIECE / 2];
  unsigned char *device = to_device(NULL, bytes);
  uint64_t state = 1;
  for (size_t i = 0; i < PIECE / 2; i++)
    piece[i] =
        (uint16_t)(kit_draw(&state) & 0x807f) + (uint16_t)(kit_between(&state, 120, 127) << 7);
  for (size_t at = 0; at < bytes; at += PIECE)
    ok(cudaMemcpy(device + at, piece, bytes - at < PIECE ? bytes - at : PIECE,
                  cudaMemcpyHostToDevice));
  return device;
}

static skv_tensor_t dense(void *data, int64_t tokens, int64_t heads, int64_t dim) {
  return (skv_tensor_t){data, {tokens * heads * dim, heads * dim, dim, 1}};
}

static int64_t owned_tokens(const ready_t *r) {
  skv_interval_t intervals[64];
  size_t count = 64;
  int64_t owned = 0;
  must(skv_plan_key_intervals(r->plan, skv_context_rank(r->context), intervals, &count) == SKV_OK &&
           count <= 64,
       "plan", "intervals");
  for (size_t i = 0; i < count; i++)
    owned += intervals[i].end - intervals[i].begin;
  return owned;
}

static void take_case(ready_t *r, const kit_case_t *test) {
  const skv_problem_t *p = &test->problem;
  r->inputs = kit_case_inputs(test);
  kit_own_keys(test, r->plan, skv_context_rank(r->context), &r->inputs);
  void *k = r->inputs.k.data, *v = r->inputs.v.data;
  size_t tokens = (size_t)(p->batch * owned_tokens(r) * p->kv_heads) * item_of(p->dtype);
  r->inputs.q.data =
      to_device(test->q, r->lse_bytes / sizeof(float) * (size_t)p->head_dim * item_of(p->dtype));
  r->inputs.k.data = to_device(k, tokens * (size_t)p->head_dim);
  r->inputs.v.data = to_device(v, tokens * (size_t)p->value_head_dim);
  kit_poisoned_free(k);
  kit_poisoned_free(v);
}

static void take_numbers(ready_t *r, const skv_problem_t *p) {
  int64_t owned = owned_tokens(r);
  size_t bytes = (size_t)(p->batch * owned * p->kv_heads * p->head_dim) * item_of(p->dtype);
  r->inputs =
      (skv_inputs_t){.struct_bytes = sizeof r->inputs,
                     .q = dense(some_numbers(r->o_bytes), p->q_tokens, p->q_heads, p->head_dim),
                     .k = dense(some_numbers(bytes), owned, p->kv_heads, p->head_dim),
                     .v = dense(some_numbers(bytes), owned, p->kv_heads, p->head_dim)};
}

/* `test` NULL: any numbers. */
static ready_t make_ready(skv_context_t *context, const skv_problem_t *p, const kit_case_t *test,
                          const skv_plan_options_t *options, bool with_bits) {
  ready_t r = {.context = context, .info.struct_bytes = sizeof r.info};
  int64_t rows = p->batch * p->q_tokens * p->q_heads, dim = p->value_head_dim;
  uint64_t zero = 0;
  must(skv_plan_create(&r.plan, context, p, options) == SKV_OK, "plan", skv_context_error(context));
  skv_plan_info(r.plan, &r.info);
  r.o_bytes = (size_t)(rows * dim) * item_of(p->out_dtype);
  r.lse_bytes = (size_t)rows * sizeof(float);
  if (test)
    take_case(&r, test);
  else
    take_numbers(&r, p);
  r.outputs = (skv_outputs_t){.struct_bytes = sizeof r.outputs,
                              .o = dense(to_device(NULL, r.o_bytes), p->q_tokens, p->q_heads, dim),
                              .lse = to_device(NULL, r.lse_bytes),
                              .lse_stride = {p->q_tokens * p->q_heads, p->q_heads, 1},
                              .bits = with_bits ? to_device(&zero, sizeof zero) : NULL};
  r.workspace = to_device(NULL, (size_t)r.info.workspace_bytes);
  ok(cudaDeviceSynchronize()); /* the stream of executes does not wait for what fills memory */
  return r;
}

static void put_away(ready_t *r) {
  skv_plan_destroy(r->plan);
  cudaFree(r->inputs.q.data);
  cudaFree(r->inputs.k.data);
  cudaFree(r->inputs.v.data);
  cudaFree(r->outputs.o.data);
  cudaFree(r->outputs.lse);
  cudaFree(r->outputs.bits);
  cudaFree(r->workspace);
}

static void execute(gpus_t *g, ready_t *r) {
  must(skv_execute(r->plan, &r->inputs, &r->outputs, r->workspace, (size_t)r->info.workspace_bytes,
                   g->stream) == SKV_OK,
       g->what, skv_context_error(r->context));
}

static void wait_for(gpus_t *g, ready_t *r) {
  must(skv_wait(r->context, g->stream) == SKV_OK, g->what, skv_context_error(r->context));
}

static kit_answer_t *answer_of(const kit_case_t *test, const ready_t *r) {
  kit_answer_t *answer = kit_answer_create(test);
  ok(cudaMemcpy(answer->o, r->outputs.o.data, r->o_bytes, cudaMemcpyDeviceToHost));
  ok(cudaMemcpy(answer->lse, r->outputs.lse, r->lse_bytes, cudaMemcpyDeviceToHost));
  if (r->outputs.bits)
    ok(cudaMemcpy(&answer->bits, r->outputs.bits, sizeof answer->bits, cudaMemcpyDeviceToHost));
  return answer;
}

/* Rows that the rank wrote have the bytes of one GPU, and together the ranks wrote all rows as
 * often as results says. */
static void compare(gpus_t *g, const kit_case_t *test, const ready_t *r, const kit_answer_t *wanted,
                    skv_results_t results) {
  const skv_problem_t *p = &test->problem;
  kit_answer_t *answer = answer_of(test, r);
  int64_t counts[2] = {0, 0}, all[2], used = 0; /* rows written, rows that differ */
  size_t row_bytes = (size_t)p->value_head_dim * item_of(p->out_dtype);
  uint32_t poison;
  memset(&poison, POISON, sizeof poison);
  for (int64_t row = 0; row < (int64_t)(r->lse_bytes / sizeof(float)); row++) {
    bool written = memcmp(&answer->lse[row], &poison, sizeof poison) != 0;
    used += memcmp(&wanted->lse[row], &poison, sizeof poison) != 0;
    counts[0] += written;
    counts[1] += written && (memcmp(&answer->lse[row], &wanted->lse[row], sizeof(float)) ||
                             memcmp((char *)answer->o + (size_t)row * row_bytes,
                                    (char *)wanted->o + (size_t)row * row_bytes, row_bytes));
  }
  uint64_t bits = 0;
  MPI_Allreduce(counts, all, 2, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(&answer->bits, &bits, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  int64_t times = results == SKV_RESULTS_ALL ? g->ranks : 1;
  int64_t due = used * times;
  bool good = all[0] == due && !all[1] && (!r->outputs.bits || bits == wanted->bits);
  g->trials++;
  g->wrong += !good;
  if (!good && g->rank == 0)
    printf("WRONG %s: %lld of %lld rows written, %lld differ, bits %s\n", g->what,
           (long long)all[0], (long long)due, (long long)all[1],
           bits == wanted->bits ? "same" : "differ");
  kit_answer_free(answer);
}

static kit_answer_t *solve_alone(gpus_t *g, const kit_case_t *test, bool with_bits) {
  skv_plan_options_t options = {.struct_bytes = sizeof options,
                                .row_owner = test->problem.q_tokens == 1 ? SKV_ROWS_ROUND_ROBIN
                                                                         : SKV_ROWS_BY_POSITION};
  ready_t r = make_ready(g->alone, &test->problem, test, &options, with_bits);
  execute(g, &r);
  wait_for(g, &r);
  kit_answer_t *answer = answer_of(test, &r);
  put_away(&r);
  return answer;
}

static kit_case_t *make_case(int64_t batch, int64_t queries, int64_t keys, int64_t capacity,
                             skv_dtype_t dtype) {
  skv_problem_t p;
  int64_t lengths[3] = {keys, keys / 2, 0};
  skv_problem_init(&p, sizeof p, 8, 4, 128);
  p.batch = batch;
  p.q_tokens = queries;
  p.kv_capacity_tokens = capacity;
  p.causal = 1;
  p.dtype = p.out_dtype = dtype;
  p.leaf_tokens = 128;
  p.block_tokens = 256;
  return kit_case_create(&p, NULL, lengths, true, (uint64_t)(queries + keys));
}

/* ---- modes ---- */

enum { DIRECT = 7, PATHS }; /* 0 to 4 pass states, 5 and 6 keys */

/* The direct path is NCCL's only. */
static int paths_of(const gpus_t *g) {
  return g->nccl ? PATHS : DIRECT;
}

static void choose_path(skv_plan_options_t *options, int path) {
  static const skv_reduce_t reduces[PATHS] = {SKV_GATHER, SKV_SCATTER, SKV_TREE,   SKV_BUTTERFLY,
                                              SKV_RING,   SKV_RING,    SKV_GATHER, SKV_SCATTER};
  options->direction = path == 5 || path == 6 ? SKV_PASS_KV : SKV_PASS_Q;
  options->reduce = reduces[path];
  options->path = path == DIRECT ? SKV_PATH_DIRECT : SKV_PATH_MESSAGES;
}

static void try_way(gpus_t *g, const kit_case_t *test, const kit_answer_t *wanted,
                    const skv_plan_options_t *options, bool with_bits) {
  snprintf(g->what, sizeof g->what,
           "%s ranks %d queries %lld layout %d direction %d reduce %d path %d results %d bits %d",
           g->nccl ? "nccl" : "mpi", g->ranks, (long long)test->problem.q_tokens,
           (int)options->layout, (int)options->direction, (int)options->reduce, (int)options->path,
           (int)options->results, (int)with_bits);
  ready_t r = make_ready(g->all, &test->problem, test, options, with_bits);
  execute(g, &r);
  wait_for(g, &r);
  compare(g, test, &r, wanted, options->results);
  put_away(&r);
}

static void all_paths(gpus_t *g, const kit_case_t *test, int stride) {
  kit_answer_t *wanted = solve_alone(g, test, true);
  for (int layout = SKV_CONTIGUOUS; layout <= SKV_BLOCKS; layout++)
    for (int path = 0; path < paths_of(g); path++)
      for (int results = SKV_RESULTS_OWNER; results <= SKV_RESULTS_ALL; results++)
        for (int with_bits = 0; with_bits < 2; with_bits++) {
          skv_plan_options_t options = {.struct_bytes = sizeof options,
                                        .layout = (skv_layout_kind_t)layout,
                                        .layout_run_blocks = 1,
                                        .results = (skv_results_t)results,
                                        .row_owner = test->problem.q_tokens == 1
                                                         ? SKV_ROWS_ROUND_ROBIN
                                                         : SKV_ROWS_BY_POSITION,
                                        .workspace_bytes = path % 2 ? 0 : 1 << 20};
          choose_path(&options, path);
          if (g->seen++ % stride == 0)
            try_way(g, test, wanted, &options, with_bits);
        }
  kit_answer_free(wanted);
}

static void mode_paths(gpus_t *g, int stride) {
  static const int64_t shapes[][4] = {
      {1, 700, 3000, 3000}, {1, 1, 4001, 6000}, {3, 90, 1500, 2000}, {2, 1, 2000, 2000}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    kit_case_t *test = make_case(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], SKV_BF16);
    all_paths(g, test, stride);
    kit_case_free(test);
  }
}

static void doze(void *microseconds) {
  usleep((useconds_t)(uintptr_t)microseconds);
}

static void mode_delays(gpus_t *g, int count) {
  kit_case_t *test = make_case(1, 500, 3000, 3000, SKV_BF16);
  kit_answer_t *wanted = solve_alone(g, test, true);
  for (int path = 1; path < paths_of(g); path += path == 1 ? 4 : 2) { /* scatter, KV ring, direct */
    skv_plan_options_t options = {
        .struct_bytes = sizeof options, .layout = SKV_ZIGZAG, .workspace_bytes = 1 << 20};
    choose_path(&options, path);
    ready_t r = make_ready(g->all, &test->problem, test, &options, true);
    snprintf(g->what, sizeof g->what, "delays path %d", path);
    for (int i = 0; i < count; i++) {
      ok(cudaMemsetAsync(r.outputs.bits, 0, sizeof(uint64_t), g->stream));
      ok(cudaMemsetAsync(r.outputs.o.data, POISON, r.o_bytes, g->stream));
      ok(cudaMemsetAsync(r.outputs.lse, POISON, r.lse_bytes, g->stream));
      ok(cudaLaunchHostFunc(g->stream, doze, (void *)(uintptr_t)kit_between(&g->chance, 0, 2000)));
      execute(g, &r);
      wait_for(g, &r);
      compare(g, test, &r, wanted, SKV_RESULTS_OWNER);
    }
    put_away(&r);
  }
  kit_answer_free(wanted);
  kit_case_free(test);
}

static void capture(gpus_t *g, const kit_case_t *test, const kit_answer_t *wanted,
                    const skv_plan_options_t *options) {
  ready_t r = make_ready(g->all, &test->problem, test, options, false);
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  execute(g, &r); /* NCCL connects */
  wait_for(g, &r);
  ok(cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal));
  execute(g, &r);
  ok(cudaStreamEndCapture(g->stream, &graph));
  ok(cudaGraphInstantiate(&replay, graph, 0));
  for (int turn = 0; turn < 3; turn++) {
    ok(cudaMemsetAsync(r.outputs.o.data, POISON, r.o_bytes, g->stream));
    ok(cudaMemsetAsync(r.outputs.lse, POISON, r.lse_bytes, g->stream));
    ok(cudaGraphLaunch(replay, g->stream));
    wait_for(g, &r);
    compare(g, test, &r, wanted, options->results);
  }
  ok(cudaGraphExecDestroy(replay));
  ok(cudaGraphDestroy(graph));
  put_away(&r);
}

static void mode_graph(gpus_t *g) {
  kit_case_t *test = make_case(2, 1, 4000, 4000, SKV_BF16);
  kit_answer_t *wanted = solve_alone(g, test, false);
  for (int path = 0; path < PATHS; path++) {
    skv_plan_options_t options = {.struct_bytes = sizeof options,
                                  .row_owner = SKV_ROWS_ROUND_ROBIN,
                                  .results = SKV_RESULTS_ALL};
    choose_path(&options, path);
    snprintf(g->what, sizeof g->what, "graph path %d", path);
    capture(g, test, wanted, &options);
  }
  kit_answer_free(wanted);
  kit_case_free(test);
}

/* ---- times ---- */

/* An execute, or many replays of one that was captured. */
typedef struct lap {
  ready_t ready;
  cudaGraphExec_t replay; /* or NULL */
  double times[32];
} lap_t;

enum { REPLAYS = 20 };

static lap_t open_lap(gpus_t *g, skv_context_t *context, const skv_problem_t *p,
                      const skv_plan_options_t *options) {
  lap_t lap = {.ready = make_ready(context, p, NULL, options, false)};
  cudaGraph_t graph;
  execute(g, &lap.ready);
  wait_for(g, &lap.ready);
  if (p->q_tokens > 1 || (context == g->all && !g->nccl))
    return lap;
  ok(cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal));
  execute(g, &lap.ready);
  ok(cudaStreamEndCapture(g->stream, &graph));
  ok(cudaGraphInstantiate(&lap.replay, graph, 0));
  ok(cudaGraphDestroy(graph));
  return lap;
}

static void run_lap(gpus_t *g, lap_t *lap) {
  for (int i = 0; lap->replay && i < REPLAYS; i++)
    ok(cudaGraphLaunch(lap->replay, g->stream));
  if (!lap->replay)
    execute(g, &lap->ready);
}

/* Milliseconds of an execute of the slowest rank, into the sorted times. */
static void time_lap(gpus_t *g, lap_t *lap, int turn) {
  cudaEvent_t begin, end;
  float milliseconds = 0;
  ok(cudaEventCreate(&begin));
  ok(cudaEventCreate(&end));
  MPI_Barrier(MPI_COMM_WORLD);
  ok(cudaEventRecord(begin, g->stream));
  run_lap(g, lap);
  ok(cudaEventRecord(end, g->stream));
  wait_for(g, &lap->ready);
  ok(cudaEventElapsedTime(&milliseconds, begin, end));
  double mine = milliseconds / (lap->replay ? REPLAYS : 1), most = mine;
  MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  int at = turn;
  for (; at > 0 && lap->times[at - 1] > most; at--)
    lap->times[at] = lap->times[at - 1];
  lap->times[at] = most;
  ok(cudaEventDestroy(begin));
  ok(cudaEventDestroy(end));
}

static void close_lap(lap_t *lap) {
  if (lap->replay)
    ok(cudaGraphExecDestroy(lap->replay));
  put_away(&lap->ready);
}

static void mode_times(gpus_t *g, int turns) {
  static const struct {
    int64_t batch, queries, keys;
    skv_direction_t direction;
    skv_reduce_t reduce;
    double wanted;
  } cases[] = {{1, 32768, 32768, SKV_PASS_KV, SKV_RING, 1.85},
               {1, 32768, 32768, SKV_PASS_Q, SKV_SCATTER, 0},
               {1, 131072, 131072, SKV_PASS_KV, SKV_RING, 1.93},
               {1, 131072, 131072, SKV_PASS_Q, SKV_SCATTER, 0},
               {1, 1, 1048576, SKV_PASS_Q, SKV_SCATTER, 1.85},
               {1, 1, 1048576, SKV_PASS_Q, SKV_GATHER, 0},
               {16, 1, 131072, SKV_PASS_Q, SKV_SCATTER, 1.93}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    skv_problem_t p;
    skv_problem_init(&p, sizeof p, 32, 8, 128);
    p.batch = cases[i].batch;
    p.q_tokens = cases[i].queries;
    p.kv_capacity_tokens = cases[i].keys;
    p.causal = 1;
    p.dtype = p.out_dtype = SKV_BF16;
    skv_plan_options_t options = {.struct_bytes = sizeof options,
                                  .layout = p.q_tokens > 1 ? SKV_ZIGZAG : SKV_CONTIGUOUS,
                                  .direction = cases[i].direction,
                                  .reduce = cases[i].reduce,
                                  .row_owner =
                                      p.q_tokens > 1 ? SKV_ROWS_BY_POSITION : SKV_ROWS_ROUND_ROBIN};
    snprintf(g->what, sizeof g->what, "times %zu", i);
    lap_t laps[2] = {open_lap(g, g->alone, &p, &options), open_lap(g, g->all, &p, &options)};
    for (int turn = -2; turn < turns; turn++) /* in turns: both meet the same clocks */
      for (int lap = 0; lap < 2; lap++)
        time_lap(g, &laps[lap], turn < 0 ? 0 : turn);
    double alone = laps[0].times[turns / 2], all = laps[1].times[turns / 2];
    close_lap(&laps[0]);
    close_lap(&laps[1]);
    if (g->rank == 0)
      printf("batch %d queries %d keys %d direction %d reduce %d: one %.4f ms, all %.4f ms: %.3f x "
             "(wanted %.2f)\n",
             (int)p.batch, (int)p.q_tokens, (int)p.kv_capacity_tokens, (int)options.direction,
             (int)options.reduce, alone, all, alone / all, cases[i].wanted);
  }
}

static void open_gpus(gpus_t *g, const char *transport) {
  int devices = 0;
  skv_context_options_t options = {
      .struct_bytes = sizeof options, .backend = SKV_BACKEND_CUDA, .timeout_seconds = 20};
  MPI_Comm_rank(MPI_COMM_WORLD, &g->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &g->ranks);
  ok(cudaGetDeviceCount(&devices));
  ok(cudaSetDevice(g->rank % devices));
  ok(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking));
  g->chance = (uint64_t)g->rank + 1;
  must(skv_context_create(&g->alone, &options) == SKV_OK, "context", skv_context_error(g->alone));
  g->nccl = strcmp(transport, "nccl") == 0;
#ifdef SKV_HAVE_NCCL
  skv_status_t status = g->nccl ? skv_context_create_nccl(&g->all, MPI_COMM_WORLD, &options)
                                : skv_context_create_mpi(&g->all, MPI_COMM_WORLD, &options);
#else
  must(!g->nccl, transport, "this build has no NCCL");
  skv_status_t status = skv_context_create_mpi(&g->all, MPI_COMM_WORLD, &options);
#endif
  must(status == SKV_OK, "context", skv_context_error(g->all));
}

int main(int count, char **arguments) {
  gpus_t g = {0};
  int level;
  if (count < 3)
    return 99;
  int number = count > 3 ? atoi(arguments[3]) : 1;
  MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
  open_gpus(&g, arguments[1]);
  if (strcmp(arguments[2], "paths") == 0)
    mode_paths(&g, number > 0 ? number : 1);
  else if (strcmp(arguments[2], "delays") == 0)
    mode_delays(&g, number);
  else if (strcmp(arguments[2], "graph") == 0)
    mode_graph(&g);
  else if (strcmp(arguments[2], "times") == 0)
    mode_times(&g, number < 32 ? number : 32);
  if (g.rank == 0)
    printf("%s %s: %d ranks, %d trials, %d wrong\n", arguments[1], arguments[2], g.ranks, g.trials,
           g.wrong);
  skv_context_destroy(g.all);
  skv_context_destroy(g.alone);
  MPI_Finalize();
  return g.wrong > 99 ? 99 : g.wrong;
}
