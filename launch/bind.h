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
  char text[256];   /* "CPUs 0-3 (4 cores), 4 threads, each on a core of its own" */
} skv__binding_t;

/* This rank is number `local_rank` of `local_ranks` on its host. `threads` 0: choose. `enabled`
 * false: bind nothing. */
skv__binding_t skv__bind(int32_t local_rank, int32_t local_ranks, int32_t threads, bool enabled);

/* What the host has. */
typedef struct skv__host {
  int32_t packages, numa_nodes, cores, cpus; /* CPUs: hardware threads */
  char model[96];
} skv__host_t;
skv__host_t skv__host(void);

#endif
