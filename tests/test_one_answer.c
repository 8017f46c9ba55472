/* test_one_answer.c: what else the bits may not depend on: chunks, prefill or decode, batch-mates,
 * spare capacity, threads, kernels. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernel.h"
#include "solve.h"

static skv_problem_t problem_of(int64_t batch, int64_t q_tokens, int64_t capacity) {
  skv_problem_t problem;
  skv_problem_init(&problem, sizeof problem, 4, 2, 32);
  problem.batch = batch;
  problem.q_tokens = q_tokens;
  problem.kv_capacity_tokens = capacity;
  problem.causal = 1;
  problem.leaf_tokens = 64;
  problem.block_tokens = 128;
  return problem;
}

static kit_answer_t *solve(const kit_case_t *test, kit_way_t way) {
  char text[256];
  kit_way_describe(&way, text, sizeof text);
  kit_answer_t *answer = kit_answer_create(test);
  cr_assert(kit_solve(test, &way, answer), "%s fails", text);
  return answer;
}

static void expect_same(const kit_case_t *test, kit_way_t way, const kit_answer_t *wanted) {
  char text[256];
  kit_way_describe(&way, text, sizeof text);
  kit_answer_t *answer = solve(test, way);
  cr_expect(kit_answer_same(answer, wanted), "%s gives other bits", text);
  kit_answer_free(answer);
}

Test(one_answer, any_chunk_size_and_row_by_row_decode) {
  skv_problem_t problem = problem_of(1, 300, 420);
  kit_case_t *test = kit_case_create(&problem, NULL, NULL, true, 11);
  kit_answer_t *wanted = solve(test, (kit_way_t){0});
  char text[512];
  cr_expect(kit_check(test, wanted->o, wanted->lse, text, sizeof text), "%s", text);
  static const int64_t chunks[] = {1, 7, 64, 100, 128, 299};
  for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++)
    for (int32_t ranks = 1; ranks <= 3; ranks += 2) {
      kit_way_t way = {.ranks = ranks, .chunk_queries = chunks[i]};
      expect_same(test, way, wanted);
      way.options.row_owner = SKV_ROWS_ROUND_ROBIN; /* decode */
      expect_same(test, way, wanted);
    }
  kit_answer_free(wanted);
  kit_case_free(test);
}

/* Chunks of a mask that sees later keys: a window to the right, then no mask. */
Test(one_answer, chunks_without_a_causal_mask) {
  for (int64_t right = SKV_UNBOUNDED; right <= 40; right += 41) {
    skv_problem_t problem = problem_of(1, 200, 420);
    problem.causal = 0;
    problem.window_right_tokens = right;
    problem.window_left_tokens = right;
    kit_case_t *test = kit_case_create(&problem, NULL, NULL, false, 12);
    kit_answer_t *wanted = solve(test, (kit_way_t){0});
    expect_same(test, (kit_way_t){.ranks = 2, .chunk_queries = 33}, wanted);
    expect_same(test, (kit_way_t){.chunk_queries = 1}, wanted);
    kit_answer_free(wanted);
    kit_case_free(test);
  }
}

Test(one_answer, alone_and_inside_a_batch) {
  static const int64_t q_tokens[] = {40, 1, 0, 25}, k_tokens[] = {300, 129, 77, 25};
  skv_problem_t problem = problem_of(4, 40, 300);
  kit_case_t *all = kit_case_create(&problem, q_tokens, k_tokens, true, 13);
  for (int32_t ranks = 1; ranks <= 4; ranks += 3) {
    kit_answer_t *together = solve(all, (kit_way_t){.ranks = ranks});
    problem.batch = 1;
    for (int64_t s = 0; s < 4; s++) {
      kit_case_t alone = *all; /* borrows the tensors of sequence s */
      alone.problem = problem;
      alone.q_tokens = all->q_tokens + s;
      alone.k_tokens = all->k_tokens + s;
      alone.q_start = NULL; /* bottom-right, as in the batch */
      alone.q = (float *)all->q + s * 40 * 4 * 32;
      alone.k = (float *)all->k + s * 300 * 2 * 32;
      alone.v = (float *)all->v + s * 300 * 2 * 32;
      kit_answer_t *answer = solve(&alone, (kit_way_t){0});
      size_t rows = (size_t)q_tokens[s] * 4;
      cr_expect_arr_eq(answer->o, (float *)together->o + s * 40 * 4 * 32,
                       rows * 32 * sizeof(float));
      cr_expect_arr_eq(answer->lse, together->lse + s * 40 * 4, rows * sizeof(float));
      kit_answer_free(answer);
    }
    problem.batch = 4;
    kit_answer_free(together);
  }
  kit_case_free(all);
}

Test(one_answer, spare_capacity) {
  skv_problem_t problem = problem_of(1, 90, 333);
  int64_t k_tokens = 333;
  kit_case_t *tight = kit_case_create(&problem, NULL, &k_tokens, true, 14);
  kit_answer_t *wanted = solve(tight, (kit_way_t){0});
  for (int64_t capacity = 384; capacity <= 4096; capacity = capacity * 5 / 2) {
    problem.kv_capacity_tokens = capacity;
    kit_case_t *roomy = kit_case_create(&problem, NULL, &k_tokens, true, 14);
    for (int32_t ranks = 1; ranks <= 5; ranks += 2) {
      expect_same(roomy, (kit_way_t){.ranks = ranks, .options = {.direction = SKV_PASS_Q}}, wanted);
      expect_same(roomy, (kit_way_t){.ranks = ranks, .options = {.direction = SKV_PASS_KV}},
                  wanted);
    }
    kit_case_free(roomy);
  }
  kit_answer_free(wanted);
  kit_case_free(tight);
}

Test(one_answer, every_kernel_and_any_threads) {
  for (uint64_t seed = 1; seed <= 40; seed++) {
    kit_case_t *test = kit_case_random(seed);
    kit_answer_t *wanted = solve(test, (kit_way_t){.kernel = "cpu.portable"});
    for (const skv__kernel_t *const *kernel = skv__kernels(); *kernel; kernel++)
      for (int32_t threads = 1; threads <= 3; threads++)
        if ((*kernel)->backend == SKV_BACKEND_CPU && (*kernel)->available(NULL))
          expect_same(test, (kit_way_t){.kernel = (*kernel)->name, .threads = threads}, wanted);
    kit_answer_free(wanted);
    kit_case_free(test);
  }
}

/* A plan keeps what it holds besides pending states within 64 MiB. */
Test(one_answer, workspace_is_bounded) {
  skv_problem_t problem;
  skv_problem_init(&problem, sizeof problem, 32, 8, 128);
  problem.q_tokens = problem.kv_capacity_tokens = 131072;
  for (int direction = SKV_PASS_Q; direction <= SKV_PASS_KV; direction++)
    for (int32_t threads = 1; threads <= 16; threads *= 4) {
      skv_context_options_t options = {.struct_bytes = sizeof options, .threads = threads};
      skv_plan_options_t way = {.struct_bytes = sizeof way,
                                .direction = (skv_direction_t)direction};
      skv_context_t *context;
      skv_plan_t *plan;
      skv_plan_info_t info = {.struct_bytes = sizeof info};
      cr_assert_eq(skv_context_create(&context, &options), SKV_OK);
      cr_assert_eq(skv_plan_create(&plan, context, &problem, &way), SKV_OK);
      cr_assert_eq(skv_plan_info(plan, &info), SKV_OK);
      cr_expect(info.workspace_bytes - info.pending_bytes <= 64 << 20,
                "%lld bytes besides %lld of states",
                (long long)(info.workspace_bytes - info.pending_bytes),
                (long long)info.pending_bytes);
      skv_plan_destroy(plan);
      skv_context_destroy(context);
    }
}
