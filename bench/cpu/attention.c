/* attention.c: the CPU kernel alone, against the machine's FMA peak (prefill) and a plain read of
 * the same bytes (decode), measured in turns with it. One JSON line a case on stdout, a table on
 * stderr.
 *
 *   attention [--threads N] [--repeats N] [--kernel NAME] [--case WORD] [--clock wall|cpu]
 *
 * --clock cpu counts processor time: with --threads 1 it compares fairly on a busy machine.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/cpu/ceilings.h"
#include "kernels/convert.h"
#include "kernels/kernel.h"

typedef struct bench_case {
  const char *name;
  int64_t q_heads, kv_heads, head_dim, queries, keys;
  int causal;
  skv_dtype_t dtype;
} bench_case_t;

static const bench_case_t cases[] = {
    {"prefill full", 8, 8, 128, 4096, 4096, 0, SKV_FP32},
    {"prefill causal", 8, 8, 128, 4096, 4096, 1, SKV_FP32},
    {"prefill causal gqa", 32, 8, 128, 2048, 2048, 1, SKV_BF16},
    {"decode 8/8", 8, 8, 128, 1, 65536, 1, SKV_FP32},
    {"decode 32/8", 32, 8, 128, 1, 65536, 1, SKV_FP32},
    {"decode 32/8 bf16", 32, 8, 128, 1, 65536, 1, SKV_BF16},
};

typedef struct bench_setup {
  int32_t threads, repeats;
  const skv__kernel_t *kernel;
} bench_setup_t;

typedef struct bench_work {
  skv__job_t job;
  skv__run_t run;
  skv__job_node_t node;
  int64_t rows, k_tokens, q_start;
  void *q, *kv; /* K, then V */
  size_t kv_bytes;
  float *slice;
  void *scratch;
} bench_work_t;

static void *need(size_t bytes) {
  void *memory = NULL;
  if (posix_memalign(&memory, 64, bytes) != 0) {
    fprintf(stderr, "attention: no memory for %zu bytes\n", bytes);
    exit(4);
  }
  return memory;
}

/* Uniform in (-1, 1): speed does not depend on the values, as long as none is denormal. */
static void fill(void *to, skv_dtype_t dtype, int64_t count) {
  uint32_t state = 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    skv__store(dtype, to, i, (float)(int32_t)state * 0x1p-31f);
  }
}

static void prepare(bench_work_t *work, const bench_case_t *c, const bench_setup_t *setup) {
  const int64_t d = c->head_dim, width = c->kv_heads * d, kv = c->keys * width;
  const int64_t blocks = (c->keys + 4095) / 4096, element = skv__dtype_bytes(c->dtype);
  memset(work, 0, sizeof *work);
  work->rows = c->queries * c->q_heads;
  work->k_tokens = c->keys, work->q_start = c->keys - c->queries;
  work->kv_bytes = (size_t)(2 * kv * element);
  work->q = need((size_t)(work->rows * d * element));
  work->kv = need(work->kv_bytes);
  work->slice = need((size_t)skv__slice_bytes(work->rows, d));
  fill(work->q, c->dtype, work->rows * d);
  fill(work->kv, c->dtype, 2 * kv);
  work->run = (skv__run_t){.q_count = c->queries};
  work->node = (skv__job_node_t){.end = blocks};
  work->job = (skv__job_t){.q_heads = c->q_heads,
                           .kv_heads = c->kv_heads,
                           .kv_head_end = c->kv_heads,
                           .head_dim = d,
                           .value_head_dim = d,
                           .dtype = c->dtype,
                           .scale = 0.08838835f,
                           .leaf_tokens = 512,
                           .block_tokens = 4096,
                           .left_tokens = INT64_MAX / 4,
                           .right_tokens = c->causal ? 0 : INT64_MAX / 4,
                           .k_tokens = &work->k_tokens,
                           .q_start = &work->q_start,
                           .q = {work->q, {0, c->q_heads * d, d, 1}},
                           .k = {work->kv, {0, width, d, 1}},
                           .v = {(char *)work->kv + kv * element, {0, width, d, 1}},
                           .runs = &work->run,
                           .run_count = 1,
                           .nodes = &work->node,
                           .node_count = 1,
                           .ranks = 1,
                           .slices = &work->slice,
                           .slice_rows = &work->rows};
  work->scratch = need(setup->kernel->scratch_bytes(&work->job, setup->threads));
}

static void clear(bench_work_t *work) {
  free(work->q);
  free(work->kv);
  free(work->slice);
  free(work->scratch);
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, int32_t count) {
  qsort(values, (size_t)count, sizeof *values, by_value);
  return values[count / 2];
}

static void report(const bench_case_t *c, const bench_setup_t *setup, double seconds, double flop,
                   double bytes, double peak, double peak_share, double read, double read_share) {
  printf("{\"bench\":\"attention\",\"kernel\":\"%s\",\"case\":\"%s\",\"q_heads\":%d,"
         "\"kv_heads\":%d,\"head_dim\":%d,\"queries\":%d,\"keys\":%d,\"dtype_bytes\":%d,"
         "\"threads\":%d,\"repeats\":%d,\"clock\":\"%s\",\"seconds\":%.6f,\"gflops\":%.2f,\"fma_"
         "peak_gflops\":%.1f,"
         "\"of_peak\":%.3f,\"gbytes_per_s\":%.2f,\"read_gbytes_per_s\":%.2f,\"of_read\":%.3f}\n",
         setup->kernel->name, c->name, (int)c->q_heads, (int)c->kv_heads, (int)c->head_dim,
         (int)c->queries, (int)c->keys, (int)skv__dtype_bytes(c->dtype), (int)setup->threads,
         (int)setup->repeats, bench_clock == CLOCK_MONOTONIC ? "wall" : "cpu", seconds,
         flop / seconds / 1e9, peak / 1e9, peak_share, bytes / seconds / 1e9, read / 1e9,
         read_share);
  fflush(stdout);
  fprintf(stderr, "%-20s %9.3f ms %8.1f GFLOP/s %6.1f %% of peak %7.2f GB/s %6.1f %% of a read\n",
          c->name, seconds * 1e3, flop / seconds / 1e9, 100 * peak_share, bytes / seconds / 1e9,
          100 * read_share);
}

/* Ceilings and kernel take turns, so that other load on the machine meets both alike; each share is
 * a median of ratios. */
static void run_case(const bench_case_t *c, const bench_setup_t *setup) {
  enum { MOST = 101 };
  double seconds[MOST], peak[MOST], read[MOST], peak_share[MOST], read_share[MOST];
  bench_work_t work;
  prepare(&work, c, setup);
  double pairs = (double)c->queries * (double)c->keys;
  if (c->causal && c->queries > 1)
    pairs -= (double)c->queries * (double)(c->queries - 1) / 2;
  double flop = 4.0 * (double)(c->q_heads * c->head_dim) * pairs, bytes = (double)work.kv_bytes;
  for (int32_t i = -1; i < setup->repeats; ++i) {
    double fma = bench_fma_peak(setup->threads);
    double rate = bench_read_rate(work.kv, work.kv_bytes, setup->threads);
    double begin = bench_now();
    setup->kernel->evaluate(&work.job, work.scratch, setup->threads, NULL, NULL, NULL, NULL);
    double took = bench_now() - begin;
    if (i < 0)
      continue; /* pages and clocks warm up */
    seconds[i] = took, peak[i] = fma, read[i] = rate;
    peak_share[i] = flop / took / fma, read_share[i] = bytes / took / rate;
  }
  int32_t n = setup->repeats;
  report(c, setup, median(seconds, n), flop, bytes, median(peak, n), median(peak_share, n),
         median(read, n), median(read_share, n));
  clear(&work);
}

static int usage(void) {
  fprintf(stderr, "usage: attention [--threads N] [--repeats N, 1 to 101] [--kernel NAME] "
                  "[--case WORD] [--clock wall|cpu]\n");
  return 2;
}

int main(int argc, char **argv) {
  bench_setup_t setup = {.threads = 2, .repeats = 7};
  const char *kernel = NULL, *word = "";
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--threads") == 0)
      setup.threads = atoi(argv[i + 1]);
    else if (strcmp(argv[i], "--repeats") == 0)
      setup.repeats = atoi(argv[i + 1]);
    else if (strcmp(argv[i], "--kernel") == 0)
      kernel = argv[i + 1];
    else if (strcmp(argv[i], "--case") == 0)
      word = argv[i + 1];
    else if (strcmp(argv[i], "--clock") == 0)
      bench_clock = strcmp(argv[i + 1], "cpu") == 0 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    else
      return usage();
  }
  if (argc % 2 == 0 || setup.threads < 1 || setup.repeats < 1 || setup.repeats > 101)
    return usage();
  skv__error_t error = {0};
  setup.kernel = skv__kernel_pick(SKV_BACKEND_CPU, kernel, &error);
  if (!setup.kernel) {
    fprintf(stderr, "attention: %s\n", error.text);
    return 1;
  }
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
    if (strstr(cases[i].name, word))
      run_case(&cases[i], &setup);
  return 0;
}
