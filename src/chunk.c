#include "chunk.h"

#include <string.h>

static int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

skv__chunk_t skv__chunk_at(const skv__stream_t *stream, int32_t source, int64_t number) {
  const skv__chunk_cut_t *cut = &stream->cut;
  int64_t per_node = stream->problem->batch * cut->head_groups;
  skv__chunk_t chunk = {.source = source, .node_index = (int32_t)(number / per_node)};
  if (number >= stream->node_count[source] * per_node)
    return chunk;
  chunk.node = stream->nodes[source][chunk.node_index];
  if (chunk.node.begin >= stream->bank->used_blocks)
    return chunk;
  int64_t within = number % per_node, block_tokens = stream->problem->block_tokens;
  chunk.exists = true;
  chunk.first = within == 0;
  chunk.last = within == per_node - 1;
  chunk.sequence = within / cut->head_groups;
  chunk.head_begin = within % cut->head_groups * cut->heads;
  chunk.head_end = min_of(chunk.head_begin + cut->heads, stream->problem->kv_heads);
  int64_t end = min_of(chunk.node.end * block_tokens, stream->k_tokens[chunk.sequence]);
  chunk.tokens = end > chunk.node.begin * block_tokens ? end - chunk.node.begin * block_tokens : 0;
  return chunk;
}

int64_t skv__chunk_bytes(const skv__stream_t *stream, const skv__chunk_t *chunk) {
  const skv_problem_t *p = stream->problem;
  return chunk->tokens * (chunk->head_end - chunk->head_begin) * (p->head_dim + p->value_head_dim) *
         skv__dtype_bytes(p->dtype);
}

/* The part of an input tensor that a chunk holds. */
static skv_tensor_t own_part(const skv__stream_t *stream, const skv__chunk_t *chunk,
                             const skv_tensor_t *tensor) {
  int64_t offset = chunk->sequence * tensor->stride[0] +
                   stream->own_offset[chunk->node_index] * tensor->stride[1] +
                   chunk->head_begin * tensor->stride[2];
  skv_tensor_t part = *tensor;
  part.data = (unsigned char *)tensor->data + offset * skv__dtype_bytes(stream->problem->dtype);
  part.stride[0] = 0; /* one sequence */
  return part;
}

static unsigned char *pack_tensor(const skv__stream_t *stream, const skv__chunk_t *chunk,
                                  const skv_tensor_t *tensor, int64_t dim, unsigned char *data) {
  skv_tensor_t part = own_part(stream, chunk, tensor);
  int64_t heads = chunk->head_end - chunk->head_begin,
          item = skv__dtype_bytes(stream->problem->dtype);
  bool dense = part.stride[2] == dim;
  int64_t piece = (dense ? heads : 1) * dim * item;
  for (int64_t token = 0; token < chunk->tokens; token++)
    for (int64_t head = 0; head < heads; head += dense ? heads : 1) {
      memcpy(data,
             (const unsigned char *)part.data +
                 (token * part.stride[1] + head * part.stride[2]) * item,
             (size_t)piece);
      data += piece;
    }
  return data;
}

void skv__chunk_pack(const skv__stream_t *stream, const skv__chunk_t *chunk, unsigned char *data) {
  data = pack_tensor(stream, chunk, &stream->inputs->k, stream->problem->head_dim, data);
  pack_tensor(stream, chunk, &stream->inputs->v, stream->problem->value_head_dim, data);
}

static skv_tensor_t packed_tensor(const unsigned char *data, int64_t heads, int64_t dim) {
  return (skv_tensor_t){(void *)(uintptr_t)data, {0, heads * dim, dim, 1}};
}

void skv__chunk_tensors(const skv__stream_t *stream, const skv__chunk_t *chunk,
                        const unsigned char *data, skv_tensor_t *k, skv_tensor_t *v) {
  const skv_problem_t *p = stream->problem;
  if (chunk->source == stream->rank) {
    *k = own_part(stream, chunk, &stream->inputs->k);
    *v = own_part(stream, chunk, &stream->inputs->v);
    return;
  }
  int64_t heads = chunk->head_end - chunk->head_begin;
  *k = packed_tensor(data, heads, p->head_dim);
  *v = packed_tensor(data + chunk->tokens * heads * p->head_dim * skv__dtype_bytes(p->dtype), heads,
                     p->value_head_dim);
}
