/* random.cuh: what the programs that test CUDA kernels begin with: random bits, and calls that must
 * not fail. The seed is the program's own, so that it can be set apart. */
#ifndef SKV_TESTS_RANDOM_CUH
#define SKV_TESTS_RANDOM_CUH

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime.h>

static void check(cudaError_t status) {
  if (status != cudaSuccess) {
    fprintf(stderr, "cuda: %s\n", cudaGetErrorString(status));
    exit(1);
  }
}

static uint64_t random_state = 0x2545f4914f6cdd1du;
static uint32_t random_bits(void) {
  random_state ^= random_state << 13, random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (uint32_t)(random_state >> 32);
}

#endif
