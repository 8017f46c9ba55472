#include "bank.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

skv_status_t skv__bank_open(skv__bank_t *bank, int32_t work_count, int64_t run_bound,
                            skv__error_t *error) {
  size_t ranks = (size_t)bank->ranks, work = (size_t)work_count + 1;
  bank->runs = calloc((size_t)run_bound + 1, sizeof *bank->runs);
  bank->slice_rows = calloc(ranks, sizeof *bank->slice_rows);
  bank->slices = calloc(work * ranks, sizeof *bank->slices);
  bank->nodes = calloc(work, sizeof *bank->nodes);
  bank->free_slots = calloc((size_t)bank->slots + 1, sizeof *bank->free_slots);
  bank->sets = calloc(ranks, sizeof *bank->sets);
  bank->held = calloc(ranks * (size_t)bank->set_capacity, sizeof *bank->held);
  bool fetches = bank->observer && bank->kernel->streams;
  bank->seen = fetches ? malloc((size_t)bank->slot_bytes) : NULL;
  if (!bank->runs || !bank->slice_rows || !bank->slices || !bank->nodes || !bank->free_slots ||
      !bank->sets || !bank->held || (fetches && !bank->seen))
    return skv__fail(error, SKV_MEMORY, "out of memory for the bookkeeping of %d slots",
                     (int)bank->slots);
  return SKV_OK;
}

void skv__bank_close(skv__bank_t *bank) {
  free(bank->runs);
  free(bank->slice_rows);
  free(bank->slices);
  free(bank->nodes);
  free(bank->free_slots);
  free(bank->sets);
  free(bank->held);
  free(bank->seen);
}

void skv__bank_reset(skv__bank_t *bank, int64_t blocks, bool free_order, unsigned char *memory) {
  bank->memory = memory;
  bank->status = SKV_OK;
  bank->free_count = bank->slots;
  for (int32_t slot = 0; slot < bank->slots; slot++)
    bank->free_slots[slot] = bank->slots - 1 - slot;
  for (int32_t slice = 0; slice < bank->ranks; slice++)
    bank->sets[slice] =
        (skv__pending_t){.blocks = blocks,
                         .free_order = free_order,
                         .capacity = bank->set_capacity,
                         .held = bank->held + (size_t)slice * (size_t)bank->set_capacity};
}

float *skv__bank_slot(const skv__bank_t *bank, int32_t slot) {
  return (float *)(void *)(bank->memory + (size_t)slot * (size_t)bank->slot_bytes);
}

int32_t skv__bank_acquire(skv__bank_t *bank) {
  return bank->free_slots[--bank->free_count];
}

void skv__bank_release(skv__bank_t *bank, int32_t slot) {
  if (slot != SKV__NO_SLOT)
    bank->free_slots[bank->free_count++] = slot;
}

bool skv__bank_stores(const skv__bank_t *bank, skv__node_t node, int32_t slice) {
  return node.begin < bank->used_blocks && bank->slice_rows[slice] > 0;
}

/* Other ranks may have a part in what comes before on the stream. */
static skv_status_t fetch(const skv__bank_t *bank, const float *state, size_t bytes) {
  skv_context_t *context = bank->context;
  SKV_TRY(skv__context_wait(context, bank->stream, false));
  return bank->kernel->streams->fetch(bank->seen, state, bytes, bank->stream, &context->error);
}

/* Digests a state, and shows it: where it lies, or as the bank's copy of it until the next one. */
static uint64_t digest_of(skv__bank_t *bank, int32_t slice, int32_t slot, const float **state) {
  size_t bytes = (size_t)(bank->slice_rows[slice] * (bank->job.value_head_dim + 2)) * sizeof(float);
  *state = skv__bank_slot(bank, slot);
  if (bank->seen) {
    if (bank->status == SKV_OK)
      bank->status = fetch(bank, *state, bytes);
    if (bank->status != SKV_OK)
      return 0;
    *state = bank->seen;
  }
  return XXH64(*state, bytes, 0);
}

static void report(skv__bank_t *bank, int32_t slice, skv__node_t node, int64_t split, uint64_t left,
                   uint64_t right, int32_t slot) {
  skv__node_t used = skv__order_clip(node, bank->used_blocks);
  const float *state;
  uint64_t out = digest_of(bank, slice, slot, &state);
  skv_node_event_t event = {.struct_bytes = sizeof event,
                            .pass = bank->pass,
                            .owner = slice,
                            .rows = bank->slice_rows[slice],
                            .value_head_dim = bank->job.value_head_dim,
                            .blocks = bank->used_blocks,
                            .begin = used.begin,
                            .split = split,
                            .end = used.end,
                            .left_digest = left,
                            .right_digest = right,
                            .out_digest = out,
                            .state = state};
  if (bank->status == SKV_OK)
    bank->observer(bank->observer_user, &event);
}

void skv__bank_report_leaf(skv__bank_t *bank, int32_t slice, skv__node_t node, int32_t slot) {
  if (bank->observer && slot != SKV__NO_SLOT)
    report(bank, slice, node, 0, 0, 0, slot);
}

typedef struct merge {
  skv__bank_t *bank;
  int32_t slice;
} merge_t;

/* An EMPTY right side changes no bit, and what lies past the used blocks is EMPTY. */
static void merge_slots(void *user, skv__held_t left, skv__held_t right) {
  const merge_t *merge = user;
  skv__bank_t *bank = merge->bank;
  if (right.slot == SKV__NO_SLOT)
    return;
  uint64_t left_digest = 0, right_digest = 0;
  const float *state;
  if (bank->observer) {
    left_digest = digest_of(bank, merge->slice, left.slot, &state);
    right_digest = digest_of(bank, merge->slice, right.slot, &state);
  }
  bank->kernel->merge(skv__bank_slot(bank, left.slot), skv__bank_slot(bank, right.slot),
                      bank->slice_rows[merge->slice], bank->job.value_head_dim, bank->threads,
                      bank->stream);
  if (bank->observer)
    report(bank, merge->slice, (skv__node_t){left.node.begin, right.node.end}, right.node.begin,
           left_digest, right_digest, left.slot);
  skv__bank_release(bank, right.slot);
}

void skv__bank_insert(skv__bank_t *bank, int32_t slice, skv__node_t node, int32_t slot) {
  merge_t merge = {bank, slice};
  skv__pending_insert(&bank->sets[slice], node, slot, merge_slots, &merge);
}

/* Slots for the nodes of a job; returns how many of `work` have any. */
static int32_t place_nodes(skv__bank_t *bank, const skv__job_node_t *work, int32_t count) {
  int32_t stored = 0;
  for (int32_t n = 0; n < count && work[n].begin < bank->used_blocks; n++) {
    for (int32_t slice = 0; slice < bank->ranks; slice++)
      bank->slices[stored * bank->ranks + slice] =
          bank->slice_rows[slice] ? skv__bank_slot(bank, skv__bank_acquire(bank)) : NULL;
    bank->nodes[stored++] = work[n];
  }
  return stored;
}

static int32_t slot_of(const skv__bank_t *bank, const float *slice) {
  if (!slice)
    return SKV__NO_SLOT;
  return (int32_t)(((const unsigned char *)slice - bank->memory) / bank->slot_bytes);
}

skv_status_t skv__bank_evaluate(skv__bank_t *bank, const skv__job_node_t *work, int32_t count,
                                void *scratch, skv_status_t (*poll)(void *user), void *user,
                                skv__error_t *error) {
  int32_t stored = place_nodes(bank, work, count);
  bank->job.nodes = bank->nodes;
  bank->job.node_count = stored;
  bank->job.slices = bank->slices;
  if (stored && bank->job.run_count)
    SKV_TRY(bank->kernel->evaluate(&bank->job, scratch, bank->threads, poll, user, bank->stream,
                                   error));
  for (int32_t n = 0; n < count; n++)
    for (int32_t slice = 0; slice < bank->ranks; slice++) {
      skv__node_t node = {work[n].begin, work[n].end};
      int32_t slot =
          n < stored ? slot_of(bank, bank->slices[n * bank->ranks + slice]) : SKV__NO_SLOT;
      skv__bank_report_leaf(bank, slice, node, slot);
      skv__bank_insert(bank, slice, node, slot);
    }
  return bank->status;
}

skv_status_t skv__bank_evaluate_own(skv__bank_t *bank, skv__job_t *job, skv__job_node_t node,
                                    int32_t slot, void *scratch, skv_status_t (*poll)(void *user),
                                    void *user, skv__error_t *error) {
  if (slot == SKV__NO_SLOT)
    return SKV_OK;
  for (int32_t slice = 0; slice < bank->ranks; slice++)
    bank->slices[slice] = slice == bank->rank ? skv__bank_slot(bank, slot) : NULL;
  job->slices = bank->slices;
  job->nodes = &node;
  job->node_count = 1;
  if (!job->run_count)
    return SKV_OK;
  return bank->kernel->evaluate(job, scratch, bank->threads, poll, user, bank->stream, error);
}

skv_status_t skv__bank_finish(skv__bank_t *bank, int32_t slice, const skv__finish_t *finish,
                              skv__error_t *error) {
  skv__pending_t *set = &bank->sets[slice];
  int32_t slot = set->count ? set->held[0].slot : SKV__NO_SLOT; /* none: no sequence has a key */
  const float *root = slot == SKV__NO_SLOT ? NULL : skv__bank_slot(bank, slot);
  set->count = 0;
  skv__bank_release(bank, slot);
  SKV_TRY(bank->status);
  if (!bank->slice_rows[slice])
    return SKV_OK;
  return bank->kernel->finish(&bank->job, slice, root, finish, bank->threads, bank->stream, error);
}
