/* cpu.h: the CPU kernels, for the table. */
#ifndef SKV_CPU_H
#define SKV_CPU_H

#include "kernels/kernel.h"

extern const skv__kernel_t skv__cpu_portable;
#if defined(__x86_64__)
extern const skv__kernel_t skv__cpu_avx2, skv__cpu_avx512;
#endif

#endif
