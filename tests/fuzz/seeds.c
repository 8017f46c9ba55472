/* seeds.c: writes the hostile files of tests/data/hostile, and good ones, as a fuzzer's first
 * inputs: seeds FOLDER npy|safetensors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/data/hostile/npy.h"
#include "tests/data/hostile/safetensors.h"

static const char *folder;
static int written;

static void write_seed(const void *data, size_t bytes) {
  char path[4096];
  snprintf(path, sizeof path, "%s/seed-%03d", folder, written++);
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) {
    perror(path);
    exit(1);
  }
}

static void write_npy(const char *literal, int64_t data_bytes) {
  size_t bytes;
  unsigned char *data = hostile_npy_file(1 + written % 3, literal, data_bytes, &bytes);
  write_seed(data, bytes);
  free(data);
}

static void write_safetensors(const char *json, int64_t data_bytes) {
  size_t bytes;
  unsigned char *data = hostile_safetensors_file(json, data_bytes, &bytes);
  write_seed(data, bytes);
  free(data);
}

#define EACH(table) for (size_t i = 0; i < sizeof(table) / sizeof(table)[0]; i++)

int main(int argc, char **argv) {
  if (argc != 3)
    return 2;
  folder = argv[1];
  if (strcmp(argv[2], "npy") == 0) {
    write_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 24);
    write_npy("{'descr': '<f2', 'fortran_order': False, 'shape': (), }", 2);
    write_npy("{'descr': '<u2', 'fortran_order': False, 'shape': (3, 0, 1), }", 0);
    EACH(hostile_npy) write_npy(hostile_npy[i].literal, hostile_npy[i].data_bytes);
    EACH(hostile_npy_bytes) write_seed(hostile_npy_bytes[i].bytes, hostile_npy_bytes[i].count);
  } else {
    write_safetensors("{" T("a", "F32", "[2]", "[0,8]") "}", 8);
    write_safetensors("{\"__metadata__\":{\"x\":\"\\u00e9\"}," T(
                          "a", "F16", "[1,1]", "[0,2]") "," T("b", "BF16", "[0]", "[2,2]") "}  ",
                      2);
    EACH(hostile_safetensors)
    write_safetensors(hostile_safetensors[i].json, hostile_safetensors[i].data_bytes);
    EACH(hostile_safetensors_prefixes)
    write_seed(hostile_safetensors_prefixes[i].bytes, hostile_safetensors_prefixes[i].count);
  }
  return 0;
}
