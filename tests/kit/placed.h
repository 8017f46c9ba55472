/* placed.h: tensors with their dimensions in any order, backwards, with gaps. */
#ifndef KIT_PLACED_H
#define KIT_PLACED_H

#include "kit.h"

typedef struct kit_placed {
  void *memory; /* poisoned */
  skv_tensor_t tensor;
  int64_t extent[3], dim, item;
} kit_placed_t;

/* Extents are of sequence, token, head; `zero` is a dimension that gets stride 0, or -1. Free
 * `memory` with kit_poisoned_free. */
kit_placed_t kit_place(uint64_t *state, const int64_t extent[3], int64_t dim, int64_t item,
                       int32_t zero, bool backwards);
void *kit_placed_row(const kit_placed_t *placed, int64_t sequence, int64_t token, int64_t head);
/* Tokens [begin, end) of dense [batch][tokens][heads][dim] go to token `to` and following; or, with
 * `back`, come from there. */
void kit_copy_tokens(const kit_placed_t *placed, void *dense, int64_t tokens, int64_t begin,
                     int64_t end, int64_t to, bool back);

#endif
