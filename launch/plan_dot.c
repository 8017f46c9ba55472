/* plan_dot.c: see plan_dot.h. */
#include "launch/plan_dot.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "launch/tensor_file.h"
#include "order.h"

enum {
  EVERY_BLOCK = 64, /* blocks that are all drawn */
  LEVELS = 9        /* of a tree that is larger */
};

typedef struct picture {
  const skv__shard_t *shard;
  int64_t *run_end; /* [blocks] where the run of blocks of one owner ends */
  int64_t block_tokens;
  skv__output_t *file;
  int64_t written;
  skv__error_t *error;
} picture_t;

static void put(picture_t *picture, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(picture_t *picture, const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  int bytes = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (picture->error->status == SKV_OK)
    skv__output_write(picture->file, picture->written, text, bytes, picture->error);
  picture->written += bytes;
}

static bool has_one_owner(const picture_t *picture, skv__node_t node) {
  return picture->run_end[node.begin] >= node.end;
}

static void put_node(picture_t *picture, skv__node_t node, bool is_leaf) {
  int32_t owner = skv__shard_owner(picture->shard, node.begin);
  put(picture, "  \"%" PRId64 "-%" PRId64 "\" [", node.begin, node.end);
  if (has_one_owner(picture, node))
    put(picture, "style=filled,fillcolor=\"%.3f 0.35 0.95\",",
        (double)owner / (double)picture->shard->ranks);
  if (!is_leaf) {
    put(picture, "shape=ellipse,label=\"%" PRId64 "..%" PRId64 "\"];\n", node.begin, node.end - 1);
    return;
  }
  put(picture, "shape=box,label=\"");
  if (node.end - node.begin == 1)
    put(picture, "block %" PRId64, node.begin);
  else
    put(picture, "blocks %" PRId64 "..%" PRId64, node.begin, node.end - 1);
  if (has_one_owner(picture, node))
    put(picture, "\\nrank %d\"];\n", (int)owner);
  else
    put(picture, "\\nseveral ranks\"];\n");
}

static void put_tree(picture_t *picture, skv__node_t node, int level) {
  bool small = picture->shard->blocks <= EVERY_BLOCK;
  bool is_leaf =
      node.end - node.begin == 1 || (!small && (has_one_owner(picture, node) || level == LEVELS));
  put_node(picture, node, is_leaf);
  if (is_leaf)
    return;
  int64_t split = skv__order_split(node);
  skv__node_t children[2] = {{node.begin, split}, {split, node.end}};
  for (int i = 0; i < 2; ++i) {
    put_tree(picture, children[i], level + 1);
    put(picture, "  \"%" PRId64 "-%" PRId64 "\" -> \"%" PRId64 "-%" PRId64 "\"%s;\n",
        children[i].begin, children[i].end, node.begin, node.end,
        has_one_owner(picture, node) ? "" : " [penwidth=2]");
  }
}

static void find_runs(picture_t *picture) {
  int64_t blocks = picture->shard->blocks;
  for (int64_t block = blocks - 1; block >= 0; --block) {
    bool goes_on = block + 1 < blocks && skv__shard_owner(picture->shard, block) ==
                                             skv__shard_owner(picture->shard, block + 1);
    picture->run_end[block] = goes_on ? picture->run_end[block + 1] : block + 1;
  }
}

skv_status_t skv__plan_dot(const char *path, const skv__shard_t *shard, int64_t block_tokens,
                           skv__error_t *error) {
  picture_t picture = {.shard = shard, .block_tokens = block_tokens, .error = error};
  picture.run_end = malloc((size_t)(shard->blocks + 1) * sizeof *picture.run_end);
  if (!picture.run_end)
    return skv__fail(error, SKV_MEMORY, "no memory for a picture of %lld blocks",
                     (long long)shard->blocks);
  if (skv__output_open(&picture.file, path, error) == SKV_OK) {
    find_runs(&picture);
    put(&picture, "// %" PRId64 " blocks of %" PRId64 " keys on %d ranks; bold edges cross ranks\n",
        shard->blocks, block_tokens, (int)shard->ranks);
    put(&picture, "digraph merges {\n  rankdir=BT;\n  node [fontname=\"Helvetica\"];\n");
    if (shard->blocks > 0)
      put_tree(&picture, (skv__node_t){0, shard->blocks}, 0);
    put(&picture, "}\n");
    if (error->status == SKV_OK)
      skv__output_commit(picture.file, error);
    else
      skv__output_discard(picture.file);
  }
  free(picture.run_end);
  return error->status;
}
