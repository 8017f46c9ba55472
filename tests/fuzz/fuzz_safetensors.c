/* fuzz_safetensors.c: the same for the safetensors parser, with and without a name. */
#include <stdlib.h>

#include "launch/tensor_file.h"
#include "tests/fuzz/accepted.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes) {
  const char *const names[] = {NULL, "a"};
  for (int i = 0; i < 2; i++) {
    skv__tensor_file_t file = {.path = "x.safetensors"};
    skv__error_t error = {0};
    skv_status_t status =
        skv__safetensors_parse(&file, data, bytes, (int64_t)bytes, names[i], &error);
    if (!is_consistent(&file, &error, status, (int64_t)bytes))
      abort();
  }
  return 0;
}
