/* siblings.h: the other ranks of this job on this host, as /proc shows them. For messages only. */
#ifndef SKV_SIBLINGS_H
#define SKV_SIBLINGS_H

#include <stdbool.h>
#include <stddef.h>

/* Writes "rank 3 is stopped (process 1234)"; with `gone`, where all ranks are on this host, also
 * "rank 3 is gone". False and "" when nothing of that kind is seen. Allocates nothing. */
bool skv__siblings_blame(char *text, size_t bytes, bool gone);

#endif
