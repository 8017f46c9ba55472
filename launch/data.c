/* data.c: each rank reads only its own keys and values: all queries where states travel, its own
 * where keys do. */
#include <stdlib.h>

#include "launch/attention.h"

enum { READ_TOKENS = 4096 }; /* of one read, so that progress shows */

typedef struct reader {
  const skv__input_t *input;
  skv__progress_t *progress;
  int64_t done, total;
} reader_t;

/* Tokens [begin, end) to `out`, in pieces. */
static skv_status_t read_tokens(reader_t *reader, skv__which_t which, int64_t sequence,
                                int64_t begin, int64_t end, char *out, skv__error_t *error) {
  const skv__input_t *input = reader->input;
  int64_t token_bytes = skv__input_heads(input, which) * skv__input_dim(input, which) *
                        skv__input_element_bytes(input);
  for (int64_t token = begin; token < end; token += READ_TOKENS) {
    int64_t stop = end - token < READ_TOKENS ? end : token + READ_TOKENS;
    skv__progress_set(reader->progress, "reading", reader->done, reader->total);
    SKV_TRY(skv__input_read(input, which, sequence, token, stop,
                            out + (token - begin) * token_bytes, error));
    reader->done += stop - token;
  }
  return SKV_OK;
}

/* The rank's key intervals, allocated. */
static skv_status_t own_intervals(const skv_plan_t *plan, int32_t rank, skv_interval_t **intervals,
                                  size_t *count, skv__error_t *error) {
  *count = 0;
  *intervals = NULL;
  SKV_TRY(skv_plan_key_intervals(plan, rank, NULL, count));
  *intervals = malloc((*count + 1) * sizeof **intervals);
  if (!*intervals)
    return skv__fail(error, SKV_MEMORY, "no memory for the list of key intervals");
  return skv_plan_key_intervals(plan, rank, *intervals, count);
}

static skv_status_t read_keys(skv__data_t *data, reader_t *reader, const skv_interval_t *intervals,
                              size_t count, skv__error_t *error) {
  const skv__input_t *input = reader->input;
  const skv__which_t which[2] = {SKV__K, SKV__V};
  skv__pages_t *const pages[2] = {&data->k, &data->v};
  for (int i = 0; i < 2; ++i) {
    int64_t token_bytes = skv__input_heads(input, which[i]) * skv__input_dim(input, which[i]) *
                          skv__input_element_bytes(input);
    for (int64_t sequence = 0; sequence < input->extents.batch; ++sequence) {
      char *out = (char *)pages[i]->data + sequence * data->own_tokens * token_bytes;
      for (size_t n = 0; n < count; ++n) {
        int64_t begin = intervals[n].begin, end = intervals[n].end;
        int64_t stop = end < input->extents.k_tokens ? end : input->extents.k_tokens;
        SKV_TRY(read_tokens(reader, which[i], sequence, begin, stop, out, error));
        out += (end - begin) * token_bytes;
      }
    }
  }
  return SKV_OK;
}

typedef struct query_reader {
  reader_t *reader;
  skv__data_t *data;
} query_reader_t;

static skv_status_t read_queries(void *user, const skv__row_range_t *range, skv__error_t *error) {
  query_reader_t *queries = user;
  const skv__input_t *input = queries->reader->input;
  int64_t token_bytes =
      input->extents.q_heads * input->extents.head_dim * skv__input_element_bytes(input);
  char *out = (char *)queries->data->q.data +
              (range->sequence * input->extents.q_tokens + range->q_begin) * token_bytes;
  return read_tokens(queries->reader, SKV__Q, range->sequence, range->q_begin, range->q_end, out,
                     error);
}

/* Round-robin rows are few: then every rank reads all queries. */
static bool reads_all_queries(const skv_plan_t *plan) {
  return plan->options.direction == SKV_PASS_Q || plan->options.row_owner == SKV_ROWS_ROUND_ROBIN;
}

static skv_status_t map_all(skv__data_t *data, const skv__input_t *input, const skv_plan_t *plan,
                            const skv__session_t *session, skv__error_t *error) {
  const skv__job_extents_t *e = &input->extents;
  int64_t in_bytes = skv__input_element_bytes(input);
  int64_t out_bytes = plan->problem.out_dtype == SKV_FP32 ? 4 : 2;
  const int64_t q[] = {e->batch, e->q_tokens, e->q_heads, e->head_dim};
  const int64_t k[] = {e->batch, data->own_tokens, e->kv_heads, e->head_dim};
  const int64_t v[] = {e->batch, data->own_tokens, e->kv_heads, e->value_head_dim};
  const int64_t o[] = {e->batch, e->q_tokens, e->q_heads, e->value_head_dim};
  SKV_TRY(skv__pages_map(&data->q, q, 4, in_bytes, "Q", error));
  SKV_TRY(skv__pages_map(&data->k, k, 4, in_bytes, "this rank's K", error));
  SKV_TRY(skv__pages_map(&data->v, v, 4, in_bytes, "this rank's V", error));
  SKV_TRY(skv__pages_map(&data->o, o, 4, out_bytes, "O", error));
  SKV_TRY(skv__pages_map(&data->lse, o, 3, sizeof(float), "LSE", error));
  double share = reads_all_queries(plan) ? 1.0 : 1.0 / session->ranks;
  double out_share = plan->options.results == SKV_RESULTS_OWNER ? 1.0 / session->ranks : 1.0;
  double key_share =
      e->capacity_tokens > 0 ? (double)e->k_tokens / (double)e->capacity_tokens : 0.0;
  return skv__pages_fit((double)data->q.bytes * share + (double)data->o.bytes * out_share +
                            (double)(data->k.bytes + data->v.bytes) * key_share,
                        session->local_ranks, error);
}

skv_status_t skv__data_map(skv__data_t *data, const skv__input_t *input, const skv_plan_t *plan,
                           const skv__session_t *session, skv__error_t *error) {
  skv_interval_t *intervals = NULL;
  size_t count = 0;
  *data = (skv__data_t){0};
  skv_status_t status = own_intervals(plan, session->rank, &intervals, &count, error);
  for (size_t n = 0; status == SKV_OK && n < count; ++n)
    data->own_tokens += intervals[n].end - intervals[n].begin;
  free(intervals);
  return status == SKV_OK ? map_all(data, input, plan, session, error) : status;
}

skv_status_t skv__data_read(skv__data_t *data, const skv__input_t *input,
                            const skv__job_options_t *job, const skv_plan_t *plan,
                            const skv__session_t *session, skv__progress_t *progress,
                            skv__error_t *error) {
  const skv__job_extents_t *extents = &input->extents;
  skv_interval_t *intervals = NULL;
  size_t count = 0;
  skv_status_t status = own_intervals(plan, session->rank, &intervals, &count, error);
  reader_t reader = {input, progress, 0,
                     extents->batch * (2 * extents->k_tokens / session->ranks + extents->q_tokens)};
  if (status == SKV_OK)
    status = read_keys(data, &reader, intervals, count, error);
  free(intervals);
  query_reader_t queries = {&reader, data};
  int32_t whose = reads_all_queries(plan) ? SKV__ALL_ROWS : session->rank;
  for (int64_t i = 0; status == SKV_OK && i < skv__step_count(job, extents); ++i) {
    skv__step_t step = skv__step_at(job, extents, i);
    status = skv__visit_rows(plan, &step, whose, read_queries, &queries, error);
  }
  return status;
}

void skv__data_free(skv__data_t *data) {
  skv__pages_unmap(&data->q);
  skv__pages_unmap(&data->k);
  skv__pages_unmap(&data->v);
  skv__pages_unmap(&data->o);
  skv__pages_unmap(&data->lse);
}

/* Dense [sequence][tokens][heads][dim] from token `begin` on. */
static skv_tensor_t dense(const skv__pages_t *pages, int64_t begin, int64_t tokens, int64_t heads,
                          int64_t dim, int64_t element_bytes) {
  return (skv_tensor_t){(char *)pages->data + begin * heads * dim * element_bytes,
                        {tokens * heads * dim, heads * dim, dim, 1}};
}

skv_inputs_t skv__data_inputs(const skv__data_t *data, const skv__input_t *input,
                              const skv__step_t *step) {
  const skv__job_extents_t *e = &input->extents;
  int64_t bytes = skv__input_element_bytes(input);
  return (skv_inputs_t){
      .struct_bytes = sizeof(skv_inputs_t),
      .q = dense(&data->q, step->q_begin, e->q_tokens, e->q_heads, e->head_dim, bytes),
      .k = dense(&data->k, 0, data->own_tokens, e->kv_heads, e->head_dim, bytes),
      .v = dense(&data->v, 0, data->own_tokens, e->kv_heads, e->value_head_dim, bytes),
      .sinks = input->sinks};
}

skv_outputs_t skv__data_outputs(const skv__data_t *data, const skv__input_t *input,
                                const skv_plan_t *plan, const skv__step_t *step) {
  const skv__job_extents_t *e = &input->extents;
  int64_t bytes = plan->problem.out_dtype == SKV_FP32 ? 4 : 2;
  return (skv_outputs_t){
      .struct_bytes = sizeof(skv_outputs_t),
      .o = dense(&data->o, step->q_begin, e->q_tokens, e->q_heads, e->value_head_dim, bytes),
      .lse = (float *)data->lse.data + step->q_begin * e->q_heads,
      .lse_stride = {e->q_tokens * e->q_heads, e->q_heads, 1}};
}
