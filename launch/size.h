/* size.h: counts on the command line: decimal digits, then nothing, k (2^10), M (2^20) or G (2^30).
 */
#ifndef SKV_SIZE_H
#define SKV_SIZE_H

#include "error.h"

/* No sign, no spaces, no fraction; SKV_INVALID also when it does not fit 63 bits. */
skv_status_t skv__size_parse(const char *text, int64_t *value, skv__error_t *error);

#endif
