/* test_merge.cu: the merge kernels against skv__merge_row as the host's compiler builds it: the
 * same bits, for random states with specials, for every count of states, in place, beside guard
 * bytes. */
#include "kernels/cuda/merge.h"
#include "tests/cuda/states.cuh"

/* states[begin, end) merged into states[begin], by the canonical tree. */
static void merge_on_host(float **states, int begin, int end, int64_t rows, int64_t dim) {
  if (end - begin < 2)
    return;
  int split = 1;
  while (2 * split < end - begin)
    split *= 2;
  merge_on_host(states, begin, begin + split, rows, dim);
  merge_on_host(states, begin + split, end, rows, dim);
  float *left = states[begin] + GUARD, *right = states[begin + split] + GUARD;
  for (int64_t row = 0; row < rows; ++row)
    skv__merge_row(left + row * dim, left + rows * dim + row, left + rows * (dim + 1) + row,
                   right + row * dim, right[rows * dim + row], right[rows * (dim + 1) + row], dim);
}

static void test(int count, int64_t rows, int64_t dim, int into) {
  size_t floats = (size_t)(rows * (dim + 2) + 2 * GUARD);
  float *host[SKV__MERGE_MAX], *device[SKV__MERGE_MAX + 1];
  const float *states[SKV__MERGE_MAX];
  for (int i = 0; i <= count; ++i) {
    check(cudaMalloc((void **)&device[i], floats * sizeof(float)));
    if (i == count)
      break;
    host[i] = random_slice(rows, dim);
    check(cudaMemcpy(device[i], host[i], floats * sizeof(float), cudaMemcpyHostToDevice));
    states[i] = device[i] + GUARD;
  }
  int target = into < 0 ? count : into;
  float *out = (float *)malloc(floats * sizeof(float));
  float *expected = (float *)malloc(floats * sizeof(float));
  memset(out, 0x5a, floats * sizeof(float));
  if (target == count)
    check(cudaMemcpy(device[count], out, floats * sizeof(float), cudaMemcpyHostToDevice));
  memcpy(expected, target == count ? out : host[target], floats * sizeof(float));
  if (skv__launch_merge(device[target] + GUARD, states, count, rows, dim, 0) != SKV_OK)
    ++failures, printf("FAIL launch\n");
  check(cudaDeviceSynchronize());
  check(cudaMemcpy(out, device[target], floats * sizeof(float), cudaMemcpyDeviceToHost));
  merge_on_host(host, 0, count, rows, dim);
  memcpy(expected + GUARD, host[0] + GUARD, (floats - 2 * GUARD) * sizeof(float));
  int64_t differ = 0;
  for (size_t i = 0; i < floats; ++i)
    differ += memcmp(out + i, expected + i, sizeof *out) != 0;
  if (differ)
    ++failures;
  printf("%s merge of %d, %lld rows x %lld, into %d: %lld of %zu differ\n",
         differ ? "FAIL" : "ok  ", count, (long long)rows, (long long)dim, into, (long long)differ,
         floats);
  for (int i = 0; i <= count; ++i) {
    check(cudaFree(device[i]));
    if (i < count)
      free(host[i]);
  }
  free(out), free(expected);
}

int main(void) {
  test(2, 80000, 128, 0); /* 10.4 million merged values */
  for (int count = 1; count <= SKV__MERGE_MAX; ++count)
    test(count, 301, 64, -1);
  static const int64_t dims[] = {1, 3, 8, 96, 192, 255, 256};
  for (size_t i = 0; i < sizeof dims / sizeof *dims; ++i) {
    test(2, 1000, dims[i], 0);
    test(5, 77, dims[i], 4);
  }
  test(3, 1, 128, 1);
  printf("%d failures\n", failures);
  return failures ? 1 : 0;
}
