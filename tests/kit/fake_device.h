/* fake_device.h: a device that is no device: streams and events of a rank that is a thread, whose
 * work is done by a CPU kernel, late, in any order that the streams and events allow. An executor
 * that forgets an order gets other bits. */
#ifndef KIT_FAKE_DEVICE_H
#define KIT_FAKE_DEVICE_H

#include "comm_threads.h"
#include "context.h"

/* How messages are done: by their stream's order (as NCCL does it), or when a test finds that the
 * stream has come so far (as through host buffers). */
typedef enum kit_wiring { KIT_NO_DEVICE = 0, KIT_ORDERED, KIT_POLLED } kit_wiring_t;

typedef struct kit_device kit_device_t;

/* Gives the context a kernel and a wire of a device of its own, until kit_device_close, which comes
 * before the context is destroyed. `world` is one for the ranks' wires alone. NULL: no memory. */
kit_device_t *kit_device_open(skv_context_t *context, kit_wiring_t wiring, kit_world_t *world,
                              uint64_t seed);
void *kit_device_stream(kit_device_t *device); /* the caller's */
/* Wait for the caller's stream, after which nothing may be left to do. */
skv_status_t kit_device_wait(kit_device_t *device);
void kit_device_close(kit_device_t *device);

#endif
