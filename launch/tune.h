/* tune.h: what `splitkv tune` measures, and the file that it leaves for plans: figures of the
 * machine, which choose directions and reductions and change no bit. */
#ifndef SKV_TUNE_H
#define SKV_TUNE_H

#include "launch/mpi_session.h"
#include "skv.h"

/* Whose figures a file holds. */
typedef struct skv__tuned {
  skv_machine_t machine;
  char kernel[64], transport[16];
  int32_t ranks;
  bool far_measured; /* else the figures between nodes are typical ones */
} skv__tuned_t;

/* The file as splitkv tune wrote it. Anything missing, unknown or out of range is refused with one
 * text. */
skv_status_t skv__tune_read(const char *path, skv_machine_t *machine, skv__error_t *error);
/* On memory. `name` is for texts. */
skv_status_t skv__tune_parse(const char *name, const char *text, size_t bytes,
                             skv_machine_t *machine, skv__error_t *error);
/* Whole, or not at all. */
skv_status_t skv__tune_write(const char *path, const skv__tuned_t *tuned, skv__error_t *error);

/* tune_measure.c. Collective: every rank returns the same status, and rank 0 the slowest rank's
 * figures. `quick`: small sizes, whose figures mean little. */
skv_status_t skv__tune_measure(skv__tuned_t *tuned, skv__session_t *session, bool quick,
                               skv__error_t *error);
/* Least squares would let one late run bend the line: two sizes and the least of their times make
 * it. seconds = fixed + work / rate; fixed is at least 0. */
void skv__tune_line(const double work[2], const double seconds[2], double *rate, double *fixed);

#endif
