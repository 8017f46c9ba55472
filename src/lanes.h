/* lanes.h: the streams of an execute: the caller's, on which rows are evaluated, and a second one
 * for what travels, so that the two overlap. On the CPU, and with one rank, there is only the
 * caller's, and nothing to put in order. */
#ifndef SKV_LANES_H
#define SKV_LANES_H

#include "kernels/kernel.h"

typedef struct skv__lanes {
  const skv__streams_t *streams; /* NULL: one lane */
  void *resources;
  void *main, *second;
  skv__error_t *error;
} skv__lanes_t;

static inline skv__lanes_t skv__lanes(const skv__kernel_t *kernel, void *resources, int32_t ranks,
                                      void *stream, skv__error_t *error) {
  skv__lanes_t lanes = {ranks > 1 ? kernel->streams : NULL, resources, stream, stream, error};
  if (lanes.streams)
    lanes.second = lanes.streams->second(resources);
  return lanes;
}

static inline skv_status_t skv__lanes_mark(const skv__lanes_t *lanes, skv__event_t event,
                                           void *stream) {
  return lanes->streams ? lanes->streams->mark(lanes->resources, event, stream, lanes->error)
                        : SKV_OK;
}

static inline skv_status_t skv__lanes_follow(const skv__lanes_t *lanes, skv__event_t event,
                                             void *stream) {
  return lanes->streams ? lanes->streams->follow(lanes->resources, event, stream, lanes->error)
                        : SKV_OK;
}

/* What comes on the second lane waits for what is on the main one; and the other way round. */
static inline skv_status_t skv__lanes_fork(const skv__lanes_t *lanes) {
  SKV_TRY(skv__lanes_mark(lanes, SKV__EVENT_FORK, lanes->main));
  return skv__lanes_follow(lanes, SKV__EVENT_FORK, lanes->second);
}
static inline skv_status_t skv__lanes_join(const skv__lanes_t *lanes) {
  SKV_TRY(skv__lanes_mark(lanes, SKV__EVENT_JOIN, lanes->second));
  return skv__lanes_follow(lanes, SKV__EVENT_JOIN, lanes->main);
}

#endif
