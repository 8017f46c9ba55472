/* avx512.c: tiles by AVX-512: 12 rows x 32 columns in 24 registers. */
#if defined(__x86_64__)

#include "kernels/cpu/lanes_avx512.h"

#define TILE skv__tile_avx512
#include "kernels/cpu/tile_body.h"

#endif
