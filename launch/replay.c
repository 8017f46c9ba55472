#include "launch/replay.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "kernels/kernel.h"
#include "order.h"

typedef struct record {
  int64_t call, pass, owner, rank, rows, blocks, begin, split, end, offset;
  uint64_t left, right, out;
  bool used; /* it has its place in the canonical tree */
} record_t;

typedef struct recording {
  const char *path;
  record_t *records;
  int64_t count, room, promised; /* promised: what the header says */
  int64_t *state_base;           /* [ranks] or NULL */
  int32_t ranks;
  int states_fd;
  int64_t value_head_dim;
  const skv__kernel_t *kernel;
} recording_t;

/* ---- reading ---- */

static bool to_integer(const cJSON *item, int64_t *value) {
  if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > 0x1p53)
    return false;
  *value = (int64_t)item->valuedouble;
  return (double)*value == item->valuedouble;
}

static bool take_integer(const cJSON *object, const char *name, int64_t *value) {
  return to_integer(cJSON_GetObjectItemCaseSensitive(object, name), value);
}

static bool take_digest(const cJSON *object, const char *name, uint64_t *value) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
  char *end;
  if (!cJSON_IsString(item) || strlen(item->valuestring) != 16)
    return false;
  errno = 0;
  *value = strtoull(item->valuestring, &end, 16);
  return !errno && !*end;
}

static bool read_record(const cJSON *object, bool with_states, record_t *record) {
  bool fine =
      take_integer(object, "call", &record->call) && take_integer(object, "pass", &record->pass) &&
      take_integer(object, "owner", &record->owner) &&
      take_integer(object, "rank", &record->rank) && take_integer(object, "rows", &record->rows) &&
      take_integer(object, "blocks", &record->blocks) &&
      take_integer(object, "begin", &record->begin) &&
      take_integer(object, "split", &record->split) && take_integer(object, "end", &record->end) &&
      take_digest(object, "out", &record->out) && record->begin < record->end &&
      record->end <= record->blocks && record->rows > 0 && record->rows < INT64_C(1) << 40;
  if (fine && record->split)
    return take_digest(object, "left", &record->left) &&
           take_digest(object, "right", &record->right);
  return fine && (!with_states || take_integer(object, "offset", &record->offset));
}

static bool read_header(recording_t *recording, const cJSON *object) {
  int64_t version, ranks, dim;
  if (!take_integer(object, "order_log", &version) || version != 1 ||
      !take_integer(object, "ranks", &ranks) || ranks < 1 || ranks > 1 << 20 ||
      !take_integer(object, "value_head_dim", &dim) || dim < 1 || dim > 256 ||
      !take_integer(object, "nodes", &recording->promised))
    return false;
  recording->ranks = (int32_t)ranks;
  recording->value_head_dim = dim;
  const cJSON *bases = cJSON_GetObjectItemCaseSensitive(object, "state_base");
  if (!bases)
    return true;
  if (!cJSON_IsArray(bases) || cJSON_GetArraySize(bases) != ranks)
    return false;
  recording->state_base = malloc((size_t)ranks * sizeof *recording->state_base);
  int32_t rank = 0;
  const cJSON *base;
  cJSON_ArrayForEach(base, bases) {
    if (!recording->state_base || !to_integer(base, &recording->state_base[rank++]))
      return false;
  }
  return true;
}

static skv_status_t add_record(recording_t *recording, const cJSON *object, int64_t line,
                               skv__error_t *error) {
  if (recording->count == recording->room) {
    int64_t room = recording->room * 2 + 256;
    record_t *moved = realloc(recording->records, (size_t)room * sizeof *moved);
    if (!moved)
      return skv__fail(error, SKV_MEMORY, "%s: out of memory at line %" PRId64, recording->path,
                       line);
    recording->records = moved;
    recording->room = room;
  }
  record_t *record = &recording->records[recording->count];
  *record = (record_t){0};
  if (!read_record(object, recording->state_base != NULL, record) ||
      record->rank >= recording->ranks)
    return skv__fail(error, SKV_FORMAT, "%s: line %" PRId64 " is not a node of an order log",
                     recording->path, line);
  recording->count++;
  return SKV_OK;
}

static skv_status_t read_line(recording_t *recording, const char *text, int64_t line,
                              skv__error_t *error) {
  cJSON *object = cJSON_Parse(text);
  skv_status_t status = SKV_OK;
  if (!cJSON_IsObject(object) || (line == 1 && !read_header(recording, object)))
    status = skv__fail(error, SKV_FORMAT, "%s: line %" PRId64 " is not %s", recording->path, line,
                       line == 1 ? "the header of an order log (was it written by --order-log?)"
                                 : "JSON");
  else if (line > 1)
    status = add_record(recording, object, line, error);
  cJSON_Delete(object);
  return status;
}

static skv_status_t read_log(recording_t *recording, skv__error_t *error) {
  FILE *file = fopen(recording->path, "re");
  if (!file)
    return skv__fail(error, SKV_IO, "%s: %s", recording->path, strerror(errno));
  char *text = NULL;
  size_t room = 0;
  int64_t line = 0;
  skv_status_t status = SKV_OK;
  while (status == SKV_OK && getline(&text, &room, file) > 0)
    status = read_line(recording, text, ++line, error);
  if (status == SKV_OK && ferror(file))
    status = skv__fail(error, SKV_IO, "%s: %s", recording->path, strerror(errno));
  if (status == SKV_OK && line == 0)
    status = skv__fail(error, SKV_FORMAT, "%s: the file is empty", recording->path);
  free(text);
  fclose(file);
  return status;
}

static skv_status_t open_states(recording_t *recording, skv__error_t *error) {
  char path[4096];
  if (!recording->state_base)
    return SKV_OK;
  snprintf(path, sizeof path, "%s.states", recording->path);
  recording->states_fd = open(path, O_RDONLY | O_CLOEXEC);
  if (recording->states_fd < 0)
    return skv__fail(error, SKV_IO, "%s: %s: the log says that states were written there", path,
                     strerror(errno));
  return SKV_OK;
}

/* ---- evaluating ---- */

/* Slices one after another, and within a slice by interval, a node before its parts. */
static int compare_records(const void *a, const void *b) {
  const record_t *x = a, *y = b;
  const int64_t left[] = {x->call, x->pass, x->owner, x->begin, -x->end};
  const int64_t right[] = {y->call, y->pass, y->owner, y->begin, -y->end};
  for (size_t i = 0; i < sizeof left / sizeof *left; i++)
    if (left[i] != right[i])
      return left[i] < right[i] ? -1 : 1;
  return 0;
}

typedef struct slice {
  const recording_t *recording;
  record_t *records;
  int64_t count;
  skv__replayed_t *replayed;
  skv__error_t *error;
} slice_t;

static record_t *find(const slice_t *slice, skv__node_t node) {
  for (int64_t low = 0, high = slice->count; low < high;) {
    int64_t middle = (low + high) / 2;
    record_t *record = &slice->records[middle];
    if (record->begin == node.begin && record->end == node.end)
      return record;
    if (record->begin < node.begin || (record->begin == node.begin && record->end > node.end))
      low = middle + 1;
    else
      high = middle;
  }
  return NULL;
}

static void differ(const slice_t *slice, skv__node_t node, const record_t *record,
                   const char *how) {
  char by[40] = " (not recorded)";
  if (slice->replayed->differs)
    return;
  if (record)
    snprintf(by, sizeof by, ", by rank %" PRId64, record->rank);
  slice->replayed->differs = true;
  snprintf(slice->replayed->difference, sizeof slice->replayed->difference,
           "node [%" PRId64 ", %" PRId64 ") of call %" PRId64 ", pass %" PRId64 ", owner %" PRId64
           "%s: %s",
           node.begin, node.end, slice->records[0].call, slice->records[0].pass,
           slice->records[0].owner, by, how);
}

static int64_t state_floats(const slice_t *slice) {
  return slice->records[0].rows * (slice->recording->value_head_dim + 2);
}

static uint64_t digest_of(const slice_t *slice, const float *state) {
  return XXH64(state, (size_t)state_floats(slice) * sizeof *state, 0);
}

static skv_status_t read_state(const slice_t *slice, const record_t *record, float *state) {
  const recording_t *recording = slice->recording;
  int64_t offset = recording->state_base[record->rank] + record->offset;
  size_t bytes = (size_t)state_floats(slice) * sizeof *state, done = 0;
  while (done < bytes) {
    ssize_t got =
        pread(recording->states_fd, (char *)state + done, bytes - done, offset + (int64_t)done);
    if (got <= 0)
      return skv__fail(slice->error, SKV_IO, "%s.states: %s", recording->path,
                       got ? strerror(errno) : "shorter than the log says");
    done += (size_t)got;
  }
  return SKV_OK;
}

static skv_status_t evaluate(const slice_t *slice, skv__node_t node, float **state,
                             uint64_t *digest);

static skv_status_t evaluate_block(const slice_t *slice, const record_t *record, skv__node_t node,
                                   float **state, uint64_t *digest) {
  *digest = record->out;
  if (!slice->recording->state_base)
    return SKV_OK;
  *state = malloc((size_t)skv__slice_bytes(record->rows, slice->recording->value_head_dim));
  if (!*state)
    return skv__fail(slice->error, SKV_MEMORY, "out of memory for a state of %" PRId64 " rows",
                     record->rows);
  SKV_TRY(read_state(slice, record, *state));
  *digest = digest_of(slice, *state);
  if (*digest != record->out)
    differ(slice, node, record, "the state in the file has another digest than the log");
  return SKV_OK;
}

static skv_status_t merge_parts(const slice_t *slice, const record_t *record, skv__node_t node,
                                float **state, uint64_t *digest) {
  float *right = NULL;
  uint64_t left_digest = 0, right_digest = 0;
  skv_status_t status =
      evaluate(slice, (skv__node_t){node.begin, record->split}, state, &left_digest);
  if (status == SKV_OK)
    status = evaluate(slice, (skv__node_t){record->split, node.end}, &right, &right_digest);
  if (status == SKV_OK && !slice->replayed->differs) {
    *digest = record->out;
    if (record->left != left_digest || record->right != right_digest)
      differ(slice, node, record, "it did not merge the results of its two parts");
    if (slice->recording->state_base) {
      slice->recording->kernel->merge(*state, right, record->rows, slice->recording->value_head_dim,
                                      1, NULL);
      *digest = digest_of(slice, *state);
      slice->replayed->merges++;
      if (*digest != record->out)
        differ(slice, node, record, "merging its two parts gives another result");
    }
  }
  free(right);
  return status;
}

static skv_status_t evaluate(const slice_t *slice, skv__node_t node, float **state,
                             uint64_t *digest) {
  record_t *record = find(slice, node);
  bool block = node.end - node.begin == 1;
  if (!record) {
    differ(slice, node, NULL, "a node of the canonical tree is missing");
    return SKV_OK;
  }
  record->used = true;
  if (record->rows != slice->records[0].rows || record->blocks != slice->records[0].blocks)
    differ(slice, node, record, "its rows or blocks are not those of the other nodes");
  if (record->split != (block ? 0 : skv__order_split(node)))
    differ(slice, node, record, "it divides where the canonical tree does not");
  if (slice->replayed->differs)
    return SKV_OK;
  return (block ? evaluate_block : merge_parts)(slice, record, node, state, digest);
}

/* After the tree: what else was recorded for its slice. */
static void refuse_others(const slice_t *slice) {
  for (int64_t i = 0; i < slice->count; i++) {
    const record_t *record = &slice->records[i];
    if (!record->used)
      differ(slice, (skv__node_t){record->begin, record->end}, record,
             "it was recorded twice, or is no node of the canonical tree");
  }
}

static bool same_slice(const record_t *a, const record_t *b) {
  return a->call == b->call && a->pass == b->pass && a->owner == b->owner;
}

static skv_status_t replay_slices(recording_t *recording, skv__replayed_t *replayed,
                                  skv__error_t *error) {
  qsort(recording->records, (size_t)recording->count, sizeof *recording->records, compare_records);
  int64_t end;
  for (int64_t begin = 0; begin < recording->count && !replayed->differs; begin = end) {
    record_t *first = &recording->records[begin];
    for (end = begin; end < recording->count && same_slice(first, &recording->records[end]);)
      end++;
    slice_t slice = {recording, first, end - begin, replayed, error};
    float *state = NULL;
    uint64_t digest = 0;
    skv_status_t status = evaluate(&slice, (skv__node_t){0, first->blocks}, &state, &digest);
    free(state);
    SKV_TRY(status);
    refuse_others(&slice);
    replayed->slices++;
    replayed->nodes += slice.count;
  }
  if (!replayed->differs && recording->count != recording->promised) {
    replayed->differs = true;
    snprintf(replayed->difference, sizeof replayed->difference,
             "the end: %" PRId64 " nodes were recorded, but the header says %" PRId64,
             recording->count, recording->promised);
  }
  return SKV_OK;
}

skv_status_t skv__replay(skv__replayed_t *replayed, const char *path, skv__error_t *error) {
  recording_t recording = {.path = path, .states_fd = -1};
  *replayed = (skv__replayed_t){0};
  recording.kernel = skv__kernel_pick(SKV_BACKEND_CPU, NULL, error);
  skv_status_t status = recording.kernel ? read_log(&recording, error) : SKV_UNSUPPORTED;
  replayed->with_states = recording.state_base != NULL;
  if (status == SKV_OK)
    status = open_states(&recording, error);
  if (status == SKV_OK)
    status = replay_slices(&recording, replayed, error);
  if (recording.states_fd >= 0)
    close(recording.states_fd);
  free(recording.records);
  free(recording.state_base);
  return status;
}
