/* cmd_attention.c: splitkv prefill and splitkv decode. */
#include "context.h"
#include "launch/exit_codes.h"
#include "launch/job_run.h"
#include "launch/launcher.h"

/* After the executes: files get their names, figures are collected, the result is checked. */
static skv_status_t finish(skv__job_run_t *run, skv__report_t *report, skv__verdict_t *verdict,
                           skv__error_t *error) {
  skv__session_t *session = run->session;
  skv__comm_t *comm = session->context->comm;
  SKV_TRY(skv__results_commit(&run->results, session, error));
  if (run->log)
    SKV_TRY(skv__order_log_write(run->log, comm, run->job->order_log,
                                 skv_order_id(session->context, &run->problem), error));
  report->bits = run->bits;
  report->differing = (uint64_t)run->differing;
  if (skv__comm_sum(comm, &report->bits, 1, "bits") != SKV_OK ||
      skv__comm_sum(comm, &report->differing, 1, "repeats that differ") != SKV_OK)
    return skv__fail(error, session->context->error.status, "%s", session->context->error.text);
  SKV_TRY(skv__times_collect(&report->times, &run->times, run->wall_seconds, &run->info, session,
                             error));
  if (!run->job->check)
    return SKV_OK;
  report->verdict = verdict;
  return skv__check(verdict, &run->data, &run->input, run->job, run->plan, session, run->progress,
                    error);
}

/* Everything between the opening and the closing of the session. Returns the exit code. */
static int run_and_report(const skv__job_options_t *job, skv__session_t *session) {
  skv__job_run_t run;
  skv__verdict_t verdict;
  skv__report_t report = {.job = job, .session = session};
  skv__error_t error = {0};
  int code = SKV__EXIT_OK;
  bool speaks = skv__session_speaks(session);
  skv__progress_t *progress = skv__progress_start(!speaks);
  skv_status_t status = skv__job_run(&run, job, session, progress, &error);
  if (status == SKV_OK)
    status = finish(&run, &report, &verdict, &error);
  skv__progress_stop(progress);
  if (status != SKV_OK) {
    code = skv__session_complain(session, &error, false);
  } else {
    report.input = &run.input;
    report.plan = run.plan;
    report.info = run.info;
    report.steps = skv__step_count(job, &run.input.extents);
    report.repeats = run.repeats;
    if (speaks)
      code = skv__report_print(&report);
    if (code == SKV__EXIT_OK && (report.differing || (report.verdict && !verdict.passed)))
      code = SKV__EXIT_DIFFERENT;
  }
  skv__job_run_free(&run);
  return code;
}

/* The command line has been read, rightly or not (usage). */
static int start(const skv__job_options_t *job, skv__error_t *usage) {
  skv__error_t error = {0};
  if (usage->status != SKV_OK && !skv__launcher().present) {
    skv__complain(usage);
    return SKV__EXIT_USAGE;
  }
  /* What is wrong with one rank's line is told to all, at the --timeout that all were given. */
  skv__session_options_t options = skv__job_session(job);
  skv__session_t session;
  int code;
  if (skv__session_open(&session, &options, &error) != SKV_OK)
    code = skv__session_complain(&session, &error, true);
  else if (skv__session_agree(&session, NULL, 0, usage) != SKV_OK)
    code = skv__session_complain(&session, usage, true);
  else
    code = run_and_report(job, &session);
  return skv__session_close(&session, code);
}

static int attention(const char *command, bool decode, int argc, const char **argv) {
  skv__job_options_t job = skv__job_defaults(decode);
  skv__option_t table[SKV__JOB_TABLE_MAX];
  int32_t count = skv__job_table(&job, ~0u, table);
  skv__arguments_t arguments = {0};
  skv__error_t usage = {0};
  int code = SKV__EXIT_OK;
  if (skv__options_read(command, table, count, &arguments, argc, argv, &usage) == SKV_OK &&
      !arguments.help)
    skv__job_check(&job, &usage);
  if (!arguments.help)
    code = start(&job, &usage);
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
