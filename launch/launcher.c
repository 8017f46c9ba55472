/* launcher.c: Open MPI sets OMPI_COMM_WORLD_*, Hydra (MPICH, Intel MPI) PMI_*, PMIx servers
 * PMIX_RANK, srun SLURM_PROCID with SLURM_STEP_NUM_TASKS. A shell inside an allocation has
 * SLURM_NTASKS and may have SLURM_PROCID, but its own step has one task: it is no parallel job. */
#include "launch/launcher.h"

#include <errno.h>
#include <stdlib.h>

/* The variable as a number in 0..2^30, or -1. */
static int32_t number_of(const char *name) {
  const char *text = getenv(name);
  if (!text || *text < '0' || *text > '9')
    return -1;
  char *end = NULL;
  errno = 0;
  long number = strtol(text, &end, 10);
  return *end || errno || number > 1 << 30 ? -1 : (int32_t)number;
}

skv__launcher_t skv__launcher(void) {
  static const char *const pairs[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                         {"PMI_SIZE", "PMI_RANK"},
                                         {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
  for (int32_t i = 0; i < 3; ++i) {
    int32_t ranks = number_of(pairs[i][0]), rank = number_of(pairs[i][1]);
    if (ranks < 1 || rank < 0 || (i == 2 && ranks == 1))
      continue;
    return (skv__launcher_t){.present = true, .ranks = ranks, .rank = rank, .name = pairs[i][0]};
  }
  int32_t rank = number_of("PMIX_RANK");
  return (skv__launcher_t){.present = rank >= 0, .rank = rank < 0 ? 0 : rank, .name = "PMIX_RANK"};
}

bool skv__launcher_first(void) {
  return skv__launcher().rank == 0;
}
