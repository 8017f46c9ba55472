/* results.c: every rank writes the rows it has into one temporary file; rank 0 gives it its name
 * when all have. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "context.h"
#include "launch/attention.h"

enum { WRITE_ROWS = 4096 };

typedef struct target {
  skv__output_t *file;
  int64_t data_offset;   /* in the file */
  const char *source;    /* dense [sequence][query][head][dim] */
  int64_t element_bytes; /* of one (sequence, query, head) */
  skv__tensor_layout_t layout;
  int64_t q_tokens, q_heads;
} target_t;

/* Heads outside tokens: one head's rows are a run of the file, but not of memory. */
static skv_status_t write_by_heads(const target_t *target, const skv__row_range_t *range,
                                   skv__error_t *error) {
  int64_t bytes = target->element_bytes;
  char *buffer = malloc((size_t)(WRITE_ROWS * bytes));
  skv_status_t status = SKV_OK;
  if (!buffer)
    return skv__fail(error, SKV_MEMORY, "no memory to write rows");
  for (int64_t head = range->head_begin; head < range->head_end; ++head)
    for (int64_t query = range->q_begin; query < range->q_end && status == SKV_OK;
         query += WRITE_ROWS) {
      int64_t count = range->q_end - query < WRITE_ROWS ? range->q_end - query : WRITE_ROWS;
      for (int64_t i = 0; i < count; ++i) {
        int64_t row = (range->sequence * target->q_tokens + query + i) * target->q_heads + head;
        memcpy(buffer + i * bytes, target->source + row * bytes, (size_t)bytes);
      }
      int64_t place = (range->sequence * target->q_heads + head) * target->q_tokens + query;
      status = skv__output_write(target->file, target->data_offset + place * bytes, buffer,
                                 count * bytes, error);
    }
  free(buffer);
  return status;
}

static skv_status_t write_range(void *user, const skv__row_range_t *range, skv__error_t *error) {
  const target_t *target = user;
  if (target->layout == SKV__HTD || target->layout == SKV__BHTD)
    return write_by_heads(target, range, error);
  skv__row_span_t span = skv__row_span(range, target->q_tokens, target->q_heads);
  return skv__output_write(target->file, target->data_offset + span.first * target->element_bytes,
                           target->source + span.first * target->element_bytes,
                           span.count * target->element_bytes, error);
}

skv_status_t skv__results_write(skv__results_t *results, const skv__data_t *data,
                                const skv__input_t *input, const skv_plan_t *plan,
                                const skv__step_t *step, skv__error_t *error) {
  const skv__job_extents_t *extents = &input->extents;
  int64_t out_bytes = plan->problem.out_dtype == SKV_FP32 ? 4 : 2;
  int32_t whose = plan->options.results == SKV_RESULTS_OWNER ? plan->rank
                  : plan->rank == 0                          ? SKV__ALL_ROWS
                                                             : SKV__NO_ROWS;
  target_t targets[2] = {{.file = results->o,
                          .data_offset = results->o_offset,
                          .source = data->o.data,
                          .element_bytes = extents->value_head_dim * out_bytes},
                         {.file = results->lse,
                          .data_offset = results->lse_offset,
                          .source = data->lse.data,
                          .element_bytes = sizeof(float)}};
  for (int i = 0; i < 2; ++i) {
    targets[i].layout = input->layout;
    targets[i].q_tokens = extents->q_tokens;
    targets[i].q_heads = extents->q_heads;
    if (targets[i].file)
      SKV_TRY(skv__visit_rows(plan, step, whose, write_range, &targets[i], error));
  }
  return SKV_OK;
}

/* Rank 0: refuse to replace an input, create the file, write its header. */
static skv_status_t create(skv__output_t **output, skv__output_place_t *place, const char *path,
                           const skv__input_t *input, bool same_host, const char *head,
                           int64_t head_bytes, skv__error_t *error) {
  for (int i = 0; i < input->open_files; ++i)
    if (skv__output_same_file(path, &input->files[i]))
      return skv__fail(error, SKV_INVALID, "%s is an input: write the output to another file",
                       path);
  SKV_TRY(skv__output_open_shared(output, place, path, same_host, error));
  return skv__output_write(*output, 0, head, head_bytes, error);
}

/* One output file of all ranks. `dims` 1: the LSE, without a last axis. Collective. */
static skv_status_t open_shared(skv__output_t **output, int64_t *data_offset, const char *path,
                                const skv__input_t *input, skv_dtype_t dtype, bool has_dim,
                                skv__session_t *session, skv__error_t *error) {
  const skv__job_extents_t *e = &input->extents;
  bool heads_first = input->layout == SKV__HTD || input->layout == SKV__BHTD;
  const int64_t shape[4] = {e->batch, heads_first ? e->q_heads : e->q_tokens,
                            heads_first ? e->q_tokens : e->q_heads, e->value_head_dim};
  bool batched = input->layout == SKV__BTHD || input->layout == SKV__BHTD;
  char head[4096];
  *data_offset =
      skv__npy_header(head, dtype, (batched ? 3 : 2) + has_dim, batched ? shape : shape + 1);
  skv__output_place_t place;
  memset(&place, 0, sizeof place);
  bool same_host = session->local_ranks == session->ranks;
  if (session->rank == 0)
    create(output, &place, path, input, same_host, head, *data_offset, error);
  SKV_TRY(skv__session_agree(session, NULL, 0, error));
  skv__comm_t *comm = session->context->comm;
  if (skv__comm_broadcast(comm, &place, sizeof place, "name of the output file") != SKV_OK)
    return skv__fail(error, session->context->error.status, "%s", session->context->error.text);
  if (session->rank != 0)
    skv__output_join(output, &place, error);
  return skv__session_agree(session, NULL, 0, error);
}

skv_status_t skv__results_open(skv__results_t *results, const skv__input_t *input,
                               const skv__job_options_t *job, skv_dtype_t out_dtype,
                               skv__session_t *session, skv__error_t *error) {
  *results = (skv__results_t){0};
  results->o_path = job->out;
  if (job->out)
    SKV_TRY(open_shared(&results->o, &results->o_offset, job->out, input, out_dtype, true, session,
                        error));
  if (job->lse)
    SKV_TRY(open_shared(&results->lse, &results->lse_offset, job->lse, input, SKV_FP32, false,
                        session, error));
  return SKV_OK;
}

static skv_status_t commit(skv__output_t **output, skv__error_t *error) {
  skv__output_t *file = *output;
  *output = NULL; /* freed, whatever happens */
  return file ? skv__output_commit(file, error) : SKV_OK;
}

/* Both files or none: an O whose LSE could not be put in place is taken away again. */
static void commit_both(skv__results_t *results, bool first, skv__error_t *error) {
  bool has_o = results->o != NULL;
  if (commit(&results->o, error) == SKV_OK && commit(&results->lse, error) != SKV_OK && first &&
      has_o)
    unlink(results->o_path);
}

skv_status_t skv__results_commit(skv__results_t *results, skv__session_t *session,
                                 skv__error_t *error) {
  if (session->rank != 0)
    commit_both(results, false, error);
  SKV_TRY(skv__session_agree(session, NULL, 0, error));
  if (session->rank == 0)
    commit_both(results, true, error);
  return skv__session_agree(session, NULL, 0, error);
}

void skv__results_discard(skv__results_t *results) {
  if (results->o)
    skv__output_discard(results->o);
  if (results->lse)
    skv__output_discard(results->lse);
  *results = (skv__results_t){0};
}
