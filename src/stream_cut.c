#include <stdlib.h>

#include "kernels/convert.h"
#include "stream.h"

/* More chunks than this cannot be planned: 64 TiB of keys and values by default. */
enum { MOST_NODES = 1 << 24 };

/* A block's keys that exist: only these are ever moved. */
static int64_t block_keys(const skv_problem_t *p) {
  int64_t keys = p->kv_capacity_tokens < p->block_tokens ? p->kv_capacity_tokens : p->block_tokens;
  return keys > 0 ? keys : 1;
}

static int64_t token_bytes(const skv_problem_t *p) {
  return p->kv_heads * (p->head_dim + p->value_head_dim) * skv__dtype_bytes(p->dtype);
}

static skv__chunk_cut_t cut_for(const skv_problem_t *p, int64_t target_bytes) {
  int64_t head_bytes = token_bytes(p) / p->kv_heads * block_keys(p);
  int64_t heads = target_bytes / head_bytes;
  heads = heads < 1 ? 1 : heads > p->kv_heads ? p->kv_heads : heads;
  return (skv__chunk_cut_t){.heads = heads, .head_groups = (p->kv_heads + heads - 1) / heads};
}

/* Nodes of at most `blocks` blocks each, descending from a frontier. Counts when nodes is NULL. */
static int32_t descend(skv__node_t node, int64_t blocks, skv__node_t *nodes, int32_t count) {
  if (node.end - node.begin <= blocks) {
    if (nodes)
      nodes[count] = node;
    return count + 1;
  }
  int64_t split = skv__order_split(node);
  count = descend((skv__node_t){node.begin, split}, blocks, nodes, count);
  return descend((skv__node_t){split, node.end}, blocks, nodes, count);
}

static bool cut_shard(skv__stream_t *stream, int32_t source, const skv__node_t *work,
                      int32_t work_count, int64_t blocks) {
  int32_t count = 0;
  for (int32_t i = 0; i < work_count; i++)
    count = descend(work[i], blocks, NULL, count);
  stream->nodes[source] = malloc(((size_t)count + 1) * sizeof(skv__node_t));
  if (!stream->nodes[source])
    return false;
  stream->node_count[source] = count;
  count = 0;
  for (int32_t i = 0; i < work_count; i++)
    count = descend(work[i], blocks, stream->nodes[source], count);
  return true;
}

static bool place_own(skv__stream_t *stream) {
  int32_t count = stream->node_count[stream->rank];
  int64_t offset = 0;
  stream->own_offset = malloc(((size_t)count + 1) * sizeof *stream->own_offset);
  for (int32_t i = 0; stream->own_offset && i < count; i++) {
    skv__node_t node = stream->nodes[stream->rank][i];
    stream->own_offset[i] = offset;
    offset += (node.end - node.begin) * stream->problem->block_tokens;
  }
  return stream->own_offset != NULL;
}

/* Most nodes that wait in the set while chunks arrive in the stream's order. */
static bool measure_pending(skv__stream_t *stream, int64_t blocks) {
  int64_t per_node = stream->problem->batch * stream->cut.head_groups;
  int32_t most = 0, total = 0;
  for (int32_t source = 0; source < stream->ranks; source++) {
    most = stream->node_count[source] > most ? stream->node_count[source] : most;
    total += stream->node_count[source];
  }
  stream->chunk_numbers = most * per_node;
  skv__pending_t set = {.blocks = blocks,
                        .free_order = stream->problem->order == SKV_ORDER_FREE,
                        .capacity = total + 1,
                        .held = malloc(((size_t)total + 1) * sizeof(skv__held_t))};
  if (!set.held)
    return false;
  for (int32_t i = 0; i < most; i++)
    for (int32_t step = 0; step < stream->ranks; step++) {
      int32_t source =
          skv__schedule_kv_step(stream->reduce, stream->ranks, stream->rank, step).source;
      if (i >= stream->node_count[source])
        continue;
      skv__pending_insert(&set, stream->nodes[source][i], 0, NULL, NULL);
      stream->peak_nodes = set.count > stream->peak_nodes ? set.count : stream->peak_nodes;
    }
  free(set.held);
  stream->set_capacity = total + 1;
  stream->slots = stream->peak_nodes + 1 + (per_node > 1 ? stream->ranks : 1);
  return true;
}

static int64_t largest_chunk(const skv__stream_t *stream) {
  const skv_problem_t *p = stream->problem;
  int64_t most = 0;
  for (int32_t source = 0; source < stream->ranks; source++)
    for (int32_t i = 0; i < stream->node_count[source]; i++) {
      int64_t blocks = stream->nodes[source][i].end - stream->nodes[source][i].begin;
      most = blocks > most ? blocks : most;
    }
  int64_t tokens = most * p->block_tokens;
  tokens = tokens < p->kv_capacity_tokens ? tokens : p->kv_capacity_tokens;
  return (tokens * stream->cut.heads * (token_bytes(p) / p->kv_heads) + 63) / 64 * 64;
}

skv_status_t skv__stream_open(skv__stream_t *stream, const skv__shard_t *shard,
                              skv__node_t *const *work, const int32_t *work_count,
                              int64_t target_bytes, skv__error_t *error) {
  const skv_problem_t *p = stream->problem;
  int64_t block_bytes = token_bytes(p) * block_keys(p), blocks = target_bytes / block_bytes;
  stream->cut = cut_for(p, target_bytes);
  blocks = blocks < 1 ? 1 : blocks;
  if (shard->blocks / blocks > MOST_NODES)
    return skv__fail(
        error, SKV_MEMORY,
        "pass-KV of %lld blocks, %lld of them a chunk: more than 2^24 chunks cannot be "
        "planned, give larger blocks or a larger workspace",
        (long long)shard->blocks, (long long)blocks);
  size_t ranks = (size_t)stream->ranks;
  stream->nodes = calloc(ranks, sizeof *stream->nodes);
  stream->node_count = calloc(ranks, sizeof *stream->node_count);
  stream->open_slot = calloc(ranks, sizeof *stream->open_slot);
  bool fine = stream->nodes && stream->node_count && stream->open_slot;
  for (int32_t source = 0; fine && source < stream->ranks; source++)
    fine = cut_shard(stream, source, work[source], work_count[source], blocks);
  stream->cut.chunk_bytes = fine ? largest_chunk(stream) : 0;
  if (!fine || !place_own(stream) || !measure_pending(stream, shard->blocks))
    return skv__fail(error, SKV_MEMORY, "out of memory while cutting shards for %d ranks",
                     (int)stream->ranks);
  stream->positions = stream->ranks > 1 ? stream->chunk_numbers * (stream->ranks - 1) : 0;
  return SKV_OK;
}

void skv__stream_close(skv__stream_t *stream) {
  for (int32_t source = 0; stream->nodes && source < stream->ranks; source++)
    free(stream->nodes[source]);
  free(stream->nodes);
  free(stream->node_count);
  free(stream->own_offset);
  free(stream->open_slot);
}

int64_t skv__stream_bytes(const skv__stream_t *stream) {
  enum { BUFFERS = SKV__STREAM_RECEIVE_BUFFERS + SKV__STREAM_SEND_BUFFERS };
  if (stream->cut.chunk_bytes > INT64_MAX / BUFFERS)
    return INT64_MAX;
  return stream->ranks > 1 ? BUFFERS * stream->cut.chunk_bytes : 0;
}

static double shard_bytes(const skv__stream_t *stream, int32_t source) {
  int64_t blocks = 0;
  for (int32_t i = 0; i < stream->node_count[source]; i++)
    blocks += stream->nodes[source][i].end - stream->nodes[source][i].begin;
  return (double)(blocks * stream->problem->block_tokens) * (double)token_bytes(stream->problem) *
         (double)stream->problem->batch;
}

int64_t skv__whole_bytes(double bytes) {
  return bytes < 0x1p62 ? (int64_t)bytes : INT64_MAX;
}

int64_t skv__stream_sent_bytes(const skv__stream_t *stream) {
  if (stream->reduce == SKV_GATHER)
    return skv__whole_bytes((stream->ranks - 1) * shard_bytes(stream, stream->rank));
  double bytes = 0;
  for (int32_t source = 0; source < stream->ranks; source++)
    if (source != (stream->rank + 1) % stream->ranks)
      bytes += shard_bytes(stream, source);
  return skv__whole_bytes(bytes);
}
