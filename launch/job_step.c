/* job_step.c: one execute of a job, as often as --repeat asks. */
#include <stdlib.h>
#include <xxhash.h>

#include "context.h"
#include "launch/job_run.h"

static skv_status_t execute(skv__job_run_t *run, const skv_inputs_t *inputs,
                            const skv_outputs_t *outputs, skv__error_t *error) {
  void *workspace = run->on_gpu ? run->mirror.workspace.data : run->workspace.data;
  skv_status_t status =
      skv_execute(run->plan, inputs, outputs, workspace, (size_t)run->info.workspace_bytes, NULL);
  if (status != SKV_OK)
    return skv__fail(error, status, "%s", skv_context_error(run->session->context));
  return SKV_OK;
}

/* All ranks begin together, so that one's time is not another's. */
static skv_status_t line_up(skv__job_run_t *run, skv__error_t *error) {
  skv_context_t *context = run->session->context;
  SKV_TRY(skv__mirror_wait(run->session, error));
  skv_status_t status = skv__comm_barrier(context->comm, "line-up before the measured execute");
  return status == SKV_OK ? SKV_OK : skv__fail(error, status, "%s", context->error.text);
}

static skv_status_t execute_on_cpu(skv__job_run_t *run, const skv_inputs_t *inputs,
                                   skv_outputs_t *outputs, uint64_t *bits, skv__sample_t *sample,
                                   skv__error_t *error) {
  outputs->bits = bits;
  double begin = skv__comm_now();
  SKV_TRY(execute(run, inputs, outputs, error));
  sample->wall_seconds = skv__comm_now() - begin;
  return skv_plan_times(run->plan, &sample->times);
}

/* Digests cost a GPU its fastest path. They come from an execute before the first that is measured,
 * which goes without; its results are kept. An order log is of one execute. Where nothing in it
 * waits, an execute is measured as one step of many: it is enqueued while the GPU has another to do
 * first, which also tells what of its time is computing: marks of that cost microseconds. Else it
 * counts from when all ranks call it. */
static skv_status_t execute_on_gpu(skv__job_run_t *run, const skv_inputs_t *inputs,
                                   skv_outputs_t *outputs, bool digests, skv__sample_t *sample,
                                   skv__error_t *error) {
  bool waits = run->session->ranks > 1 && run->session->chosen.transport != SKV__TRANSPORT_NCCL;
  outputs->bits = digests ? run->mirror.bits : NULL;
  if (!run->log) {
    if (digests)
      SKV_TRY(execute(run, inputs, outputs, error));
    outputs->bits = NULL;
    if (digests && run->session->ranks > 1)
      SKV_TRY(execute(run, inputs, outputs, error)); /* loads the kernels */
    SKV_TRY(skv__mirror_clear(&run->mirror, error));
  }
  SKV_TRY(line_up(run, error));
  run->plan->clocked = true;
  if (!run->log && !waits)
    SKV_TRY(execute(run, inputs, outputs, error));
  run->plan->clocked = run->log || waits;
  SKV_TRY(skv__mirror_begin(&run->mirror, error));
  SKV_TRY(execute(run, inputs, outputs, error));
  SKV_TRY(skv__mirror_end(&run->mirror, error));
  SKV_TRY(skv__mirror_wait(run->session, error));
  SKV_TRY(skv__mirror_seconds(&run->mirror, &sample->wall_seconds, error));
  SKV_TRY(skv_plan_times(run->plan, &sample->times));
  if (run->session->ranks == 1)
    sample->times.compute_seconds = sample->wall_seconds;
  skv__plan_clock(run->plan, &sample->times);
  return SKV_OK;
}

/* What this rank has of O and LSE by now. */
static uint64_t digest_results(const skv__job_run_t *run) {
  uint64_t o = XXH64(run->data.o.data, run->data.o.bytes, 0);
  return XXH64(run->data.lse.data, run->data.lse.bytes, o);
}

static int compare_samples(const void *a, const void *b) {
  const skv__sample_t *x = a, *y = b;
  return x->wall_seconds < y->wall_seconds ? -1 : x->wall_seconds > y->wall_seconds;
}

/* The step's time is that of its median execute. */
static void add_median(skv__job_run_t *run) {
  qsort(run->samples, (size_t)run->repeats, sizeof *run->samples, compare_samples);
  const skv__sample_t *median = &run->samples[run->repeats / 2];
  run->wall_seconds += median->wall_seconds;
  run->times.compute_seconds += median->times.compute_seconds;
  run->times.communicate_seconds += median->times.communicate_seconds;
  run->times.wait_seconds += median->times.wait_seconds;
}

static skv_status_t repeat_step(skv__job_run_t *run, const skv__step_t *step,
                                const skv_inputs_t *inputs, skv_outputs_t *outputs,
                                skv__error_t *error) {
  uint64_t first_bits = 0, first_digest = 0;
  for (int64_t i = 0; i < run->repeats; ++i) {
    bool first = i == 0;
    uint64_t bits = 0;
    run->samples[i] = (skv__sample_t){.times = {.struct_bytes = sizeof(skv_times_t)}};
    if (run->on_gpu) {
      SKV_TRY(execute_on_gpu(run, inputs, outputs, first, &run->samples[i], error));
      SKV_TRY(
          skv__mirror_fetch(&run->mirror, &run->data, &run->input, run->plan, step, &bits, error));
    } else {
      SKV_TRY(execute_on_cpu(run, inputs, outputs, &bits, &run->samples[i], error));
    }
    uint64_t digest = run->repeats > 1 ? digest_results(run) : 0;
    if (first)
      first_bits = bits, first_digest = digest, run->bits += bits;
    else
      run->differing += digest != first_digest || (!run->on_gpu && bits != first_bits);
  }
  add_median(run);
  return SKV_OK;
}

skv_status_t skv__job_step(skv__job_run_t *run, const skv__step_t *step, skv__error_t *error) {
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
  SKV_TRY(repeat_step(run, step, &inputs, &outputs, error));
  if (run->log)
    skv__order_log_next_call(run->log);
  return SKV_OK;
}
