/* tables.cu: see tables.h. */
#include "kernels/cuda/tables.h"

#include <string.h>

typedef struct piece {
  uint4 words[SKV__CARRIED_BYTES / sizeof(uint4)];
} piece_t;

static __global__ void store_piece(uint4 *to, const __grid_constant__ piece_t piece, int words) {
  if ((int)threadIdx.x < words)
    to[threadIdx.x] = piece.words[threadIdx.x];
}

void skv__tables_carry(void *to, const void *from, size_t bytes, cudaStream_t stream) {
  piece_t piece;
  memcpy(piece.words, from, bytes);
  store_piece<<<1, SKV__CARRIED_BYTES / sizeof(uint4), 0, stream>>>((uint4 *)to, piece,
                                                                    (int)(bytes / sizeof(uint4)));
}

static size_t padded(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

size_t skv__tables_bytes(const skv__job_t *job) {
  return padded((size_t)job->most_runs * sizeof(skv__device_run_t)) +
         padded((size_t)job->ranks * sizeof(skv__device_place_t)) +
         padded((size_t)job->q_heads * sizeof(float));
}

/* A writer of one table, entry by entry, piece by piece. */
typedef struct writer {
  unsigned char *to;
  size_t filled;
  piece_t piece;
  cudaStream_t stream;
} writer_t;

static void flush(writer_t *writer) {
  int words = (int)((writer->filled + sizeof(uint4) - 1) / sizeof(uint4));
  if (!words)
    return;
  store_piece<<<1, SKV__CARRIED_BYTES / sizeof(uint4), 0, writer->stream>>>((uint4 *)writer->to,
                                                                            writer->piece, words);
  writer->to += writer->filled;
  writer->filled = 0;
}

static void put(writer_t *writer, const void *entry, size_t bytes) {
  size_t whole =
      SKV__CARRIED_BYTES / 16 / bytes * 16; /* entries of a piece: a multiple of 16 of them */
  memcpy((unsigned char *)writer->piece.words + writer->filled, entry, bytes);
  writer->filled += bytes;
  if (writer->filled == whole * bytes)
    flush(writer);
}

static skv__device_place_t device_place(const skv__job_t *job, int64_t node, int32_t owner) {
  skv__device_place_t place = {job->slices[node * job->ranks + owner], job->slice_rows[owner]};
  return place;
}

skv_status_t skv__tables_fill(skv__tables_t *tables, const skv__job_t *job, int64_t node,
                              const skv__finish_t *finish, void *scratch, cudaStream_t stream) {
  unsigned char *runs = (unsigned char *)scratch;
  unsigned char *places = runs + padded((size_t)job->most_runs * sizeof(skv__device_run_t));
  unsigned char *sinks = places + padded((size_t)job->ranks * sizeof(skv__device_place_t));
  memset(tables, 0, sizeof *tables);
  tables->run_count = job->run_count;
  tables->ranks = job->ranks;
  tables->round_robin = job->round_robin;
  tables->has_sinks = finish && finish->sinks;
  bool near = job->run_count <= SKV__NEAR_RUNS;
  writer_t writer = {runs, 0, {}, stream};
  tables->runs = near ? NULL : (const skv__device_run_t *)runs;
  for (int64_t i = 0; i < job->run_count; ++i) {
    skv__device_run_t run = skv__device_run(job, &job->runs[i]);
    if (near)
      tables->near_runs[i] = run;
    else
      put(&writer, &run, sizeof run);
  }
  flush(&writer);
  near = job->ranks <= SKV__NEAR_PLACES;
  writer.to = places;
  tables->places = near ? NULL : (const skv__device_place_t *)places;
  for (int32_t owner = 0; !finish && owner < job->ranks; ++owner) {
    skv__device_place_t place = device_place(job, node, owner);
    if (near)
      tables->near_places[owner] = place;
    else
      put(&writer, &place, sizeof place);
  }
  flush(&writer);
  near = job->q_heads <= SKV__NEAR_SINKS;
  writer.to = sinks;
  tables->sinks = near ? NULL : (const float *)sinks;
  for (int64_t head = 0; tables->has_sinks && head < job->q_heads; ++head)
    if (near)
      tables->near_sinks[head] = finish->sinks[head];
    else
      put(&writer, &finish->sinks[head], sizeof(float));
  flush(&writer);
  return cudaGetLastError() == cudaSuccess ? SKV_OK : SKV_INTERNAL;
}
