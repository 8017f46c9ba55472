/* context.c: a process's place among the ranks. */
#define _GNU_SOURCE
#include "context.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TIMEOUT_SECONDS = 60, MOST_TIMEOUT_SECONDS = 1000000000, MOST_THREADS = 4096 };

/* How many CPUs this process may run on. */
static int32_t allowed_cpus(void) {
  cpu_set_t sets[8]; /* 8192 CPUs: the kernel refuses a mask that is smaller than its own */
  if (sched_getaffinity(0, sizeof sets, sets) != 0)
    return 1;
  return CPU_COUNT_S(sizeof sets, sets);
}

static skv_status_t read_options(skv_context_options_t *options, const skv_context_options_t *given,
                                 skv__error_t *error) {
  *options = (skv_context_options_t){.timeout_seconds = DEFAULT_TIMEOUT_SECONDS};
  if (given &&
      (given->struct_bytes < sizeof given->struct_bytes || given->struct_bytes > sizeof *options))
    return skv__fail(error, SKV_INVALID,
                     "context options: struct_bytes is %zu, not sizeof(skv_context_options_t), %zu",
                     given->struct_bytes, sizeof *options);
  skv_context_options_t read = {0};
  if (given)
    memcpy(&read, given, given->struct_bytes);
  if (read.threads < 0 || read.threads > MOST_THREADS)
    return skv__fail(error, SKV_INVALID, "context options: threads is %d, not 0 to %d",
                     (int)read.threads, (int)MOST_THREADS);
  if (!(read.timeout_seconds >= 0 && read.timeout_seconds <= MOST_TIMEOUT_SECONDS))
    return skv__fail(error, SKV_INVALID, "context options: timeout_seconds is %g, not 0 to 1e9",
                     read.timeout_seconds);
  if ((unsigned)read.backend > SKV_BACKEND_CUDA)
    return skv__fail(error, SKV_INVALID, "context options: backend is %d, which is none",
                     (int)read.backend);
  if (read.timeout_seconds == 0)
    read.timeout_seconds = DEFAULT_TIMEOUT_SECONDS;
  if (read.threads == 0)
    read.threads = allowed_cpus();
  *options = read;
  return SKV_OK;
}

/* The first 8 characters of the version, so that ranks of different builds find out. */
static uint64_t version_number(void) {
  char text[8] = {0};
  uint64_t number;
  strncpy(text, SKV_VERSION, sizeof text);
  memcpy(&number, text, sizeof number);
  return number;
}

void skv__context_stop(void *context) {
  for (skv__window_t *window = ((skv_context_t *)context)->windows; window; window = window->next)
    *window->stop = 1;
}

/* All ranks open their wires, or none goes on. */
static skv_status_t open_wire(skv_context_t *context, skv__wire_opener_t open) {
  skv__error_t mine = {0};
  context->wire = context->comm;
  if (!open || context->kernel->backend != SKV_BACKEND_CUDA || context->comm->ranks == 1)
    return SKV_OK;
  skv_status_t status = open(&context->wire, context->comm, &mine);
  if (status != SKV_OK)
    context->wire = context->comm;
  if (context->comm->broken)
    return skv__fail(&context->error, status, "%s", mine.text);
  return skv__comm_agree(context->comm, NULL, 0, status, mine.text);
}

skv_status_t skv__context_create(skv_context_t **context, skv__comm_opener_t open, void *argument,
                                 skv__wire_opener_t device_wire,
                                 const skv_context_options_t *given) {
  skv_context_t *made = calloc(1, sizeof *made);
  *context = made;
  if (!made)
    return SKV_MEMORY;
  /* What fails on this rank alone is told to the others, so that all end alike. */
  skv_context_options_t options;
  skv__error_t mine = {0};
  skv_status_t status = read_options(&options, given, &mine);
  if (status == SKV_OK)
    made->kernel = skv__kernel_pick(options.backend, options.kernel, &mine);
  if (status == SKV_OK && !made->kernel)
    status = mine.status;
  made->threads = options.threads;
  SKV_TRY(open(&made->comm, options.timeout_seconds, argument, &made->error));
  const skv__fact_t facts[] = {{"version", version_number()},
                               {"backend", made->kernel ? made->kernel->backend : 0},
                               {"timeout in ms", (uint64_t)(options.timeout_seconds * 1000)}};
  status = skv__comm_agree(made->comm, facts, sizeof facts / sizeof *facts, status, mine.text);
  if (status == SKV_OK)
    status = open_wire(made, device_wire);
  if (status == SKV_OK) {
    made->wire->lost = skv__context_stop;
    made->wire->lost_user = made;
  }
  made->agreed = status == SKV_OK;
  return status;
}

static skv_status_t open_self(skv__comm_t **comm, double timeout_seconds, void *argument,
                              skv__error_t *error) {
  (void)argument;
  return skv__comm_create_self(comm, timeout_seconds, error);
}

skv_status_t skv_context_create(skv_context_t **context, const skv_context_options_t *options) {
  return skv__context_create(context, open_self, NULL, NULL, options);
}

skv_status_t skv__context_leave(skv_context_t *context) {
  return context->wire ? skv__comm_leave(context->wire) : SKV_OK;
}

void skv_context_destroy(skv_context_t *context) {
  if (!context)
    return;
  if (context->wire != context->comm)
    skv__comm_destroy(context->wire);
  skv__comm_destroy(context->comm);
  free(context);
}

const char *skv_context_error(const skv_context_t *context) {
  return context ? context->error.text : "";
}

int32_t skv_context_rank(const skv_context_t *context) {
  return context->comm ? context->comm->rank : 0;
}

int32_t skv_context_ranks(const skv_context_t *context) {
  return context->comm ? context->comm->ranks : 0;
}

const char *skv_context_kernel(const skv_context_t *context) {
  return context->kernel ? context->kernel->name : "";
}
