/* test_field_bugs.c: what has gone wrong in other attention libraries and had no test here yet. The
 * numbers B.. are those of docs/field-bugs.md, which names the tests of the others. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "solve.h"

static skv_problem_t problem_of(int64_t q_heads, int64_t kv_heads, int64_t head_dim) {
  skv_problem_t problem;
  skv_problem_init(&problem, sizeof problem, q_heads, kv_heads, head_dim);
  problem.leaf_tokens = problem.block_tokens = 64;
  problem.q_tokens = problem.kv_capacity_tokens = 64;
  return problem;
}

static void expect_right(const kit_case_t *test, const kit_answer_t *answer) {
  char what[256], text[512];
  kit_case_describe(test, what, sizeof what);
  cr_expect(kit_check(test, answer->o, answer->lse, text, sizeof text), "%s: %s", what, text);
}

static kit_answer_t *solve(const kit_case_t *test, kit_way_t way) {
  char text[256];
  kit_answer_t *answer = kit_answer_create(test);
  kit_way_describe(&way, text, sizeof text);
  cr_assert(kit_solve(test, &way, answer), "%s fails", text);
  return answer;
}

/* One rank; outputs are dense. `message` holds the context's error afterwards. */
static skv_status_t run(const skv_problem_t *problem, const skv_inputs_t *inputs, float *o,
                        float *lse, char message[256]) {
  skv_context_t *context;
  skv_plan_t *plan;
  skv_plan_info_t info = {.struct_bytes = sizeof info};
  int64_t row = problem->q_heads * problem->value_head_dim;
  skv_outputs_t outputs = {
      .struct_bytes = sizeof outputs,
      .o = {o, {problem->q_tokens * row, row, problem->value_head_dim, 1}},
      .lse = lse,
      .lse_stride = {problem->q_tokens * problem->q_heads, problem->q_heads, 1}};
  cr_assert_eq(skv_context_create(&context, NULL), SKV_OK);
  skv_status_t status = skv_plan_create(&plan, context, problem, NULL);
  if (status == SKV_OK && inputs) {
    skv_plan_info(plan, &info);
    void *workspace = aligned_alloc(64, (size_t)info.workspace_bytes);
    status = skv_execute(plan, inputs, &outputs, workspace, (size_t)info.workspace_bytes, NULL);
    free(workspace);
  }
  snprintf(message, 256, "%s", skv_context_error(context));
  skv_plan_destroy(plan);
  skv_context_destroy(context);
  return status;
}

/* ---- arguments ---- */

static void expect_refused(const skv_problem_t *problem, const skv_inputs_t *inputs,
                           const char *what, const char *word) {
  float o[64 * 8], lse[64];
  char message[256];
  memset(o, 0x5a, sizeof o);
  skv_status_t status = run(problem, inputs, o, lse, message);
  cr_expect_eq(status, SKV_INVALID, "%s: %s", what, skv_status_name(status));
  cr_expect(strstr(message, word), "%s: \"%s\" does not say \"%s\"", what, message, word);
  for (size_t i = 0; i < sizeof o; i++)
    cr_assert_eq(((unsigned char *)o)[i], 0x5a, "%s: wrote", what);
}

/* B35, and numbers that no problem may have. */
Test(field_bugs, bad_problems_are_refused) {
  skv_problem_t good = problem_of(2, 1, 4), p;
#define REFUSED(CHANGE, WORD)                                                                      \
  p = good;                                                                                        \
  p.CHANGE;                                                                                        \
  expect_refused(&p, NULL, #CHANGE, WORD)
  REFUSED(q_heads = 33; p.kv_heads = 2, "multiple of the KV heads");
  REFUSED(q_heads = 3; p.kv_heads = 2, "multiple of the KV heads");
  REFUSED(kv_heads = 0, "KV heads");
  REFUSED(head_dim = 0, "head_dim");
  REFUSED(head_dim = 257, "head_dim");
  REFUSED(value_head_dim = 257, "value_head_dim");
  REFUSED(batch = 0, "batch");
  REFUSED(q_tokens = -1, "q_tokens");
  REFUSED(kv_capacity_tokens = -1, "kv_capacity_tokens");
  REFUSED(scale = 0.0f, "scale");
  REFUSED(scale = -1.0f, "scale");
  REFUSED(scale = NAN, "scale");
  REFUSED(scale = INFINITY, "scale");
  REFUSED(softcap = -1.0f, "softcap");
  REFUSED(softcap = NAN, "softcap");
  REFUSED(window_left_tokens = -2, "window");
  REFUSED(window_right_tokens = -2, "window");
  REFUSED(leaf_tokens = 32, "leaf_tokens");
  REFUSED(block_tokens = 96, "block_tokens");
  REFUSED(q_tokens = INT64_C(1) << 48; p.batch = 64, "2^50");
#undef REFUSED
}

/* B32, and lengths that the plan has no room for. */
Test(field_bugs, bad_inputs_are_refused) {
  skv_problem_t problem = problem_of(2, 1, 4);
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 1);
  const skv_inputs_t good = kit_case_inputs(test);
  skv_inputs_t inputs = good;
  inputs.q.stride[3] = 2;
  expect_refused(&problem, &inputs, "q transposed", "innermost stride of q");
  inputs = good, inputs.k.stride[3] = 64;
  expect_refused(&problem, &inputs, "k transposed", "innermost stride of k");
  inputs = good, inputs.v.stride[3] = 0;
  expect_refused(&problem, &inputs, "v repeated", "innermost stride of v");
  inputs = good, inputs.v.data = NULL;
  expect_refused(&problem, &inputs, "no v", "v has no data");
  int64_t length = 65;
  inputs = good, inputs.k_tokens = &length;
  expect_refused(&problem, &inputs, "65 keys of 64", "capacity is 64");
  inputs = good, inputs.q_tokens = &length;
  expect_refused(&problem, &inputs, "65 queries of 64", "0 to 64");
  length = -1;
  inputs = good, inputs.k_tokens = &length;
  expect_refused(&problem, &inputs, "-1 keys", "-1 keys");
  kit_case_free(test);
}

/* ---- addressing ---- */

static void expect_bytes_of(const kit_case_t *test, const float *o, const float *lse) {
  kit_answer_t *wanted = solve(test, (kit_way_t){0});
  expect_right(test, wanted);
  cr_expect_arr_eq(o, wanted->o, wanted->o_bytes);
  cr_expect_arr_eq(lse, wanted->lse, wanted->lse_bytes);
  kit_answer_free(wanted);
}

/* B30: q, k and v are slices of one packed tensor, [batch][token][q heads + 2 KV heads][dim]; the
 * tokens of K and V lie backwards. */
Test(field_bugs, slices_of_packed_qkv) {
  enum { BATCH = 4, HEADS = 8, KV = 2, DIM = 16, TOKENS = 70, ALL = HEADS + 2 * KV };
  skv_problem_t problem = problem_of(HEADS, KV, DIM);
  problem.batch = BATCH, problem.causal = 1;
  problem.q_tokens = problem.kv_capacity_tokens = TOKENS;
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 30);
  const float *q = test->q, *k = test->k, *v = test->v;
  float *packed = calloc(BATCH * TOKENS * ALL * DIM, sizeof *packed);
  for (int64_t token = 0; token < BATCH * TOKENS; token++) {
    int64_t back = token / TOKENS * TOKENS + TOKENS - 1 - token % TOKENS;
    float *to = packed + token * ALL * DIM;
    memcpy(to, q + token * HEADS * DIM, HEADS * DIM * sizeof *q);
    memcpy(to + HEADS * DIM, k + back * KV * DIM, KV * DIM * sizeof *k);
    memcpy(to + (HEADS + KV) * DIM, v + back * KV * DIM, KV * DIM * sizeof *v);
  }
  int64_t all = ALL * DIM, last = (TOKENS - 1) * all;
  skv_inputs_t inputs = {.struct_bytes = sizeof inputs,
                         .q = {packed, {TOKENS * all, all, DIM, 1}},
                         .k = {packed + last + HEADS * DIM, {TOKENS * all, -all, DIM, 1}},
                         .v = {packed + last + (HEADS + KV) * DIM, {TOKENS * all, -all, DIM, 1}}};
  float *o = calloc(BATCH * TOKENS * HEADS * DIM, sizeof *o), lse[BATCH * TOKENS * HEADS];
  char message[256];
  cr_assert_eq(run(&problem, &inputs, o, lse, message), SKV_OK, "%s", message);
  expect_bytes_of(test, o, lse);
  free(o);
  free(packed);
  kit_case_free(test);
}

/* B26: elements whose index passes 2^31, in a tensor of which little is ever touched. */
Test(field_bugs, offsets_pass_2_to_31) {
  enum { TOKENS = 100, DIM = 8 };
  const int64_t stride = INT64_C(40000000); /* 100 tokens reach 4e9 elements */
  const size_t bytes = (size_t)TOKENS * (size_t)stride * sizeof(float);
  skv_problem_t problem = problem_of(1, 1, DIM);
  problem.q_tokens = problem.kv_capacity_tokens = TOKENS;
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 26);
  float *far =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (far == MAP_FAILED)
    cr_skip_test("no address space of %zu bytes", bytes);
  for (int64_t token = 0; token < TOKENS; token++) {
    memcpy(far + token * stride, (float *)test->q + token * DIM, DIM * sizeof(float));
    memcpy(far + token * stride + DIM, (float *)test->k + token * DIM, DIM * sizeof(float));
    memcpy(far + token * stride + 2 * DIM, (float *)test->v + token * DIM, DIM * sizeof(float));
  }
  skv_inputs_t inputs = {.struct_bytes = sizeof inputs,
                         .q = {far, {0, stride, DIM, 1}},
                         .k = {far + DIM, {0, stride, DIM, 1}},
                         .v = {far + 2 * DIM, {0, stride, DIM, 1}}};
  float o[TOKENS * DIM], lse[TOKENS];
  char message[256];
  cr_assert_eq(run(&problem, &inputs, o, lse, message), SKV_OK, "%s", message);
  expect_bytes_of(test, o, lse);
  munmap(far, bytes);
  kit_case_free(test);
}

/* ---- shapes ---- */

/* B29: more sequences, and more heads, than a grid's second and third extent allow. */
Test(field_bugs, more_than_65535_sequences_or_heads) {
  for (int heads = 0; heads < 2; heads++) {
    skv_problem_t problem = problem_of(heads ? 65537 : 1, 1, 3);
    problem.batch = heads ? 1 : 65537;
    problem.q_tokens = 1, problem.kv_capacity_tokens = 2;
    kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 29);
    kit_answer_t *answer = solve(test, (kit_way_t){.ranks = 2});
    expect_right(test, answer);
    kit_answer_free(answer);
    kit_case_free(test);
  }
}

/* B36: D = 63 over 4096 keys; D = 59, window 256 over 20 000 keys, fp16. */
Test(field_bugs, odd_head_sizes) {
  for (int i = 0; i < 2; i++) {
    skv_problem_t problem = problem_of(2, 1, i ? 59 : 63);
    problem.q_tokens = 5, problem.kv_capacity_tokens = i ? 20000 : 4096;
    problem.dtype = problem.out_dtype = i ? SKV_FP16 : SKV_FP32;
    problem.window_left_tokens = i ? 256 : SKV_UNBOUNDED;
    problem.block_tokens = 256;
    kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 36);
    kit_answer_t *answer = solve(test, (kit_way_t){.ranks = 3});
    expect_right(test, answer);
    kit_answer_free(answer);
    kit_case_free(test);
  }
}

/* B38: a sequence without queries or keys between two of one query. */
Test(field_bugs, empty_sequence_when_the_longest_query_is_one) {
  static const int64_t q_tokens[] = {1, 0, 1}, k_tokens[] = {3, 0, 5};
  skv_problem_t problem = problem_of(9, 3, 64);
  problem.batch = 3, problem.q_tokens = 1, problem.kv_capacity_tokens = 5;
  kit_case_t *test = kit_case_create(&problem, q_tokens, k_tokens, false, 38);
  for (int32_t ranks = 1; ranks <= 2; ranks++)
    for (int owner = SKV_ROWS_BY_POSITION; owner <= SKV_ROWS_ROUND_ROBIN; owner++) {
      kit_way_t way = {.ranks = ranks, .options = {.row_owner = (skv_row_owner_t)owner}};
      kit_answer_t *answer = solve(test, way);
      expect_right(test, answer);
      kit_answer_free(answer);
    }
  kit_case_free(test);
}

/* B19: heads of a decode must not care how many parts the keys are cut into. B09: nor may the error
 * of bf16 grow with the ranks. */
Test(field_bugs, decode_and_bf16_on_more_and_more_ranks) {
  skv_problem_t problem = problem_of(16, 8, 128);
  problem.q_tokens = 1, problem.kv_capacity_tokens = 4096;
  problem.dtype = problem.out_dtype = SKV_BF16;
  problem.block_tokens = 128;
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 19);
  kit_answer_t *one = solve(test, (kit_way_t){0});
  expect_right(test, one);
  for (int32_t ranks = 2; ranks <= 32; ranks *= 2) {
    kit_way_t way = {.ranks = ranks, .options = {.row_owner = SKV_ROWS_ROUND_ROBIN}};
    kit_answer_t *answer = solve(test, way);
    expect_right(test, answer);
    cr_expect(kit_answer_same(answer, one), "%d ranks give other bits", (int)ranks);
    kit_answer_free(answer);
  }
  kit_answer_free(one);
  kit_case_free(test);
}

/* ---- determinism ---- */

/* B22: the first 32 sequences of a batch of 33 get the bits that they get in a batch of 32. */
Test(field_bugs, batches_of_32_and_33) {
  skv_problem_t problem = problem_of(8, 2, 64);
  problem.batch = 33, problem.q_tokens = 1, problem.kv_capacity_tokens = 200;
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, true, 22);
  kit_answer_t *more = solve(test, (kit_way_t){.threads = 2});
  expect_right(test, more);
  kit_case_t fewer = *test; /* dense by sequence: the first 32 lie where they lay */
  fewer.problem.batch = 32;
  kit_answer_t *answer = solve(&fewer, (kit_way_t){.threads = 2});
  cr_expect_arr_eq(answer->o, more->o, answer->o_bytes);
  cr_expect_arr_eq(answer->lse, more->lse, answer->lse_bytes);
  kit_answer_free(answer);
  kit_answer_free(more);
  kit_case_free(test);
}

/* B42: four thousand decode steps over a growing cache on three ranks, late messages included; none
 * may differ from the prefill, which the oracle judges. */
Test(field_bugs, thousands_of_decode_steps) {
  skv_problem_t problem = problem_of(2, 1, 16);
  problem.q_tokens = problem.kv_capacity_tokens = 4000;
  problem.causal = 1;
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 42);
  kit_answer_t *wanted = solve(test, (kit_way_t){0});
  expect_right(test, wanted);
  kit_way_t way = {.ranks = 3, .chunk_queries = 1, .options = {.row_owner = SKV_ROWS_ROUND_ROBIN}};
  kit_answer_t *answer = solve(test, way);
  cr_expect(kit_answer_same(answer, wanted), "decode gives other bits");
  kit_answer_free(answer);
  kit_answer_free(wanted);
  kit_case_free(test);
}

/* Messages of a round land in any order, and a pending set must hold what cannot merge yet: 24
 * blocks on five ranks may leave 7 nodes waiting where the planned order leaves 3. */
Test(field_bugs, messages_land_in_any_order) {
  skv_problem_t problem = problem_of(1, 1, 8);
  problem.q_tokens = problem.kv_capacity_tokens = 24 * 64;
  problem.causal = 1;
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 24);
  kit_answer_t *wanted = solve(test, (kit_way_t){0});
  expect_right(test, wanted);
  for (uint64_t seed = 1; seed <= 20; seed++)
    for (int reduce = SKV_GATHER; reduce <= SKV_BUTTERFLY; reduce++) {
      kit_way_t way = {.ranks = 5,
                       .delay_seed = seed,
                       .options = {.direction = SKV_PASS_Q,
                                   .reduce = (skv_reduce_t)reduce,
                                   .results = SKV_RESULTS_ALL}};
      kit_answer_t *answer = solve(test, way);
      cr_expect(kit_answer_same(answer, wanted), "seed %d, reduce %d", (int)seed, reduce);
      kit_answer_free(answer);
    }
  kit_answer_free(wanted);
  kit_case_free(test);
}
