/* avx2.c: tiles by AVX2 with FMA and F16C: 6 rows x 16 columns in 12 registers. */
#if defined(__x86_64__)

#include "kernels/cpu/lanes_avx2.h"

#define TILE skv__tile_avx2
#include "kernels/cpu/tile_body.h"

#endif
