/* watchdog.h: a deadline around phases that cannot be polled, such as MPI_Init and MPI_Finalize.
 *
 * A thread waits beside the phase. When the phase outlives its deadline the thread writes one line
 * to stderr and ends the process with _exit(exit_code): a rank that leaves without MPI_Finalize
 * makes mpirun end the whole job, stopped ranks included. Only the command may use it.
 */
#ifndef SKV_WATCHDOG_H
#define SKV_WATCHDOG_H

#include <stdbool.h>

/* One phase at a time. `phase` is a static string, "MPI_Init". False when no thread could be made:
 * the phase then has no deadline. */
bool skv__watchdog_start(const char *phase, double seconds, int exit_code);
/* The phase has ended in time. Does nothing when none is watched. */
void skv__watchdog_stop(void);

#endif
