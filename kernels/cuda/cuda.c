/* cuda.c: the CUDA kernels as the library knows them: which of them takes a job, and what a plan
 * keeps on the device. */
#include "kernels/cuda/cuda.h"

#include <stdlib.h>

#include "kernels/cuda/clock.h"
#include "kernels/cuda/finish.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/merge.h"
#include "kernels/cuda/pack.h"

/* Of a plan: the device it was made on, counters that are 0 between launches, and, with several
 * ranks, a stream for what travels. */
typedef struct resources {
  skv__device_t device;
  int number;
  void *counters;
  cudaStream_t second;
  cudaEvent_t events[SKV__EVENT_COUNT];
  skv__clock_t clock;
} resources_t;

/* In the order in which they are asked; NULL-terminated. */
typedef const skv__attention_t *const *attentions_t;
static const skv__attention_t *const sm90_attentions[] = {&skv__cuda_decode, &skv__cuda_prefill,
                                                          &skv__cuda_plain, NULL};
static const skv__attention_t *const plain_attentions[] = {&skv__cuda_plain, NULL};

static skv_status_t fail(skv__error_t *error, cudaError_t code, const char *doing) {
  cudaGetLastError(); /* it is reported here, once */
  return skv__fail(error, code == cudaErrorMemoryAllocation ? SKV_MEMORY : SKV_INTERNAL, "%s: %s",
                   doing, cudaGetErrorString(code));
}

/* The calling thread's device, and its number. */
static cudaError_t current_device(skv__device_t *device, int *number) {
  *device = (skv__device_t){0};
  cudaError_t code = cudaGetDevice(number);
  const struct {
    int32_t *value;
    enum cudaDeviceAttr attribute;
  } facts[] = {{&device->multiprocessors, cudaDevAttrMultiProcessorCount},
               {&device->major, cudaDevAttrComputeCapabilityMajor},
               {&device->minor, cudaDevAttrComputeCapabilityMinor}};
  for (size_t i = 0; code == cudaSuccess && i < sizeof facts / sizeof *facts; ++i)
    code = cudaDeviceGetAttribute(facts[i].value, facts[i].attribute, *number);
  return code;
}

/* ---- which one ---- */

/* The device must be `major`.`minor` (least: or later). */
static bool available(int32_t major, int32_t minor, bool least, skv__error_t *error) {
  skv__device_t device;
  int number, driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  cudaError_t code = driver ? current_device(&device, &number) : cudaErrorNoDevice;
  cudaGetLastError();
  if (!driver)
    skv__fail(error, SKV_UNSUPPORTED, "there is no NVIDIA driver here");
  else if (code == cudaErrorInsufficientDriver)
    skv__fail(error, SKV_UNSUPPORTED, "the driver is for CUDA %d.%d, this build needs %d.%d",
              driver / 1000, driver % 100 / 10, runtime / 1000, runtime % 100 / 10);
  else if (code != cudaSuccess)
    skv__fail(error, SKV_UNSUPPORTED, "CUDA says: %s", cudaGetErrorString(code));
  else if (device.major == major ? least || device.minor == minor : least && device.major > major)
    return true;
  else
    skv__fail(error, SKV_UNSUPPORTED, "device %d has compute capability %d.%d, not %d.%d%s", number,
              (int)device.major, (int)device.minor, (int)major, (int)minor,
              least ? " or later" : "");
  return false;
}

/* The kernel that takes a job of this shape; or, where the job has tensors, this job. */
static const skv__attention_t *route(attentions_t attentions, const skv__job_t *job,
                                     const skv__device_t *device) {
  while (*attentions && !(*attentions)->supports(job, device))
    ++attentions;
  return *attentions;
}

static bool supports(attentions_t attentions, const skv__job_t *job, skv__error_t *error) {
  skv__device_t device;
  int number;
  cudaError_t code = current_device(&device, &number);
  if (code != cudaSuccess)
    fail(error, code, "the current CUDA device");
  else if (route(attentions, job, &device))
    return true;
  else
    skv__fail(error, SKV_UNSUPPORTED,
              "no CUDA kernel takes head_dim %lld, value_head_dim %lld, leaf_tokens %lld: leaves "
              "are multiples of 128 keys, of 64 above head_dim 128",
              (long long)job->head_dim, (long long)job->value_head_dim,
              (long long)job->leaf_tokens);
  return false;
}

/* ---- what they need ---- */

static size_t larger(size_t a, size_t b) {
  return a > b ? a : b;
}

/* Any kernel that takes the shape may get the job: tensors decide in the end. */
static size_t scratch_of(attentions_t attentions, const skv__job_t *job) {
  skv__device_t device;
  int number;
  size_t bytes = 0;
  if (current_device(&device, &number) != cudaSuccess)
    return 0;
  for (; *attentions; ++attentions)
    if ((*attentions)->supports(job, &device))
      bytes = larger(bytes, (*attentions)->scratch_bytes(job, &device));
  return bytes + 256; /* to align it */
}

static void close_resources(void *resources) {
  resources_t *mine = resources;
  for (int i = 0; i < SKV__EVENT_COUNT; ++i)
    if (mine->events[i])
      cudaEventDestroy(mine->events[i]);
  skv__clock_close(&mine->clock);
  if (mine->second)
    cudaStreamDestroy(mine->second);
  cudaFree(mine->counters);
  free(mine);
}

/* What travels goes first: it is short, and others wait for it. */
static cudaError_t open_second(resources_t *resources) {
  int least = 0, greatest = 0;
  cudaError_t code = cudaDeviceGetStreamPriorityRange(&least, &greatest);
  if (code == cudaSuccess)
    code = cudaStreamCreateWithPriority(&resources->second, cudaStreamNonBlocking, greatest);
  for (int i = 0; code == cudaSuccess && i < SKV__EVENT_COUNT; ++i)
    code = cudaEventCreateWithFlags(&resources->events[i], cudaEventDisableTiming);
  return code == cudaSuccess ? skv__clock_open(&resources->clock) : code;
}

static skv_status_t open_resources(attentions_t attentions, const skv__job_t *job, void **resources,
                                   skv__error_t *error) {
  resources_t *made = calloc(1, sizeof *made);
  if (!made)
    return skv__fail(error, SKV_MEMORY, "out of memory for a plan's place on the device");
  cudaError_t code = current_device(&made->device, &made->number);
  size_t bytes = 256;
  for (; code == cudaSuccess && *attentions; ++attentions)
    if ((*attentions)->supports(job, &made->device))
      bytes = larger(bytes, (*attentions)->counter_bytes(job, &made->device));
  if (code == cudaSuccess)
    code = cudaMalloc(&made->counters, bytes);
  if (code == cudaSuccess)
    code = cudaMemset(made->counters, 0, bytes);
  if (code == cudaSuccess)
    code = cudaStreamSynchronize(NULL); /* streams of the caller do not wait for it */
  if (code == cudaSuccess && job->ranks > 1)
    code = open_second(made);
  if (code != cudaSuccess) {
    close_resources(made);
    return fail(error, code, "counters and streams on the device");
  }
  *resources = made;
  return SKV_OK;
}

/* ---- running them ---- */

static skv_status_t launch(attentions_t attentions, const skv__job_t *job,
                           const skv__finish_t *finish, void *scratch, void *stream,
                           skv__error_t *error) {
  const resources_t *resources = job->resources;
  int number = -1;
  if (cudaGetDevice(&number) != cudaSuccess || number != resources->number)
    return skv__fail(error, SKV_INVALID,
                     "the plan was made on CUDA device %d, but the current one is %d",
                     resources->number, number);
  const skv__attention_t *attention = route(attentions, job, &resources->device);
  if (!attention)
    return skv__fail(error, SKV_UNSUPPORTED, "no CUDA kernel takes tensors of these strides");
  void *aligned = (char *)scratch + (256 - (uintptr_t)scratch % 256) % 256;
  return attention->launch(job, finish, &resources->device, resources->counters, aligned, stream,
                           error);
}

static void merge(float *into, const float *right, int64_t rows, int64_t value_head_dim,
                  int32_t threads, void *stream) {
  const float *const states[] = {into, right};
  (void)threads;
  skv__launch_merge(into, states, 2, rows, value_head_dim, stream);
}

static skv_status_t finish_rows(const skv__job_t *job, int32_t owner, const float *slice,
                                const skv__finish_t *finish, int32_t threads, void *stream,
                                skv__error_t *error) {
  const resources_t *resources = job->resources;
  (void)threads;
  if (skv__launch_finish(job, owner, slice, finish, &resources->device, stream) == SKV_OK)
    return SKV_OK;
  return fail(error, cudaGetLastError(), "finishing rows on the device");
}

/* ---- order among streams ---- */

static void *second_stream(void *resources) {
  return ((resources_t *)resources)->second;
}

static skv_status_t mark(void *resources, skv__event_t event, void *stream, skv__error_t *error) {
  cudaError_t code = cudaEventRecord(((resources_t *)resources)->events[event], stream);
  return code == cudaSuccess ? SKV_OK : fail(error, code, "an event of the exchange");
}

static skv_status_t follow(void *resources, skv__event_t event, void *stream, skv__error_t *error) {
  cudaError_t code = cudaStreamWaitEvent(stream, ((resources_t *)resources)->events[event], 0);
  return code == cudaSuccess ? SKV_OK : fail(error, code, "a wait for an event of the exchange");
}

static skv_status_t fetch(void *to, const void *from, size_t bytes, void *stream,
                          skv__error_t *error) {
  cudaError_t code = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream);
  if (code == cudaSuccess)
    code = cudaStreamSynchronize(stream);
  return code == cudaSuccess ? SKV_OK : fail(error, code, "a state for the observer");
}

static skv_status_t finished(void *stream, bool *yes, skv__error_t *error) {
  cudaError_t code = cudaStreamQuery(stream);
  *yes = code == cudaSuccess;
  return *yes || code == cudaErrorNotReady ? SKV_OK : fail(error, code, "work on the GPU");
}

static skv_status_t pack(const skv__pack_t *packs, int32_t count, void *stream,
                         skv__error_t *error) {
  return skv__launch_pack(packs, count, stream) == SKV_OK
             ? SKV_OK
             : fail(error, cudaGetLastError(), "packing keys and values");
}

static skv_status_t tick(void *resources, skv__tick_t tick, void *stream, skv__error_t *error) {
  cudaError_t code = skv__clock_tick(&((resources_t *)resources)->clock, tick, stream);
  return code == cudaSuccess ? SKV_OK : fail(error, code, "the clock on the device");
}

static void times(void *resources, double *computed, double *total) {
  skv__clock_read(&((resources_t *)resources)->clock, computed, total);
}

static const skv__streams_t streams = {.second = second_stream,
                                       .mark = mark,
                                       .follow = follow,
                                       .pack = pack,
                                       .fetch = fetch,
                                       .finished = finished,
                                       .tick = tick,
                                       .times = times};

/* Attention over no keys: every row is EMPTY, and nobody looks at the tensors. */
static bool no_keys(const skv__job_t *job) {
  for (int64_t i = 0; i < job->run_count; ++i)
    if (job->k_tokens[job->runs[i].sequence] > 0)
      return false;
  return true;
}

#define KERNEL(NAME, TEXT, ATTENTIONS, MAJOR, LEAST)                                               \
  static bool NAME##_available(skv__error_t *error) {                                              \
    return available(MAJOR, 0, LEAST, error);                                                      \
  }                                                                                                \
  static bool NAME##_supports(const skv__job_t *job, skv__error_t *error) {                        \
    return supports(ATTENTIONS, job, error);                                                       \
  }                                                                                                \
  static skv_status_t NAME##_open(const skv__job_t *job, void **resources, skv__error_t *error) {  \
    return open_resources(ATTENTIONS, job, resources, error);                                      \
  }                                                                                                \
  static size_t NAME##_scratch_bytes(const skv__job_t *job, int32_t threads) {                     \
    (void)threads;                                                                                 \
    return scratch_of(ATTENTIONS, job);                                                            \
  }                                                                                                \
  static skv_status_t NAME##_evaluate(const skv__job_t *job, void *scratch, int32_t threads,       \
                                      skv_status_t (*poll)(void *user), void *user, void *stream,  \
                                      skv__error_t *error) {                                       \
    (void)threads, (void)poll, (void)user;                                                         \
    return launch(ATTENTIONS, job, NULL, scratch, stream, error);                                  \
  }                                                                                                \
  static skv_status_t NAME##_attend(const skv__job_t *job, const skv__finish_t *finish,            \
                                    void *scratch, void *stream, skv__error_t *error) {            \
    if (no_keys(job))                                                                              \
      return finish_rows(job, job->run_count ? job->runs[0].owner : 0, NULL, finish, 1, stream,    \
                         error);                                                                   \
    return launch(ATTENTIONS, job, finish, scratch, stream, error);                                \
  }                                                                                                \
  const skv__kernel_t skv__cuda_##NAME = {.name = TEXT,                                            \
                                          .backend = SKV_BACKEND_CUDA,                             \
                                          .order = {"cpu-1", "mma-1", "mma-1"},                    \
                                          .available = NAME##_available,                           \
                                          .supports = NAME##_supports,                             \
                                          .open = NAME##_open,                                     \
                                          .close = close_resources,                                \
                                          .scratch_bytes = NAME##_scratch_bytes,                   \
                                          .evaluate = NAME##_evaluate,                             \
                                          .merge = merge,                                          \
                                          .finish = finish_rows,                                   \
                                          .attend = NAME##_attend,                                 \
                                          .streams = &streams,                                     \
                                          .peers = SKV__CUDA_PEERS};

KERNEL(sm90, "cuda.sm90", sm90_attentions, 9, false)
KERNEL(plain_kernel, "cuda.plain", plain_attentions, 8, true)
