/* chunk.h: one chunk of a pass-KV stream by its number within a shard. Pure integers, and the
 * packing of its bytes. */
#ifndef SKV_CHUNK_H
#define SKV_CHUNK_H

#include "kernels/convert.h"
#include "stream.h"

typedef struct skv__chunk {
  int32_t source;     /* whose shard */
  int32_t node_index; /* in stream.nodes[source] */
  skv__node_t node;
  int64_t sequence, head_begin, head_end;
  int64_t tokens;   /* that exist: 0 when the sequence ends before the node */
  bool exists;      /* the shard has a chunk of this number, within the used blocks */
  bool first, last; /* of its node */
} skv__chunk_t;

skv__chunk_t skv__chunk_at(const skv__stream_t *stream, int32_t source, int64_t number);
int64_t skv__chunk_bytes(const skv__stream_t *stream, const skv__chunk_t *chunk);
/* Copy this rank's own chunk from its input tensors. */
void skv__chunk_pack(const skv__stream_t *stream, const skv__chunk_t *chunk, unsigned char *data);
/* K and V of a received chunk, or of this rank's own where it lies; token 0 is the node's first. */
void skv__chunk_tensors(const skv__stream_t *stream, const skv__chunk_t *chunk,
                        const unsigned char *data, skv_tensor_t *k, skv_tensor_t *v);

#endif
