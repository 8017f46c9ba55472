/* pages.h: zeroed memory for tensors, of which only what is touched costs anything. */
#ifndef SKV_PAGES_H
#define SKV_PAGES_H

#include "error.h"

typedef struct skv__pages {
  void *data;
  size_t bytes;
} skv__pages_t;

/* The product of the extents (each >= 0) times element_bytes. `what` names the tensor in messages.
 */
skv_status_t skv__pages_map(skv__pages_t *pages, const int64_t *extents, int32_t count,
                            int64_t element_bytes, const char *what, skv__error_t *error);
void skv__pages_unmap(skv__pages_t *pages);

/* Refuse work that would touch more memory than the host has, before the kernel kills somebody. */
skv_status_t skv__pages_fit(double bytes_of_rank, int32_t local_ranks, skv__error_t *error);

#endif
