/* cpu.c: the CPU kernels: one order, three instruction sets. */
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/evaluate.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static bool supports(const skv__job_t *job, skv__error_t *error) {
  if (job->head_dim < 1 || job->head_dim > 256 || job->value_head_dim < 1 ||
      job->value_head_dim > 256) {
    skv__fail(error, SKV_UNSUPPORTED, "the CPU kernels take head dimensions from 1 to 256");
    return false;
  }
  return true;
}

static bool always(skv__error_t *error) {
  (void)error;
  return true;
}

#define KERNEL(NAME, AVAILABLE)                                                                    \
  static skv_status_t evaluate_##NAME(const skv__job_t *job, void *scratch, int32_t threads,       \
                                      skv_status_t (*poll)(void *user), void *user, void *stream,  \
                                      skv__error_t *error) {                                       \
    (void)stream;                                                                                  \
    return skv__cpu_evaluate(&skv__tile_##NAME, job, scratch, threads, poll, user, error);         \
  }                                                                                                \
  static void merge_##NAME(float *into, const float *right, int64_t rows, int64_t value_head_dim,  \
                           int32_t threads, void *stream) {                                        \
    (void)stream;                                                                                  \
    skv__cpu_merge(&skv__tile_##NAME, into, right, rows, value_head_dim, threads);                 \
  }                                                                                                \
  const skv__kernel_t skv__cpu_##NAME = {.name = "cpu." #NAME,                                     \
                                         .backend = SKV_BACKEND_CPU,                               \
                                         .order = {"cpu-1", "cpu-1", "cpu-1"},                     \
                                         .available = AVAILABLE,                                   \
                                         .supports = supports,                                     \
                                         .scratch_bytes = skv__cpu_scratch_bytes,                  \
                                         .evaluate = evaluate_##NAME,                              \
                                         .merge = merge_##NAME,                                    \
                                         .finish = finish};

static skv_status_t finish(const skv__job_t *job, int32_t owner, const float *slice,
                           const skv__finish_t *outputs, int32_t threads, void *stream,
                           skv__error_t *error) {
  (void)stream, (void)error;
  skv__cpu_finish(job, owner, slice, outputs, threads);
  return SKV_OK;
}

KERNEL(portable, always)

#if defined(__x86_64__)
static bool lacks(skv__error_t *error, const char *what) {
  skv__fail(error, SKV_UNSUPPORTED, "its CPU has no %s", what);
  return false;
}
static bool has_avx2(skv__error_t *error) {
  unsigned eax, ebx, ecx = 0, edx;
  __get_cpuid(1, &eax, &ebx, &ecx, &edx); /* clang's builtin does not know f16c */
  return ((ecx & bit_F16C) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) ||
         lacks(error, "AVX2, FMA and F16C");
}
static bool has_avx512(skv__error_t *error) {
  return has_avx2(error) &&
         ((__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) ||
          lacks(error, "AVX-512 F, DQ, BW and VL"));
}

KERNEL(avx2, has_avx2)
KERNEL(avx512, has_avx512)
#endif
