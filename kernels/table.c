/* table.c: which kernels this build has, and which of them to use. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/kernel.h"

static const skv__kernel_t *const kernels[] = {
#if defined(__x86_64__)
    &skv__cpu_avx512,
    &skv__cpu_avx2,
#endif
    &skv__cpu_portable,
    NULL,
};

const skv__kernel_t *const *skv__kernels(void) {
  return kernels;
}

static const skv__kernel_t *named(const char *name, skv__error_t *error) {
  for (size_t i = 0; kernels[i]; ++i) {
    if (strcmp(kernels[i]->name, name) != 0)
      continue;
    if (kernels[i]->available())
      return kernels[i];
    skv__fail(error, SKV_UNSUPPORTED, "this machine cannot run the kernel %s", name);
    return NULL;
  }
  skv__fail(error, SKV_INVALID, "this build has no kernel called %s", name);
  return NULL;
}

const skv__kernel_t *skv__kernel_pick(skv_backend_t backend, const char *name,
                                      skv__error_t *error) {
  if (name)
    return named(name, error);
  for (size_t i = 0; kernels[i]; ++i)
    if ((backend == SKV_BACKEND_AUTO || kernels[i]->backend == backend) && kernels[i]->available())
      return kernels[i];
  skv__fail(error, SKV_UNSUPPORTED, "this build has no %s kernel that this machine can run",
            backend == SKV_BACKEND_CUDA ? "CUDA" : "CPU");
  return NULL;
}
