/* job_run.c: see job_run.h. */
#include "launch/job_run.h"

#include <stdlib.h>

#include "context.h"
#include "launch/tune.h"

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
  if (run->job->tune && error->status == SKV_OK)
    skv__tune_read(run->job->tune, &run->machine, error);
  SKV_TRY(skv__session_agree(run->session, facts, count, error));
  SKV_TRY(skv__job_plan_options(run->job, &options, error));
  options.machine = run->job->tune ? &run->machine : NULL;
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
  run->repeats = run->job->repeat > 0 ? run->job->repeat : 1;
  run->samples = calloc((size_t)run->repeats, sizeof *run->samples);
  if (!run->lengths || !run->samples)
    skv__fail(error, SKV_MEMORY, "no memory for lengths and times");
  SKV_TRY(skv__session_agree(run->session, NULL, 0, error));
  return skv__results_open(&run->results, &run->input, run->job, run->problem.out_dtype,
                           run->session, error);
}

static skv_status_t compute(skv__job_run_t *run, skv__error_t *error) {
  const skv__job_extents_t *extents = &run->input.extents;
  int64_t steps = skv__step_count(run->job, extents);
  skv__error_t write_error = {0};
  for (int64_t i = 0; i < steps; ++i) {
    skv__step_t step = skv__step_at(run->job, extents, i);
    skv__progress_set(run->progress, "attention", i, steps > 1 ? steps : 0);
    SKV_TRY(skv__job_step(run, &step, error));
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
  if (run->on_gpu && run->session->context->comm->broken)
    return; /* giving memory back would wait for what a lost rank has left on the device */
  skv__mirror_free(&run->mirror);
  skv__data_free(&run->data);
  skv__pages_unmap(&run->workspace);
  free(run->lengths);
  free(run->samples);
  skv_plan_destroy(run->plan);
  skv__order_log_free(run->log);
  skv__input_close(&run->input);
}
