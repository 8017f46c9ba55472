/* ceilings.h: what this machine can do at most, measured in the same run as what is compared with
 * it. */
#ifndef BENCH_CEILINGS_H
#define BENCH_CEILINGS_H

#include <immintrin.h>
#include <omp.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Seconds on CLOCK_MONOTONIC, or on CLOCK_PROCESS_CPUTIME_ID, which for one thread leaves out what
 * others did on a busy machine. */
static clockid_t bench_clock = CLOCK_MONOTONIC;

static inline double bench_now(void) {
  struct timespec now;
  clock_gettime(bench_clock, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Twelve chains of fused multiply-adds in registers; their values converge, none overflows. The
 * empty asm keeps the compiler from seeing that. */
#define BENCH_FMA_LOOP(NAME, TARGET, VECTOR, PREFIX)                                               \
  __attribute__((target(TARGET), noinline)) static double NAME(int64_t rounds) {                   \
    VECTOR c[12], a = PREFIX##_set1_ps(0.5f), b = PREFIX##_set1_ps(1.0f);                          \
    _Pragma("GCC unroll 12") for (int i = 0; i < 12; ++i) c[i] = b;                                \
    for (int64_t round = 0; round < rounds; ++round) {                                             \
      _Pragma("GCC unroll 12") for (int i = 0; i < 12; ++i) c[i] = PREFIX##_fmadd_ps(c[i], a, b);  \
      _Pragma("GCC unroll 12") for (int i = 0; i < 12; ++i) __asm__("" : "+v"(c[i]));              \
    }                                                                                              \
    _Pragma("GCC unroll 12") for (int i = 0; i < 12; ++i) __asm__ volatile("" : : "v"(c[i]));      \
    return (double)rounds * 12 * 2 * sizeof(VECTOR) / sizeof(float);                               \
  }

BENCH_FMA_LOOP(bench_fma_256, "avx2,fma", __m256, _mm256)
BENCH_FMA_LOOP(bench_fma_512, "avx512f", __m512, _mm512)

/* fp32 FMA peak in FLOP/s on `threads` threads, in a run of about 50 ms. */
static inline double bench_fma_peak(int32_t threads) {
  double flop = 0.0, begin = 0.0;
  int wide = __builtin_cpu_supports("avx512f");
#pragma omp parallel num_threads(threads) reduction(+ : flop)
  {
#pragma omp barrier
#pragma omp master
    begin = bench_now();
    flop = wide ? bench_fma_512(25000000) : bench_fma_256(25000000);
  }
  return flop / (bench_now() - begin);
}

typedef uint64_t bench_words_t __attribute__((vector_size(32)));

/* Bytes a second of reading `bytes` (a multiple of 256) at `data` once, front to back, each thread
 * its part. */
__attribute__((target("avx2"))) static inline double bench_read_rate(const void *data, size_t bytes,
                                                                     int32_t threads) {
  const int64_t chunks = (int64_t)(bytes / 256);
  uint64_t sink = 0;
  double begin = bench_now();
#pragma omp parallel num_threads(threads) reduction(+ : sink)
  {
    bench_words_t sum[4] = {{0}, {0}, {0}, {0}};
#pragma omp for schedule(static)
    for (int64_t chunk = 0; chunk < chunks; ++chunk)
      for (int i = 0; i < 8; ++i)
        sum[i % 4] += ((const bench_words_t *)((const char *)data + 256 * chunk))[i];
    for (int i = 0; i < 4; ++i)
      sink += sum[i][0] + sum[i][1] + sum[i][2] + sum[i][3];
  }
  double seconds = bench_now() - begin;
  __asm__ volatile("" : : "r"(&sink) : "memory");
  return (double)bytes / seconds;
}

#endif
