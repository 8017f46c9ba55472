/* context_wait.c: where the host waits for a device. */
#include "comm/wait.h"

#include "context.h"

/* Work of this rank's own device. The others are told that it goes on. */
static skv_status_t wait_alone(skv_context_t *context, void *stream) {
  uint32_t idle = 0;
  bool done = false;
  for (;;) {
    SKV_TRY(context->kernel->streams->finished(stream, &done, &context->error));
    if (done)
      return SKV_OK;
    SKV_TRY(skv__comm_pulse(context->comm));
    skv__comm_pause(&idle);
  }
}

/* Work that other ranks have a part in. */
static skv_status_t wait_together(skv_context_t *context, void *stream, bool counted) {
  skv__comm_t *wire = context->wire;
  skv__watch_t watch;
  bool done = false;
  SKV_TRY(skv__watch_begin(context->comm, &watch, counted));
  for (;;) {
    SKV_TRY(context->kernel->streams->finished(stream, &done, &context->error));
    SKV_TRY(wire->transport->fault(wire->impl, &context->error));
    if (done)
      return skv__watch_end(context->comm, &watch);
    SKV_TRY(skv__watch_idle(context->comm, &watch, false, "work on the GPUs"));
  }
}

skv_status_t skv__context_wait(skv_context_t *context, void *stream, bool counted) {
  skv__comm_t *wire = context->wire;
  if (wire->broken)
    return context->error.status != SKV_OK ? context->error.status : SKV_TRANSPORT;
  skv_status_t status = wire->transport->fault ? wait_together(context, stream, counted)
                                               : wait_alone(context, stream);
  if (status != SKV_OK)
    skv__comm_break(wire);
  return status;
}

skv_status_t skv_wait(skv_context_t *context, void *stream) {
  if (!context->kernel || !context->kernel->streams)
    return SKV_OK;
  if (!context->wire->broken)
    skv__error_clear(&context->error);
  return skv__context_wait(context, stream, true);
}
