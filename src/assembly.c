/* assembly.c: groups of heads, and where each part of a shard lies in their buffers. */
#include "assembly.h"

#include <stdlib.h>

#include "kernels/convert.h"

enum { LEAST_GROUPS = 4, ALIGNMENT = 256 };

static int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t max_of(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/* Of K or V, one KV head, the whole batch: the problem's check keeps all heads in range. */
static int64_t head_bytes(const skv_problem_t *p, int64_t dim) {
  return p->batch * p->kv_capacity_tokens * dim * skv__dtype_bytes(p->dtype);
}

static int64_t values_offset(const skv__assembly_t *assembly, int64_t heads) {
  const skv_problem_t *p = assembly->problem;
  return (heads * head_bytes(p, p->head_dim) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void cut_heads(skv__assembly_t *assembly, int64_t target_bytes, bool whole) {
  const skv_problem_t *p = assembly->problem;
  int64_t bytes = head_bytes(p, p->head_dim) + head_bytes(p, p->value_head_dim);
  int64_t fit = target_bytes / SKV__ASSEMBLY_BUFFERS / max_of(bytes, 1);
  int64_t heads = max_of(1, min_of(p->kv_heads / LEAST_GROUPS, fit));
  assembly->heads = whole ? p->kv_heads : heads;
  assembly->groups = (p->kv_heads + assembly->heads - 1) / assembly->heads;
  assembly->buffers = (int32_t)min_of(assembly->groups, SKV__ASSEMBLY_BUFFERS);
  bytes =
      values_offset(assembly, assembly->heads) + assembly->heads * head_bytes(p, p->value_head_dim);
  assembly->buffer_bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static bool list_intervals(skv__assembly_t *assembly, const skv__shard_t *shard) {
  size_t ranks = (size_t)assembly->ranks;
  int64_t bound = skv__shard_interval_bound(shard), count = 0;
  assembly->first_interval = calloc(ranks + 1, sizeof *assembly->first_interval);
  skv__node_t *one = malloc(((size_t)bound + 1) * sizeof *one);
  for (int32_t rank = 0; one && assembly->first_interval && rank < assembly->ranks; rank++) {
    count += skv__shard_intervals(shard, rank, one);
    assembly->first_interval[rank + 1] = count;
  }
  free(one);
  assembly->intervals = malloc(((size_t)count + 1) * sizeof *assembly->intervals);
  assembly->held = malloc(((size_t)count + 1) * sizeof *assembly->held);
  bool fine = one && assembly->first_interval && assembly->intervals && assembly->held;
  for (int32_t rank = 0; fine && rank < assembly->ranks; rank++) {
    int64_t first = assembly->first_interval[rank], tokens = 0;
    skv__shard_intervals(shard, rank, assembly->intervals + first);
    for (int64_t i = first; i < assembly->first_interval[rank + 1]; i++) {
      assembly->held[i] = tokens;
      tokens += (assembly->intervals[i].end - assembly->intervals[i].begin) *
                assembly->problem->block_tokens;
    }
  }
  return fine;
}

skv_status_t skv__assembly_open(skv__assembly_t *assembly, const skv__shard_t *shard,
                                int64_t target_bytes, bool whole, skv__error_t *error) {
  cut_heads(assembly, target_bytes, whole);
  assembly->requests = calloc((size_t)2 * SKV__ASSEMBLY_MESSAGES, sizeof *assembly->requests);
  if (!list_intervals(assembly, shard) || !assembly->requests)
    return skv__fail(error, SKV_MEMORY, "out of memory for the shards of %d ranks",
                     (int)assembly->ranks);
  return SKV_OK;
}

void skv__assembly_close(skv__assembly_t *assembly) {
  free(assembly->intervals);
  free(assembly->held);
  free(assembly->first_interval);
  free(assembly->requests);
}

int64_t skv__assembly_bytes(const skv__assembly_t *assembly) {
  return assembly->buffers * assembly->buffer_bytes;
}

skv__head_range_t skv__assembly_heads(const skv__assembly_t *assembly, int64_t group) {
  int64_t begin = group * assembly->heads;
  return (skv__head_range_t){begin, min_of(begin + assembly->heads, assembly->problem->kv_heads)};
}

void skv__assembly_tensors(const skv__assembly_t *assembly, int64_t group, unsigned char *buffer,
                           skv_tensor_t *k, skv_tensor_t *v) {
  const skv_problem_t *p = assembly->problem;
  skv__head_range_t range = skv__assembly_heads(assembly, group);
  int64_t heads = range.end - range.begin, tokens = p->kv_capacity_tokens;
  *k = (skv_tensor_t){buffer, {tokens * heads * p->head_dim, heads * p->head_dim, p->head_dim, 1}};
  *v = (skv_tensor_t){
      buffer + values_offset(assembly, heads),
      {tokens * heads * p->value_head_dim, heads * p->value_head_dim, p->value_head_dim, 1}};
}

static int64_t interval_count(const skv__assembly_t *assembly, int32_t source) {
  return assembly->first_interval[source + 1] - assembly->first_interval[source];
}

int64_t skv__assembly_message_count(const skv__assembly_t *assembly, int32_t source) {
  return 2 * assembly->problem->batch * interval_count(assembly, source);
}

skv__part_t skv__assembly_part(const skv__assembly_t *assembly, int64_t group, int32_t source,
                               int64_t index, const int64_t *k_tokens) {
  const skv_problem_t *p = assembly->problem;
  int64_t number = assembly->first_interval[source] + index / 2 % interval_count(assembly, source);
  skv__node_t blocks = assembly->intervals[number];
  skv__head_range_t range = skv__assembly_heads(assembly, group);
  skv__part_t part = {.sequence = index / 2 / interval_count(assembly, source),
                      .values = index % 2,
                      .held = assembly->held[number]};
  int64_t heads = range.end - range.begin, keys = k_tokens[part.sequence];
  int64_t token_bytes =
      heads * (part.values ? p->value_head_dim : p->head_dim) * skv__dtype_bytes(p->dtype);
  part.begin = min_of(blocks.begin * p->block_tokens, keys);
  part.end = min_of(blocks.end * p->block_tokens, keys);
  part.offset = (part.values ? values_offset(assembly, heads) : 0) +
                (part.sequence * p->kv_capacity_tokens + part.begin) * token_bytes;
  part.bytes = (part.end - part.begin) * token_bytes;
  return part;
}

static double shard_bytes(const skv__assembly_t *assembly, int32_t source) {
  const skv_problem_t *p = assembly->problem;
  double tokens = 0;
  for (int64_t i = assembly->first_interval[source]; i < assembly->first_interval[source + 1]; i++)
    tokens += (double)(min_of(assembly->intervals[i].end * p->block_tokens, p->kv_capacity_tokens) -
                       assembly->intervals[i].begin * p->block_tokens);
  return tokens * (double)p->batch * (double)p->kv_heads *
         (double)((p->head_dim + p->value_head_dim) * skv__dtype_bytes(p->dtype));
}

double skv__assembly_sent_bytes(const skv__assembly_t *assembly) {
  double bytes = 0;
  for (int32_t step = 1; step < assembly->ranks; step++)
    bytes += shard_bytes(
        assembly,
        skv__schedule_kv_send(assembly->reduce, assembly->ranks, assembly->rank, step).source);
  return bytes;
}
