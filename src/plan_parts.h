/* plan_parts.h: how skv_plan_create decides, in order: direction and reduce, nodes, hops, sizes,
 * memory. */
#ifndef SKV_PLAN_PARTS_H
#define SKV_PLAN_PARTS_H

#include "plan.h"

/* The shape fields of this plan's jobs. */
void skv__plan_shape(const skv_plan_t *plan, skv__job_t *job);
static inline bool skv__plan_passes_kv(const skv_plan_t *plan) {
  return plan->options.direction == SKV_PASS_KV;
}
/* Whether pass-KV puts keys and values together before they are attended. */
static inline bool skv__plan_assembles(const skv_plan_t *plan) {
  return plan->ranks > 1 && plan->context->kernel->streams;
}
int64_t skv__plan_target_bytes(const skv_plan_t *plan); /* for buffers besides pending states */
/* Direction and reduce where they are auto, by the cost model. Writes plan->options. */
skv_status_t skv__plan_choose(skv_plan_t *plan, skv__error_t *error);
/* plan_direct.c. Whether states can go directly from GPU to GPU under this context and these
 * options, whatever the reduction; if not, `error` says why. */
bool skv__plan_peers(const skv_plan_t *plan, skv__error_t *error);
/* The path, for the reduction as chosen and the work of all ranks. Writes plan->options.path. */
skv_status_t skv__plan_path(skv_plan_t *plan, skv__node_t *const *work, const int32_t *counts,
                            skv__error_t *error);
/* Once all ranks have sized their banks: the memory that they lie in. Collective; nothing where
 * states are sent. Where the path is the plan's choice and a rank cannot have that memory, all
 * ranks send states after all. */
skv_status_t skv__plan_open_window(skv_plan_t *plan);
void skv__plan_close_window(skv_plan_t *plan);
/* Once the arguments have been agreed: nodes, hops, slots. */
skv_status_t skv__plan_cast(skv_plan_t *plan, skv__error_t *error);
/* Slots that a bank of this rank needs, and how many nodes its sets may hold. */
skv_status_t skv__plan_count_slots(skv_plan_t *plan, skv__error_t *error);
/* Then, knowing the most slots that any rank needs: rows of a pass, workspace, memory. */
skv_status_t skv__plan_size(skv_plan_t *plan, int32_t most_slots, skv__error_t *error);
/* The workspace, which holds the banks unless a window does. */
void skv__plan_lay_out(skv_plan_t *plan);
/* Bytes that this rank sends in one execute at full size. */
int64_t skv__plan_sent_bytes(const skv_plan_t *plan);

#endif
