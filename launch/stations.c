/* stations.c: see stations.h. */
#include "launch/stations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch/place.h"
#include "launch/report.h"

bool skv__same_host(const skv__station_t *a, const skv__station_t *b) {
  return strncmp(a->host, b->host, sizeof a->host) == 0;
}

bool skv__same_gpu(const skv__station_t *a, const skv__station_t *b) {
  return a->number != SKV__NO_GPU && b->number != SKV__NO_GPU &&
         memcmp(a->unique, b->unique, sizeof a->unique) == 0;
}

void skv__station_text(const skv__station_t *station, bool of_host, char *text, size_t text_bytes) {
  snprintf(text, text_bytes, "GPU %d (%.19s)%s%.63s", (int)station->number, station->bus_id,
           of_host ? " of " : "", of_host ? station->host : "");
}

/* ---- what moves the bytes ---- */

/* All ranks must compute on the same kind of device. */
static skv_status_t check_backends(const skv__station_t *stations, int32_t ranks,
                                   skv__error_t *error) {
  for (int32_t rank = 1; rank < ranks; ++rank)
    if (stations[rank].wants_cuda != stations[0].wants_cuda)
      return skv__fail(error, SKV_DISAGREE,
                       "rank 0 computes on %s, rank %d on %s: give all ranks the same --backend",
                       stations[0].wants_cuda ? "a GPU" : "the CPU", (int)rank,
                       stations[rank].wants_cuda ? "a GPU" : "the CPU");
  return SKV_OK;
}

/* Nobody has a GPU: the kernel that is asked for says best why. */
static skv_status_t check_gpus(const skv__station_t *stations, int32_t ranks, bool *some,
                               skv__error_t *error) {
  int32_t without = -1;
  *some = false;
  for (int32_t rank = ranks - 1; rank >= 0; --rank) {
    if (stations[rank].full)
      return skv__fail(error, SKV_MEMORY,
                       "rank %d, on host %.63s: its GPU has no memory left to begin with: another "
                       "program has it, see nvidia-smi",
                       (int)rank, stations[rank].host);
    if (stations[rank].number == SKV__NO_GPU)
      without = rank;
    else
      *some = true;
  }
  if (*some && without >= 0)
    return skv__fail(error, SKV_UNSUPPORTED,
                     "rank %d, on host %.63s, sees no GPU, but other ranks do", (int)without,
                     stations[without].host);
  return SKV_OK;
}

/* The first rank that has the GPU of one before it, or -1. */
static int32_t first_sharer(const skv__station_t *stations, int32_t ranks, int32_t *with) {
  for (int32_t rank = 1; rank < ranks; ++rank)
    for (*with = 0; *with < rank; ++*with)
      if (skv__same_gpu(&stations[*with], &stations[rank]))
        return rank;
  return -1;
}

static skv_status_t require_nccl(const skv__station_t *stations, int32_t ranks, bool nccl,
                                 skv__error_t *error) {
  int32_t with = 0;
  for (int32_t rank = 0; rank < ranks; ++rank)
    if (stations[rank].transport != SKV__TRANSPORT_NCCL)
      return skv__fail(error, SKV_DISAGREE,
                       "rank %d was not given --transport nccl, but another rank was", (int)rank);
  if (!stations[0].wants_cuda)
    return skv__fail(error, SKV_INVALID,
                     "--transport nccl moves the memory of GPUs: it goes with --backend cuda");
  if (!nccl)
    return skv__fail(error, SKV_UNSUPPORTED,
                     "this build has no NCCL: use --transport mpi, which goes through the hosts' "
                     "memory");
  int32_t rank = first_sharer(stations, ranks, &with);
  if (rank >= 0)
    return skv__fail(error, SKV_INVALID,
                     "ranks %d and %d share GPU %.19s of host %.63s, but NCCL needs a GPU for each "
                     "rank: start fewer ranks, or use --transport mpi, which goes through the "
                     "host's memory",
                     (int)with, (int)rank, stations[rank].bus_id, stations[rank].host);
  return SKV_OK;
}

skv_status_t skv__stations_transport(const skv__station_t *stations, int32_t ranks, bool mpi,
                                     bool nccl, skv__transport_chosen_t *chosen,
                                     skv__error_t *error) {
  bool some_gpu, asked = false, all_auto = true;
  int32_t with = 0;
  *chosen = (skv__transport_chosen_t){mpi ? SKV__TRANSPORT_MPI : SKV__TRANSPORT_SELF, ""};
  for (int32_t rank = 0; rank < ranks; ++rank) {
    asked = asked || stations[rank].transport == SKV__TRANSPORT_NCCL;
    all_auto = all_auto && stations[rank].transport == SKV__TRANSPORT_AUTO;
  }
  SKV_TRY(check_backends(stations, ranks, error));
  if (asked)
    SKV_TRY(require_nccl(stations, ranks, nccl, error));
  if (!stations[0].wants_cuda)
    return SKV_OK;
  SKV_TRY(check_gpus(stations, ranks, &some_gpu, error));
  if (asked)
    chosen->transport = SKV__TRANSPORT_NCCL;
  if (asked || !all_auto || ranks == 1 || !some_gpu)
    return SKV_OK;
  if (!nccl)
    chosen->why = "this build has no NCCL";
  else if (first_sharer(stations, ranks, &with) >= 0)
    chosen->why = "ranks share a GPU, which NCCL does not allow";
  else
    chosen->transport = SKV__TRANSPORT_NCCL;
  return SKV_OK;
}

/* ---- memory ---- */

/* This GPU's ranks, of which `first` is the first, and what they need together. */
static int32_t add_up(const skv__station_t *stations, const skv__gpu_need_t *needs, int32_t ranks,
                      int32_t first, skv__gpu_need_t *sum) {
  int32_t count = 1;
  *sum = needs[first];
  for (int32_t rank = first + 1; rank < ranks; ++rank)
    if (skv__same_gpu(&stations[first], &stations[rank])) {
      sum->needed_bytes += needs[rank].needed_bytes;
      if (needs[rank].free_bytes < sum->free_bytes)
        sum->free_bytes = needs[rank].free_bytes;
      ++count;
    }
  return count;
}

static bool is_first(const skv__station_t *stations, int32_t rank) {
  for (int32_t other = 0; other < rank; ++other)
    if (skv__same_gpu(&stations[other], &stations[rank]))
      return false;
  return true;
}

skv_status_t skv__stations_fit(const skv__station_t *stations, const skv__gpu_need_t *needs,
                               int32_t ranks, skv__error_t *error) {
  enum { TOLD_MOST = 4 };
  char text[700] = "";
  int32_t short_of = 0;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    skv__gpu_need_t sum;
    char where[160];
    size_t used = strlen(text);
    if (!is_first(stations, rank))
      continue;
    int32_t count = add_up(stations, needs, ranks, rank, &sum);
    if (sum.needed_bytes <= sum.free_bytes || ++short_of > TOLD_MOST)
      continue;
    skv__station_text(&stations[rank], ranks > 1, where, sizeof where);
    snprintf(text + used, sizeof text - used,
             "; on %s rank %d%s needs %.0f bytes (%s), but %.0f bytes (%s) of %s are free", where,
             (int)rank, count > 1 ? " and those that share it" : "", sum.needed_bytes,
             skv__bytes_text(sum.needed_bytes).text, sum.free_bytes,
             skv__bytes_text(sum.free_bytes).text, skv__bytes_text(sum.total_bytes).text);
  }
  if (!short_of)
    return SKV_OK;
  return skv__fail(error, SKV_MEMORY, "%d GPU%s cannot hold Q, K, V, O, LSE and the workspace%s%s",
                   (int)short_of, short_of == 1 ? "" : "s", text,
                   short_of > TOLD_MOST ? "; ..." : "");
}

/* ---- for reports ---- */

/* Ranks of a GPU get the number of the first of them. */
void skv__stations_sharing(const skv__station_t *stations, int32_t ranks, char *text,
                           size_t text_bytes) {
  uint64_t *names = calloc((size_t)ranks, sizeof *names);
  text[0] = '\0';
  for (int32_t rank = 0; names && rank < ranks; ++rank) {
    int32_t first = 0;
    while (first < rank && !skv__same_gpu(&stations[first], &stations[rank]))
      ++first;
    names[rank] = (uint64_t)first + 1;
  }
  if (names)
    skv__place_sharing(names, ranks, text, text_bytes);
  free(names);
}

void skv__stations_text(const skv__station_t *stations, int32_t ranks, char *text,
                        size_t text_bytes) {
  enum { TOLD_MOST = 8 };
  char sharing[256];
  int32_t told = ranks < TOLD_MOST ? ranks : TOLD_MOST;
  size_t used = 0;
  text[0] = '\0';
  if (stations[0].number == SKV__NO_GPU)
    return;
  for (int32_t rank = 0; rank < told && used < text_bytes; ++rank) {
    char gpu[160];
    skv__station_text(&stations[rank], !skv__same_host(&stations[0], &stations[ranks - 1]), gpu,
                      sizeof gpu);
    used += (size_t)snprintf(text + used, text_bytes - used, "%srank %d: %s", rank ? "; " : "",
                             (int)rank, gpu);
  }
  skv__stations_sharing(stations, told, sharing, sizeof sharing);
  if (used < text_bytes)
    snprintf(text + used, text_bytes - used, "%s, %s%s%s", told < ranks ? "; ..." : "",
             stations[0].gpu, sharing[0] ? "; " : "", sharing);
}

const char *skv__transport_word(skv__transport_choice_t transport) {
  static const char *const words[] = {"auto", "self", "mpi", "nccl"};
  return words[transport];
}
