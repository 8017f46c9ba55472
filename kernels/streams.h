/* streams.h: what a device offers besides attention: a second stream beside the caller's, order
 * between the two, and copies. Kernels of the CPU have none of it: their work is done on return. */
#ifndef SKV_STREAMS_H
#define SKV_STREAMS_H

#include <stdbool.h>
#include <stddef.h>

#include "error.h"
#include "kernels/job.h"

/* The events that a plan's resources hold. */
typedef enum skv__event {
  SKV__EVENT_FORK,                              /* the caller's stream hands over to the second */
  SKV__EVENT_JOIN,                              /* and the second hands back */
  SKV__EVENT_BANK,                              /* [2] the exchange of a bank is over */
  SKV__EVENT_ARRIVED = SKV__EVENT_BANK + 2,     /* [3] a buffer of keys and values is filled */
  SKV__EVENT_ATTENDED = SKV__EVENT_ARRIVED + 3, /* [3] and may be filled again */
  SKV__EVENT_COUNT = SKV__EVENT_ATTENDED + 3
} skv__event_t;

/* What a clock on the caller's stream is told: an execute starts, a part of it that computes begins
 * and ends, and all of it is over. */
typedef enum skv__tick {
  SKV__TICK_START,
  SKV__TICK_BEGIN,
  SKV__TICK_END,
  SKV__TICK_OVER
} skv__tick_t;

/* [tokens][heads] runs of bytes, to where they lie dense. Strides and head_bytes are of bytes. */
typedef struct skv__pack {
  const void *from;
  void *to;
  int64_t tokens, heads, head_bytes;
  int64_t token_stride, head_stride;
} skv__pack_t;

typedef struct skv__streams {
  /* Of the plan's resources: takes work before the caller's stream where both have some. */
  void *(*second)(void *resources);
  /* What is on `stream` by now; and: what comes on `stream` from now on waits for what was marked
   * last. Nothing waits on the host, and a CUDA graph may capture both. */
  skv_status_t (*mark)(void *resources, skv__event_t event, void *stream, skv__error_t *error);
  skv_status_t (*follow)(void *resources, skv__event_t event, void *stream, skv__error_t *error);
  skv_status_t (*pack)(const skv__pack_t *packs, int32_t count, void *stream, skv__error_t *error);
  /* To the host, once `stream` is finished: waits for the copy alone. */
  skv_status_t (*fetch)(void *to, const void *from, size_t bytes, void *stream,
                        skv__error_t *error);
  /* Whether all that was given to `stream` is done, or what went wrong there. Never waits. */
  skv_status_t (*finished)(void *stream, bool *yes, skv__error_t *error);
  /* Or NULL, both. The second is for after a wait: seconds of the parts that compute, and of the
   * whole execute; zeros where nothing was measured, as in a captured graph. */
  skv_status_t (*tick)(void *resources, skv__tick_t tick, void *stream, skv__error_t *error);
  void (*times)(void *resources, double *computed, double *total);
} skv__streams_t;

#endif
