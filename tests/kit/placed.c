#include "placed.h"

#include <string.h>

#include "chance.h"

kit_placed_t kit_place(uint64_t *state, const int64_t extent[3], int64_t dim, int64_t item,
                       int32_t zero, bool backwards) {
  static const int32_t orders[][3] = {{0, 1, 2}, {0, 2, 1}, {2, 0, 1}, {1, 0, 2}};
  const int32_t *order = orders[kit_between(state, 0, 3)];
  kit_placed_t placed = {.dim = dim, .item = item, .tensor.stride[3] = 1};
  int64_t width = dim + (kit_one_in(state, 2) ? kit_between(state, 1, 5) : 0), first = 0;
  for (int32_t i = 2; i >= 0; i--) {
    int32_t d = order[i];
    int64_t count = d == zero ? 1 : extent[d];
    placed.extent[d] = extent[d];
    placed.tensor.stride[d] = d == zero ? 0 : width;
    if (backwards && d != zero && kit_one_in(state, 3)) {
      placed.tensor.stride[d] = -width;
      first += (count > 0 ? count - 1 : 0) * width;
    }
    width *= count > 0 ? count : 1;
  }
  placed.memory = kit_poisoned((size_t)(width * item));
  placed.tensor.data = (char *)placed.memory + first * item;
  return placed;
}

void *kit_placed_row(const kit_placed_t *placed, int64_t sequence, int64_t token, int64_t head) {
  const int64_t *stride = placed->tensor.stride;
  return (char *)placed->tensor.data +
         (sequence * stride[0] + token * stride[1] + head * stride[2]) * placed->item;
}

void kit_copy_tokens(const kit_placed_t *placed, void *dense, int64_t tokens, int64_t begin,
                     int64_t end, int64_t to, bool back) {
  size_t bytes = (size_t)(placed->dim * placed->item);
  for (int64_t s = 0; s < placed->extent[0]; s++)
    for (int64_t t = begin; t < end; t++)
      for (int64_t h = 0; h < placed->extent[2]; h++) {
        char *at = (char *)dense + ((s * tokens + t) * placed->extent[2] + h) * (int64_t)bytes;
        void *row = kit_placed_row(placed, s, to + t - begin, h);
        memcpy(back ? (void *)at : row, back ? row : (void *)at, bytes);
      }
}
