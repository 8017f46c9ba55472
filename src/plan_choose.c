#include "cost.h"
#include "plan_parts.h"

skv_status_t skv__plan_choose(skv_plan_t *plan, skv__error_t *error) {
  skv_plan_options_t *o = &plan->options;
  if (plan->ranks == 1) { /* nothing travels, whatever it is called */
    bool on_device = plan->context->kernel->backend == SKV_BACKEND_CUDA;
    o->direction = o->direction && !on_device ? o->direction : SKV_PASS_Q;
    o->reduce = o->reduce ? o->reduce : o->direction == SKV_PASS_KV ? SKV_RING : SKV_SCATTER;
    return SKV_OK;
  }
  skv_machine_t machine =
      o->machine ? *o->machine : skv__machine_typical(plan->context->kernel->backend);
  skv__cost_t cost;
  bool any_reduce = o->reduce == SKV_REDUCE_AUTO;
  if (!skv__cost_choose(&machine, &plan->problem, &plan->shard, o->row_owner, &o->direction,
                        &o->reduce, &cost))
    return skv__fail(error, SKV_MEMORY, "out of memory while choosing a direction and a reduction");
  skv__error_t why = {0};
  if (any_reduce && o->direction == SKV_PASS_Q && o->path == SKV_PATH_DIRECT &&
      skv__plan_peers(plan, &why)) /* no messages, and one round */
    o->reduce = SKV_SCATTER;
  return SKV_OK;
}
