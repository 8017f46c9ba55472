/* states.cuh: random slices of states, with specials, between guards. */
#ifndef SKV_TESTS_STATES_CUH
#define SKV_TESTS_STATES_CUH

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "kernels/state.h"
#include "tests/cuda/random.cuh"

enum { GUARD = 64 }; /* floats before and after a slice */

static int failures;

static float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Mostly ordinary values; now and then any bit pattern at all. */
static float random_value(void) {
  if (random_bits() % 64 == 0)
    return float_of(random_bits());
  return (float)(int32_t)random_bits() * 0x1p-28f;
}

static float random_exponent(void) {
  static const float special[] = {-INFINITY, 0.0f, -0x1p30f, 0x1p30f, NAN, INFINITY};
  if (random_bits() % 16 == 0)
    return special[random_bits() % 6];
  return (float)((int32_t)(random_bits() % 64) - 32) * (random_bits() % 8 ? 1.0f : 8.0f);
}

static float *random_slice(int64_t rows, int64_t dim) {
  float *slice = (float *)malloc(sizeof *slice * (size_t)(rows * (dim + 2) + 2 * GUARD));
  for (int64_t i = 0; i < rows * (dim + 2) + 2 * GUARD; ++i)
    slice[i] = random_value();
  for (int64_t row = 0; row < rows; ++row) {
    float e = random_exponent();
    slice[GUARD + rows * dim + row] = e;
    if (skv__is_empty(e)) {
      slice[GUARD + rows * (dim + 1) + row] = 0.0f;
      memset(slice + GUARD + row * dim, 0, sizeof *slice * (size_t)dim);
    }
  }
  return slice;
}

#endif
