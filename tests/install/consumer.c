/* consumer.c: what a user of the installed library writes, small enough to check by hand. One query
 * of zeros over three keys sees three equal logits 0, so O is the mean of V and LSE is log 3. C17
 * and C++17. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_include)
#if __has_include("skv_mpi.h")
#include "skv_mpi.h"
#endif
#endif
#include "skv.h"

enum { TOKENS = 3, DIM = 4 };

static int fail(const char *what, skv_context_t *context) {
  fprintf(stderr, "consumer: %s: %s\n", what, context ? skv_context_error(context) : "");
  skv_context_destroy(context);
  return 1;
}

static skv_tensor_t dense(float *data, int64_t tokens) {
  skv_tensor_t tensor = {data, {tokens * DIM, DIM, DIM, 1}};
  return tensor;
}

static skv_status_t execute(skv_plan_t *plan, float *o, float *lse) {
  float q[DIM] = {0}, k[TOKENS * DIM], v[TOKENS * DIM];
  for (int i = 0; i < TOKENS * DIM; i++) {
    k[i] = (float)i;
    v[i] = (float)(i / DIM + 1); /* 1, 2, 3 */
  }
  skv_inputs_t inputs;
  memset(&inputs, 0, sizeof inputs);
  inputs.struct_bytes = sizeof inputs;
  inputs.q = dense(q, 1);
  inputs.k = dense(k, TOKENS);
  inputs.v = dense(v, TOKENS);
  skv_outputs_t outputs;
  memset(&outputs, 0, sizeof outputs);
  outputs.struct_bytes = sizeof outputs;
  outputs.o = dense(o, 1);
  outputs.lse = lse;
  outputs.lse_stride[0] = outputs.lse_stride[1] = outputs.lse_stride[2] = 1;

  skv_plan_info_t info;
  memset(&info, 0, sizeof info);
  info.struct_bytes = sizeof info;
  skv_status_t status = skv_plan_info(plan, &info);
  if (status != SKV_OK)
    return status;
  size_t bytes = ((size_t)info.workspace_bytes + 63) / 64 * 64;
  void *workspace = aligned_alloc(64, bytes + 64);
  status = skv_execute(plan, &inputs, &outputs, workspace, (size_t)info.workspace_bytes, NULL);
  free(workspace);
  return status;
}

int main(void) {
  skv_problem_t problem;
  skv_problem_init(&problem, sizeof problem, 1, 1, DIM);
  problem.q_tokens = 1;
  problem.kv_capacity_tokens = TOKENS;

  skv_context_t *context = NULL;
  if (skv_context_create(&context, NULL) != SKV_OK)
    return fail("no context", context);
  skv_plan_t *plan = NULL;
  if (skv_plan_create(&plan, context, &problem, NULL) != SKV_OK)
    return fail("no plan", context);
  float o[DIM], lse = 0;
  skv_status_t status = execute(plan, o, &lse);
  skv_plan_destroy(plan);
  if (status != SKV_OK)
    return fail(skv_status_text(status), context);
  skv_context_destroy(context);

  for (int i = 0; i < DIM; i++)
    if (fabsf(o[i] - 2.0f) > 1e-6f)
      return fail("O is not the mean of V", NULL);
  if (fabsf(lse - 1.09861229f) > 1e-6f)
    return fail("LSE is not log 3", NULL);
  printf("consumer: splitkv %s, O %g, LSE %g\n", skv_version(), (double)o[0], (double)lse);
  return 0;
}
