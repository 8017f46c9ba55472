/* tune_measure.c: what a rank's kernels, merges and links reach. Times are the least of a few runs,
 * rates the slowest rank's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "cost.h"
#include "launch/job_run.h"
#include "launch/sub_session.h"
#include "launch/tune.h"
#ifdef SKV_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

enum { REPEATS = 3, SHIFTS = 20, FEW = 1, MANY = 8, SMALL_BYTES = 64, TAG = 1 };

typedef struct tuner {
  skv__session_t *session;
  bool on_gpu, quick;
  void *out, *in; /* [bytes] where the wire takes them */
  size_t bytes;
} tuner_t;

void skv__tune_line(const double work[2], const double seconds[2], double *rate, double *fixed) {
  double slope = (seconds[1] - seconds[0]) / (work[1] - work[0]);
  if (slope <= 0) /* noise: the larger size alone says something */
    slope = seconds[1] / work[1];
  *rate = 1 / slope;
  *fixed = seconds[0] - slope * work[0];
  if (*fixed < 0)
    *fixed = 0;
}

/* ---- memory ---- */

static void release(tuner_t *tuner) {
#ifdef SKV_HAVE_CUDA
  if (tuner->on_gpu) {
    cudaFree(tuner->out);
    cudaFree(tuner->in);
    return;
  }
#endif
  free(tuner->out);
  free(tuner->in);
}

static void *zeros(bool on_gpu, size_t bytes) {
#ifdef SKV_HAVE_CUDA
  void *data = NULL;
  if (on_gpu)
    return cudaMalloc(&data, bytes) == cudaSuccess && cudaMemset(data, 0, bytes) == cudaSuccess
               ? data
               : NULL;
#endif
  return on_gpu ? NULL : calloc(1, bytes);
}

static skv_status_t reserve(tuner_t *tuner, skv__error_t *error) {
  tuner->out = zeros(tuner->on_gpu, tuner->bytes);
  tuner->in = zeros(tuner->on_gpu, tuner->bytes);
  if (!tuner->out || !tuner->in)
    skv__fail(error, SKV_MEMORY, "no memory for two buffers of %zu bytes", tuner->bytes);
  return skv__session_agree(tuner->session, NULL, 0, error);
}

/* What was enqueued is done. */
static skv_status_t wait(const tuner_t *tuner, skv__error_t *error) {
  return tuner->on_gpu ? skv__mirror_wait(tuner->session, error) : SKV_OK;
}

/* ---- kernels ---- */

/* One shape on one rank: the least of its times. */
static skv_status_t time_job(const tuner_t *tuner, const skv__job_options_t *job, double *seconds,
                             skv__error_t *error) {
  skv__session_t alone;
  SKV_TRY(skv__sub_session_alone(&alone, tuner->session, error));
  skv__job_run_t run;
  skv_status_t status = skv__job_run(&run, job, &alone, NULL, error);
  if (status == SKV_OK)
    *seconds = run.samples[0].wall_seconds; /* the least: they are in order */
  skv__job_run_free(&run);
  skv__sub_session_close(&alone);
  return status;
}

/* Two sizes; work in FLOP (prefill, full) or bytes of K and V (decode). */
static skv_status_t time_line(const tuner_t *tuner, bool decode, const int64_t tokens[2],
                              double *rate, double *fixed, skv__error_t *error) {
  double work[2], seconds[2] = {0, 0};
  skv__job_options_t job = skv__job_defaults(decode);
  job.shape = tuner->on_gpu ? "32,8,128" : "8,2,128";
  job.dtype = tuner->on_gpu ? SKV_BF16 : SKV_FP32;
  job.repeat = REPEATS;
  for (int i = 0; i < 2; ++i) {
    double keys = (double)tokens[i];
    job.tokens = tokens[i];
    SKV_TRY(time_job(tuner, &job, &seconds[i], error));
    work[i] = decode ? keys * 2 * 128 * (tuner->on_gpu ? 8 * 2 : 2 * 4)
                     : 4 * keys * keys * 128 * (tuner->on_gpu ? 32 : 8);
  }
  skv__tune_line(work, seconds, rate, fixed);
  return SKV_OK;
}

static skv_status_t time_kernels(const tuner_t *tuner, skv_machine_t *machine,
                                 skv__error_t *error) {
  static const int64_t prefill[2][2] = {{512, 1024}, {4096, 16384}};
  static const int64_t decode[2][2] = {{4096, 32768}, {16384, 524288}};
  const int64_t small[2] = {128, 256};
  SKV_TRY(time_line(tuner, false, tuner->quick ? small : prefill[tuner->on_gpu],
                    &machine->flop_per_second, &machine->prefill_seconds, error));
  return time_line(tuner, true, tuner->quick ? small : decode[tuner->on_gpu],
                   &machine->read_bytes_per_second, &machine->decode_seconds, error);
}

/* Of two states each; zeros are states like any other. */
static skv_status_t time_merges(const tuner_t *tuner, double *rate, skv__error_t *error) {
  const skv__kernel_t *kernel = tuner->session->context->kernel;
  const int64_t dim = 128;
  int64_t rows = (int64_t)(tuner->bytes / ((size_t)(dim + 2) * sizeof(float))) / 16 * 16;
  double least = 0;
  for (int repeat = 0; repeat <= REPEATS; ++repeat) { /* the first warms up */
    SKV_TRY(wait(tuner, error));
    double begin = skv__comm_now();
    for (int i = 0; i < SHIFTS; ++i)
      kernel->merge(tuner->out, tuner->in, rows, dim, tuner->session->binding.threads, NULL);
    SKV_TRY(wait(tuner, error));
    double seconds = (skv__comm_now() - begin) / SHIFTS;
    if (repeat > 0 && (least == 0 || seconds < least))
      least = seconds;
  }
  *rate = 3 * (double)rows * (double)(dim + 2) * sizeof(float) / least;
  return SKV_OK;
}

/* ---- links ---- */

/* Every rank sends `count` messages to `to` and receives as many from `from`, a few times. */
static skv_status_t shift(const tuner_t *tuner, int32_t to, int32_t from, int32_t count,
                          size_t bytes) {
  skv__comm_t *wire = tuner->session->context->wire;
  skv__request_t requests[2 * MANY];
  for (int32_t repeat = 0; repeat < SHIFTS; ++repeat) {
    SKV_TRY(skv__comm_group_begin(wire));
    for (int32_t i = 0; i < count; ++i) {
      size_t offset = (size_t)i * bytes;
      SKV_TRY(skv__comm_send(wire, &requests[2 * i], to, (char *)tuner->out + offset, bytes, TAG));
      SKV_TRY(skv__comm_receive(wire, &requests[2 * i + 1], from, (char *)tuner->in + offset, bytes,
                                TAG));
    }
    SKV_TRY(skv__comm_group_end(wire));
    SKV_TRY(skv__comm_wait(wire, requests, (size_t)(2 * count), "measuring links"));
  }
  return SKV_OK;
}

static skv_status_t time_shift(const tuner_t *tuner, int32_t distance, int32_t group, int32_t count,
                               size_t bytes, double *least, skv__error_t *error) {
  skv__session_t *session = tuner->session;
  /* Around the rank's group of neighbours, or around all. */
  int32_t first = session->rank / group * group, place = session->rank - first;
  int32_t to = first + (place + distance) % group;
  int32_t from = first + (place + group - distance) % group;
  for (int repeat = 0; repeat <= REPEATS; ++repeat) {
    SKV_TRY(wait(tuner, error));
    skv_status_t status = skv__comm_barrier(session->context->comm, "measuring links");
    double begin = skv__comm_now();
    if (status == SKV_OK)
      status = shift(tuner, to, from, count, bytes);
    if (status != SKV_OK)
      return skv__fail(error, status, "%s", session->context->error.text);
    SKV_TRY(wait(tuner, error));
    double seconds = (skv__comm_now() - begin) / SHIFTS;
    if (repeat > 0 && (repeat == 1 || seconds < *least))
      *least = seconds;
  }
  return SKV_OK;
}

/* Around rings of `group` ranks: what a round costs, each message in it, and the rate. */
static skv_status_t time_links(const tuner_t *tuner, int32_t distance, int32_t group, double *round,
                               double *message, double *rate, skv__error_t *error) {
  double few = 0, many = 0, large = 0;
  SKV_TRY(time_shift(tuner, distance, group, FEW, SMALL_BYTES, &few, error));
  SKV_TRY(time_shift(tuner, distance, group, MANY, SMALL_BYTES, &many, error));
  SKV_TRY(time_shift(tuner, distance, group, FEW, tuner->bytes, &large, error));
  *message = many > few ? (many - few) / (MANY - FEW) : 0;
  *round = few > *message ? few - *message : 0;
  *rate = (double)tuner->bytes / (large > few ? large - few : large);
  return SKV_OK;
}

/* The slowest rank's figures, on rank 0. */
static skv_status_t collect(const tuner_t *tuner, skv_machine_t *machine, skv__error_t *error) {
  skv__comm_t *comm = tuner->session->context->comm;
  skv_machine_t *all = calloc((size_t)tuner->session->ranks, sizeof *all);
  if (!all)
    skv__fail(error, SKV_MEMORY, "no memory to collect figures");
  skv_status_t status = skv__session_agree(tuner->session, NULL, 0, error);
  if (status == SKV_OK &&
      skv__comm_gather(comm, machine, sizeof *machine, all, "figures") != SKV_OK)
    status = skv__fail(error, comm->error->status, "%s", comm->error->text);
  for (int32_t rank = 1;
       status == SKV_OK && tuner->session->rank == 0 && rank < tuner->session->ranks; ++rank)
    for (int i = 0; i < SKV__FIGURES; ++i) {
      double mine = skv__figure(machine, i), theirs = skv__figure(&all[rank], i);
      bool slower = skv__figures[i].may_be_zero ? theirs > mine : theirs < mine;
      if (slower)
        memcpy((char *)machine + skv__figures[i].offset, &theirs, sizeof theirs);
    }
  free(all);
  return status;
}

/* Ranks of a node where all nodes have as many, numbered one after the other; else 0. */
static int32_t ranks_of_a_node(const skv__session_t *session, uint64_t sum) {
  int32_t local = session->local_ranks;
  bool even = sum == (uint64_t)session->ranks * (uint64_t)local;
  return even && local < session->ranks && session->ranks % local == 0 ? local : 0;
}

static skv_status_t measure(tuner_t *tuner, skv__tuned_t *tuned, skv__error_t *error) {
  skv__session_t *session = tuner->session;
  skv_machine_t *machine = &tuned->machine;
  uint64_t sums[2] = {(uint64_t)session->local_ranks,
                      session->local_rank == session->rank % session->local_ranks};
  SKV_TRY(reserve(tuner, error));
  if (time_kernels(tuner, machine, error) == SKV_OK)
    time_merges(tuner, &machine->merge_bytes_per_second, error);
  SKV_TRY(skv__session_agree(session, NULL, 0, error));
  if (skv__comm_sum(session->context->comm, sums, 2, "ranks of nodes") != SKV_OK)
    return skv__fail(error, session->context->error.status, "%s", session->context->error.text);
  machine->node_ranks = sums[1] == (uint64_t)session->ranks ? ranks_of_a_node(session, sums[0]) : 0;
  tuned->far_measured = machine->node_ranks > 0;
  int32_t group = tuned->far_measured ? machine->node_ranks : session->ranks;
  skv__comm_on(session->context->wire, NULL);
  if (group > 1)
    SKV_TRY(time_links(tuner, 1, group, &machine->round_seconds, &machine->message_seconds,
                       &machine->bytes_per_second, error));
  if (tuned->far_measured)
    SKV_TRY(time_links(tuner, group, session->ranks, &machine->far_round_seconds,
                       &machine->far_message_seconds, &machine->far_bytes_per_second, error));
  return collect(tuner, machine, error);
}

skv_status_t skv__tune_measure(skv__tuned_t *tuned, skv__session_t *session, bool quick,
                               skv__error_t *error) {
  const skv_context_t *context = session->context;
  tuner_t tuner = {
      .session = session, .on_gpu = context->kernel->backend == SKV_BACKEND_CUDA, .quick = quick};
  tuner.bytes = quick ? 1 << 16 : tuner.on_gpu ? 64 << 20 : 4 << 20;
  *tuned = (skv__tuned_t){.machine = skv__machine_typical(context->kernel->backend),
                          .ranks = session->ranks};
  snprintf(tuned->kernel, sizeof tuned->kernel, "%s", context->kernel->name);
  snprintf(tuned->transport, sizeof tuned->transport, "%s", context->wire->transport->name);
  tuned->machine.overlaps = strcmp(tuned->transport, "nccl") == 0;
  skv_status_t status = measure(&tuner, tuned, error);
  release(&tuner);
  return status;
}
