/* test_leaf_bits.c: what must not change a bit of a row: the instruction set, threads, how rows and
 * nodes are cut, what lies in slots that are not read, other rows. */
#include "leaf_job.h"

/* Of the random cases, under a sanitizer: each takes ten times as long. */
#ifdef __SANITIZE_ADDRESS__
enum { EVERY = 3 };
#else
enum { EVERY = 1 };
#endif

static void expect_result(const kit_case_t *test, const leaf_result_t *of, const leaf_way_t *b,
                          const char *why) {
  char what[512];
  kit_case_describe(test, what, sizeof what);
  leaf_result_t x = *of, y = leaf_run(test, b);
  size_t bytes = (size_t)(x.rows * test->problem.value_head_dim) *
                 (size_t)skv__dtype_bytes(test->problem.out_dtype);
  cr_expect(memcmp(x.o, y.o, bytes) == 0, "%s: O differs: %s", what, why);
  cr_expect(memcmp(x.lse, y.lse, (size_t)x.rows * sizeof *x.lse) == 0, "%s: LSE differs: %s", what,
            why);
  cr_expect_eq(x.bits, y.bits, "%s: digests differ: %s", what, why);
  leaf_free(&y);
}

static void expect_same(const kit_case_t *test, const leaf_way_t *a, const leaf_way_t *b,
                        const char *why) {
  leaf_result_t result = leaf_run(test, a);
  expect_result(test, &result, b, why);
  leaf_free(&result);
}

/* Every kernel that runs here, against the portable one. */
static void expect_kernels(const kit_case_t *test, int32_t threads) {
  leaf_result_t result = leaf_run(test, &(leaf_way_t){.threads = 1, .kernel = "cpu.portable"});
  for (const skv__kernel_t *const *kernel = skv__kernels(); *kernel; ++kernel)
    if ((*kernel)->backend == SKV_BACKEND_CPU && (*kernel)->available(NULL))
      expect_result(test, &result, &(leaf_way_t){.threads = threads, .kernel = (*kernel)->name},
                    (*kernel)->name);
  leaf_free(&result);
}

static const leaf_way_t plain = {.threads = 1};

Test(leaf_bits, every_kernel_gives_the_same) {
  for (uint64_t seed = 1000; seed < 1150; seed += EVERY) {
    kit_case_t *test = kit_case_random(seed);
    expect_kernels(test, 2);
    kit_case_free(test);
  }
}

/* Decode has ways of its own: by heads, by rows of a head, by dtype. */
Test(leaf_bits, every_kernel_gives_the_same_decode) {
  for (int64_t heads = 1; heads <= 13; ++heads)
    for (int64_t group = 1; group <= 8; ++group) {
      skv_problem_t problem = {.struct_bytes = sizeof problem,
                               .batch = 1,
                               .q_tokens = 1,
                               .kv_capacity_tokens = 217,
                               .q_heads = heads * group,
                               .kv_heads = heads,
                               .head_dim = 24,
                               .value_head_dim = 32,
                               .dtype = (skv_dtype_t)((heads + group) % 3),
                               .scale = 0.25f,
                               .window_left_tokens = SKV_UNBOUNDED,
                               .window_right_tokens = SKV_UNBOUNDED,
                               .leaf_tokens = 64,
                               .block_tokens = 128};
      kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, (uint64_t)(heads * group));
      expect_kernels(test, 1);
      kit_case_free(test);
    }
}

Test(leaf_bits, threads_rows_nodes_and_owners) {
  for (uint64_t seed = 2000; seed < 2150; seed += EVERY) {
    kit_case_t *test = kit_case_random(seed);
    leaf_result_t once = leaf_run(test, &plain);
    expect_result(test, &once, &(leaf_way_t){.threads = 2}, "two threads");
    expect_result(test, &once, &(leaf_way_t){.threads = 7}, "seven threads");
    expect_result(test, &once, &(leaf_way_t){.threads = 1, .query_cut = 1}, "row by row");
    expect_result(test, &once, &(leaf_way_t){.threads = 2, .query_cut = 3}, "three rows at a time");
    expect_result(test, &once, &(leaf_way_t){.threads = 2, .node_cut = 1}, "two frontiers");
    expect_result(test, &once, &(leaf_way_t){.threads = 2, .ranks = 3}, "round-robin owners");
    expect_result(test, &once, &(leaf_way_t){.threads = 3, .extra_blocks = 5}, "spare capacity");
    leaf_free(&once);
    kit_case_free(test);
  }
}

/* Long enough that nodes are cut into parts, whatever the number of threads. */
Test(leaf_bits, decode_cut_into_parts) {
  skv_problem_t problem = {.struct_bytes = sizeof problem,
                           .batch = 2,
                           .q_tokens = 2,
                           .kv_capacity_tokens = 5000,
                           .q_heads = 8,
                           .kv_heads = 2,
                           .head_dim = 64,
                           .value_head_dim = 48,
                           .scale = 0.125f,
                           .causal = 1,
                           .window_left_tokens = SKV_UNBOUNDED,
                           .window_right_tokens = SKV_UNBOUNDED,
                           .leaf_tokens = 64,
                           .block_tokens = 128};
  const int64_t q_tokens[] = {2, 1}, k_tokens[] = {4711, 130};
  kit_case_t *test = kit_case_create(&problem, q_tokens, k_tokens, true, 9);
  for (int32_t threads = 2; threads <= 9; ++threads)
    for (int64_t cut = 0; cut <= 20; cut += 5)
      expect_same(test, &plain, &(leaf_way_t){.threads = threads, .node_cut = cut}, "parts");
  expect_same(test, &plain, &(leaf_way_t){.threads = 2, .extra_blocks = 1000}, "spare capacity");
  kit_case_free(test);
}

/* Keys that no row sees may hold anything: a window hides [0, 100) and the length ends at 250. */
Test(leaf_bits, unseen_slots_do_not_matter) {
  static const uint32_t poison[] = {0x7fc00000u, 0x7f800000u, 0xff800000u, 0x7fa00001u};
  for (int dtype = 0; dtype < 3; ++dtype) {
    skv_problem_t problem = {.struct_bytes = sizeof problem,
                             .batch = 1,
                             .q_tokens = 50,
                             .kv_capacity_tokens = 300,
                             .q_heads = 2,
                             .kv_heads = 1,
                             .head_dim = 59,
                             .value_head_dim = 63,
                             .dtype = (skv_dtype_t)dtype,
                             .scale = 0.125f,
                             .causal = 1,
                             .window_left_tokens = 100,
                             .window_right_tokens = SKV_UNBOUNDED,
                             .leaf_tokens = 64,
                             .block_tokens = 128};
    const int64_t q_tokens[] = {50}, k_tokens[] = {250};
    kit_case_t *test = kit_case_create(&problem, q_tokens, k_tokens, false, 11);
    leaf_result_t first = leaf_run(test, &plain);
    for (int p = 0; p < 4; ++p) {
      for (int64_t j = 0; j < 300; ++j) {
        if (j >= 100 && j < 250)
          continue;
        for (int64_t d = 0; d < 59; ++d)
          skv__store((skv_dtype_t)dtype, test->k, j * 59 + d, skv__bits_float(poison[p]));
        for (int64_t d = 0; d < 63; ++d)
          skv__store((skv_dtype_t)dtype, test->v, j * 63 + d, skv__bits_float(poison[(p + 1) % 4]));
      }
      leaf_result_t again = leaf_run(test, &(leaf_way_t){.threads = 2});
      cr_expect_eq(first.bits, again.bits, "dtype %d, poison %d", dtype, p);
      leaf_free(&again);
    }
    leaf_free(&first);
    kit_case_free(test);
  }
}

/* A row sees a prefix: the bits are those of a problem that ends there. */
Test(leaf_bits, a_prefix_is_a_shorter_problem) {
  for (uint64_t seed = 3000; seed < 3100; ++seed) {
    kit_case_t *test = kit_case_random(seed);
    test->problem.causal = 1;
    for (int64_t s = 0; s < test->problem.batch; ++s) {
      if (test->q_tokens[s] == 0)
        continue;
      leaf_result_t whole = leaf_run(test, &plain);
      int64_t keys = test->k_tokens[s], middle = test->q_tokens[s] / 2;
      int64_t start = leaf_start(test, s), seen = start + middle + 1;
      if (test->q_start == NULL) {
        test->q_start = calloc((size_t)test->problem.batch, sizeof *test->q_start);
        for (int64_t i = 0; i < test->problem.batch; ++i)
          test->q_start[i] = test->k_tokens[i] - test->q_tokens[i];
      }
      test->k_tokens[s] = seen < 0 ? 0 : seen < keys ? seen : keys;
      leaf_result_t prefix = leaf_run(test, &plain);
      int64_t row = (s * test->problem.q_tokens + middle) * test->problem.q_heads;
      size_t bytes = (size_t)(test->problem.q_heads * test->problem.value_head_dim *
                              skv__dtype_bytes(test->problem.out_dtype));
      size_t at = (size_t)row / (size_t)test->problem.q_heads * bytes;
      cr_expect(memcmp((char *)whole.o + at, (char *)prefix.o + at, bytes) == 0, "seed %d",
                (int)seed);
      cr_expect(memcmp(whole.lse + row, prefix.lse + row,
                       (size_t)test->problem.q_heads * sizeof(float)) == 0);
      test->k_tokens[s] = keys;
      leaf_free(&whole);
      leaf_free(&prefix);
    }
    kit_case_free(test);
  }
}

static skv_status_t fail_third(void *user) {
  return ++*(int *)user == 3 ? SKV_PEER : SKV_OK;
}

/* poll is called in the middle of work, and its failure ends the evaluation. One thread: with more,
 * the others may be done before the third call. */
Test(leaf_bits, poll_can_stop_the_work) {
  enum { ROWS = 512, KEYS = 2048, DIM = 64 };
  float *memory = calloc(ROWS * (DIM + 2) + (ROWS + 2 * KEYS) * DIM, sizeof *memory);
  float *q = memory + ROWS * (DIM + 2), *k = q + ROWS * DIM, *v = k + KEYS * DIM;
  float *slices[] = {memory};
  int64_t rows = ROWS, k_tokens = KEYS, q_start = 0;
  skv__run_t run = {.q_count = ROWS};
  skv__job_node_t node = {0, 1, 0};
  skv__job_t job = {.q_heads = 1,
                    .kv_heads = 1,
                    .kv_head_end = 1,
                    .head_dim = DIM,
                    .value_head_dim = DIM,
                    .scale = 1.0f,
                    .leaf_tokens = KEYS,
                    .block_tokens = KEYS,
                    .left_tokens = INT64_MAX / 4,
                    .right_tokens = INT64_MAX / 4,
                    .k_tokens = &k_tokens,
                    .q_start = &q_start,
                    .q = {q, {0, DIM, DIM, 1}},
                    .k = {k, {0, DIM, DIM, 1}},
                    .v = {v, {0, DIM, DIM, 1}},
                    .runs = &run,
                    .run_count = 1,
                    .nodes = &node,
                    .node_count = 1,
                    .ranks = 1,
                    .slices = slices,
                    .slice_rows = &rows};
  const skv__kernel_t *kernel = skv__kernel_pick(SKV_BACKEND_CPU, NULL, NULL);
  void *scratch = kit_poisoned(kernel->scratch_bytes(&job, 1));
  int polls = 0;
  cr_expect_eq(kernel->evaluate(&job, scratch, 1, fail_third, &polls, NULL, NULL), SKV_PEER);
  cr_expect_eq(polls, 3);
  kit_poisoned_free(scratch);
  free(memory);
}

/* The caller's rounding mode and flush-to-zero change nothing, and are there afterwards. */
#if defined(__x86_64__)
#include <immintrin.h>
Test(leaf_bits, the_callers_floating_point_mode) {
  for (uint64_t seed = 4000; seed < 4010; ++seed) {
    kit_case_t *test = kit_case_random(seed);
    leaf_result_t usual = leaf_run(test, &plain);
    unsigned before = _mm_getcsr(), strange = 0x1f80u | 0x8040u | 0x6000u;
    _mm_setcsr(strange); /* flush, denormals are zero, towards zero */
    leaf_result_t other = leaf_run(test, &plain);
    unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    cr_expect_eq(usual.bits, other.bits, "seed %d", (int)seed);
    cr_expect_eq(after & ~0x3fu, strange & ~0x3fu);
    leaf_free(&usual);
    leaf_free(&other);
    kit_case_free(test);
  }
}
#endif
