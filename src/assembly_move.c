/* assembly_move.c: own parts are copied to their places, then shards travel step by step. */
#include "assembly.h"
#include "kernels/convert.h"

enum { KEYS_TAG = 3, PACKS = 32 };

/* What this rank holds of a part. */
static skv__pack_t pack_of(const skv__assembly_t *assembly, const skv_inputs_t *inputs,
                           const skv__part_t *part, skv__head_range_t range,
                           unsigned char *buffer) {
  const skv_problem_t *p = assembly->problem;
  const skv_tensor_t *tensor = part->values ? &inputs->v : &inputs->k;
  int64_t item = skv__dtype_bytes(p->dtype);
  int64_t offset = part->sequence * tensor->stride[0] + part->held * tensor->stride[1] +
                   range.begin * tensor->stride[2];
  return (skv__pack_t){.from = (const unsigned char *)tensor->data + offset * item,
                       .to = buffer + part->offset,
                       .tokens = part->end - part->begin,
                       .heads = range.end - range.begin,
                       .head_bytes = (part->values ? p->value_head_dim : p->head_dim) * item,
                       .token_stride = tensor->stride[1] * item,
                       .head_stride = tensor->stride[2] * item};
}

static skv_status_t pack_own(const skv__assembly_t *assembly, const skv__lanes_t *lanes,
                             const skv_inputs_t *inputs, const int64_t *k_tokens, int64_t group,
                             unsigned char *buffer) {
  skv__head_range_t range = skv__assembly_heads(assembly, group);
  int64_t messages = skv__assembly_message_count(assembly, assembly->rank);
  skv__pack_t packs[PACKS];
  int32_t count = 0;
  for (int64_t i = 0; i < messages; i++) {
    skv__part_t part = skv__assembly_part(assembly, group, assembly->rank, i, k_tokens);
    if (part.bytes)
      packs[count++] = pack_of(assembly, inputs, &part, range, buffer);
    if (count == PACKS || (count && i + 1 == messages)) {
      SKV_TRY(lanes->streams->pack(packs, count, lanes->second, lanes->error));
      count = 0;
    }
  }
  return SKV_OK;
}

/* What a step moves to a rank, or from one. */
typedef struct way {
  int32_t source, peer;
  int64_t messages;
} way_t;

/* Messages from `first` on. */
static skv_status_t post(const skv__assembly_t *assembly, const way_t *way, bool sends,
                         int64_t group, int64_t first, const int64_t *k_tokens,
                         unsigned char *buffer, size_t *count) {
  for (int64_t i = first; i < way->messages && i < first + SKV__ASSEMBLY_MESSAGES; i++) {
    skv__part_t part = skv__assembly_part(assembly, group, way->source, i, k_tokens);
    skv__request_t *request = &assembly->requests[(*count)++];
    unsigned char *data = buffer + part.offset;
    SKV_TRY(sends ? skv__comm_send(assembly->comm, request, way->peer, data, (size_t)part.bytes,
                                   KEYS_TAG)
                  : skv__comm_receive(assembly->comm, request, way->peer, data, (size_t)part.bytes,
                                      KEYS_TAG));
  }
  return SKV_OK;
}

/* Both ends of a message have it in the same turn of the same step, so that turns never wait in a
 * circle. */
static skv_status_t move_step(const skv__assembly_t *assembly, int32_t step, int64_t group,
                              const int64_t *k_tokens, unsigned char *buffer) {
  skv__kv_step_t out =
      skv__schedule_kv_send(assembly->reduce, assembly->ranks, assembly->rank, step);
  skv__kv_step_t in =
      skv__schedule_kv_step(assembly->reduce, assembly->ranks, assembly->rank, step);
  way_t send = {out.source, out.to, skv__assembly_message_count(assembly, out.source)};
  way_t receive = {in.source, in.from, skv__assembly_message_count(assembly, in.source)};
  for (int64_t first = 0; first < send.messages || first < receive.messages;
       first += SKV__ASSEMBLY_MESSAGES) {
    size_t count = 0;
    SKV_TRY(skv__comm_group_begin(assembly->comm));
    SKV_TRY(post(assembly, &send, true, group, first, k_tokens, buffer, &count));
    SKV_TRY(post(assembly, &receive, false, group, first, k_tokens, buffer, &count));
    SKV_TRY(skv__comm_group_end(assembly->comm));
    SKV_TRY(skv__comm_wait(assembly->comm, assembly->requests, count, "keys and values"));
  }
  return SKV_OK;
}

skv_status_t skv__assembly_fetch(const skv__assembly_t *assembly, const skv__lanes_t *lanes,
                                 const skv_inputs_t *inputs, const int64_t *k_tokens, int64_t group,
                                 unsigned char *buffer) {
  SKV_TRY(pack_own(assembly, lanes, inputs, k_tokens, group, buffer));
  skv__comm_on(assembly->comm, lanes->second);
  for (int32_t step = 1; step < assembly->ranks; step++)
    SKV_TRY(move_step(assembly, step, group, k_tokens, buffer));
  return SKV_OK;
}
