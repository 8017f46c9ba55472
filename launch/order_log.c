#include "launch/order_log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch/tensor_file.h"

enum { LOG_TAG = 3 };

/* Memory that grows. */
typedef struct heap {
  char *data;
  int64_t bytes, room;
} heap_t;

struct skv__order_log {
  int32_t rank;
  bool with_states, failed; /* failed: memory ran out */
  int64_t call, value_head_dim;
  heap_t lines, states;
};

skv__order_log_t *skv__order_log_create(int32_t rank, int64_t value_head_dim, bool with_states) {
  skv__order_log_t *log = calloc(1, sizeof *log);
  if (log)
    *log = (skv__order_log_t){
        .rank = rank, .value_head_dim = value_head_dim, .with_states = with_states};
  return log;
}

void skv__order_log_free(skv__order_log_t *log) {
  if (!log)
    return;
  free(log->lines.data);
  free(log->states.data);
  free(log);
}

void skv__order_log_next_call(skv__order_log_t *log) {
  log->call++;
}

static bool append(heap_t *heap, const void *data, int64_t bytes) {
  if (heap->bytes + bytes > heap->room) {
    int64_t room = (heap->bytes + bytes) * 3 / 2 + 4096;
    char *moved = realloc(heap->data, (size_t)room);
    if (!moved)
      return false;
    heap->data = moved;
    heap->room = room;
  }
  memcpy(heap->data + heap->bytes, data, (size_t)bytes);
  heap->bytes += bytes;
  return true;
}

void skv__order_log_observe(void *user, const skv_node_event_t *event) {
  skv__order_log_t *log = user;
  char line[512];
  int length = snprintf(line, sizeof line,
                        "{\"call\":%" PRId64 ",\"pass\":%" PRId64
                        ",\"owner\":%d,\"rank\":%d,\"rows\":%" PRId64 ",\"blocks\":%" PRId64
                        ",\"begin\":%" PRId64 ",\"split\":%" PRId64 ",\"end\":%" PRId64,
                        log->call, event->pass, (int)event->owner, (int)log->rank, event->rows,
                        event->blocks, event->begin, event->split, event->end);
  if (event->split)
    length += snprintf(line + length, sizeof line - (size_t)length,
                       ",\"left\":\"%016" PRIx64 "\",\"right\":\"%016" PRIx64 "\"",
                       event->left_digest, event->right_digest);
  else if (log->with_states)
    length += snprintf(line + length, sizeof line - (size_t)length, ",\"offset\":%" PRId64,
                       log->states.bytes);
  length += snprintf(line + length, sizeof line - (size_t)length, ",\"out\":\"%016" PRIx64 "\"}\n",
                     event->out_digest);
  bool fine = append(&log->lines, line, length);
  if (fine && !event->split && log->with_states)
    fine = append(&log->states, event->state,
                  event->rows * (event->value_head_dim + 2) * (int64_t)sizeof(float));
  log->failed |= !fine;
}

/* Rank 0 appends all others' heaps to its own; the others send theirs. */
static skv_status_t collect(skv__comm_t *comm, heap_t *heap, const int64_t *bytes,
                            skv__error_t *error) {
  skv__request_t request;
  if (comm->rank != 0) {
    SKV_TRY(skv__comm_send(comm, &request, 0, heap->data, (size_t)heap->bytes, LOG_TAG));
    return skv__comm_wait(comm, &request, 1, "order log");
  }
  for (int32_t rank = 1; rank < comm->ranks; rank++) {
    char *data = malloc((size_t)bytes[rank] + 1);
    if (!data)
      return skv__fail(error, SKV_MEMORY, "out of memory for the order log of rank %d (%lld bytes)",
                       (int)rank, (long long)bytes[rank]);
    skv_status_t status =
        skv__comm_receive(comm, &request, rank, data, (size_t)bytes[rank], LOG_TAG);
    if (status == SKV_OK)
      status = skv__comm_wait(comm, &request, 1, "order log");
    if (status == SKV_OK && !append(heap, data, bytes[rank]))
      status = skv__fail(error, SKV_MEMORY, "out of memory for the order log");
    free(data);
    SKV_TRY(status);
  }
  return SKV_OK;
}

static int64_t count_lines(const heap_t *lines) {
  int64_t count = 0;
  for (int64_t i = 0; i < lines->bytes; i++)
    count += lines->data[i] == '\n';
  return count;
}

/* The first line: the run, how many nodes follow, and where in the states' file each rank's states
 * begin. */
static bool describe(heap_t *line, const skv__order_log_t *log, const int64_t *state_bytes,
                     int32_t ranks, uint64_t order_id) {
  char text[256];
  int length =
      snprintf(text, sizeof text,
               "{\"order_log\":1,\"version\":\"%s\",\"order_id\":\"%016" PRIx64
               "\",\"ranks\":%d,\"value_head_dim\":%" PRId64 ",\"nodes\":%" PRId64,
               SKV_VERSION, order_id, (int)ranks, log->value_head_dim, count_lines(&log->lines));
  bool fine = append(line, text, length);
  int64_t base = 0;
  for (int32_t rank = 0; log->with_states && fine && rank < ranks; base += state_bytes[rank++]) {
    length = snprintf(text, sizeof text, "%s%" PRId64, rank ? "," : ",\"state_base\":[", base);
    fine = append(line, text, length);
  }
  return fine && append(line, log->with_states ? "]}\n" : "}\n", log->with_states ? 3 : 2);
}

static skv_status_t write_whole(const char *path, const heap_t *first, const heap_t *second,
                                skv__error_t *error) {
  skv__output_t *output;
  SKV_TRY(skv__output_open(&output, path, error));
  skv_status_t status = skv__output_write(output, 0, first->data, first->bytes, error);
  if (status == SKV_OK && second)
    status = skv__output_write(output, first->bytes, second->data, second->bytes, error);
  if (status == SKV_OK)
    return skv__output_commit(output, error);
  skv__output_discard(output);
  return status;
}

/* Rank 0, once all is there. The states go first: a log never names states that are not there. */
static skv_status_t write_files(const skv__order_log_t *log, const char *path, uint64_t order_id,
                                const int64_t *state_bytes, int32_t ranks, skv__error_t *error) {
  heap_t header = {0};
  char states_path[4096];
  skv_status_t status = SKV_OK;
  if (snprintf(states_path, sizeof states_path, "%s.states", path) >= (int)sizeof states_path)
    return skv__fail(error, SKV_INVALID, "the path of the order log is too long");
  if (!describe(&header, log, state_bytes, ranks, order_id))
    status = skv__fail(error, SKV_MEMORY, "out of memory for the order log");
  if (status == SKV_OK && log->with_states)
    status = write_whole(states_path, &log->states, NULL, error);
  if (status == SKV_OK)
    status = write_whole(path, &header, &log->lines, error);
  free(header.data);
  return status;
}

skv_status_t skv__order_log_write(skv__order_log_t *log, skv__comm_t *comm, const char *path,
                                  uint64_t order_id, skv__error_t *error) {
  size_t ranks = (size_t)comm->ranks;
  int64_t mine[2] = {log->lines.bytes, log->states.bytes};
  int64_t *both = calloc(ranks, sizeof mine), *bytes = calloc(ranks, sizeof mine);
  skv_status_t status = SKV_OK;
  if (log->failed || !both || !bytes)
    status = skv__fail(error, SKV_MEMORY, "out of memory for the order log");
  SKV_TRY_GOTO(status, over, skv__comm_agree(comm, NULL, 0, status, error->text));
  SKV_TRY_GOTO(status, over, skv__comm_gather(comm, mine, sizeof mine, both, "order log sizes"));
  for (size_t rank = 0; rank < ranks; rank++) {
    bytes[rank] = both[2 * rank];
    bytes[ranks + rank] = both[2 * rank + 1];
  }
  SKV_TRY_GOTO(status, over, collect(comm, &log->lines, bytes, error));
  SKV_TRY_GOTO(status, over, collect(comm, &log->states, bytes + ranks, error));
  if (comm->rank == 0)
    status = write_files(log, path, order_id, bytes + ranks, comm->ranks, error);
  status = skv__comm_agree(comm, NULL, 0, status, error->text);
over:
  free(both);
  free(bytes);
  return status;
}
