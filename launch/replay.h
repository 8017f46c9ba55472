/* replay.h: evaluates a recorded reduction again. */
#ifndef SKV_REPLAY_H
#define SKV_REPLAY_H

#include <stdbool.h>

#include "error.h"

typedef struct skv__replayed {
  int64_t slices, nodes; /* what was recorded: slices of all passes, nodes of all slices */
  int64_t merges;        /* that were evaluated again, bit for bit */
  bool with_states;      /* else only the tree's shape and the chain of digests were checked */
  bool differs;
  char difference[512]; /* the first node that differs, and how */
} skv__replayed_t;

/* SKV_OK also when a node differs. `path` names the log; its states lie in PATH.states. */
skv_status_t skv__replay(skv__replayed_t *replayed, const char *path, skv__error_t *error);

#endif
