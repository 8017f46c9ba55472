/* launch.h: the contract of the CUDA attention kernels, and what they know of the device. All
 * tensors, slices and outputs are device memory; a job's arrays (runs, nodes, lengths, slices,
 * slice_rows) and sinks are host memory, and may change once a launch has returned. */
#ifndef SKV_CUDA_LAUNCH_H
#define SKV_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>

#include "kernels/kernel.h"

typedef struct skv__device {
  int32_t multiprocessors, major, minor;
  int32_t most_ctas; /* 0, or a limit on the grid of kernels whose CTAs stay: for tests. No bit
                        changes. */
} skv__device_t;

typedef struct skv__attention {
  const char *name; /* "prefill" */
  /* The shape; and, where job->q.data is given, the tensors' strides and alignment. */
  bool (*supports)(const skv__job_t *job, const skv__device_t *device);
  /* Device memory that a job needs, by its bounds and shape. Counters are all 0 before the first
   * launch, and each launch leaves them so; scratch may hold anything. Launches that share either
   * must not overlap. */
  size_t (*counter_bytes)(const skv__job_t *job, const skv__device_t *device);
  size_t (*scratch_bytes)(const skv__job_t *job, const skv__device_t *device);
  /* Enqueues; allocates nothing; a CUDA graph may capture it.
   * `finish` NULL: the state of each (node, row) goes to the job's slices, EMPTY where masked.
   * Otherwise the job's one node is the whole tree, runs cover each row once, and O and LSE are
   * written (sinks merged in; finish->bits is NULL). Slices are not looked at. */
  skv_status_t (*launch)(const skv__job_t *job, const skv__finish_t *finish,
                         const skv__device_t *device, void *counters, void *scratch,
                         cudaStream_t stream, skv__error_t *error);
} skv__attention_t;

#ifdef __cplusplus
extern "C" {
#endif
extern const skv__attention_t skv__cuda_prefill; /* sm_90a: many queries */
extern const skv__attention_t skv__cuda_decode;  /* sm_90a: few queries, keys spread over CTAs */
extern const skv__attention_t skv__cuda_plain;   /* sm_80 and later, any shape: the specification */
#ifdef __cplusplus
}
#endif

#endif
