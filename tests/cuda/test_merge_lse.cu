/* test_merge_lse.cu: merges of (O, LSE) pairs on the device against skv_merge_lse: the same bits,
 * for every dtype and base, specials included, in place or not, from odd addresses, beside guards.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "kernels/convert.h"
#include "kernels/cuda/merge.h"
#include "skv.h"
#include "tests/cuda/random.cuh"

enum { GUARD = 256 }; /* bytes before and after an array */

typedef struct array {
  unsigned char *host, *device;
  size_t bytes, shift; /* shift: how far from a round address the array begins */
} array_t;

static int failures, processors;

static array_t array_of(size_t bytes, size_t shift) {
  array_t array = {NULL, NULL, bytes + 2 * GUARD + shift, shift};
  array.host = (unsigned char *)malloc(array.bytes);
  memset(array.host, 0x5a, array.bytes);
  check(cudaMalloc((void **)&array.device, array.bytes));
  return array;
}
static void *on_host(array_t array) {
  return array.host + GUARD + array.shift;
}
static void *on_device(array_t array) {
  return array.device + GUARD + array.shift;
}
static void upload(array_t array) {
  check(cudaMemcpy(array.device, array.host, array.bytes, cudaMemcpyHostToDevice));
}
static int64_t differences(array_t array) {
  unsigned char *device = (unsigned char *)malloc(array.bytes);
  check(cudaMemcpy(device, array.device, array.bytes, cudaMemcpyDeviceToHost));
  int64_t count = 0;
  for (size_t i = 0; i < array.bytes; ++i)
    count += device[i] != array.host[i];
  free(device);
  return count;
}
static void release(array_t array) {
  free(array.host);
  check(cudaFree(array.device));
}

/* Mostly ordinary values; now and then any bit pattern at all. */
static void fill_output(array_t array, skv_dtype_t dtype, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = random_bits();
    if (bits % 64 == 0)
      memcpy((char *)on_host(array) + i * skv__dtype_bytes(dtype), &bits,
             (size_t)skv__dtype_bytes(dtype));
    else
      skv__store(dtype, on_host(array), i, (float)(int32_t)bits * 0x1p-28f);
  }
  upload(array);
}

static void fill_lse(array_t array, int64_t rows) {
  static const float special[] = {INFINITY, -INFINITY, NAN, 3.4e38f, -3.4e38f, 0.0f, -0.0f, 1e-40f};
  for (int64_t i = 0; i < rows; ++i) {
    uint32_t bits = random_bits();
    float lse = (float)(int32_t)bits * (bits % 8 ? 0x1p-28f : bits % 16 ? 0x1p-23f : 0x1p-14f);
    ((float *)on_host(array))[i] = random_bits() % 16 ? lse : special[random_bits() % 8];
  }
  upload(array);
}

static void test(int64_t rows, int64_t dim, skv_dtype_t dtype, skv_lse_base_t base, bool in_place,
                 bool odd) {
  const size_t element = (size_t)skv__dtype_bytes(dtype), shift = odd ? element : 0;
  array_t o[3], lse[3]; /* left, right, out */
  for (int i = 0; i < 3; ++i) {
    o[i] = array_of((size_t)(rows * dim) * element, shift);
    lse[i] = array_of((size_t)rows * sizeof(float), 0);
    if (i < 2)
      fill_output(o[i], dtype, rows * dim), fill_lse(lse[i], rows);
    else
      upload(o[i]), upload(lse[i]);
  }
  const int out = in_place ? 0 : 2;
  skv_status_t status = skv__launch_merge_lse(
      on_device(o[out]), (float *)on_device(lse[out]), on_device(o[0]), (float *)on_device(lse[0]),
      on_device(o[1]), (float *)on_device(lse[1]), rows, dim, dtype, base, processors, 0);
  check(cudaDeviceSynchronize());
  skv_status_t expected = skv_merge_lse(on_host(o[out]), (float *)on_host(lse[out]), on_host(o[0]),
                                        (float *)on_host(lse[0]), on_host(o[1]),
                                        (float *)on_host(lse[1]), rows, dim, dtype, base);
  int64_t differ = status != SKV_OK || expected != SKV_OK;
  for (int i = 0; i < 3; ++i) {
    differ += differences(o[i]) + differences(lse[i]);
    release(o[i]), release(lse[i]);
  }
  if (differ)
    ++failures;
  if (differ || rows > 10000)
    printf("%s %lld rows x %lld, dtype %d, base %d, in place %d, odd %d: %lld bytes differ\n",
           differ ? "FAIL" : "ok  ", (long long)rows, (long long)dim, dtype, base, in_place, odd,
           (long long)differ);
}

int main(void) {
  static const skv_dtype_t dtypes[] = {SKV_FP32, SKV_FP16, SKV_BF16};
  static const int64_t dims[] = {1, 3, 64, 100, 127, 256, 576};
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  for (int t = 0; t < 3; ++t)
    for (int base = 0; base < 2; ++base) {
      test(80000, 128, dtypes[t], (skv_lse_base_t)base, base, false); /* 10.2 million values */
      for (size_t d = 0; d < sizeof dims / sizeof *dims; ++d)
        for (int how = 0; how < 4; ++how)
          test(1 + (int64_t)d * 97, dims[d], dtypes[t], (skv_lse_base_t)base, how & 1, how & 2);
    }
  printf("%d failures\n", failures);
  return failures ? 1 : 0;
}
