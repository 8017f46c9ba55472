/* job_run.c: see job_run.h. */
#include "launch/job_run.h"

#include <stdlib.h>

#include "context.h"

static skv_status_t take_context_error(skv__job_run_t *run, skv_status_t status,
                                       skv__error_t *error) {
  if (status == SKV_OK)
    return SKV_OK;
  return skv__fail(error, status, "%s", skv_context_error(run->session->context));
}

/* Input and plan: all ranks go on with the same work, or end with the same error. */
static skv_status_t prepare(skv__job_run_t *run, skv__error_t *error) {
  skv__fact_t facts[SKV__INPUT_FACTS] = {0};
  skv_plan_options_t options;
  skv__job_extents_t extents = {0};
  size_t count = 0;
  if (skv__input_open(&run->input, run->job, error) == SKV_OK) {
    extents = run->input.extents;
    run->input.seed.threads = run->session->binding.threads;
    if (run->job->chunk > 0 && run->job->chunk < extents.q_tokens)
      extents.q_tokens = run->job->chunk;
    count = skv__input_facts(&run->input, run->job, facts);
    skv__job_problem(run->job, &extents, &run->problem, error);
  }
  SKV_TRY(skv__session_agree(run->session, facts, count, error));
  SKV_TRY(skv__job_plan_options(run->job, &options, error));
  if (run->job->order_log) {
    run->log =
        skv__order_log_create(run->session->rank, extents.value_head_dim, run->job->order_states);
    if (!run->log)
      skv__fail(error, SKV_MEMORY, "no memory for the order log");
    SKV_TRY(skv__session_agree(run->session, NULL, 0, error));
    options.observer = skv__order_log_observe;
    options.observer_user = run->log;
  }
  SKV_TRY(take_context_error(
      run, skv_plan_create(&run->plan, run->session->context, &run->problem, &options), error));
  run->info.struct_bytes = sizeof run->info;
  return take_context_error(run, skv_plan_info(run->plan, &run->info), error);
}

/* Memory, this rank's part of the tensors, and the output files. */
static skv_status_t load(skv__job_run_t *run, skv__error_t *error) {
  const int64_t workspace[] = {run->info.workspace_bytes};
  int64_t batch = run->input.extents.batch;
  run->on_gpu = run->session->context->kernel->backend == SKV_BACKEND_CUDA;
  skv__data_map(&run->data, &run->input, run->plan, run->session, error);
  if (run->on_gpu)
    SKV_TRY(skv__mirror_fits(&run->data, run->info.workspace_bytes, run->session, error));
  if (error->status == SKV_OK)
    skv__data_read(&run->data, &run->input, run->job, run->plan, run->session, run->progress,
                   error);
  if (error->status == SKV_OK && run->on_gpu)
    skv__mirror_open(&run->mirror, &run->data, run->info.workspace_bytes, error);
  else if (error->status == SKV_OK)
    skv__pages_map(&run->workspace, workspace, 1, 1, "the workspace", error);
  run->lengths = calloc((size_t)batch * 3, sizeof *run->lengths);
  if (!run->lengths)
    skv__fail(error, SKV_MEMORY, "no memory for lengths");
  SKV_TRY(skv__session_agree(run->session, NULL, 0, error));
  return skv__results_open(&run->results, &run->input, run->job, run->problem.out_dtype,
                           run->session, error);
}

static skv_status_t execute(skv__job_run_t *run, const skv_inputs_t *inputs,
                            const skv_outputs_t *outputs, skv__error_t *error) {
  void *workspace = run->on_gpu ? run->mirror.workspace.data : run->workspace.data;
  return take_context_error(
      run,
      skv_execute(run->plan, inputs, outputs, workspace, (size_t)run->info.workspace_bytes, NULL),
      error);
}

static skv_status_t execute_on_cpu(skv__job_run_t *run, const skv_inputs_t *inputs,
                                   skv_outputs_t *outputs, skv__error_t *error) {
  outputs->bits = &run->bits;
  double begin = skv__comm_now();
  SKV_TRY(execute(run, inputs, outputs, error));
  run->wall_seconds += skv__comm_now() - begin;
  skv_times_t times = {.struct_bytes = sizeof times};
  SKV_TRY(skv_plan_times(run->plan, &times));
  run->times.compute_seconds += times.compute_seconds;
  run->times.communicate_seconds += times.communicate_seconds;
  run->times.wait_seconds += times.wait_seconds;
  return SKV_OK;
}

/* All ranks begin together, so that one's time is not another's. */
static skv_status_t line_up(skv__job_run_t *run, skv__error_t *error) {
  SKV_TRY(skv__mirror_wait(run->session, error));
  return take_context_error(run, skv__comm_barrier(run->session->context->comm, "line-up"), error);
}

/* Digests cost a GPU its fastest path. They come from a first execute; the second, without them,
 * is measured, and is the one whose results are kept. Kernels are loaded by the first that needs
 * them: at the first step that is one more. An order log is of one execute, which is not timed for
 * its own sake. */
static skv_status_t execute_on_gpu(skv__job_run_t *run, const skv_inputs_t *inputs,
                                   skv_outputs_t *outputs, bool first, skv__error_t *error) {
  outputs->bits = run->mirror.bits;
  if (!run->log) {
    SKV_TRY(execute(run, inputs, outputs, error));
    outputs->bits = NULL;
    if (first)
      SKV_TRY(execute(run, inputs, outputs, error));
  }
  SKV_TRY(line_up(run, error));
  double begin = skv__comm_now();
  SKV_TRY(execute(run, inputs, outputs, error));
  SKV_TRY(skv__mirror_wait(run->session, error));
  run->wall_seconds += skv__comm_now() - begin;
  run->times.compute_seconds = run->wall_seconds;
  return SKV_OK;
}

static skv_status_t execute_step(skv__job_run_t *run, const skv__step_t *step,
                                 skv__error_t *error) {
  int64_t batch = run->input.extents.batch;
  const skv__data_t *data = run->on_gpu ? &run->mirror.data : &run->data;
  skv_inputs_t inputs = skv__data_inputs(data, &run->input, step);
  skv_outputs_t outputs = skv__data_outputs(data, &run->input, run->plan, step);
  for (int64_t sequence = 0; sequence < batch; ++sequence) {
    run->lengths[sequence] = step->q_count;
    run->lengths[batch + sequence] = step->k_tokens;
    run->lengths[2 * batch + sequence] = step->q_start;
  }
  inputs.q_tokens = run->lengths;
  inputs.k_tokens = run->lengths + batch;
  inputs.q_start = run->lengths + 2 * batch;
  if (run->on_gpu) {
    SKV_TRY(execute_on_gpu(run, &inputs, &outputs, step->q_begin == 0, error));
    SKV_TRY(skv__mirror_fetch(&run->mirror, &run->data, &run->input, run->plan, step, &run->bits,
                              error));
  } else {
    SKV_TRY(execute_on_cpu(run, &inputs, &outputs, error));
  }
  if (run->log)
    skv__order_log_next_call(run->log);
  return SKV_OK;
}

static skv_status_t compute(skv__job_run_t *run, skv__error_t *error) {
  const skv__job_extents_t *extents = &run->input.extents;
  int64_t steps = skv__step_count(run->job, extents);
  skv__error_t write_error = {0};
  for (int64_t i = 0; i < steps; ++i) {
    skv__step_t step = skv__step_at(run->job, extents, i);
    skv__progress_set(run->progress, "attention", i, steps > 1 ? steps : 0);
    SKV_TRY(execute_step(run, &step, error));
    /* A rank that cannot write still takes part in what follows: all hear of it in the end. */
    if (write_error.status == SKV_OK)
      skv__results_write(&run->results, &run->data, &run->input, run->plan, &step, &write_error);
  }
  *error = write_error;
  return error->status;
}

skv_status_t skv__job_run(skv__job_run_t *run, const skv__job_options_t *job,
                          skv__session_t *session, skv__progress_t *progress, skv__error_t *error) {
  *run = (skv__job_run_t){.job = job, .session = session, .progress = progress};
  SKV_TRY(prepare(run, error));
  SKV_TRY(load(run, error));
  compute(run, error);
  return skv__session_agree(session, NULL, 0, error);
}

void skv__job_run_free(skv__job_run_t *run) {
  skv__results_discard(&run->results);
  skv__mirror_free(&run->mirror);
  skv__data_free(&run->data);
  skv__pages_unmap(&run->workspace);
  free(run->lengths);
  skv_plan_destroy(run->plan);
  skv__order_log_free(run->log);
  skv__input_close(&run->input);
}
