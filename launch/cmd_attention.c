/* cmd_attention.c: splitkv prefill and splitkv decode. */
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "launch/attention.h"
#include "launch/exit_codes.h"
#include "launch/launcher.h"
#include "launch/order_log.h"

typedef struct run {
  skv__job_options_t job;
  skv__session_t session;
  skv__input_t input;
  skv_problem_t problem;
  skv_plan_t *plan;
  skv_plan_info_t info;
  skv__data_t data;
  skv__results_t results;
  skv__order_log_t *log;
  skv__progress_t *progress;
  skv__pages_t workspace;
  int64_t *lengths; /* [3][batch]: queries, keys, position of query 0 */
  skv_times_t times;
  double wall_seconds;
  skv__run_times_t all_times;
  skv__verdict_t verdict;
  uint64_t bits;
} run_t;

static skv_status_t take_context_error(run_t *run, skv_status_t status, skv__error_t *error) {
  if (status == SKV_OK)
    return SKV_OK;
  return skv__fail(error, status, "%s", skv_context_error(run->session.context));
}

/* Input and plan: all ranks go on with the same work, or end with the same error. */
static skv_status_t prepare(run_t *run, skv__error_t *error) {
  skv__fact_t facts[SKV__INPUT_FACTS] = {0};
  skv_plan_options_t options;
  skv__job_extents_t extents = {0};
  size_t count = 0;
  if (skv__input_open(&run->input, &run->job, error) == SKV_OK) {
    extents = run->input.extents;
    if (run->job.chunk > 0 && run->job.chunk < extents.q_tokens)
      extents.q_tokens = run->job.chunk;
    count = skv__input_facts(&run->input, &run->job, facts);
    skv__job_problem(&run->job, &extents, &run->problem, error);
  }
  SKV_TRY(skv__session_agree(&run->session, facts, count, error));
  SKV_TRY(skv__job_plan_options(&run->job, &options, error));
  if (run->job.order_log) {
    run->log =
        skv__order_log_create(run->session.rank, extents.value_head_dim, run->job.order_states);
    if (!run->log)
      skv__fail(error, SKV_MEMORY, "no memory for the order log");
    SKV_TRY(skv__session_agree(&run->session, NULL, 0, error));
    options.observer = skv__order_log_observe;
    options.observer_user = run->log;
  }
  SKV_TRY(take_context_error(
      run, skv_plan_create(&run->plan, run->session.context, &run->problem, &options), error));
  run->info.struct_bytes = sizeof run->info;
  return take_context_error(run, skv_plan_info(run->plan, &run->info), error);
}

/* Memory, this rank's part of the tensors, and the output files. */
static skv_status_t load(run_t *run, skv__error_t *error) {
  const int64_t workspace[] = {run->info.workspace_bytes};
  int64_t batch = run->input.extents.batch;
  skv__data_read(&run->data, &run->input, &run->job, run->plan, &run->session, run->progress,
                 error);
  if (error->status == SKV_OK)
    skv__pages_map(&run->workspace, workspace, 1, 1, "the workspace", error);
  run->lengths = calloc((size_t)batch * 3, sizeof *run->lengths);
  if (!run->lengths)
    skv__fail(error, SKV_MEMORY, "no memory for lengths");
  SKV_TRY(skv__session_agree(&run->session, NULL, 0, error));
  return skv__results_open(&run->results, &run->input, &run->job, run->problem.out_dtype,
                           &run->session, error);
}

static skv_status_t execute_step(run_t *run, const skv__step_t *step, skv__error_t *error) {
  int64_t batch = run->input.extents.batch;
  skv_inputs_t inputs = skv__data_inputs(&run->data, &run->input, step);
  skv_outputs_t outputs = skv__data_outputs(&run->data, &run->input, run->plan, step);
  for (int64_t sequence = 0; sequence < batch; ++sequence) {
    run->lengths[sequence] = step->q_count;
    run->lengths[batch + sequence] = step->k_tokens;
    run->lengths[2 * batch + sequence] = step->q_start;
  }
  inputs.q_tokens = run->lengths;
  inputs.k_tokens = run->lengths + batch;
  inputs.q_start = run->lengths + 2 * batch;
  outputs.bits = &run->bits;
  double begin = skv__comm_now();
  SKV_TRY(take_context_error(run,
                             skv_execute(run->plan, &inputs, &outputs, run->workspace.data,
                                         (size_t)run->info.workspace_bytes, NULL),
                             error));
  run->wall_seconds += skv__comm_now() - begin;
  skv_times_t times = {.struct_bytes = sizeof times};
  SKV_TRY(skv_plan_times(run->plan, &times));
  run->times.compute_seconds += times.compute_seconds;
  run->times.communicate_seconds += times.communicate_seconds;
  run->times.wait_seconds += times.wait_seconds;
  if (run->log)
    skv__order_log_next_call(run->log);
  return SKV_OK;
}

static skv_status_t compute(run_t *run, skv__error_t *error) {
  const skv__job_extents_t *extents = &run->input.extents;
  int64_t steps = skv__step_count(&run->job, extents);
  for (int64_t i = 0; i < steps; ++i) {
    skv__step_t step = skv__step_at(&run->job, extents, i);
    skv__progress_set(run->progress, "attention", i, steps > 1 ? steps : 0);
    SKV_TRY(execute_step(run, &step, error));
    /* A rank that cannot write still takes part: all hear of it in the end. */
    skv__error_t *write_error = error;
    if (write_error->status == SKV_OK)
      skv__results_write(&run->results, &run->data, &run->input, run->plan, &step, write_error);
  }
  return error->status;
}

static skv_status_t finish(run_t *run, skv__error_t *error) {
  skv__comm_t *comm = run->session.context->comm;
  SKV_TRY(skv__results_commit(&run->results, &run->session, error));
  if (run->log)
    SKV_TRY(skv__order_log_write(run->log, comm, run->job.order_log,
                                 skv_order_id(run->session.context, &run->problem), error));
  SKV_TRY(take_context_error(run, skv__comm_sum(comm, &run->bits, 1, "bits"), error));
  SKV_TRY(skv__times_collect(&run->all_times, &run->times, run->wall_seconds, &run->info,
                             &run->session, error));
  if (!run->job.check)
    return SKV_OK;
  return skv__check(&run->verdict, &run->data, &run->input, &run->job, run->plan, &run->session,
                    run->progress, error);
}

static skv_status_t run_all(run_t *run, skv__error_t *error) {
  run->progress = skv__progress_start(!skv__session_speaks(&run->session));
  skv_status_t status = prepare(run, error);
  if (status == SKV_OK)
    status = load(run, error);
  if (status == SKV_OK) {
    compute(run, error);
    status = skv__session_agree(&run->session, NULL, 0, error);
  }
  if (status == SKV_OK)
    status = finish(run, error);
  skv__progress_stop(run->progress);
  return status;
}

static int report(const run_t *run) {
  skv__report_t all = {.job = &run->job,
                       .session = &run->session,
                       .input = &run->input,
                       .plan = run->plan,
                       .info = run->info,
                       .times = run->all_times,
                       .verdict = run->job.check ? &run->verdict : NULL,
                       .steps = skv__step_count(&run->job, &run->input.extents),
                       .bits = run->bits};
  int code = skv__session_speaks(&run->session) ? skv__report_print(&all) : SKV__EXIT_OK;
  return code == SKV__EXIT_OK && run->job.check && !run->verdict.passed ? SKV__EXIT_DIFFERENT
                                                                        : code;
}

static void release(run_t *run) {
  skv__results_discard(&run->results);
  skv__data_free(&run->data);
  skv__pages_unmap(&run->workspace);
  free(run->lengths);
  skv_plan_destroy(run->plan);
  skv__order_log_free(run->log);
  skv__input_close(&run->input);
}

/* The command line has been read, rightly or not (usage). */
static int start(run_t *run, skv__error_t *usage) {
  skv__error_t error = {0};
  if (usage->status != SKV_OK && !skv__launcher().present) {
    skv__complain(usage);
    return SKV__EXIT_USAGE;
  }
  if (usage->status != SKV_OK)
    run->job = skv__job_defaults(run->job.decode);
  skv__session_options_t options = skv__job_session(&run->job);
  int code;
  if (skv__session_open(&run->session, &options, &error) != SKV_OK)
    code = skv__session_complain(&run->session, &error, true);
  else if (skv__session_agree(&run->session, NULL, 0, usage) != SKV_OK)
    code = skv__session_complain(&run->session, usage, true);
  else if (run_all(run, &error) != SKV_OK)
    code = skv__session_complain(&run->session, &error, false);
  else
    code = report(run);
  release(run);
  return skv__session_close(&run->session, code);
}

static int attention(const char *command, bool decode, int argc, const char **argv) {
  run_t run = {.job = skv__job_defaults(decode)};
  skv__option_t table[SKV__JOB_TABLE_MAX];
  int32_t count = skv__job_table(&run.job, ~0u, table);
  skv__arguments_t arguments = {0};
  skv__error_t usage = {0};
  int code = SKV__EXIT_OK;
  if (skv__options_read(command, table, count, &arguments, argc, argv, &usage) == SKV_OK &&
      !arguments.help)
    skv__job_check(&run.job, &usage);
  if (!arguments.help)
    code = start(&run, &usage);
  else if (skv__launcher_first())
    skv__options_help(command, table, count);
  skv__arguments_free(&arguments);
  return code;
}

int skv__cmd_prefill(int argc, const char **argv) {
  return attention("prefill", false, argc, argv);
}

int skv__cmd_decode(int argc, const char **argv) {
  return attention("decode", true, argc, argv);
}
