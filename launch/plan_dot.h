/* plan_dot.h: a picture of the merge tree, for Graphviz. */
#ifndef SKV_PLAN_DOT_H
#define SKV_PLAN_DOT_H

#include "error.h"
#include "shard.h"

/* Writes the tree over the shard's blocks, coloured by rank. What one rank evaluates is one box
 * where the tree is large, and what lies below a few levels of a very large one is summed up. */
skv_status_t skv__plan_dot(const char *path, const skv__shard_t *shard, int64_t block_tokens,
                           skv__error_t *error);

#endif
