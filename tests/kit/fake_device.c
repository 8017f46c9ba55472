#include "fake_device.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "chance.h"

enum { STREAMS = 2, MESSAGES = 4096 };

typedef struct fake_stream fake_stream_t;

/* Work on a stream. `step` does some of it; it is over when step says so. */
typedef struct work {
  bool (*step)(struct work *work);
  kit_device_t *device;
  struct work *next;
  /* marks and waits */
  skv__event_t event;
  uint64_t version;
  /* kernels */
  skv__job_t job;
  skv__finish_t finish;
  bool finishes;
  void *scratch;
  const float *right;
  float *into;
  int64_t rows, value_head_dim;
  int32_t owner;
  void *copies[8]; /* of what the job's pointers name */
  int32_t copy_count;
  /* messages that move together */
  skv__request_t *requests;
  int32_t count;
  bool begun;
  /* a copy between the device and the host */
  const void *from;
  void *to;
  size_t bytes;
  bool *done;
} work_t;

struct fake_stream {
  kit_device_t *device;
  work_t *first, *last;
};

struct kit_device {
  skv__kernel_t kernel;
  const skv__kernel_t *base;
  skv_context_t *context;
  skv__comm_t *carrier; /* moves what the wire's messages name */
  kit_wiring_t wiring;
  fake_stream_t streams[STREAMS];
  uint64_t marked[SKV__EVENT_COUNT], reached[SKV__EVENT_COUNT];
  uint64_t chance;
  skv_status_t status; /* of the first step that failed */
  fake_stream_t *current;
  work_t *group;
};

static _Thread_local kit_device_t *mine; /* as CUDA's current device */

/* ---- streams ---- */

static work_t *new_work(bool (*step)(work_t *work)) {
  work_t *work = calloc(1, sizeof *work);
  if (!work)
    abort();
  work->step = step;
  work->device = mine;
  return work;
}

static void push(void *stream, work_t *work) {
  fake_stream_t *to = stream;
  *(to->last ? &to->last->next : &to->first) = work;
  to->last = work;
}

static void *copy_of(work_t *work, const void *data, size_t bytes) {
  void *copy = malloc(bytes + 1);
  if (!copy)
    abort();
  if (bytes)
    memcpy(copy, data, bytes);
  return work->copies[work->copy_count++] = copy;
}

static void free_work(work_t *work) {
  for (int32_t i = 0; i < work->copy_count; i++)
    free(work->copies[i]);
  free(work->requests);
  free(work);
}

/* One step of one stream, by chance; false when there is nothing left. */
static bool step_device(kit_device_t *device) {
  fake_stream_t *stream = &device->streams[kit_between(&device->chance, 0, STREAMS - 1)];
  if (!stream->first)
    stream = &device->streams[stream == device->streams];
  work_t *work = stream->first;
  if (!work)
    return false;
  if (device->status != SKV_OK || work->step(work)) {
    stream->first = work->next;
    if (!stream->first)
      stream->last = NULL;
    free_work(work);
  } else {
    sched_yield();
  }
  return true;
}

static void note(kit_device_t *device, skv_status_t status) {
  if (device->status == SKV_OK)
    device->status = status;
}

/* ---- events ---- */

static bool step_mark(work_t *work) {
  work->device->reached[work->event] = work->version;
  return true;
}

static bool step_follow(work_t *work) {
  return work->device->reached[work->event] >= work->version;
}

static skv_status_t mark(void *resources, skv__event_t event, void *stream, skv__error_t *error) {
  work_t *work = new_work(step_mark);
  (void)resources, (void)error;
  work->event = event;
  work->version = ++mine->marked[event];
  push(stream, work);
  return SKV_OK;
}

static skv_status_t follow(void *resources, skv__event_t event, void *stream, skv__error_t *error) {
  work_t *work = new_work(step_follow);
  (void)resources, (void)error;
  work->event = event;
  work->version = mine->marked[event];
  push(stream, work);
  return SKV_OK;
}

static void *second(void *resources) {
  (void)resources;
  return &mine->streams[1];
}

static skv_status_t fetch(void *to, const void *from, size_t bytes, void *stream,
                          skv__error_t *error) {
  (void)error;
  if (((fake_stream_t *)stream)->first)
    abort(); /* nothing would have waited for it */
  memcpy(to, from, bytes);
  return SKV_OK;
}

static skv_status_t finished(void *stream, bool *yes, skv__error_t *error) {
  enum { STEPS = 100 };
  (void)error;
  for (int i = 0; i < STEPS && ((fake_stream_t *)stream)->first; i++)
    step_device(mine);
  *yes = !((fake_stream_t *)stream)->first;
  return mine->status;
}

static bool step_pack(work_t *work) {
  const skv__pack_t *pack = work->copies[0];
  char *to = pack->to;
  for (int64_t token = 0; token < pack->tokens; token++)
    for (int64_t head = 0; head < pack->heads; head++, to += pack->head_bytes)
      memcpy(to, (const char *)pack->from + token * pack->token_stride + head * pack->head_stride,
             (size_t)pack->head_bytes);
  return true;
}

static skv_status_t pack(const skv__pack_t *packs, int32_t count, void *stream,
                         skv__error_t *error) {
  (void)error;
  for (int32_t i = 0; i < count; i++) {
    work_t *work = new_work(step_pack);
    copy_of(work, &packs[i], sizeof *packs);
    push(stream, work);
  }
  return SKV_OK;
}

static const skv__streams_t fake_streams = {.second = second,
                                            .mark = mark,
                                            .follow = follow,
                                            .pack = pack,
                                            .fetch = fetch,
                                            .finished = finished};

/* ---- kernels ---- */

static void keep_job(work_t *work, const skv__job_t *job, bool states) {
  size_t batch = (size_t)job->batch;
  work->job = *job;
  work->job.resources = NULL;
  work->job.k_tokens = copy_of(work, job->k_tokens, batch * sizeof *job->k_tokens);
  work->job.q_start = copy_of(work, job->q_start, batch * sizeof *job->q_start);
  work->job.runs = copy_of(work, job->runs, (size_t)job->run_count * sizeof *job->runs);
  work->job.slice_rows =
      copy_of(work, job->slice_rows, (size_t)job->ranks * sizeof *job->slice_rows);
  if (!states)
    return;
  work->job.nodes = copy_of(work, job->nodes, (size_t)job->node_count * sizeof *job->nodes);
  if (!job->slices) /* attend looks at none */
    return;
  work->job.slices =
      copy_of(work, job->slices, (size_t)(job->node_count * job->ranks) * sizeof *job->slices);
}

static void keep_finish(work_t *work, const skv__job_t *job, const skv__finish_t *given) {
  work->finish = *given;
  if (given->sinks)
    work->finish.sinks = copy_of(work, given->sinks, (size_t)job->q_heads * sizeof(float));
}

static bool step_evaluate(work_t *work) {
  note(work->device, work->device->base->evaluate(&work->job, work->scratch, 1, NULL, NULL, NULL,
                                                  &work->device->context->error));
  return true;
}

static skv_status_t evaluate(const skv__job_t *job, void *scratch, int32_t threads,
                             skv_status_t (*poll)(void *user), void *user, void *stream,
                             skv__error_t *error) {
  work_t *work = new_work(step_evaluate);
  (void)threads, (void)poll, (void)user, (void)error;
  keep_job(work, job, true);
  work->scratch = scratch;
  push(stream, work);
  return SKV_OK;
}

static bool step_merge(work_t *work) {
  work->device->base->merge(work->into, work->right, work->rows, work->value_head_dim, 1, NULL);
  return true;
}

static void merge(float *into, const float *right, int64_t rows, int64_t value_head_dim,
                  int32_t threads, void *stream) {
  work_t *work = new_work(step_merge);
  (void)threads;
  work->into = into, work->right = right;
  work->rows = rows, work->value_head_dim = value_head_dim;
  push(stream, work);
}

/* As a kernel that writes the rows of its own heads: through rows of all heads beside them. */
static void finish_heads(work_t *work, const float *slice, int32_t owner) {
  const skv__job_t *job = &work->job;
  int64_t group = job->q_heads / job->kv_heads;
  skv__finish_t part = work->finish;
  int64_t o_item = part.out_dtype == SKV_FP32 ? 4 : 2;
  for (int64_t i = 0; i < job->run_count; i++) {
    const skv__run_t *run = &job->runs[i];
    int64_t dim = job->value_head_dim, rows = run->q_count * job->q_heads;
    char *o = malloc((size_t)(rows * dim * o_item));
    float *lse = malloc((size_t)rows * sizeof *lse);
    if (!o || !lse)
      abort();
    part.o = (skv_tensor_t){o - run->q_begin * job->q_heads * dim * o_item,
                            {0, job->q_heads * dim, dim, 1}};
    part.lse = lse - run->q_begin * job->q_heads;
    part.lse_stride[0] = 0, part.lse_stride[1] = job->q_heads, part.lse_stride[2] = 1;
    skv__job_t one = *job;
    one.runs = run;
    one.run_count = 1;
    note(work->device, work->device->base->finish(&one, owner, slice, &part, 1, NULL,
                                                  &work->device->context->error));
    for (int64_t q = 0; q < run->q_count; q++)
      for (int64_t h = job->kv_head_begin * group; h < job->kv_head_end * group; h++) {
        const skv__finish_t *to = &work->finish;
        int64_t query = run->q_begin + q, row = q * job->q_heads + h;
        memcpy((char *)to->o.data + (run->sequence * to->o.stride[0] + query * to->o.stride[1] +
                                     h * to->o.stride[2]) *
                                        o_item,
               o + row * dim * o_item, (size_t)(dim * o_item));
        if (to->lse)
          to->lse[run->sequence * to->lse_stride[0] + query * to->lse_stride[1] +
                  h * to->lse_stride[2]] = lse[row];
      }
    free(o);
    free(lse);
  }
}

/* Only the heads of the job are right in what it leaves: the others come with their own groups. */
static bool step_attend(work_t *work) {
  const skv__kernel_t *base = work->device->base;
  skv__job_t *job = &work->job;
  int32_t owner = job->runs->owner;
  size_t bytes = (size_t)skv__slice_bytes(job->slice_rows[owner], job->value_head_dim);
  float *slice = aligned_alloc(64, bytes), **slices = calloc((size_t)job->ranks, sizeof *slices);
  if (!slice || !slices)
    abort();
  slices[owner] = slice;
  job->slices = slices;
  memset(slice, 0, bytes);
  note(work->device,
       base->evaluate(job, work->scratch, 1, NULL, NULL, NULL, &work->device->context->error));
  finish_heads(work, slice, owner);
  free(slice);
  free(slices);
  return true;
}

static bool step_finish(work_t *work) {
  note(work->device, work->device->base->finish(&work->job, work->owner, work->right, &work->finish,
                                                1, NULL, &work->device->context->error));
  return true;
}

static skv_status_t finish(const skv__job_t *job, int32_t owner, const float *slice,
                           const skv__finish_t *given, int32_t threads, void *stream,
                           skv__error_t *error) {
  work_t *work = new_work(step_finish);
  (void)threads, (void)error;
  keep_job(work, job, false);
  keep_finish(work, job, given);
  work->right = slice;
  work->owner = owner;
  push(stream, work);
  return SKV_OK;
}

static skv_status_t attend(const skv__job_t *job, const skv__finish_t *given, void *scratch,
                           void *stream, skv__error_t *error) {
  (void)error;
  work_t *work = new_work(step_attend);
  keep_job(work, job, true);
  keep_finish(work, job, given);
  work->scratch = scratch;
  push(stream, work);
  return SKV_OK;
}

/* ---- a wire that streams keep in order ---- */

static bool step_messages(work_t *work) {
  skv__comm_t *carrier = work->device->carrier;
  skv_status_t status = SKV_OK;
  bool all = true;
  for (int32_t i = 0; i < work->count && status == SKV_OK; i++) {
    skv__request_t *r = &work->requests[i], posted = *r;
    bool done = true;
    if (!work->begun && posted.way == SKV__SEND)
      status = skv__comm_send(carrier, r, posted.peer, posted.data, posted.bytes, posted.tag);
    else if (!work->begun)
      status = skv__comm_receive(carrier, r, posted.peer, posted.data, posted.bytes, posted.tag);
    if (status == SKV_OK)
      status = skv__comm_test(carrier, r, &done);
    all = all && done;
  }
  work->begun = true;
  note(work->device, status);
  return all || status != SKV_OK;
}

static skv_status_t group(void *impl, bool begins, skv__error_t *error) {
  kit_device_t *device = impl;
  (void)error;
  if (begins) {
    device->group = new_work(step_messages);
    device->group->requests = calloc(MESSAGES, sizeof *device->group->requests);
  } else if (device->group->count) {
    push(device->current, device->group);
  } else {
    free_work(device->group);
  }
  return SKV_OK;
}

static skv_status_t start_in_group(void *impl, skv__request_t *request, size_t offset, size_t bytes,
                                   skv__error_t *error) {
  kit_device_t *device = impl;
  work_t *work = device->group;
  (void)offset, (void)error;
  if (work->count == MESSAGES || offset)
    abort();
  work->requests[work->count++] = (skv__request_t){.way = request->way,
                                                   .peer = request->peer,
                                                   .tag = request->tag,
                                                   .bytes = bytes,
                                                   .data = request->data};
  return SKV_OK;
}

static skv_status_t fault(void *impl, skv__error_t *error) {
  (void)error;
  return ((kit_device_t *)impl)->status;
}

static skv_status_t test_at_once(void *impl, skv__request_t *request, bool *done,
                                 skv__error_t *error) {
  (void)request, (void)error;
  *done = true;
  return ((kit_device_t *)impl)->status;
}

/* ---- a wire through host memory ---- */

/* A message under way: request.handle[0]. */
typedef struct passage {
  skv__request_t request; /* the carrier's */
  void *stream, *host;
  bool copied, moving, arrived;
} passage_t;

static bool step_copy(work_t *work) {
  memcpy(work->to, work->from, work->bytes);
  *work->done = true;
  return true;
}

static void push_copy(void *stream, void *to, const void *from, size_t bytes, bool *done) {
  work_t *work = new_work(step_copy);
  work->to = to, work->from = from, work->bytes = bytes, work->done = done;
  push(stream, work);
}

static passage_t *passage_of(const skv__request_t *request) {
  return (passage_t *)(uintptr_t)request->handle[0]; // NOLINT(performance-no-int-to-ptr)
}

static skv_status_t start_through_host(void *impl, skv__request_t *request, size_t offset,
                                       size_t bytes, skv__error_t *error) {
  kit_device_t *device = impl;
  passage_t *passage = calloc(1, sizeof *passage);
  (void)error;
  if (!passage || offset)
    abort();
  request->handle[0] = (uintptr_t)passage;
  passage->host = malloc(bytes);
  passage->stream = device->current;
  if (request->way == SKV__SEND) {
    push_copy(passage->stream, passage->host, request->data, bytes, &passage->copied);
    return SKV_OK;
  }
  passage->moving = true;
  return skv__comm_receive(device->carrier, &passage->request, request->peer, passage->host, bytes,
                           request->tag);
}

static skv_status_t move(kit_device_t *device, const skv__request_t *request, passage_t *passage) {
  bool sends = request->way == SKV__SEND, done = false;
  if (sends && passage->copied && !passage->moving) {
    passage->moving = true;
    SKV_TRY(skv__comm_send(device->carrier, &passage->request, request->peer, passage->host,
                           request->flying_bytes, request->tag));
  }
  if (!passage->moving || passage->arrived)
    return SKV_OK;
  SKV_TRY(skv__comm_test(device->carrier, &passage->request, &done));
  passage->arrived = done;
  if (done && !sends)
    push_copy(passage->stream, request->data, passage->host, request->flying_bytes,
              &passage->copied);
  return SKV_OK;
}

static skv_status_t test_through_host(void *impl, skv__request_t *request, bool *done,
                                      skv__error_t *error) {
  kit_device_t *device = impl;
  passage_t *passage = passage_of(request);
  (void)error;
  step_device(device);
  note(device, move(device, request, passage));
  *done = passage->arrived && passage->copied;
  if (*done) {
    free(passage->host);
    free(passage);
  }
  return device->status;
}

static void cancel(void *impl, skv__request_t *request) {
  (void)impl, (void)request;
}

static void on(void *impl, void *stream) {
  ((kit_device_t *)impl)->current = stream;
}

static void destroy(void *impl, bool healthy) {
  (void)impl, (void)healthy;
}

static const skv__transport_t ordered_wire = {.name = "ordered",
                                              .piece_bytes = SIZE_MAX,
                                              .start = start_in_group,
                                              .test = test_at_once,
                                              .cancel = cancel,
                                              .on = on,
                                              .group = group,
                                              .fault = fault,
                                              .destroy = destroy};
static const skv__transport_t polled_wire = {.name = "polled",
                                             .piece_bytes = SIZE_MAX,
                                             .start = start_through_host,
                                             .test = test_through_host,
                                             .cancel = cancel,
                                             .on = on,
                                             .destroy = destroy};

/* ---- the device ---- */

kit_device_t *kit_device_open(skv_context_t *context, kit_wiring_t wiring, kit_world_t *world,
                              uint64_t seed) {
  kit_device_t *device = calloc(1, sizeof *device);
  kit_seat_t seat = {world, context->comm->rank};
  if (!device)
    return NULL;
  mine = device;
  *device = (kit_device_t){.kernel = *context->kernel,
                           .base = context->kernel,
                           .context = context,
                           .wiring = wiring,
                           .chance = seed * 1000 + (uint64_t)seat.rank + 1};
  device->kernel.name = "fake";
  device->kernel.evaluate = evaluate;
  device->kernel.merge = merge;
  device->kernel.finish = finish;
  device->kernel.attend = attend;
  device->kernel.streams = &fake_streams;
  for (int32_t i = 0; i < STREAMS; i++)
    device->streams[i].device = device;
  context->kernel = &device->kernel;
  double seconds = context->comm->timeout_seconds;
  if (kit_world_open(&device->carrier, seconds, &seat, &context->error) != SKV_OK ||
      skv__comm_create(&context->wire, wiring == KIT_ORDERED ? &ordered_wire : &polled_wire, device,
                       seat.rank, context->comm->ranks, seconds, &context->error) != SKV_OK)
    abort();
  context->wire->control = context->comm;
  return device;
}

void *kit_device_stream(kit_device_t *device) {
  return &device->streams[0];
}

skv_status_t kit_device_wait(kit_device_t *device) {
  while (device->streams[0].first)
    step_device(device);
  bool more = step_device(device);
  while (step_device(device))
    ;
  return more ? skv__fail(&device->context->error, SKV_INTERNAL,
                          "the caller's stream is done, but work goes on beside it")
              : device->status;
}

void kit_device_close(kit_device_t *device) {
  skv_context_t *context = device->context;
  if (context->wire->broken) { /* work that waits for messages is dropped */
    skv__comm_break(device->carrier);
    note(device, SKV_TRANSPORT);
  }
  while (step_device(device))
    ;
  skv__comm_destroy(context->wire);
  skv__comm_destroy(device->carrier);
  context->wire = context->comm;
  context->kernel = device->base;
  free(device);
}
