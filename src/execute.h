/* execute.h: what the two directions of an execute share. */
#ifndef SKV_EXECUTE_H
#define SKV_EXECUTE_H

#include "lanes.h"
#include "plan.h"

/* Where an execute takes its data from, and where it works. */
typedef struct skv__site {
  const skv_inputs_t *inputs;
  const skv__finish_t *finish;
  unsigned char *workspace;
  skv__lanes_t lanes;
} skv__site_t;

/* The bank's job becomes that of a pass of `rows`; its slots are free. */
void skv__begin_pass(skv_plan_t *plan, skv__bank_t *bank, const skv__rows_t *rows, int64_t pass,
                     const skv__site_t *site);
/* Begin to exchange what a bank holds, on the second lane. */
skv_status_t skv__begin_exchange(skv_plan_t *plan, skv__bank_t *bank, const skv__site_t *site);
skv_status_t skv__end_exchange(skv_plan_t *plan, const skv__site_t *site);

/* To the device's clock, where the plan is clocked. */
skv_status_t skv__tick(const skv_plan_t *plan, const skv__site_t *site, skv__tick_t tick);

/* execute_keys.c: keys and values travel. */
skv_status_t skv__pass_keys(skv_plan_t *plan, const skv__site_t *site);

#endif
