/* test_cuda.c: the library on a GPU, through its public interface: right against the oracle; the
 * same bits from each of its kernels and on each way; nothing read or written that it should not
 * touch; nothing allocated. Skipped where there is no GPU. */
#include <criterion/criterion.h>
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kernels/kernel.h"
#include "solve.h"

enum { GUARD_BYTES = 4096, GUARD = 0xa5, POISON = 0xff /* NaN in every type */ };

static void on_gpu(void) {
  skv__error_t error = {0};
  if (!skv__kernel_pick(SKV_BACKEND_CUDA, NULL, &error))
    cr_skip("%s", error.text);
}

static void ok(cudaError_t code) {
  cr_assert_eq(code, cudaSuccess, "%s", cudaGetErrorString(code));
}

/* ---- device memory between guards ---- */

typedef struct room {
  unsigned char *base;
  const void *host; /* what was uploaded, and must stay; or NULL: poisoned */
  size_t bytes;
} room_t;

static void *room_data(const room_t *room) {
  return room->base + GUARD_BYTES;
}

static room_t room_open(const void *host, size_t bytes) {
  room_t room = {.host = host, .bytes = bytes};
  ok(cudaMalloc((void **)&room.base, bytes + 2 * GUARD_BYTES));
  ok(cudaMemset(room.base, GUARD, bytes + 2 * GUARD_BYTES));
  if (host)
    ok(cudaMemcpy(room_data(&room), host, bytes, cudaMemcpyHostToDevice));
  else
    ok(cudaMemset(room_data(&room), POISON, bytes));
  return room;
}

static void room_close(room_t *room, const char *name) {
  unsigned char *copy = malloc(room->bytes + 2 * GUARD_BYTES);
  ok(cudaMemcpy(copy, room->base, room->bytes + 2 * GUARD_BYTES, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < GUARD_BYTES; i++)
    cr_assert(copy[i] == GUARD && copy[GUARD_BYTES + room->bytes + i] == GUARD,
              "something wrote around %s", name);
  if (room->host)
    cr_assert(memcmp(copy + GUARD_BYTES, room->host, room->bytes) == 0, "%s was written", name);
  free(copy);
  ok(cudaFree(room->base));
}

/* ---- a case on the device ---- */

typedef struct run {
  const kit_case_t *test;
  kit_way_t way;
  skv_context_t *context;
  skv_plan_t *plan;
  skv_plan_info_t info;
  room_t q, k, v, o, lse, bits, workspace;
  bool with_bits;
} run_t;

static size_t width(skv_dtype_t dtype) {
  return dtype == SKV_FP32 ? 4 : 2;
}

static size_t rows_of(const skv_problem_t *p) {
  return (size_t)(p->batch * p->q_tokens * p->q_heads);
}

static void open_plan(run_t *run) {
  skv_problem_t problem = run->test->problem;
  skv_context_options_t options = {.struct_bytes = sizeof options,
                                   .threads = 1,
                                   .backend = SKV_BACKEND_CUDA,
                                   .kernel = run->way.kernel};
  cr_assert_eq(skv_context_create(&run->context, &options), SKV_OK, "%s",
               skv_context_error(run->context));
  if (run->way.chunk_queries)
    problem.q_tokens = run->way.chunk_queries;
  run->way.options.struct_bytes = sizeof run->way.options;
  cr_assert_eq(skv_plan_create(&run->plan, run->context, &problem, &run->way.options), SKV_OK, "%s",
               skv_context_error(run->context));
  run->info.struct_bytes = sizeof run->info;
  skv_plan_info(run->plan, &run->info);
}

static run_t run_open(const kit_case_t *test, kit_way_t way, bool with_bits) {
  static const uint64_t zero;
  run_t run = {.test = test, .way = way, .with_bits = with_bits};
  const skv_problem_t *p = &test->problem;
  size_t keys = (size_t)(p->batch * p->kv_capacity_tokens * p->kv_heads) * width(p->dtype);
  open_plan(&run);
  run.q = room_open(test->q, rows_of(p) * (size_t)p->head_dim * width(p->dtype));
  run.k = room_open(test->k, keys * (size_t)p->head_dim);
  run.v = room_open(test->v, keys * (size_t)p->value_head_dim);
  run.o = room_open(NULL, rows_of(p) * (size_t)p->value_head_dim * width(p->out_dtype));
  run.lse = room_open(NULL, rows_of(p) * sizeof(float));
  run.bits = room_open(&zero, sizeof zero);
  run.bits.host = NULL;
  run.workspace = room_open(NULL, (size_t)run.info.workspace_bytes);
  return run;
}

static skv_status_t run_execute(run_t *run, cudaStream_t stream) {
  const skv_problem_t *p = &run->test->problem;
  skv_inputs_t inputs = kit_case_inputs(run->test);
  inputs.q.data = room_data(&run->q);
  inputs.k.data = room_data(&run->k);
  inputs.v.data = room_data(&run->v);
  int64_t heads = p->q_heads, dim = p->value_head_dim;
  skv_outputs_t outputs = {
      .struct_bytes = sizeof outputs,
      .o = {room_data(&run->o), {p->q_tokens * heads * dim, heads * dim, dim, 1}},
      .lse = room_data(&run->lse),
      .lse_stride = {p->q_tokens * heads, heads, 1},
      .bits = run->with_bits ? room_data(&run->bits) : NULL};
  return kit_execute(run->test, &run->way, run->plan, &inputs, &outputs, room_data(&run->workspace),
                     (size_t)run->info.workspace_bytes, stream);
}

static kit_answer_t *run_answer(const run_t *run) {
  kit_answer_t *answer = kit_answer_create(run->test);
  ok(cudaDeviceSynchronize());
  ok(cudaMemcpy(answer->o, room_data(&run->o), answer->o_bytes, cudaMemcpyDeviceToHost));
  ok(cudaMemcpy(answer->lse, room_data(&run->lse), answer->lse_bytes, cudaMemcpyDeviceToHost));
  ok(cudaMemcpy(&answer->bits, room_data(&run->bits), sizeof answer->bits, cudaMemcpyDeviceToHost));
  return answer;
}

static void run_close(run_t *run) {
  room_close(&run->q, "q");
  room_close(&run->k, "k");
  room_close(&run->v, "v");
  room_close(&run->o, "o");
  room_close(&run->lse, "lse");
  room_close(&run->bits, "bits");
  room_close(&run->workspace, "the workspace");
  skv_plan_destroy(run->plan);
  skv_context_destroy(run->context);
}

static kit_answer_t *solve_with(const kit_case_t *test, kit_way_t way, bool with_bits) {
  char text[512];
  run_t run = run_open(test, way, with_bits);
  kit_case_describe(test, text, sizeof text);
  cr_assert_eq(run_execute(&run, NULL), SKV_OK, "%s: %s", text, skv_context_error(run.context));
  kit_answer_t *answer = run_answer(&run);
  run_close(&run);
  return answer;
}

static kit_answer_t *solve(const kit_case_t *test, kit_way_t way) {
  return solve_with(test, way, false);
}

static void expect_same(const kit_answer_t *wanted, kit_answer_t *answer, const char *what) {
  cr_expect(memcmp(wanted->o, answer->o, wanted->o_bytes) == 0, "%s: another O", what);
  cr_expect(memcmp(wanted->lse, answer->lse, wanted->lse_bytes) == 0, "%s: another LSE", what);
  kit_answer_free(answer);
}

/* Weights are rounded to the inputs' type on their way through the tensor cores, so that an fp32 O
 * of 16-bit inputs is judged as what it is narrowed to. */
static void expect_right(const kit_case_t *test, const kit_answer_t *answer) {
  char text[512];
  kit_case_t judged = *test;
  judged.problem.out_dtype = test->problem.dtype;
  size_t values = answer->o_bytes / width(test->problem.out_dtype);
  void *o = malloc(values * width(judged.problem.out_dtype) + 1);
  for (size_t i = 0; i < values; i++)
    kit_narrow(judged.problem.out_dtype, o, (int64_t)i,
               kit_widen(test->problem.out_dtype, answer->o, (int64_t)i));
  cr_expect(kit_check(&judged, o, answer->lse, text, sizeof text), "%s", text);
  free(o);
}

/* Rows of unused queries of a batch keep their poison; nothing else does. */
static uint64_t digest_of(const kit_case_t *test, const kit_answer_t *answer) {
  const skv_problem_t *p = &test->problem;
  const int64_t dim = p->value_head_dim;
  uint64_t sum = 0;
  for (int64_t s = 0; s < p->batch; s++)
    for (int64_t query = 0; query < test->q_tokens[s]; query++)
      for (int64_t head = 0; head < p->q_heads; head++) {
        int64_t row = (s * p->q_tokens + query) * p->q_heads + head;
        int64_t start = test->q_start ? test->q_start[s] : test->k_tokens[s] - test->q_tokens[s];
        int64_t place[3] = {s, start + query, head};
        float values[257];
        memcpy(values, (const float *)answer->o + row * dim, (size_t)dim * sizeof *values);
        values[dim] = answer->lse[row];
        sum += XXH64(values, (size_t)(dim + 1) * sizeof *values, XXH64(place, sizeof place, 0));
      }
  return sum;
}

/* A random case whose order the kernels take. */
static kit_case_t *random_case(uint64_t seed) {
  kit_case_t *test = kit_case_random(seed);
  test->problem.leaf_tokens = 128 << seed % 2;
  test->problem.block_tokens = test->problem.leaf_tokens * (1 + (int64_t)(seed % 3));
  return test;
}

/* Several blocks, and tiles of many rows. */
static skv_problem_t problem_of(int64_t batch, int64_t q_tokens, int64_t capacity, int64_t dim) {
  skv_problem_t problem;
  skv_problem_init(&problem, sizeof problem, 4, 2, dim);
  problem.batch = batch;
  problem.q_tokens = q_tokens;
  problem.kv_capacity_tokens = capacity;
  problem.causal = 1;
  problem.dtype = problem.out_dtype = SKV_BF16;
  problem.leaf_tokens = 128;
  problem.block_tokens = dim > 128 ? 128 : 256;
  return problem;
}

static const char *const kernels[] = {NULL, "cuda.plain"};

/* ---- tests ---- */

enum { RANDOM_CASES = 40 };

Test(cuda, random_cases_against_the_oracle, .init = on_gpu) {
  for (uint64_t seed = 1; seed <= RANDOM_CASES; seed++) {
    kit_case_t *test = random_case(seed);
    kit_answer_t *wanted = solve(test, (kit_way_t){0});
    char text[512];
    kit_case_describe(test, text, sizeof text);
    expect_right(test, wanted);
    expect_same(wanted, solve(test, (kit_way_t){.kernel = "cuda.plain"}), text);
    expect_same(wanted, solve_with(test, (kit_way_t){0}, true), text);
    kit_answer_free(wanted);
    kit_case_free(test);
  }
}

/* The rows' digests are those of the CPU, of fp32 rows. An O of 16 bits is the fp32 O narrowed, and
 * has the same digests. */
Test(cuda, digests_and_dtypes_of_o, .init = on_gpu) {
  for (uint64_t seed = 100; seed < 110; seed++) {
    kit_case_t *test = random_case(seed);
    skv_dtype_t out_dtype = test->problem.out_dtype = test->problem.dtype;
    kit_answer_t *narrow = solve_with(test, (kit_way_t){0}, true);
    test->problem.out_dtype = SKV_FP32;
    kit_answer_t *wide = solve_with(test, (kit_way_t){.options.workspace_bytes = 1}, true);
    cr_expect_eq(wide->bits, digest_of(test, wide), "seed %" PRIu64, seed);
    cr_expect_eq(narrow->bits, wide->bits, "seed %" PRIu64, seed);
    for (int64_t i = 0; i < (int64_t)(wide->o_bytes / sizeof(float)); i++) {
      float value = kit_widen(out_dtype, narrow->o, i), slot = 0.0f;
      kit_narrow(out_dtype, &slot, 0, kit_widen(SKV_FP32, wide->o, i));
      slot = kit_widen(out_dtype, &slot, 0);
      cr_assert(value == slot || (isnan(value) && isnan(slot)), "seed %" PRIu64 ": %g, %g", seed,
                (double)value, (double)slot); /* NaN: rows that do not exist */
    }
    kit_answer_free(narrow);
    kit_answer_free(wide);
    kit_case_free(test);
  }
}

/* In fp32 the GPU follows the CPU's order. */
Test(cuda, fp32_has_the_bits_of_the_cpu, .init = on_gpu) {
  for (uint64_t seed = 200; seed < 260; seed++) {
    kit_case_t *test = random_case(seed);
    if (test->problem.dtype == SKV_FP32) {
      char text[512];
      kit_case_describe(test, text, sizeof text);
      kit_answer_t *wanted = kit_answer_create(test);
      cr_assert(kit_solve(test, &(kit_way_t){0}, wanted), "%s", text);
      kit_answer_t *answer = solve_with(test, (kit_way_t){0}, true);
      cr_expect_eq(answer->bits, wanted->bits, "%s", text);
      kit_answer_free(answer);
      kit_answer_free(wanted);
    }
    kit_case_free(test);
  }
}

Test(cuda, chunks_and_decode, .init = on_gpu) {
  static const int64_t chunks[] = {1, 7, 64, 299}, dims[] = {64, 128, 192, 256};
  for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
    skv_problem_t problem = problem_of(1, 300, 1111, dims[d]);
    kit_case_t *test = kit_case_create(&problem, NULL, NULL, true, 11);
    kit_answer_t *wanted = solve(test, (kit_way_t){0});
    expect_right(test, wanted);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++)
      for (size_t k = 0; k < 2; k++) {
        kit_way_t way = {.kernel = kernels[k], .chunk_queries = chunks[i]};
        expect_same(wanted, solve(test, way), "chunks");
        way.options.row_owner = SKV_ROWS_ROUND_ROBIN;
        expect_same(wanted, solve(test, way), "decode");
      }
    kit_answer_free(wanted);
    kit_case_free(test);
  }
}

Test(cuda, alone_and_inside_a_batch, .init = on_gpu) {
  static const int64_t q_tokens[] = {40, 1, 0, 25}, k_tokens[] = {700, 129, 77, 25};
  skv_problem_t problem = problem_of(4, 40, 700, 128);
  kit_case_t *all = kit_case_create(&problem, q_tokens, k_tokens, true, 13);
  kit_answer_t *together = solve(all, (kit_way_t){0});
  expect_right(all, together);
  for (int64_t s = 0; s < 4; s++) {
    kit_case_t alone = *all; /* borrows the tensors of sequence s */
    size_t token = 2 * 128 * 2, row = 4 * 128 * 2;
    alone.problem.batch = 1;
    alone.q_tokens += s, alone.k_tokens += s;
    alone.q = (char *)all->q + (size_t)s * 40 * row;
    alone.k = (char *)all->k + (size_t)s * 700 * token;
    alone.v = (char *)all->v + (size_t)s * 700 * token;
    kit_answer_t *answer = solve(&alone, (kit_way_t){0});
    size_t used = (size_t)q_tokens[s] * row;
    cr_expect_eq(memcmp((char *)together->o + (size_t)s * 40 * row, answer->o, used), 0,
                 "sequence %" PRId64, s);
    kit_answer_free(answer);
  }
  kit_answer_free(together);
  kit_case_free(all);
}

Test(cuda, spare_capacity, .init = on_gpu) {
  for (int64_t queries = 1; queries <= 90; queries += 89) {
    skv_problem_t problem = problem_of(1, queries, 1000, 128);
    kit_case_t *exact = kit_case_create(&problem, NULL, NULL, false, 14);
    kit_answer_t *wanted = solve(exact, (kit_way_t){0});
    int64_t keys = 1000;
    problem.kv_capacity_tokens = 4444;
    kit_case_t *spare = kit_case_create(&problem, NULL, &keys, false, 14);
    expect_same(wanted, solve(spare, (kit_way_t){0}), "capacity");
    kit_answer_free(wanted);
    kit_case_free(exact);
    kit_case_free(spare);
  }
}

Test(cuda, rows_without_keys, .init = on_gpu) {
  static const int64_t none[] = {0, 0}, some[] = {0, 300};
  for (int with_sinks = 0; with_sinks <= 1; with_sinks++)
    for (int i = 0; i < 2; i++) {
      skv_problem_t problem = problem_of(2, 50, 300, 64);
      kit_case_t *test = kit_case_create(&problem, NULL, i ? some : none, with_sinks, 15);
      kit_answer_t *wanted = solve(test, (kit_way_t){0});
      expect_right(test, wanted);
      expect_same(wanted, solve_with(test, (kit_way_t){0}, true), "with digests");
      kit_answer_free(wanted);
      kit_case_free(test);
    }
}

Test(cuda, a_plan_of_no_queries, .init = on_gpu) {
  for (int order = SKV_ORDER_PINNED; order <= SKV_ORDER_FREE; order++) {
    skv_problem_t problem = problem_of(1, 0, 300, 64);
    problem.order = (skv_order_t)order;
    kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 18);
    kit_answer_free(solve(test, (kit_way_t){0}));
    kit_answer_free(solve_with(test, (kit_way_t){0}, true));
    kit_case_free(test);
  }
}

/* The first execute is the captured one: not even loading kernels may disturb. */
static void replay(int64_t queries, bool with_bits) {
  skv_problem_t problem = problem_of(1, queries, 3000, 128);
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, true, 16);
  run_t run = run_open(test, (kit_way_t){0}, with_bits);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t graph_exec;
  ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cr_assert_eq(run_execute(&run, stream), SKV_OK, "%s", skv_context_error(run.context));
  ok(cudaStreamEndCapture(stream, &graph));
  ok(cudaGraphInstantiate(&graph_exec, graph, 0));
  kit_answer_t *wanted = NULL;
  for (int turn = 0; turn < 3; turn++) {
    ok(cudaMemset(room_data(&run.o), POISON, run.o.bytes));
    ok(cudaMemset(room_data(&run.lse), POISON, run.lse.bytes));
    ok(cudaMemset(room_data(&run.workspace), POISON, run.workspace.bytes));
    ok(cudaDeviceSynchronize());
    ok(cudaGraphLaunch(graph_exec, stream));
    kit_answer_t *answer = run_answer(&run);
    if (wanted)
      expect_same(wanted, answer, "replay");
    else
      wanted = answer;
  }
  expect_right(test, wanted);
  ok(cudaGraphExecDestroy(graph_exec));
  ok(cudaGraphDestroy(graph));
  ok(cudaStreamDestroy(stream));
  run_close(&run);
  kit_answer_free(wanted);
  kit_case_free(test);
}

Test(cuda, a_graph_captures_a_prefill, .init = on_gpu) {
  replay(200, false);
}
Test(cuda, a_graph_captures_a_decode, .init = on_gpu) {
  replay(1, false);
}
Test(cuda, a_graph_captures_digests, .init = on_gpu) {
  replay(200, true);
}

Test(cuda, execute_allocates_nothing, .init = on_gpu) {
  for (int64_t queries = 1; queries <= 500; queries += 499) {
    skv_problem_t problem = problem_of(1, queries, 3000, 128);
    kit_case_t *test = kit_case_create(&problem, NULL, NULL, true, 17);
    for (int with_bits = 0; with_bits <= 1; with_bits++) {
      run_t run = run_open(test, (kit_way_t){0}, with_bits);
      size_t before, after, total;
      run_execute(&run, NULL); /* the driver loads kernels */
      ok(cudaDeviceSynchronize());
      ok(cudaMemGetInfo(&before, &total));
      for (int turn = 0; turn < 20; turn++)
        cr_assert_eq(run_execute(&run, NULL), SKV_OK, "%s", skv_context_error(run.context));
      ok(cudaDeviceSynchronize());
      ok(cudaMemGetInfo(&after, &total));
      cr_expect_eq(after, before);
      run_close(&run);
    }
    kit_case_free(test);
  }
}

/* ---- what an observer sees ---- */

typedef struct seen {
  int64_t leaves, merges, wrong;
} seen_t;

static void see(void *user, const skv_node_event_t *event) {
  seen_t *seen = user;
  size_t floats = (size_t)(event->rows * (event->value_head_dim + 2));
  *(event->split ? &seen->merges : &seen->leaves) += 1;
  seen->wrong += event->out_digest != XXH64(event->state, floats * sizeof(float), 0);
}

Test(cuda, an_observer_sees_every_node, .init = on_gpu) {
  skv_problem_t problem = problem_of(1, 70, 2000, 128);
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, true, 19);
  kit_answer_t *wanted = solve(test, (kit_way_t){0});
  seen_t seen = {0};
  kit_way_t way = {.options = {.observer = see, .observer_user = &seen}};
  expect_same(wanted, solve_with(test, way, true), "observed");
  cr_expect_eq(seen.leaves, 8);
  cr_expect_eq(seen.merges, 7);
  cr_expect_eq(seen.wrong, 0);
  kit_answer_free(wanted);
  kit_case_free(test);
}

Test(cuda, small_leaves_are_refused, .init = on_gpu) {
  skv_context_options_t options = {.struct_bytes = sizeof options, .backend = SKV_BACKEND_CUDA};
  skv_problem_t problem = problem_of(1, 10, 100, 64);
  skv_context_t *context;
  skv_plan_t *plan;
  cr_assert_eq(skv_context_create(&context, &options), SKV_OK);
  problem.leaf_tokens = problem.block_tokens = 64;
  cr_expect_eq(skv_plan_create(&plan, context, &problem, NULL), SKV_UNSUPPORTED);
  cr_expect(strstr(skv_context_error(context), "multiples of 128"), "%s",
            skv_context_error(context));
  skv_context_destroy(context);
}
