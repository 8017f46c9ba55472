/* mirror.c: see mirror.h. */
#include "launch/mirror.h"

#include <stdlib.h>
#include <string.h>

#include "context.h"

#ifdef SKV_HAVE_CUDA

#include <cuda_runtime_api.h>

static skv_status_t check(cudaError_t code, const char *doing, skv__error_t *error) {
  if (code == cudaSuccess)
    return SKV_OK;
  cudaGetLastError();
  return skv__fail(error, code == cudaErrorMemoryAllocation ? SKV_MEMORY : SKV_INTERNAL,
                   "the GPU, %s: %s", doing, cudaGetErrorString(code));
}

/* ---- room ---- */

static skv_status_t find_need(const skv__data_t *host, int64_t workspace_bytes,
                              skv__gpu_need_t *need, skv__error_t *error) {
  const skv__pages_t *const tensors[] = {&host->q, &host->k, &host->v, &host->o, &host->lse};
  size_t available = 0, total = 0;
  SKV_TRY(check(cudaMemGetInfo(&available, &total), "its free memory", error));
  *need = (skv__gpu_need_t){(double)workspace_bytes, (double)available, (double)total};
  for (size_t i = 0; i < sizeof tensors / sizeof *tensors; ++i)
    need->needed_bytes += (double)tensors[i]->bytes;
  return SKV_OK;
}

skv_status_t skv__mirror_fits(const skv__data_t *host, int64_t workspace_bytes,
                              skv__session_t *session, skv__error_t *error) {
  skv__comm_t *comm = session->context->comm;
  skv__gpu_need_t mine = {0}, *all = calloc((size_t)session->ranks, sizeof *all);
  size_t bytes = (size_t)session->ranks * sizeof *all;
  if (!all)
    skv__fail(error, SKV_MEMORY, "no memory to ask %d ranks for their needs", (int)session->ranks);
  if (error->status == SKV_OK)
    find_need(host, workspace_bytes, &mine, error);
  /* Nobody allocates before everybody has looked. */
  skv_status_t status = skv__session_agree(session, NULL, 0, error);
  if (status == SKV_OK) {
    status = skv__comm_gather(comm, &mine, sizeof mine, all, "needs of GPU memory");
    if (status == SKV_OK)
      status = skv__comm_broadcast(comm, all, bytes, "needs of GPU memory");
    if (status != SKV_OK)
      skv__fail(error, status, "%s", session->context->error.text);
    else
      status = skv__stations_fit(session->stations, all, session->ranks, error);
  }
  free(all);
  return status;
}

/* ---- tensors ---- */

static skv_status_t allocate(skv__pages_t *pages, size_t bytes, skv__error_t *error) {
  pages->bytes = bytes;
  return check(cudaMalloc(&pages->data, bytes ? bytes : 1), "allocating memory", error);
}

skv_status_t skv__mirror_open(skv__mirror_t *mirror, const skv__data_t *host,
                              int64_t workspace_bytes, skv__error_t *error) {
  memset(mirror, 0, sizeof *mirror);
  const struct {
    const skv__pages_t *from;
    skv__pages_t *to;
    bool upload;
  } tensors[] = {{&host->q, &mirror->data.q, true},
                 {&host->k, &mirror->data.k, true},
                 {&host->v, &mirror->data.v, true},
                 {&host->o, &mirror->data.o, false},
                 {&host->lse, &mirror->data.lse, false}};
  mirror->data.own_tokens = host->own_tokens;
  SKV_TRY(allocate(&mirror->workspace, (size_t)workspace_bytes, error));
  for (size_t i = 0; i < sizeof tensors / sizeof *tensors; ++i) {
    const skv__pages_t *from = tensors[i].from;
    void **to = &tensors[i].to->data;
    SKV_TRY(allocate(tensors[i].to, from->bytes, error));
    if (tensors[i].upload)
      SKV_TRY(check(cudaMemcpy(*to, from->data, from->bytes, cudaMemcpyHostToDevice),
                    "uploading tensors", error));
  }
  SKV_TRY(
      check(cudaMalloc((void **)&mirror->bits, sizeof *mirror->bits), "allocating memory", error));
  SKV_TRY(check(cudaMemset(mirror->bits, 0, sizeof *mirror->bits), "clearing the bits", error));
  SKV_TRY(check(cudaEventCreate((cudaEvent_t *)&mirror->began), "events", error));
  SKV_TRY(check(cudaEventCreate((cudaEvent_t *)&mirror->ended), "events", error));
  SKV_TRY(skv__mirror_clear(mirror, error)); /* rows of other ranks may come back with ours */
  return check(cudaDeviceSynchronize(), "uploading tensors", error);
}

void skv__mirror_free(skv__mirror_t *mirror) {
  void *all[] = {mirror->data.q.data, mirror->data.k.data,   mirror->data.v.data,
                 mirror->data.o.data, mirror->data.lse.data, mirror->workspace.data,
                 mirror->bits};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
    if (all[i])
      cudaFree(all[i]);
  if (mirror->began)
    cudaEventDestroy(mirror->began);
  if (mirror->ended)
    cudaEventDestroy(mirror->ended);
  memset(mirror, 0, sizeof *mirror);
}

skv_status_t skv__mirror_clear(skv__mirror_t *mirror, skv__error_t *error) {
  const skv__pages_t *const results[] = {&mirror->data.o, &mirror->data.lse};
  for (int i = 0; i < 2; ++i)
    SKV_TRY(check(cudaMemsetAsync(results[i]->data, 0, results[i]->bytes, NULL),
                  "clearing the results", error));
  return SKV_OK;
}

skv_status_t skv__mirror_begin(skv__mirror_t *mirror, skv__error_t *error) {
  return check(cudaEventRecord(mirror->began, NULL), "timing", error);
}

skv_status_t skv__mirror_end(skv__mirror_t *mirror, skv__error_t *error) {
  return check(cudaEventRecord(mirror->ended, NULL), "timing", error);
}

skv_status_t skv__mirror_seconds(const skv__mirror_t *mirror, double *seconds,
                                 skv__error_t *error) {
  float milliseconds = 0;
  SKV_TRY(
      check(cudaEventElapsedTime(&milliseconds, mirror->began, mirror->ended), "timing", error));
  *seconds = 1e-3 * (double)milliseconds;
  return SKV_OK;
}

skv_status_t skv__mirror_wait(skv__session_t *session, skv__error_t *error) {
  skv_status_t status = skv_wait(session->context, NULL);
  if (status != SKV_OK)
    return skv__fail(error, status, "%s", skv_context_error(session->context));
  return SKV_OK;
}

/* ---- results ---- */

typedef struct fetch {
  const skv__pages_t *to[2], *from[2];
  const skv__job_extents_t *extents;
} fetch_t;

static skv_status_t fetch_range(void *user, const skv__row_range_t *range, skv__error_t *error) {
  const fetch_t *fetch = user;
  const skv__job_extents_t *e = fetch->extents;
  skv__row_span_t span = skv__row_span(range, e->q_tokens, e->q_heads);
  for (int i = 0; i < 2; ++i) {
    size_t row_bytes = fetch->to[i]->bytes / (size_t)(e->batch * e->q_tokens * e->q_heads);
    size_t offset = (size_t)span.first * row_bytes;
    SKV_TRY(check(cudaMemcpy((char *)fetch->to[i]->data + offset,
                             (const char *)fetch->from[i]->data + offset,
                             (size_t)span.count * row_bytes, cudaMemcpyDeviceToHost),
                  "bringing results back", error));
  }
  return SKV_OK;
}

/* Rows that are dealt out one by one come with all others: one copy costs less than thousands. */
static int32_t rows_to_fetch(const skv_plan_t *plan) {
  switch (plan->options.results) {
  case SKV_RESULTS_ROOT:
    return plan->rank == 0 ? SKV__ALL_ROWS : SKV__NO_ROWS;
  case SKV_RESULTS_OWNER:
    if (plan->options.row_owner == SKV_ROWS_BY_POSITION)
      return plan->rank;
    break;
  case SKV_RESULTS_ALL:
    break;
  }
  return SKV__ALL_ROWS;
}

skv_status_t skv__mirror_fetch(const skv__mirror_t *mirror, const skv__data_t *host,
                               const skv__input_t *input, const skv_plan_t *plan,
                               const skv__step_t *step, uint64_t *bits, skv__error_t *error) {
  uint64_t sum = 0;
  fetch_t fetch = {{&host->o, &host->lse}, {&mirror->data.o, &mirror->data.lse}, &input->extents};
  SKV_TRY(skv__visit_rows(plan, step, rows_to_fetch(plan), fetch_range, &fetch, error));
  SKV_TRY(check(cudaMemcpy(&sum, mirror->bits, sizeof sum, cudaMemcpyDeviceToHost),
                "bringing results back", error));
  *bits += sum;
  return check(cudaMemset(mirror->bits, 0, sizeof sum), "clearing the bits", error);
}

#else

skv_status_t skv__mirror_fits(const skv__data_t *host, int64_t workspace_bytes,
                              skv__session_t *session, skv__error_t *error) {
  (void)host, (void)workspace_bytes, (void)session;
  return skv__fail(error, SKV_UNSUPPORTED, "this build has no CUDA");
}

skv_status_t skv__mirror_open(skv__mirror_t *mirror, const skv__data_t *host,
                              int64_t workspace_bytes, skv__error_t *error) {
  (void)mirror, (void)host, (void)workspace_bytes;
  return skv__fail(error, SKV_UNSUPPORTED, "this build has no CUDA");
}
void skv__mirror_free(skv__mirror_t *mirror) {
  (void)mirror;
}
skv_status_t skv__mirror_clear(skv__mirror_t *mirror, skv__error_t *error) {
  (void)mirror;
  return skv__fail(error, SKV_UNSUPPORTED, "this build has no CUDA");
}
skv_status_t skv__mirror_begin(skv__mirror_t *mirror, skv__error_t *error) {
  (void)mirror;
  return skv__fail(error, SKV_UNSUPPORTED, "this build has no CUDA");
}
skv_status_t skv__mirror_end(skv__mirror_t *mirror, skv__error_t *error) {
  (void)mirror;
  return skv__fail(error, SKV_UNSUPPORTED, "this build has no CUDA");
}
skv_status_t skv__mirror_seconds(const skv__mirror_t *mirror, double *seconds,
                                 skv__error_t *error) {
  (void)mirror, (void)seconds;
  return skv__fail(error, SKV_UNSUPPORTED, "this build has no CUDA");
}
skv_status_t skv__mirror_wait(skv__session_t *session, skv__error_t *error) {
  (void)session;
  return skv__fail(error, SKV_UNSUPPORTED, "this build has no CUDA");
}
skv_status_t skv__mirror_fetch(const skv__mirror_t *mirror, const skv__data_t *host,
                               const skv__input_t *input, const skv_plan_t *plan,
                               const skv__step_t *step, uint64_t *bits, skv__error_t *error) {
  (void)mirror, (void)host, (void)input, (void)plan, (void)step, (void)bits;
  return skv__fail(error, SKV_UNSUPPORTED, "this build has no CUDA");
}

#endif
