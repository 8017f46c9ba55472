/* portable.c: tiles in plain C. The bits are those of the vector versions as long as fmaf is right,
 * which C promises. Without FMA hardware fmaf is a slow library call: then this is for tests on
 * small shapes. */
#include "kernels/cpu/lanes_portable.h"

#define TILE skv__tile_portable
#include "kernels/cpu/tile_body.h"
