/* library.c: the last rung, through the public interface. */
#include "bench/ladder/ladder.h"
#include "skv.h"

typedef struct session {
  skv_context_t *context;
  skv_plan_t *plan;
  int64_t workspace_bytes;
} session_t;

static void session_close(session_t *session) {
  skv_plan_destroy(session->plan);
  skv_context_destroy(session->context);
}

static bool session_open(session_t *session, const ladder_problem_t *ladder) {
  *session = (session_t){.plan = NULL};
  skv_context_options_t options = {.struct_bytes = sizeof options, .threads = ladder->threads};
  skv_problem_t problem;
  skv_problem_init(&problem, sizeof problem, ladder->heads, ladder->heads, ladder->dim);
  problem.q_tokens = ladder->tokens;
  problem.kv_capacity_tokens = ladder->tokens;
  problem.scale = ladder->scale;
  skv_plan_info_t info = {.struct_bytes = sizeof info};
  if (skv_context_create(&session->context, &options) != SKV_OK ||
      skv_plan_create(&session->plan, session->context, &problem, NULL) != SKV_OK ||
      skv_plan_info(session->plan, &info) != SKV_OK) {
    session_close(session);
    return false;
  }
  session->workspace_bytes = info.workspace_bytes;
  return true;
}

int64_t ladder_splitkv_bytes(const ladder_problem_t *problem) {
  session_t session;
  if (!session_open(&session, problem))
    return -1;
  session_close(&session);
  return session.workspace_bytes;
}

static skv_tensor_t tensor(const ladder_problem_t *problem, float *data) {
  int64_t row = problem->heads * problem->dim;
  return (skv_tensor_t){.data = data, .stride = {problem->tokens * row, row, problem->dim, 1}};
}

bool ladder_splitkv_run(const ladder_problem_t *problem, ladder_work_t *work, float *o) {
  session_t session;
  if (!session_open(&session, problem))
    return false;
  skv_inputs_t inputs = {.struct_bytes = sizeof inputs,
                         .q = tensor(problem, problem->q),
                         .k = tensor(problem, problem->k),
                         .v = tensor(problem, problem->v)};
  skv_outputs_t outputs = {.struct_bytes = sizeof outputs, .o = tensor(problem, o)};
  skv_status_t status = skv_execute(session.plan, &inputs, &outputs, work->buffer,
                                    (size_t)session.workspace_bytes, NULL);
  session_close(&session);
  work->moved_bytes =
      4.0 * (double)(problem->heads * problem->tokens * problem->dim) * sizeof(float);
  return status == SKV_OK;
}
