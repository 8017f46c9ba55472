/* table.c: which kernels this build has, and which of them to use. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/kernel.h"
#ifdef SKV_HAVE_CUDA
#include "kernels/cuda/cuda.h"
#endif

static const skv__kernel_t *const kernels[] = {
#if defined(__x86_64__)
    &skv__cpu_avx512,
    &skv__cpu_avx2,
#endif
    &skv__cpu_portable,
#ifdef SKV_HAVE_CUDA
    &skv__cuda_sm90,
    &skv__cuda_plain_kernel,
#endif
    NULL,
};

const skv__kernel_t *const *skv__kernels(void) {
  return kernels;
}

static const skv__kernel_t *named(const char *name, skv__error_t *error) {
  for (size_t i = 0; kernels[i]; ++i) {
    skv__error_t why = {0};
    if (strcmp(kernels[i]->name, name) != 0)
      continue;
    if (kernels[i]->available(&why))
      return kernels[i];
    skv__fail(error, SKV_UNSUPPORTED, "this machine cannot run the kernel %s: %s", name, why.text);
    return NULL;
  }
  skv__fail(error, SKV_INVALID, "this build has no kernel called %s", name);
  return NULL;
}

const skv__kernel_t *skv__kernel_pick(skv_backend_t backend, const char *name,
                                      skv__error_t *error) {
  skv__error_t why = {0};
  if (name)
    return named(name, error);
  if (backend == SKV_BACKEND_AUTO)
    backend = SKV_BACKEND_CPU;
  for (size_t i = 0; kernels[i]; ++i)
    if (kernels[i]->backend == backend && kernels[i]->available(&why))
      return kernels[i];
  if (why.status != SKV_OK)
    skv__fail(error, SKV_UNSUPPORTED, "no CUDA device that this build can use: %s", why.text);
  else
    skv__fail(error, SKV_UNSUPPORTED, "this build has no CUDA kernels: build it where nvcc is");
  return NULL;
}
