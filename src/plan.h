/* plan.h: all that is decided before an execute. Everything in it is allocated by skv_plan_create.
 */
#ifndef SKV_PLAN_H
#define SKV_PLAN_H

#include "assembly.h"
#include "bank.h"
#include "context.h"
#include "direct.h"
#include "exchange.h"
#include "problem.h"
#include "rehearsal.h"
#include "rows.h"
#include "stream.h"

/* Where the parts of the workspace begin, in bytes. */
typedef struct skv__workspace {
  int64_t bank[2], scratch, stream, total;
} skv__workspace_t;

struct skv_plan {
  skv_context_t *context; /* borrowed */
  skv_problem_t problem;
  skv_plan_options_t options; /* direction and reduce as chosen */
  skv__shard_t shard;
  int32_t rank, ranks;
  skv__node_t *intervals; /* scratch of rows: [skv__shard_interval_bound] */

  skv__job_node_t
      *work; /* nodes that this rank evaluates: its frontier, or its blocks under an observer */
  int32_t work_count;
  int64_t frontier_nodes;
  int64_t held_tokens; /* most keys of a sequence that this rank's jobs find in K and V */
  skv__rehearsal_t rehearsal;
  skv__rows_t rows;
  int64_t slice_rows_bound; /* rows of the largest slice that this rank holds */
  int32_t slots;            /* of a bank */
  int32_t set_capacity;     /* nodes of one of its sets */
  int32_t banks;            /* 2 where exchange and evaluation overlap */
  int64_t most_runs;        /* of a pass */
  void *resources;          /* the kernel's, or NULL */
  skv__workspace_t workspace;
  int64_t full_passes; /* at full size */
  int64_t *full_rows;  /* [ranks] rows that each owner has then */

  skv__bank_t bank[2];
  skv__exchange_t exchange;
  skv__direct_path_t direct;
  int64_t bank_bytes;                     /* of one bank in the direct path's window */
  skv__stream_t stream;                   /* pass-KV on the CPU */
  skv__assembly_t assembly;               /* pass-KV on a device */
  int64_t *q_tokens, *k_tokens, *q_start; /* [batch], of the execute under way */
  skv_times_t times;
  int32_t executes; /* begun, counted up to 2 */
  bool clocked; /* executes on several devices mark when they compute, which costs microseconds */
};

/* After a wait for the last execute that was clocked, on several devices: replaces what the host
 * computed and waited by what the device did, where it was measured. */
void skv__plan_clock(const skv_plan_t *plan, skv_times_t *times);

/* The nodes that `rank` evaluates (its frontier, or single blocks), allocated. */
skv_status_t skv__plan_work(const skv__shard_t *shard, int32_t rank, bool blocks,
                            skv__node_t **nodes, int32_t *count, skv__error_t *error);

#endif
