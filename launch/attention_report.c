/* attention_report.c: what a prefill or decode run says in the end. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "context.h"
#include "launch/attention.h"
#include "launch/exit_codes.h"
#include "launch/place.h"

typedef struct measured {
  double wall, compute, communicate, wait;
  int64_t frontier_nodes, sent_bytes, workspace_bytes;
} measured_t;

static void add_measured(double pair[2], double value, int32_t ranks) {
  pair[0] = value > pair[0] ? value : pair[0];
  pair[1] += value / ranks;
}

static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

skv_status_t skv__times_collect(skv__run_times_t *all, const skv_times_t *times,
                                double wall_seconds, const skv_plan_info_t *info,
                                skv__session_t *session, skv__error_t *error) {
  measured_t mine = {.wall = wall_seconds,
                     .compute = times->compute_seconds,
                     .communicate = times->communicate_seconds,
                     .wait = times->wait_seconds,
                     .frontier_nodes = info->frontier_nodes,
                     .sent_bytes = info->sent_bytes,
                     .workspace_bytes = info->workspace_bytes};
  measured_t *each = calloc((size_t)session->ranks, sizeof *each);
  if (!each)
    return skv__fail(error, SKV_MEMORY, "no memory to collect times");
  *all = (skv__run_times_t){0};
  skv_status_t status =
      skv__comm_gather(session->context->comm, &mine, sizeof mine, each, "times of the run");
  for (int32_t rank = 0; status == SKV_OK && rank < session->ranks; ++rank) {
    if (each[rank].wall > all->wall_seconds)
      all->wall_seconds = each[rank].wall;
    all->mean_wall_seconds += each[rank].wall / session->ranks;
    add_measured(all->compute, each[rank].compute, session->ranks);
    add_measured(all->communicate, each[rank].communicate, session->ranks);
    add_measured(all->wait, each[rank].wait, session->ranks);
    all->frontier_nodes = larger(all->frontier_nodes, each[rank].frontier_nodes);
    all->sent_bytes = larger(all->sent_bytes, each[rank].sent_bytes);
    all->workspace_bytes = larger(all->workspace_bytes, each[rank].workspace_bytes);
  }
  free(each);
  if (status != SKV_OK)
    return skv__fail(error, status, "%s", session->context->error.text);
  return SKV_OK;
}

/* 2 FLOP for each multiply-add of Q K^T and P V, over pairs that see each other. */
static double flop_of(const skv__report_t *report) {
  const skv__job_extents_t *e = &report->input->extents;
  const skv_problem_t *p = &report->plan->problem;
  double pairs = 0.0;
  for (int64_t query = 0; query < e->q_tokens; ++query) {
    int64_t position = e->k_tokens - e->q_tokens + query, first = 0, last = e->k_tokens - 1;
    if (p->window_left_tokens >= 0)
      first = larger(0, position - p->window_left_tokens);
    if (p->window_right_tokens >= 0 && position + p->window_right_tokens < last)
      last = position + p->window_right_tokens;
    if (p->causal && position < last)
      last = position;
    pairs += (double)larger(0, last - first + 1);
  }
  return 2.0 * (double)(e->batch * e->q_heads) * pairs * (double)(e->head_dim + e->value_head_dim);
}

static void print_places(const skv__session_t *session) {
  char gpus[1024];
  skv__stations_text(session->stations, session->ranks, gpus, sizeof gpus);
  printf("transport  %s%s%s%s\n", skv__transport_word(session->chosen.transport),
         gpus[0] && session->chosen.transport == SKV__TRANSPORT_MPI && session->ranks > 1
             ? ", through the host's memory"
             : "",
         session->chosen.why[0] ? ": " : "", session->chosen.why);
  if (gpus[0])
    printf("GPUs       %s\n", gpus);
  printf("binding    rank 0: %s\n", session->binding.text);
}

static void print_work(const skv__report_t *report) {
  const skv__job_extents_t *e = &report->input->extents;
  const skv_problem_t *p = &report->plan->problem;
  printf("splitkv %s on %d rank%s of %d thread%s, kernel %s\n",
         report->job->decode ? "decode" : "prefill", (int)report->session->ranks,
         report->session->ranks == 1 ? "" : "s", (int)report->session->binding.threads,
         report->session->binding.threads == 1 ? "" : "s",
         skv_context_kernel(report->session->context));
  printf("work       %" PRId64 " sequence%s, %" PRId64 " queries (%" PRId64 " rows), %" PRId64
         " keys, %" PRId64 "/%" PRId64 " heads of %" PRId64 ", %s%s\n",
         e->batch, e->batch == 1 ? "" : "s", e->q_tokens, e->batch * e->q_tokens * e->q_heads,
         e->k_tokens, e->q_heads, e->kv_heads, e->head_dim, skv__dtype_word(e->dtype),
         p->causal ? ", causal" : "");
  printf("order      %s, leaf %" PRId64 ", block %" PRId64 ", id %s\n",
         p->order == SKV_ORDER_PINNED ? "pinned" : "free", p->leaf_tokens, p->block_tokens,
         skv__bits_text(skv_order_id(report->session->context, p)).text);
  printf("plan       %s, %s, %s%s: blocks %" PRId64 ", frontier %" PRId64 ", rounds %" PRId64
         ", passes %" PRId64 ", executes %" PRId64 "\n",
         skv__layout_word(report->plan->options.layout),
         skv__direction_word(report->info.direction), skv__reduce_word(report->info.reduce),
         report->info.path == SKV_PATH_DIRECT ? " (direct)" : "", report->info.blocks,
         report->times.frontier_nodes, report->info.rounds, report->info.passes, report->steps);
  if (report->info.blocks < report->session->ranks)
    printf("note       only %" PRId64 " of %d ranks hold keys: a smaller --block would share them "
           "(and is another order, with bits of its own)\n",
           report->info.blocks, (int)report->session->ranks);
  printf("memory     workspace %s, sent %s a rank and execute at most\n",
         skv__bytes_text((double)report->times.workspace_bytes).text,
         skv__bytes_text((double)report->times.sent_bytes).text);
  print_places(report->session);
}

/* Ranks on GPUs: what the devices did, and what the hosts spent on enqueueing messages or moving
 * them. */
static void print_times(const skv__report_t *report) {
  const skv__run_times_t *times = &report->times;
  bool on_gpu = report->session->stations->number != SKV__NO_GPU;
  const double *last = on_gpu ? times->communicate : times->wait;
  const double *middle = on_gpu ? times->wait : times->communicate;
  printf("time       %s", skv__seconds_text(times->wall_seconds).text);
  if (on_gpu && report->session->ranks == 1) {
    printf(" on the GPU\n");
    return;
  }
  if (on_gpu)
    printf(" on the GPUs (mean %s)", skv__seconds_text(times->mean_wall_seconds).text);
  printf(": compute %s (mean %s), %s %s (%s), %s %s (%s)\n",
         skv__seconds_text(times->compute[0]).text, skv__seconds_text(times->compute[1]).text,
         on_gpu ? "wait and merge" : "communicate", skv__seconds_text(middle[0]).text,
         skv__seconds_text(middle[1]).text, on_gpu ? "the hosts' communication" : "wait",
         skv__seconds_text(last[0]).text, skv__seconds_text(last[1]).text);
}

static void print_text(const skv__report_t *report) {
  const skv__run_times_t *times = &report->times;
  double seconds = times->wall_seconds > 0.0 ? times->wall_seconds : 1e-9;
  print_work(report);
  print_times(report);
  if (report->repeats > 1)
    printf("repeats    %s: the time is the median of %" PRId64 "; on all ranks together %" PRIu64
           " had other bits than the first\n",
           report->differing ? "FAIL" : "PASS", report->repeats, report->differing);
  printf("speed      %s\n", skv__rate_text(flop_of(report) / seconds, "FLOP").text);
  const skv__verdict_t *verdict = report->verdict;
  if (verdict)
    printf("check      %s: %" PRId64 " of %" PRId64
           " rows, error %.3g (bound %.3g), LSE error %.3g (bound 1e-05), wrong empty rows %" PRId64
           "\n",
           verdict->passed ? "PASS" : "FAIL", verdict->checked_rows, verdict->rows, verdict->error,
           verdict->bound, verdict->lse_error, verdict->wrong_empty_rows);
  printf("bits %s\n", skv__bits_text(report->bits).text);
}

static void add_pair(cJSON *object, const char *name, const double pair[2]) {
  cJSON *values = cJSON_AddObjectToObject(object, name);
  cJSON_AddNumberToObject(values, "max", pair[0]);
  cJSON_AddNumberToObject(values, "mean", pair[1]);
}

static void add_places(cJSON *object, const skv__session_t *session) {
  cJSON_AddStringToObject(object, "transport", skv__transport_word(session->chosen.transport));
  cJSON_AddStringToObject(object, "transport_reason", session->chosen.why);
  cJSON_AddStringToObject(object, "binding", session->binding.text);
  if (session->stations->number == SKV__NO_GPU)
    return;
  cJSON *gpus = cJSON_AddArrayToObject(object, "gpus");
  for (int32_t rank = 0; rank < session->ranks; ++rank) {
    const skv__station_t *station = &session->stations[rank];
    cJSON *gpu = cJSON_CreateObject();
    cJSON_AddNumberToObject(gpu, "rank", rank);
    cJSON_AddStringToObject(gpu, "host", station->host);
    cJSON_AddNumberToObject(gpu, "gpu", station->number);
    cJSON_AddStringToObject(gpu, "bus_id", station->bus_id);
    cJSON_AddStringToObject(gpu, "name", station->gpu);
    cJSON_AddItemToArray(gpus, gpu);
  }
}

static void add_work(cJSON *object, const skv__report_t *report) {
  const skv__job_extents_t *e = &report->input->extents;
  const skv_problem_t *p = &report->plan->problem;
  const struct {
    const char *name;
    int64_t value;
  } numbers[] = {{"ranks", report->session->ranks},
                 {"threads", report->session->binding.threads},
                 {"batch", e->batch},
                 {"queries", e->q_tokens},
                 {"keys", e->k_tokens},
                 {"capacity", e->capacity_tokens},
                 {"q_heads", e->q_heads},
                 {"kv_heads", e->kv_heads},
                 {"head_dim", e->head_dim},
                 {"value_head_dim", e->value_head_dim},
                 {"rows", e->batch * e->q_tokens * e->q_heads},
                 {"leaf", p->leaf_tokens},
                 {"block", p->block_tokens},
                 {"blocks", report->info.blocks},
                 {"frontier_nodes", report->times.frontier_nodes},
                 {"rounds", report->info.rounds},
                 {"passes", report->info.passes},
                 {"executes", report->steps},
                 {"repeats", report->repeats},
                 {"differing_repeats", (int64_t)report->differing},
                 {"sent_bytes", report->times.sent_bytes},
                 {"workspace_bytes", report->times.workspace_bytes}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i)
    cJSON_AddNumberToObject(object, numbers[i].name, (double)numbers[i].value);
  cJSON_AddBoolToObject(object, "causal", p->causal);
  cJSON_AddStringToObject(object, "dtype", skv__dtype_word(e->dtype));
  cJSON_AddStringToObject(object, "kernel", skv_context_kernel(report->session->context));
  cJSON_AddStringToObject(object, "order", p->order == SKV_ORDER_PINNED ? "pinned" : "free");
  cJSON_AddStringToObject(object, "order_id",
                          skv__bits_text(skv_order_id(report->session->context, p)).text);
  cJSON_AddStringToObject(object, "layout", skv__layout_word(report->plan->options.layout));
  cJSON_AddStringToObject(object, "direction", skv__direction_word(report->info.direction));
  cJSON_AddStringToObject(object, "reduce", skv__reduce_word(report->info.reduce));
  cJSON_AddStringToObject(object, "path",
                          report->info.path == SKV_PATH_DIRECT ? "direct" : "messages");
  add_places(object, report->session);
}

static int print_json(const skv__report_t *report) {
  const skv__run_times_t *times = &report->times;
  cJSON *object = cJSON_CreateObject();
  cJSON_AddStringToObject(object, "command", report->job->decode ? "decode" : "prefill");
  cJSON_AddStringToObject(object, "version", skv_version());
  add_work(object, report);
  cJSON_AddNumberToObject(object, "seconds", times->wall_seconds);
  cJSON_AddNumberToObject(object, "mean_seconds", times->mean_wall_seconds);
  add_pair(object, "compute_seconds", times->compute);
  add_pair(object, "communicate_seconds", times->communicate);
  add_pair(object, "wait_seconds", times->wait);
  double seconds = times->wall_seconds > 0.0 ? times->wall_seconds : 1e-9;
  cJSON_AddNumberToObject(object, "flop_per_second", flop_of(report) / seconds);
  if (report->verdict) {
    cJSON *check = cJSON_AddObjectToObject(object, "check");
    cJSON_AddBoolToObject(check, "passed", report->verdict->passed);
    cJSON_AddNumberToObject(check, "rows", (double)report->verdict->checked_rows);
    cJSON_AddNumberToObject(check, "of_rows", (double)report->verdict->rows);
    cJSON_AddNumberToObject(check, "error", report->verdict->error);
    cJSON_AddNumberToObject(check, "bound", report->verdict->bound);
    cJSON_AddNumberToObject(check, "lse_error", report->verdict->lse_error);
    cJSON_AddNumberToObject(check, "wrong_empty_rows", (double)report->verdict->wrong_empty_rows);
  }
  cJSON_AddStringToObject(object, "bits", skv__bits_text(report->bits).text);
  return skv__print_json(object);
}

int skv__report_print(const skv__report_t *report) {
  if (report->job->json)
    return print_json(report);
  print_text(report);
  return SKV__EXIT_OK;
}
