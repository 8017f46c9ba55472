/* test_plain.cu: in fp32 the plain kernel has the CPU's order, so random jobs must give the CPU
 * kernel's states to the bit: shapes, strides, masks, softcap, runs, nodes, slices. Then outputs,
 * against the same states finished by kernels/state.h. Nothing else may be written, and what no
 * row sees is NaN. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "kernels/convert.h"
#include "kernels/cuda/launch.h"
extern "C" {
#include "kernels/cpu/evaluate.h"
#include "order.h"
#include "tests/cuda/random.cuh"
}

enum { MOST_RUNS = 64, MOST_NODES = 16, MOST_RANKS = 12, MOST_BATCH = 3, GUARD = 64 };

typedef struct buffer {
  float *host, *device;
  size_t floats; /* guards included */
} buffer_t;

typedef struct work {
  skv__job_t job; /* with the host's pointers */
  int64_t k_tokens[MOST_BATCH], q_start[MOST_BATCH];
  skv__run_t runs[MOST_RUNS];
  skv__job_node_t nodes[MOST_NODES];
  int64_t slice_rows[MOST_RANKS];
  float *slices[MOST_NODES * MOST_RANKS];
  buffer_t states[MOST_NODES * MOST_RANKS], q, k, v;
  skv__device_t device;
} work_t;

static int failures;

static int64_t between(int64_t low, int64_t high) {
  return low + random_bits() % (high - low + 1);
}
template <int Count> static int64_t one_of(const int64_t (&values)[Count]) {
  return values[random_bits() % Count];
}

/* NaN everywhere. */
static buffer_t poisoned(size_t floats) {
  buffer_t buffer = {NULL, NULL, floats + 2 * GUARD};
  buffer.host = (float *)malloc(buffer.floats * sizeof(float));
  memset(buffer.host, 0xff, buffer.floats * sizeof(float));
  check(cudaMalloc((void **)&buffer.device, buffer.floats * sizeof(float)));
  return buffer;
}
static void upload(buffer_t *buffer) {
  check(cudaMemcpy(buffer->device, buffer->host, buffer->floats * sizeof(float),
                   cudaMemcpyHostToDevice));
}
static void release(buffer_t *buffer) {
  free(buffer->host);
  check(cudaFree(buffer->device));
}

/* Counts elements, guards too, in which what the device has is not what the host has; shows the
 * first. */
static int64_t differences(const buffer_t *buffer) {
  size_t bytes = buffer->floats * sizeof(float);
  float *device = (float *)malloc(bytes);
  check(cudaMemcpy(device, buffer->device, bytes, cudaMemcpyDeviceToHost));
  int64_t count = 0;
  for (size_t i = 0; i < buffer->floats; ++i)
    if (memcmp(device + i, buffer->host + i, sizeof(float)) != 0 && ++count <= 3)
      printf("  element %lld of %lld: %.9g, not %.9g\n", (long long)i - GUARD,
             (long long)buffer->floats - 2 * GUARD, (double)device[i], (double)buffer->host[i]);
  free(device);
  return count;
}

/* ---- a random job ---- */

/* [batch][tokens][heads][dim] with gaps, for the first tokens[s] tokens of each sequence; the rest
 * is NaN. */
static skv_tensor_t random_tensor(buffer_t *buffer, int64_t batch, int64_t capacity, int64_t heads,
                                  int64_t dim, const int64_t *tokens, float size) {
  skv_tensor_t tensor = {NULL, {0, 0, dim + between(0, 1) * between(0, 9), 1}};
  bool heads_first = random_bits() % 2;
  int64_t inner = tensor.stride[2];
  tensor.stride[1] = heads_first ? inner : inner * heads + between(0, 1) * between(0, 9);
  tensor.stride[2] = heads_first ? inner * capacity : inner;
  tensor.stride[0] = heads_first ? inner * capacity * heads : tensor.stride[1] * capacity;
  *buffer = poisoned((size_t)(tensor.stride[0] * batch + dim));
  tensor.data = buffer->host + GUARD;
  for (int64_t s = 0; s < batch; ++s)
    for (int64_t t = 0; t < tokens[s]; ++t)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t d = 0; d < dim; ++d)
          ((float *)tensor
               .data)[s * tensor.stride[0] + t * tensor.stride[1] + h * tensor.stride[2] + d] =
              (float)(int32_t)random_bits() * 0x1p-31f * size;
  upload(buffer);
  return tensor;
}

static void random_shape(work_t *work) {
  static const int64_t dims[] = {1, 3, 8, 16, 17, 40, 64, 72, 80, 128, 131, 192, 200, 256};
  static const int64_t leaves[] = {64, 64, 128, 192, 1024};
  skv__job_t *job = &work->job;
  job->batch = between(1, MOST_BATCH), job->most_q_tokens = between(1, 40);
  job->most_k_tokens = between(1, random_bits() % 4 ? 400 : 1500);
  job->kv_heads = between(1, 3), job->q_heads = job->kv_heads * between(1, 5);
  job->head_dim = one_of(dims), job->value_head_dim = one_of(dims);
  job->dtype = SKV_FP32;
  job->scale = 1.0f / (float)between(1, 16);
  job->softcap = random_bits() % 4 ? 0.0f : (float)between(1, 30);
  job->leaf_tokens = one_of(leaves), job->block_tokens = job->leaf_tokens * between(1, 3);
  const int64_t endless = INT64_MAX / 4;
  job->left_tokens = random_bits() % 2 ? endless : between(0, 300);
  job->right_tokens = random_bits() % 2 ? endless : between(0, 1) * between(0, 90);
  job->kv_head_begin = between(0, job->kv_heads - 1);
  job->kv_head_end = between(job->kv_head_begin + 1, job->kv_heads);
  for (int64_t s = 0; s < job->batch; ++s) {
    work->k_tokens[s] = between(0, job->most_k_tokens);
    work->q_start[s] = between(-20, work->k_tokens[s]);
  }
  job->k_tokens = work->k_tokens, job->q_start = work->q_start;
}

static void random_runs(work_t *work) {
  skv__job_t *job = &work->job;
  int64_t rows[MOST_RANKS] = {0}, all = 0;
  job->ranks = (int32_t)between(1, MOST_RANKS), job->round_robin = random_bits() % 2;
  for (int64_t s = 0; s < job->batch; ++s)
    for (int64_t q = 0, some; q < job->most_q_tokens; q += some) {
      some = between(1, job->most_q_tokens - q);
      if (job->run_count == MOST_RUNS || random_bits() % 8 == 0)
        continue; /* queries that are somebody else's */
      int32_t owner = (int32_t)between(0, job->ranks - 1);
      work->runs[job->run_count++] =
          skv__run_t{s, q, some, job->round_robin ? all : rows[owner], owner};
      rows[owner] += some * job->q_heads, all += some * job->q_heads;
    }
  for (int32_t o = 0; o < job->ranks; ++o)
    work->slice_rows[o] = job->round_robin ? (all - o + job->ranks - 1) / job->ranks : rows[o];
  job->runs = work->runs, job->most_runs = job->run_count, job->slice_rows = work->slice_rows;
}

/* The tree over blocks [begin, end), cut at random. */
static void random_nodes(work_t *work, int64_t begin, int64_t end, bool whole) {
  skv__job_t *job = &work->job;
  if (end - begin > 1 && !whole && job->node_count < MOST_NODES - 4 && random_bits() % 2) {
    int64_t split = skv__order_split(skv__node_t{begin, end});
    random_nodes(work, begin, split, false), random_nodes(work, split, end, false);
    return;
  }
  work->nodes[job->node_count++] = skv__job_node_t{begin, end, begin * job->block_tokens};
  job->nodes = work->nodes;
}

static void random_job(work_t *work, bool whole) {
  skv__job_t *job = &work->job;
  random_shape(work);
  random_runs(work);
  if (whole) {
    job->kv_head_begin = 0, job->kv_head_end = job->kv_heads;
    job->ranks = 1, job->round_robin = true;
    work->slice_rows[0] = 0;
    for (int64_t i = 0; i < job->run_count; ++i)
      work->slice_rows[0] += work->runs[i].q_count * job->q_heads;
    for (int64_t i = 0, row = 0; i < job->run_count; ++i) {
      work->runs[i].row_begin = row, work->runs[i].owner = 0;
      row += work->runs[i].q_count * job->q_heads;
    }
  }
  random_nodes(work, 0, (job->most_k_tokens + job->block_tokens - 1) / job->block_tokens, whole);
  int64_t queries[MOST_BATCH] = {job->most_q_tokens, job->most_q_tokens, job->most_q_tokens};
  int64_t kv_heads = job->kv_head_end - job->kv_head_begin;
  float size = random_bits() % 8 ? 1.0f : 30.0f;
  job->q = random_tensor(&work->q, job->batch, job->most_q_tokens, job->q_heads, job->head_dim,
                         queries, size);
  job->k = random_tensor(&work->k, job->batch, job->most_k_tokens, kv_heads, job->head_dim,
                         work->k_tokens, size);
  job->v = random_tensor(&work->v, job->batch, job->most_k_tokens, kv_heads, job->value_head_dim,
                         work->k_tokens, 1.0f);
  for (int64_t i = 0; i < job->node_count * job->ranks; ++i) {
    int64_t rows = work->slice_rows[i % job->ranks];
    work->states[i] = poisoned((size_t)(rows * (job->value_head_dim + 2)));
    upload(&work->states[i]);
    work->slices[i] = random_bits() % 16 || whole ? work->states[i].host + GUARD : NULL;
  }
  job->slices = work->slices;
}

/* ---- both sides ---- */

static void evaluate_on_host(work_t *work) {
  skv__error_t error = {};
  void *scratch = aligned_alloc(64, (skv__cpu_scratch_bytes(&work->job, 2) + 63) / 64 * 64);
  if (skv__cpu_evaluate(&skv__tile_portable, &work->job, scratch, 2, NULL, NULL, &error) != SKV_OK)
    ++failures, printf("FAIL host: %s\n", error.text);
  free(scratch);
}

static void launch(work_t *work, const skv__finish_t *finish) {
  skv__job_t job = work->job;
  float *slices[MOST_NODES * MOST_RANKS];
  skv__error_t error = {};
  void *scratch;
  job.q.data = work->q.device + GUARD, job.k.data = work->k.device + GUARD;
  job.v.data = work->v.device + GUARD;
  for (int64_t i = 0; i < job.node_count * job.ranks; ++i)
    slices[i] = work->slices[i] ? work->states[i].device + GUARD : NULL;
  job.slices = slices;
  const skv__attention_t *kernel = &skv__cuda_plain;
  size_t bytes = kernel->scratch_bytes(&job, &work->device);
  check(cudaMalloc(&scratch, bytes + 256));
  check(cudaMemset(scratch, 0xff, bytes + 256));
  if (!kernel->supports(&job, &work->device) || kernel->counter_bytes(&job, &work->device) ||
      kernel->launch(&job, finish, &work->device, NULL, scratch, 0, &error) != SKV_OK)
    ++failures, printf("FAIL launch: %s\n", error.text);
  check(cudaDeviceSynchronize());
  uint8_t guard[256];
  check(cudaMemcpy(guard, (uint8_t *)scratch + bytes, 256, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 256; ++i)
    if (guard[i] != 0xff && ++failures)
      printf("FAIL scratch overrun\n");
  check(cudaFree(scratch));
}

/* What the host's states of the one node give. */
static void finish_on_host(const work_t *work, const skv__finish_t *finish, float *lse, void *o) {
  const skv__job_t *job = &work->job;
  const int64_t dim = job->value_head_dim, rows = work->slice_rows[0];
  for (int64_t i = 0; i < job->run_count; ++i)
    for (int64_t row = 0; row < work->runs[i].q_count * job->q_heads; ++row) {
      const skv__run_t *run = &work->runs[i];
      int64_t query = run->q_begin + row / job->q_heads, head = row % job->q_heads;
      int64_t at = run->row_begin + row;
      float *state = work->slices[0] + at * dim, e = work->slices[0][rows * dim + at];
      float l = work->slices[0][rows * (dim + 1) + at], zeros[256] = {0.0f};
      if (finish->sinks) {
        skv__mass_t sink = skv__mass_from_lse(finish->sinks[head]);
        skv__merge_row(state, &e, &l, zeros, sink.e, sink.l, dim);
      }
      int64_t to = run->sequence * finish->o.stride[0] + query * finish->o.stride[1] +
                   head * finish->o.stride[2];
      for (int64_t d = 0; d < dim; ++d)
        skv__store(finish->out_dtype, o, to + d, skv__state_output(e, l, state[d]));
      lse[run->sequence * finish->lse_stride[0] + query * finish->lse_stride[1] +
          head * finish->lse_stride[2]] = skv__state_lse(e, l);
    }
}

static int64_t test_outputs(work_t *work) {
  const skv__job_t *job = &work->job;
  float sinks[16];
  for (int i = 0; i < 16; ++i)
    sinks[i] = random_bits() % 8 ? (float)between(-5, 5) : -INFINITY;
  skv__finish_t finish = {};
  int64_t row = job->value_head_dim + between(0, 3), rows = job->most_q_tokens * job->q_heads;
  finish.out_dtype = (skv_dtype_t)between(0, 2);
  finish.sinks = random_bits() % 2 ? sinks : NULL;
  finish.o.stride[0] = rows * row, finish.o.stride[1] = job->q_heads * row;
  finish.o.stride[2] = row, finish.o.stride[3] = 1;
  finish.lse_stride[0] = rows, finish.lse_stride[1] = 1, finish.lse_stride[2] = job->most_q_tokens;
  buffer_t o = poisoned((size_t)(job->batch * rows * row));
  buffer_t lse = poisoned((size_t)(job->batch * rows));
  upload(&o), upload(&lse);
  finish.o.data = o.device + GUARD, finish.lse = lse.device + GUARD;
  launch(work, &finish);
  finish_on_host(work, &finish, lse.host + GUARD, o.host + GUARD);
  int64_t differ = differences(&o) + differences(&lse);
  release(&o), release(&lse);
  return differ;
}

static void test(int index, bool whole) {
  work_t *work = (work_t *)calloc(1, sizeof *work);
  skv__job_t *job = &work->job;
  check(cudaDeviceGetAttribute(&work->device.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  check(cudaDeviceGetAttribute(&work->device.major, cudaDevAttrComputeCapabilityMajor, 0));
  work->device.most_ctas = (int32_t)(random_bits() % 2 ? 0 : between(1, 9));
  random_job(work, whole);
  evaluate_on_host(work);
  launch(work, NULL);
  int64_t differ = 0;
  for (int64_t i = 0; i < job->node_count * job->ranks; ++i)
    differ += differences(&work->states[i]);
  if (whole)
    differ += test_outputs(work);
  if (differ)
    ++failures,
        printf("FAIL job %d: %lld differ; dims %lld, %lld, heads %lld/%lld, keys %lld, leaf %lld, "
               "block %lld, softcap %g, runs %lld, nodes %lld, ranks %d\n",
               index, (long long)differ, (long long)job->head_dim, (long long)job->value_head_dim,
               (long long)job->q_heads, (long long)job->kv_heads, (long long)job->most_k_tokens,
               (long long)job->leaf_tokens, (long long)job->block_tokens, (double)job->softcap,
               (long long)job->run_count, (long long)job->node_count, job->ranks);
  for (int64_t i = 0; i < job->node_count * job->ranks; ++i)
    release(&work->states[i]);
  release(&work->q), release(&work->k), release(&work->v);
  free(work);
}

int main(int argc, char **argv) {
  int jobs = argc > 1 ? atoi(argv[1]) : 300;
  for (int i = 0; i < jobs; ++i)
    test(i, i % 2);
  printf("%d jobs, %d failures\n", jobs, failures);
  return failures ? 1 : 0;
}
