/* merge.cu: the rate of the merge kernels beside that of a device copy, candidates in turns; one
 * JSON object a line, medians. Bytes are what is read plus what is written, once. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "kernels/cuda/merge.h"

enum { ROUNDS = 11, LAUNCHES = 10, MOST = 16 };

typedef struct bench {
  float *states[MOST + 1]; /* the last is written */
  int64_t rows, dim;
  cudaStream_t stream;
  int processors;
} bench_t;

typedef struct candidate {
  const char *name;
  int states; /* 0: a copy of one state */
  skv_dtype_t dtype;
  float us[ROUNDS];
} candidate_t;

static void check(cudaError_t status) {
  if (status != cudaSuccess) {
    fprintf(stderr, "cuda: %s\n", cudaGetErrorString(status));
    exit(1);
  }
}

static int64_t bytes_of(const candidate_t *c, const bench_t *b) {
  int64_t state = b->rows * (b->dim + 2) * 4;
  if (strcmp(c->name, "merge_lse") == 0)
    return 3 * b->rows * (b->dim * (c->dtype == SKV_FP32 ? 4 : 2) + 4);
  return c->states ? (c->states + 1) * state : 2 * state;
}

static void launch(const candidate_t *c, const bench_t *b) {
  float *out = b->states[MOST];
  if (strcmp(c->name, "copy") == 0) {
    check(cudaMemcpyAsync(out, b->states[0], (size_t)bytes_of(c, b) / 2, cudaMemcpyDeviceToDevice,
                          b->stream));
  } else if (strcmp(c->name, "merge_lse") == 0) {
    const int64_t lse = b->rows * b->dim;
    skv__launch_merge_lse(out, out + lse, b->states[0], b->states[0] + lse, b->states[1],
                          b->states[1] + lse, b->rows, b->dim, c->dtype, SKV_LSE_NATURAL,
                          b->processors, b->stream);
  } else {
    const float *states[MOST];
    for (int i = 0; i < MOST; ++i)
      states[i] = b->states[i];
    skv__launch_merge(out, states, c->states, b->rows, b->dim, b->stream);
  }
  check(cudaGetLastError());
}

static float microseconds(const candidate_t *c, const bench_t *b, cudaEvent_t begin,
                          cudaEvent_t end) {
  float ms;
  check(cudaEventRecord(begin, b->stream));
  for (int i = 0; i < LAUNCHES; ++i)
    launch(c, b);
  check(cudaEventRecord(end, b->stream));
  check(cudaEventSynchronize(end));
  check(cudaEventElapsedTime(&ms, begin, end));
  return ms * 1e3f / LAUNCHES;
}

static int by_value(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

static void measure(int64_t rows, int64_t dim) {
  candidate_t candidates[] = {{"copy", 0, SKV_FP32, {}},      {"merge", 2, SKV_FP32, {}},
                              {"merge", 4, SKV_FP32, {}},     {"merge", 8, SKV_FP32, {}},
                              {"merge", 16, SKV_FP32, {}},    {"merge_lse", 2, SKV_FP32, {}},
                              {"merge_lse", 2, SKV_BF16, {}}, {"merge_lse", 2, SKV_FP16, {}}};
  const int count = (int)(sizeof candidates / sizeof *candidates);
  bench_t b = {{}, rows, dim, 0, 0};
  size_t floats = (size_t)(rows * (dim + 2));
  float *host = (float *)malloc(floats * sizeof(float));
  for (size_t i = 0; i < floats; ++i)
    host[i] = (float)((i * 2654435761u >> 8) % 1024) / 64.0f - 8.0f;
  for (int64_t row = 0; row < rows; ++row)
    host[rows * dim + row] = (float)(row * 7 % 8); /* e: an integer */
  for (int i = 0; i <= MOST; ++i) {
    check(cudaMalloc((void **)&b.states[i], floats * sizeof(float)));
    check(cudaMemcpy(b.states[i], host, floats * sizeof(float), cudaMemcpyHostToDevice));
  }
  free(host);
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  check(cudaStreamCreate(&b.stream));
  check(cudaDeviceGetAttribute(&b.processors, cudaDevAttrMultiProcessorCount, 0));
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0));
  for (int round = -1; round < ROUNDS; ++round) /* the first is to warm up */
    for (int i = 0; i < count; ++i)
      candidates[i].us[round < 0 ? 0 : round] = microseconds(&candidates[i], &b, begin, end);
  for (int i = 0; i < count; ++i) {
    candidate_t *c = &candidates[i];
    qsort(c->us, ROUNDS, sizeof *c->us, by_value);
    printf("{\"gpu\": \"%s\", \"bench\": \"%s\", \"states\": %d, \"dtype\": \"%s\", \"rows\": "
           "%lld, \"dim\": %lld, "
           "\"us\": %.1f, \"gbps\": %.0f}\n",
           properties.name, c->name, c->states,
           c->dtype == SKV_FP32   ? "fp32"
           : c->dtype == SKV_BF16 ? "bf16"
                                  : "fp16",
           (long long)rows, (long long)dim, (double)c->us[ROUNDS / 2],
           (double)bytes_of(c, &b) / c->us[ROUNDS / 2] / 1e3);
  }
  for (int i = 0; i <= MOST; ++i)
    check(cudaFree(b.states[i]));
}

int main(void) {
  measure(262144, 128);
  measure(262144, 64);
  measure(131072, 256);
  measure(32, 128);
  return 0;
}
