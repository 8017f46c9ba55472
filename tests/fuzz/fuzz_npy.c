/* fuzz_npy.c: whatever the bytes are, the .npy parser ends, reads nothing but them, and what it
 * accepts agrees with itself. */
#include <stdlib.h>

#include "launch/tensor_file.h"
#include "tests/fuzz/accepted.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes) {
  for (skv_dtype_t u2_dtype = SKV_FP32; u2_dtype <= SKV_BF16; u2_dtype += 2) {
    skv__tensor_file_t file = {.path = "x.npy"};
    skv__error_t error = {0};
    skv_status_t status = skv__npy_parse(&file, data, bytes, (int64_t)bytes, u2_dtype, &error);
    if (!is_consistent(&file, &error, status, (int64_t)bytes))
      abort();
  }
  return 0;
}
