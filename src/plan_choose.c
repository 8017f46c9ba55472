#include "plan_parts.h"

void skv__plan_choose(skv_plan_t *plan) {
  skv_plan_options_t *o = &plan->options;
  if (o->direction == SKV_DIRECTION_AUTO)
    o->direction = SKV_PASS_Q;
  if (o->reduce == SKV_REDUCE_AUTO)
    o->reduce = o->direction == SKV_PASS_KV ? SKV_RING : SKV_SCATTER;
}
