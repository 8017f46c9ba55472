/* bits.c: prints the hash of N cases (default one million). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cases.h"

int main(int argc, char **argv) {
  uint64_t cases = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
  uint64_t hash = 0;
  for (uint64_t index = 0; index < cases; ++index)
    hash += bits_case(index);
  printf("%016" PRIx64 "\n", hash);
  return 0;
}
