/* kernel.h: the table that picks a kernel. A kernel evaluates nodes, merges slices and finishes
 * roots. */
#ifndef SKV_KERNEL_H
#define SKV_KERNEL_H

#include <stddef.h>

#include "error.h"
#include "kernels/job.h"
#include "kernels/peers.h"
#include "kernels/streams.h"

/* Rows of a finished slice: where each goes. See skv_outputs_t. */
typedef struct skv__finish {
  skv_tensor_t o; /* data NULL: the rows are only counted in bits */
  skv_dtype_t out_dtype;
  float *lse; /* or NULL */
  int64_t lse_stride[3];
  const float *sinks; /* [q_heads] or NULL: merged last, as the state of a key with value 0 */
  uint64_t *bits;     /* or NULL: row digests are added; where the outputs are */
} skv__finish_t;

typedef struct skv__kernel {
  const char *name; /* "cpu.avx2" */
  skv_backend_t backend;
  /* By skv_dtype_t: names the leaf's pinned order ("cpu-1"). Kernels with one name there give the
   * same bits. */
  const char *order[3];
  /* Does this machine run it; if not, `error` says why. */
  bool (*available)(skv__error_t *error);
  bool (*supports)(const skv__job_t *job, skv__error_t *error); /* shape fields only */
  /* What jobs of this shape need of a device besides the caller's memory, made with the plan:
   * job.resources. Both NULL where nothing is needed. */
  skv_status_t (*open)(const skv__job_t *job, void **resources, skv__error_t *error);
  void (*close)(void *resources);
  /* Scratch that evaluate and attend need for jobs of this shape with this many threads. */
  size_t (*scratch_bytes)(const skv__job_t *job, int32_t threads);
  /* Evaluate job.nodes for job.runs into job.slices: every (node, row) is written, EMPTY where
   * masked. `poll` (or NULL) is called now and then by the calling thread, to let communication
   * progress; when it fails the evaluation ends early with its status. On the CPU done on return;
   * on a device enqueued on `stream`, as merge, finish and attend are. */
  skv_status_t (*evaluate)(const skv__job_t *job, void *scratch, int32_t threads,
                           skv_status_t (*poll)(void *user), void *user, void *stream,
                           skv__error_t *error);
  /* into = merge(into, right) for each row of two slices. What goes wrong here is reported by the
   * finish that follows. */
  void (*merge)(float *into, const float *right, int64_t rows, int64_t value_head_dim,
                int32_t threads, void *stream);
  /* Finish the rows of slice `owner` that job.runs name: O = O / l, LSE, sinks, digests. A NULL
   * slice is EMPTY. */
  skv_status_t (*finish)(const skv__job_t *job, int32_t owner, const float *slice,
                         const skv__finish_t *finish, int32_t threads, void *stream,
                         skv__error_t *error);
  /* All of it at once for one rank, or NULL: job.nodes is the whole tree, job.runs are all rows,
   * finish->bits is NULL; slices are not looked at. */
  skv_status_t (*attend)(const skv__job_t *job, const skv__finish_t *finish, void *scratch,
                         void *stream, skv__error_t *error);
  const skv__streams_t *streams; /* NULL: all of the above is done on return */
  const skv__peers_t *peers;     /* or NULL: what ranks can do that load each other's memory */
} skv__kernel_t;

/* All kernels of this build, best first, NULL-terminated. */
const skv__kernel_t *const *skv__kernels(void);
/* The first available one of `backend` (AUTO: the CPU, whose memory everybody has), or the one
 * called `name`. NULL and an error text if none. */
const skv__kernel_t *skv__kernel_pick(skv_backend_t backend, const char *name, skv__error_t *error);

#endif
