/* place.c: see place.h. */
#include "launch/place.h"

#include <stdio.h>
#include <string.h>

int32_t skv__place_gpu(int32_t local_rank, int32_t local_ranks, int32_t gpus) {
  if (gpus < 1)
    return SKV__NO_GPU;
  if (local_ranks <= gpus)
    return local_rank;
  return (int32_t)((int64_t)local_rank * gpus / local_ranks);
}

skv__core_range_t skv__place_cores(int32_t local_rank, int32_t local_ranks, const int32_t *numa,
                                   int32_t cores) {
  int64_t before = 0, together = 0;
  for (int32_t rank = 0; rank < local_ranks; ++rank) {
    bool near = numa[rank] == numa[local_rank];
    together += near;
    before += near && rank < local_rank;
  }
  if (together > cores)
    return (skv__core_range_t){0, cores};
  return (skv__core_range_t){(int32_t)(before * cores / together),
                             (int32_t)((before + 1) * cores / together)};
}

static void append(char *text, size_t text_bytes, const char *format, int number) {
  size_t used = strlen(text);
  if (used + 1 < text_bytes)
    snprintf(text + used, text_bytes - used, format, number);
}

void skv__place_sharing(const uint64_t *gpu, int32_t ranks, char *text, size_t text_bytes) {
  text[0] = '\0';
  for (int32_t first = 0; first < ranks; ++first) {
    int32_t last = first;
    bool told = false;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      told = told || (rank < first && gpu[rank] == gpu[first]);
      last = rank > last && gpu[rank] == gpu[first] ? rank : last;
    }
    if (gpu[first] == 0 || told || last == first)
      continue;
    append(text, text_bytes, text[0] ? "; ranks %d" : "ranks %d", (int)first);
    for (int32_t rank = first + 1; rank < last; ++rank)
      if (gpu[rank] == gpu[first])
        append(text, text_bytes, ", %d", (int)rank);
    append(text, text_bytes, " and %d share a GPU", (int)last);
  }
}
