/* rounding.h: every thread computes with round-to-nearest, denormals and masked exceptions,
 * whatever the caller's mode, and puts the caller's mode back. */
#ifndef SKV_CPU_ROUNDING_H
#define SKV_CPU_ROUNDING_H

#if defined(__x86_64__)
#include <immintrin.h>

typedef unsigned skv__rounding_t;

static inline skv__rounding_t skv__rounding_set(void) {
  skv__rounding_t before = _mm_getcsr();
  _mm_setcsr(0x1f80); /* the architecture's default */
  return before;
}
static inline void skv__rounding_restore(skv__rounding_t before) {
  _mm_setcsr(before);
}
static inline void skv__spin_pause(void) {
  _mm_pause();
}
#else
#include <fenv.h>

typedef fenv_t skv__rounding_t;

static inline skv__rounding_t skv__rounding_set(void) {
  skv__rounding_t before;
  fegetenv(&before);
  fesetenv(FE_DFL_ENV);
  return before;
}
static inline void skv__rounding_restore(skv__rounding_t before) {
  fesetenv(&before);
}
static inline void skv__spin_pause(void) {
}
#endif

#endif
