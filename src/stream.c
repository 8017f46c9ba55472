#include "stream.h"

#include "chunk.h"

enum { CHUNK_TAG = 2 };

/* ---- moving chunks ---- */

static int64_t number_of(const skv__stream_t *stream, int64_t position) {
  return position / (stream->ranks - 1);
}

/* 1 to ranks - 1. */
static int32_t step_of(const skv__stream_t *stream, int64_t position) {
  return (int32_t)(position % (stream->ranks - 1)) + 1;
}

static skv__kv_step_t kv_step(const skv__stream_t *stream, int64_t position) {
  return skv__schedule_kv_step(stream->reduce, stream->ranks, stream->rank,
                               step_of(stream, position));
}

/* A ring passes on what it received, except at its last step. */
static bool must_forward(const skv__stream_t *stream, int64_t position) {
  return stream->reduce == SKV_RING && step_of(stream, position) < stream->ranks - 1;
}

static skv__buffer_t *find(skv__buffer_t *buffers, int32_t count, bool busy, int64_t position) {
  for (int32_t i = 0; i < count; i++)
    if (buffers[i].busy == busy && (!busy || buffers[i].position == position))
      return &buffers[i];
  return NULL;
}

static void release_if_over(const skv__stream_t *stream, skv__buffer_t *buffer) {
  if (buffer->arrived && buffer->evaluated && !buffer->sends &&
      (buffer->forwarded || !must_forward(stream, buffer->position)))
    buffer->busy = false;
}

static skv_status_t post_receives(skv__stream_t *stream, bool *moved) {
  for (; stream->next_receive < stream->positions; stream->next_receive++) {
    int64_t position = stream->next_receive;
    skv__kv_step_t step = kv_step(stream, position);
    skv__chunk_t chunk = skv__chunk_at(stream, step.source, number_of(stream, position));
    if (!chunk.tokens)
      continue;
    skv__buffer_t *buffer = find(stream->receive, SKV__STREAM_RECEIVE_BUFFERS, false, 0);
    if (!buffer)
      return SKV_OK;
    *buffer = (skv__buffer_t){.data = buffer->data, .position = position, .busy = true};
    SKV_TRY(skv__comm_receive(stream->comm, &buffer->request, step.from, buffer->data,
                              (size_t)skv__chunk_bytes(stream, &chunk), CHUNK_TAG));
    *moved = true;
  }
  return SKV_OK;
}

/* The buffer that holds what the next send carries, ready to send from; NULL: not yet. */
static skv__buffer_t *source_buffer(skv__stream_t *stream, const skv__chunk_t *chunk,
                                    int64_t number) {
  skv__buffer_t *buffer;
  if (chunk->source != stream->rank) {
    buffer = find(stream->receive, SKV__STREAM_RECEIVE_BUFFERS, true, stream->next_send - 1);
    return buffer && buffer->arrived ? buffer : NULL;
  }
  buffer = find(stream->send, SKV__STREAM_SEND_BUFFERS, true, number);
  if (buffer)
    return buffer->sends ? NULL : buffer;
  buffer = find(stream->send, SKV__STREAM_SEND_BUFFERS, false, 0);
  if (buffer) {
    *buffer = (skv__buffer_t){.data = buffer->data, .position = number, .busy = true};
    skv__chunk_pack(stream, chunk, buffer->data);
  }
  return buffer;
}

static skv_status_t post_sends(skv__stream_t *stream, bool *moved) {
  for (; stream->next_send < stream->positions; stream->next_send++) {
    int64_t number = number_of(stream, stream->next_send);
    skv__kv_step_t step = skv__schedule_kv_send(stream->reduce, stream->ranks, stream->rank,
                                                step_of(stream, stream->next_send));
    skv__chunk_t chunk = skv__chunk_at(stream, step.source, number);
    if (!chunk.tokens)
      continue;
    skv__buffer_t *buffer = source_buffer(stream, &chunk, number);
    if (!buffer)
      return SKV_OK;
    buffer->sends = 1;
    buffer->forwarded = true;
    SKV_TRY(skv__comm_send(stream->comm, &buffer->request, step.to, buffer->data,
                           (size_t)skv__chunk_bytes(stream, &chunk), CHUNK_TAG));
    *moved = true;
  }
  return SKV_OK;
}

/* Is this the last send from an own chunk? */
static bool own_chunk_over(const skv__stream_t *stream, const skv__buffer_t *buffer) {
  int64_t first = buffer->position * (stream->ranks - 1);
  return stream->next_send > first + (stream->reduce == SKV_GATHER ? stream->ranks - 2 : 0);
}

static skv_status_t test_buffers(skv__stream_t *stream, skv__buffer_t *buffers, int32_t count,
                                 bool *moved) {
  for (int32_t i = 0; i < count; i++) {
    skv__buffer_t *buffer = &buffers[i];
    bool received = buffers == stream->receive && !buffer->arrived, done = false;
    if (!buffer->busy || !(received || buffer->sends))
      continue;
    SKV_TRY(skv__comm_test(stream->comm, &buffer->request, &done));
    if (!done)
      continue;
    *moved = true;
    if (received)
      buffer->arrived = true;
    else
      buffer->sends = 0;
  }
  return SKV_OK;
}

static skv_status_t advance(skv__stream_t *stream, bool *moved) {
  *moved = false;
  SKV_TRY(test_buffers(stream, stream->receive, SKV__STREAM_RECEIVE_BUFFERS, moved));
  SKV_TRY(test_buffers(stream, stream->send, SKV__STREAM_SEND_BUFFERS, moved));
  SKV_TRY(post_sends(stream, moved));
  for (int32_t i = 0; i < SKV__STREAM_RECEIVE_BUFFERS; i++)
    if (stream->receive[i].busy)
      release_if_over(stream, &stream->receive[i]);
  for (int32_t i = 0; i < SKV__STREAM_SEND_BUFFERS; i++)
    if (stream->send[i].busy && !stream->send[i].sends && own_chunk_over(stream, &stream->send[i]))
      stream->send[i].busy = false;
  return post_receives(stream, moved);
}

static skv_status_t poll(void *user) {
  skv__stream_t *stream = user;
  bool moved;
  SKV_TRY(skv__comm_pulse(stream->comm));
  return advance(stream, &moved);
}

static const skv__request_t *open_request(const skv__stream_t *stream) {
  for (int32_t i = 0; i < SKV__STREAM_RECEIVE_BUFFERS; i++)
    if (stream->receive[i].busy && !stream->receive[i].arrived)
      return &stream->receive[i].request;
  for (int32_t i = 0; i < SKV__STREAM_RECEIVE_BUFFERS; i++)
    if (stream->receive[i].sends)
      return &stream->receive[i].request;
  for (int32_t i = 0; i < SKV__STREAM_SEND_BUFFERS; i++)
    if (stream->send[i].sends)
      return &stream->send[i].request;
  return NULL;
}

static bool all_sent(const skv__stream_t *stream) {
  for (int32_t i = 0; i < SKV__STREAM_RECEIVE_BUFFERS; i++)
    if (stream->receive[i].sends)
      return false;
  for (int32_t i = 0; i < SKV__STREAM_SEND_BUFFERS; i++)
    if (stream->send[i].sends)
      return false;
  return stream->next_send == stream->positions;
}

/* Wait for the chunk of a position (buffer), or with position -1 until everything is sent. */
static skv_status_t await(skv__stream_t *stream, int64_t position, skv__buffer_t **buffer,
                          skv_times_t *times) {
  double begin = skv__comm_now();
  skv__wait_t wait = {0};
  for (;;) {
    bool moved;
    SKV_TRY(advance(stream, &moved));
    *buffer = find(stream->receive, SKV__STREAM_RECEIVE_BUFFERS, true, position);
    if (position < 0 ? all_sent(stream) : *buffer && (*buffer)->arrived)
      break;
    if (moved)
      skv__wait_moved(&wait);
    else
      SKV_TRY(skv__wait_idle(stream->comm, &wait, open_request(stream), "key/value stream"));
  }
  times->wait_seconds += skv__comm_now() - begin;
  return SKV_OK;
}

/* ---- evaluating them ---- */

static void select_runs(const skv__stream_t *stream, int64_t sequence, skv__job_t *job) {
  int64_t begin = 0, end;
  while (begin < stream->run_count && stream->runs[begin].sequence < sequence)
    begin++;
  for (end = begin; end < stream->run_count && stream->runs[end].sequence == sequence;)
    end++;
  job->runs = stream->runs + begin;
  job->run_count = end - begin;
}

static skv_status_t evaluate(skv__stream_t *stream, const skv__chunk_t *chunk,
                             const unsigned char *data, void *scratch, skv_times_t *times,
                             skv__error_t *error) {
  skv__bank_t *bank = stream->bank;
  int32_t *slot = &stream->open_slot[chunk->source];
  if (chunk->first)
    *slot =
        skv__bank_stores(bank, chunk->node, stream->rank) ? skv__bank_acquire(bank) : SKV__NO_SLOT;
  if (*slot != SKV__NO_SLOT) {
    double begin = skv__comm_now();
    skv__job_t job = bank->job;
    skv__job_node_t node = {chunk->node.begin, chunk->node.end, 0};
    skv__chunk_tensors(stream, chunk, data, &job.k, &job.v);
    select_runs(stream, chunk->sequence, &job);
    job.kv_head_begin = chunk->head_begin;
    job.kv_head_end = chunk->head_end;
    SKV_TRY(skv__bank_evaluate_own(bank, &job, node, *slot, scratch, poll, stream, error));
    times->compute_seconds += skv__comm_now() - begin;
  }
  if (chunk->last) {
    skv__bank_report_leaf(bank, stream->rank, chunk->node, *slot);
    skv__bank_insert(bank, stream->rank, chunk->node, *slot);
  }
  return SKV_OK;
}

static skv_status_t evaluate_remote(skv__stream_t *stream, int64_t position, void *scratch,
                                    skv_times_t *times, skv__error_t *error) {
  skv__chunk_t chunk =
      skv__chunk_at(stream, kv_step(stream, position).source, number_of(stream, position));
  skv__buffer_t *buffer = NULL;
  if (!chunk.exists)
    return SKV_OK;
  if (chunk.tokens)
    SKV_TRY(await(stream, position, &buffer, times));
  SKV_TRY(evaluate(stream, &chunk, buffer ? buffer->data : NULL, scratch, times, error));
  if (buffer) {
    buffer->evaluated = true;
    release_if_over(stream, buffer);
  }
  return SKV_OK;
}

/* Nodes past the used blocks hold no key: they only complete the tree. */
static void insert_unused(skv__stream_t *stream) {
  for (int32_t source = 0; source < stream->ranks; source++)
    for (int32_t i = 0; i < stream->node_count[source]; i++)
      if (stream->nodes[source][i].begin >= stream->bank->used_blocks)
        skv__bank_insert(stream->bank, stream->rank, stream->nodes[source][i], SKV__NO_SLOT);
}

static void begin(skv__stream_t *stream, skv__bank_t *bank, const skv_inputs_t *inputs,
                  const int64_t *k_tokens, unsigned char *buffers) {
  stream->bank = bank;
  stream->inputs = inputs;
  stream->k_tokens = k_tokens;
  stream->runs = bank->job.runs;
  stream->run_count = bank->job.run_count;
  stream->next_receive = stream->next_send = 0;
  for (int32_t i = 0; i < SKV__STREAM_RECEIVE_BUFFERS; i++, buffers += stream->cut.chunk_bytes)
    stream->receive[i] = (skv__buffer_t){.data = buffers};
  for (int32_t i = 0; i < SKV__STREAM_SEND_BUFFERS; i++, buffers += stream->cut.chunk_bytes)
    stream->send[i] = (skv__buffer_t){.data = buffers};
}

skv_status_t skv__stream_run(skv__stream_t *stream, skv__bank_t *bank, const skv_inputs_t *inputs,
                             const int64_t *k_tokens, void *scratch, unsigned char *buffers,
                             skv_times_t *times, skv__error_t *error) {
  begin(stream, bank, inputs, k_tokens, buffers);
  insert_unused(stream); /* first, so that no state waits for an EMPTY sibling */
  for (int64_t number = 0; number < stream->chunk_numbers; number++) {
    bool moved;
    SKV_TRY(advance(stream, &moved));
    skv__chunk_t own = skv__chunk_at(stream, stream->rank, number);
    if (own.exists)
      SKV_TRY(evaluate(stream, &own, NULL, scratch, times, error));
    for (int32_t step = 1; step < stream->ranks; step++)
      SKV_TRY(
          evaluate_remote(stream, number * (stream->ranks - 1) + step - 1, scratch, times, error));
  }
  skv__buffer_t *none;
  if (stream->ranks > 1)
    SKV_TRY(await(stream, -1, &none, times));
  return SKV_OK;
}
