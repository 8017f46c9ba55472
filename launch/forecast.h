/* forecast.h: what a run would do and how long it would take, from integers and figures alone. */
#ifndef SKV_FORECAST_H
#define SKV_FORECAST_H

#include "cost.h"
#include "launch/job_options.h"

enum { SKV__PATHS = 7, SKV__RANKS_LISTED = 16 };

/* A direction with a reduction that it knows. */
typedef struct skv__path {
  skv_direction_t direction;
  skv_reduce_t reduce;
} skv__path_t;
extern const skv__path_t skv__paths[SKV__PATHS];

/* What `plan` is told besides a job. */
typedef struct skv__plan_request {
  skv__job_options_t job;
  int64_t ranks, node_ranks; /* node_ranks -1: as the machine has it */
  int machine;               /* in the order of --machine's words */
  const char *dot;
} skv__plan_request_t;

typedef struct skv__forecast {
  skv_problem_t problem;
  skv_plan_options_t options; /* direction and reduce as chosen */
  skv__shard_t shard;
  skv_machine_t machine;
  const char *machine_source;
  skv__cost_t chosen, costs[SKV__PATHS];
  double one_rank_seconds;
  skv__traffic_t traffic; /* pass-Q */
  int64_t least_blocks, most_blocks, most_frontier;
  double mean_frontier;
  skv_plan_info_t info; /* of rank 0 */
} skv__forecast_t;

skv_status_t skv__forecast_make(skv__forecast_t *forecast, const skv__plan_request_t *options,
                                skv__error_t *error);
/* Of the time that one rank would need, divided among all. */
double skv__forecast_efficiency(const skv__forecast_t *forecast);

#endif
