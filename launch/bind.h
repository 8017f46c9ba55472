/* bind.h: which CPUs this rank and its threads use. Changes where work runs, never its result. */
#ifndef SKV_BIND_H
#define SKV_BIND_H

#include <stdbool.h>
#include <stdint.h>

typedef struct skv__binding {
  int32_t threads;  /* to use: as asked, or one for each core of the share */
  int32_t cores;    /* that this rank may run on */
  bool bound;       /* the rank is kept to its share, by us or before us */
  bool by_launcher; /* it came bound */
  bool far;         /* it may run on no core near its GPU */
  char text[384];   /* "CPUs 0-3 (4 cores), 4 threads, each on a core of its own" */
} skv__binding_t;

/* A rank's place among the ranks of its host. */
typedef struct skv__seat {
  int32_t local_rank, local_ranks;
  const int32_t
      *gpu_numa; /* [local_ranks] the NUMA node, as the system numbers it, that each
                    rank's GPU is near (SKV__NO_NUMA: not known); NULL: no GPUs are used */
} skv__seat_t;

/* A rank with a GPU gets cores near it, else its share of all. `threads` 0: choose. `enabled`
 * false: bind nothing. */
skv__binding_t skv__bind(const skv__seat_t *seat, int32_t threads, bool enabled);

/* What the host has. */
typedef struct skv__host {
  int32_t packages, numa_nodes, cores, cpus; /* CPUs: hardware threads */
  char model[96];
} skv__host_t;
skv__host_t skv__host(void);

#endif
