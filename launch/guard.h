/* guard.h: a file that has only a temporary name goes when this process does, whatever ends it. */
#ifndef SKV_GUARD_H
#define SKV_GUARD_H

#include <sys/types.h>

typedef struct skv__guard {
  pid_t process; /* 0: none */
  int line;      /* to the process; its end is ours */
} skv__guard_t;

/* From now on the file at `path` is removed when this process ends without skv__guard_end, even by
 * SIGKILL. Call it before the file is created. Where no process can be started there is no guard;
 * that is no error. */
skv__guard_t skv__guard_start(const char *path);
/* The file has another name now, or is gone. */
void skv__guard_end(skv__guard_t *guard);

#endif
