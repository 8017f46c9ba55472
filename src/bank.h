/* bank.h: the states of one pass: its job, its slots (buffers of one slice's state each) and a
 * pending set per slice. */
#ifndef SKV_BANK_H
#define SKV_BANK_H

#include "context.h"
#include "error.h"
#include "kernels/kernel.h"
#include "pending.h"
#include "skv.h"

/* The slot of a state that is EMPTY for every row, or has no rows: nothing is stored or moved. */
#define SKV__NO_SLOT (-1)

typedef struct skv__bank {
  /* fixed by the plan */
  const skv__kernel_t *kernel;
  skv_context_t *context; /* with an observer on a device: what is waited in */
  int32_t threads, rank, ranks;
  int64_t slot_bytes;
  int32_t slots, set_capacity;
  skv_node_observer_t observer;
  void *observer_user;
  /* of the pass */
  void *stream; /* that its states are worked on */
  int64_t pass;
  int64_t used_blocks; /* blocks that hold a key of some sequence */
  skv__job_t job;
  skv__run_t *runs;
  int64_t *slice_rows;    /* [ranks] */
  float **slices;         /* job.slices: [nodes of a job][ranks] */
  skv__job_node_t *nodes; /* job.nodes */
  unsigned char *memory;  /* [slots][slot_bytes] */
  int32_t *free_slots, free_count;
  skv__pending_t *sets; /* [ranks] */
  skv__held_t *held;    /* [ranks][set_capacity] */
  float *seen;          /* with an observer on a device: a state for it, on the host */
  skv_status_t status;  /* why the observer is told no more; reported by evaluate and finish */
} skv__bank_t;

skv_status_t skv__bank_open(skv__bank_t *bank, int32_t work_count, int64_t run_bound,
                            skv__error_t *error);
void skv__bank_close(skv__bank_t *bank);
/* Empty sets, all slots free. */
void skv__bank_reset(skv__bank_t *bank, int64_t blocks, bool free_order, unsigned char *memory);

float *skv__bank_slot(const skv__bank_t *bank, int32_t slot);
int32_t skv__bank_acquire(skv__bank_t *bank);
void skv__bank_release(skv__bank_t *bank, int32_t slot);
/* Whether a node of a slice has a state worth storing and moving. Both ends of a hop agree on it.
 */
bool skv__bank_stores(const skv__bank_t *bank, skv__node_t node, int32_t slice);
/* Into the slice's pending set, merging as far as it goes. */
void skv__bank_insert(skv__bank_t *bank, int32_t slice, skv__node_t node, int32_t slot);
/* Tell the observer of an evaluated node. */
void skv__bank_report_leaf(skv__bank_t *bank, int32_t slice, skv__node_t node, int32_t slot);
/* Evaluate nodes for the bank's runs into new slots of every slice and insert them. */
skv_status_t skv__bank_evaluate(skv__bank_t *bank, const skv__job_node_t *work, int32_t count,
                                void *scratch, skv_status_t (*poll)(void *user), void *user,
                                skv__error_t *error);
/* Evaluate one node for the runs of `job` and this rank's slice alone, into a slot. */
skv_status_t skv__bank_evaluate_own(skv__bank_t *bank, skv__job_t *job, skv__job_node_t node,
                                    int32_t slot, void *scratch, skv_status_t (*poll)(void *user),
                                    void *user, skv__error_t *error);
/* Finish the rows of a complete slice and empty its set. */
skv_status_t skv__bank_finish(skv__bank_t *bank, int32_t slice, const skv__finish_t *finish,
                              skv__error_t *error);

#endif
