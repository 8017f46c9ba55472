/* stations.h: where each rank of a job stands (host and GPU), and what moves the bytes between
 * them. All ranks know all stations, so all decide alike. Nothing is asked of the machine here. */
#ifndef SKV_STATIONS_H
#define SKV_STATIONS_H

#include <stdbool.h>

#include "error.h"

/* In the order of --transport's words. */
typedef enum skv__transport_choice {
  SKV__TRANSPORT_AUTO,
  SKV__TRANSPORT_SELF,
  SKV__TRANSPORT_MPI,
  SKV__TRANSPORT_NCCL
} skv__transport_choice_t;

/* Of one rank; travels as bytes, so no part of it is undefined. */
typedef struct skv__station {
  char host[64];
  char gpu[64];       /* its name, "NVIDIA H200" */
  char bus_id[20];    /* "0000:1b:00.0" */
  uint8_t unique[16]; /* no other GPU of any host has it */
  int32_t number;     /* of the GPU among those that the rank sees; SKV__NO_GPU */
  int32_t full;       /* it sees one, which has no memory left for it */
  int32_t numa;       /* the node near it, or SKV__NO_NUMA */
  int32_t wants_cuda; /* its --backend */
  int32_t transport;  /* its --transport, a skv__transport_choice_t */
} skv__station_t;

bool skv__same_host(const skv__station_t *a, const skv__station_t *b);
bool skv__same_gpu(const skv__station_t *a, const skv__station_t *b);

typedef struct skv__transport_chosen {
  skv__transport_choice_t transport; /* SELF, MPI or NCCL */
  const char *why;                   /* "" where it was asked for, or needs no reason */
} skv__transport_chosen_t;

/* `nccl`: this build has it. `mpi`: MPI is running. Refuses NCCL where it cannot work, and names
 * the ranks. */
skv_status_t skv__stations_transport(const skv__station_t *stations, int32_t ranks, bool mpi,
                                     bool nccl, skv__transport_chosen_t *chosen,
                                     skv__error_t *error);

/* What a rank needs of its GPU's memory, and what was free before any rank took some. */
typedef struct skv__gpu_need {
  double needed_bytes, free_bytes, total_bytes;
} skv__gpu_need_t;
/* SKV_MEMORY, naming every GPU that holds less than its ranks need together. */
skv_status_t skv__stations_fit(const skv__station_t *stations, const skv__gpu_need_t *needs,
                               int32_t ranks, skv__error_t *error);

/* "GPU 0 (0000:1b:00.0)", and of which host where `of_host`. */
void skv__station_text(const skv__station_t *station, bool of_host, char *text, size_t text_bytes);
/* One line for all: "rank 0: GPU 0 (0000:1b:00.0); rank 1: ...", and whether some share a GPU. ""
 * on CPUs. */
void skv__stations_text(const skv__station_t *stations, int32_t ranks, char *text,
                        size_t text_bytes);
/* "ranks 0 and 1 share a GPU; ...", or "". */
void skv__stations_sharing(const skv__station_t *stations, int32_t ranks, char *text,
                           size_t text_bytes);
const char *skv__transport_word(skv__transport_choice_t transport);

#endif
