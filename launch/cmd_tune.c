/* cmd_tune.c: splitkv tune: measures kernels and links, and writes figures for --tuned. */
#include <stdio.h>

#include "context.h"
#include "cost.h"
#include "launch/exit_codes.h"
#include "launch/launcher.h"
#include "launch/options.h"
#include "launch/report.h"
#include "launch/tune.h"

typedef struct tune_options {
  skv__session_options_t session;
  const char *out;
  bool quick;
} tune_options_t;

static void print(const skv__tuned_t *tuned, const char *out) {
  const skv_machine_t *m = &tuned->machine;
  printf("splitkv tune on %d rank%s, kernel %s, transport %s\n", (int)tuned->ranks,
         tuned->ranks == 1 ? "" : "s", tuned->kernel, tuned->transport);
  printf("prefill    %s and %s besides\n", skv__rate_text(m->flop_per_second, "FLOP").text,
         skv__seconds_text(m->prefill_seconds).text);
  printf("decode     %s of K and V and %s besides\n",
         skv__rate_text(m->read_bytes_per_second, "B").text,
         skv__seconds_text(m->decode_seconds).text);
  printf("merge      %s read and written\n", skv__rate_text(m->merge_bytes_per_second, "B").text);
  printf("links      %s, %s a round, %s a message%s\n",
         skv__rate_text(m->bytes_per_second, "B").text, skv__seconds_text(m->round_seconds).text,
         skv__seconds_text(m->message_seconds).text,
         tuned->ranks > 1 ? "" : " (typical: one rank has no links)");
  printf("nodes      %s, %s a round, %s a message%s\n",
         skv__rate_text(m->far_bytes_per_second, "B").text,
         skv__seconds_text(m->far_round_seconds).text,
         skv__seconds_text(m->far_message_seconds).text,
         tuned->far_measured ? "" : " (typical: the ranks are on one node)");
  printf("file       %s\n", out);
}

static int run(skv__session_t *session, const tune_options_t *options) {
  skv__tuned_t tuned;
  skv__error_t error = {0};
  if (skv__tune_measure(&tuned, session, options->quick, &error) == SKV_OK && session->rank == 0)
    skv__tune_write(options->out, &tuned, &error);
  if (skv__session_agree(session, NULL, 0, &error) != SKV_OK)
    return skv__session_complain(session, &error, false);
  if (skv__session_speaks(session))
    print(&tuned, options->out);
  return SKV__EXIT_OK;
}

/* The command line has been read, rightly or not (usage): what is wrong with it is told to all. */
static int start(const tune_options_t *options, skv__error_t *usage) {
  skv__session_t session;
  skv__error_t error = {0};
  int code;
  if (usage->status != SKV_OK && !skv__launcher().present) {
    skv__complain(usage);
    return SKV__EXIT_USAGE;
  }
  if (skv__session_open(&session, &options->session, &error) != SKV_OK)
    code = skv__session_complain(&session, &error, true);
  else if (skv__session_agree(&session, NULL, 0, usage) != SKV_OK)
    code = skv__session_complain(&session, usage, true);
  else
    code = run(&session, options);
  return skv__session_close(&session, code);
}

int skv__cmd_tune(int argc, const char **argv) {
  tune_options_t options = {.session = {.timeout_seconds = 60.0}};
  int64_t threads = 0;
  int bind = 0, transport = 0, backend = 0;
  const skv__option_t table[] = {
      {"out", SKV__TEXT, &options.out, "FILE", "the figures, for --tuned of other commands", 0},
      {"backend", SKV__CHOICE, &backend, "auto|cpu|cuda", "whose kernels are measured", 0},
      {"transport", SKV__CHOICE, &transport, "auto|self|mpi|nccl", "what moves the bytes", 0},
      {"threads", SKV__SIZE, &threads, "N", "of each rank (its share of the cores)", 1},
      {"bind", SKV__CHOICE, &bind, "cores|none", "keep ranks and threads on their cores", 0},
      {"timeout", SKV__NUMBER, &options.session.timeout_seconds, "S",
       "seconds that any wait may last (60)", 0},
      {"quick", SKV__FLAG, &options.quick, "", "small sizes, whose figures mean little", 0}};
  const int32_t count = sizeof table / sizeof *table;
  skv__arguments_t arguments = {0};
  skv__error_t usage = {0};
  int code = SKV__EXIT_OK;
  if (skv__options_read("tune", table, count, &arguments, argc, argv, &usage) == SKV_OK &&
      !arguments.help && !options.out)
    skv__fail(&usage, SKV_INVALID, "tune needs --out FILE; see splitkv tune --help");
  options.session.threads = (int32_t)(threads < 4096 ? threads : 4096);
  options.session.transport = (skv__transport_choice_t)transport;
  options.session.backend = (skv_backend_t)backend;
  options.session.bind = bind == 0;
  if (!arguments.help)
    code = start(&options, &usage);
  else if (skv__launcher_first())
    skv__options_help("tune", table, count);
  skv__arguments_free(&arguments);
  return code;
}
