/* launcher.h: what the environment says of the launcher (mpirun, srun) before MPI is asked. It
 * decides whether MPI is started and who speaks, never a result. */
#ifndef SKV_LAUNCHER_H
#define SKV_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct skv__launcher {
  bool present;        /* started by a launcher of parallel jobs */
  int32_t ranks, rank; /* as it says; ranks 0: it does not say */
  const char *name;    /* the variable that told */
} skv__launcher_t;

skv__launcher_t skv__launcher(void);
/* Whether this process should speak for the job: the launcher's rank 0, or no launcher at all. */
bool skv__launcher_first(void);

#endif
