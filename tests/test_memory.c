/* test_memory.c: each allocation of a plan fails once, on one rank of several: every rank gets
 * SKV_MEMORY, nothing leaks, and the context works afterwards. Linked with --wrap. And ranks
 * without memory can still find out how their work differs. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "kit.h"

enum { NEVER = -1 };
/* Allocations of this thread until one fails; those of the kit's transport are not counted. */
static _Thread_local long left = NEVER;
static _Thread_local bool in_transport;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);

static bool fails(void) {
  return !in_transport && left != NEVER && left-- == 0;
}
void *__wrap_malloc(size_t bytes) {
  return fails() ? NULL : __real_malloc(bytes);
}
void *__wrap_calloc(size_t count, size_t bytes) {
  return fails() ? NULL : __real_calloc(count, bytes);
}
void *__wrap_realloc(void *memory, size_t bytes) {
  return fails() ? NULL : __real_realloc(memory, bytes);
}

static _Thread_local const skv__transport_t *transport;

static skv_status_t start(void *impl, skv__request_t *request, size_t offset, size_t bytes,
                          skv__error_t *error) {
  in_transport = true;
  skv_status_t status = transport->start(impl, request, offset, bytes, error);
  in_transport = false;
  return status;
}
static skv_status_t test(void *impl, skv__request_t *request, bool *done, skv__error_t *error) {
  in_transport = true;
  skv_status_t status = transport->test(impl, request, done, error);
  in_transport = false;
  return status;
}

typedef struct strike {
  int32_t rank; /* whose allocations fail */
  skv_direction_t direction;
  long points;
} strike_t;

/* The context's transport, but for its allocations. */
static skv__transport_t watch(skv_context_t *context) {
  transport = context->comm->transport;
  skv__transport_t watched = *transport;
  watched.start = start, watched.test = test;
  context->comm->timeout_seconds = 5;
  return watched;
}

static int fail_each(int32_t rank, skv_context_t *context, void *user) {
  strike_t *strike = user;
  skv__transport_t watched = watch(context);
  context->comm->transport = &watched;
  skv_problem_t problem;
  skv_problem_init(&problem, sizeof problem, 2, 1, 4);
  problem.q_tokens = problem.kv_capacity_tokens = 700;
  problem.leaf_tokens = problem.block_tokens = 64;
  skv_plan_options_t options = {.struct_bytes = sizeof options, .direction = strike->direction};
  skv_status_t status = SKV_MEMORY;
  long nth = 0;
  for (; nth < 500 && status == SKV_MEMORY; nth++) {
    skv_plan_t *plan;
    left = rank == strike->rank ? nth : NEVER;
    status = skv_plan_create(&plan, context, &problem, &options);
    left = NEVER;
    if (status != SKV_OK && status != SKV_MEMORY)
      fprintf(stderr, "allocation %ld, rank %d: %s\n", nth, (int)rank, skv_context_error(context));
    skv_plan_destroy(plan);
  }
  if (rank == strike->rank)
    strike->points = nth;
  context->comm->transport = transport;
  return (int)status;
}

Test(memory, each_allocation_of_a_plan_fails_once) {
  for (int32_t ranks = 1; ranks <= 3; ranks++)
    for (int32_t rank = 0; rank < ranks; rank++)
      for (int direction = SKV_DIRECTION_AUTO; direction <= SKV_PASS_KV; direction++) {
        strike_t strike = {.rank = rank, .direction = (skv_direction_t)direction};
        cr_expect_eq(kit_run_ranks(ranks, 1, NULL, 0, fail_each, &strike), SKV_OK,
                     "%d ranks, rank %d, direction %d", (int)ranks, (int)rank, direction);
        cr_expect(strike.points > 10, "only %ld allocations", strike.points);
      }
}

static int differ(int32_t rank, skv_context_t *context, void *user) {
  skv__transport_t watched = watch(context);
  context->comm->transport = &watched;
  skv__fact_t facts[2] = {{"dim", 4}, {"seed", (uint64_t)rank}};
  left = rank == 0 ? 0 : NEVER;
  skv_status_t status = skv__comm_agree(context->comm, facts, 2, SKV_OK, NULL);
  left = NEVER;
  const char *text = skv_context_error(context);
  bool named = status == SKV_DISAGREE && strcmp(text, user) == 0;
  if (!named)
    fprintf(stderr, "rank %d: %s\n", (int)rank, text);
  context->comm->transport = transport;
  return !named;
}

Test(memory, none_is_needed_to_name_a_difference) {
  char text[] = "ranks were given different work: 'seed' is 0 on rank 0, 1 on rank 1";
  cr_expect_eq(kit_run_ranks(4, 1, NULL, 0, differ, text), 0);
}
