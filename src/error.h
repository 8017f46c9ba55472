/* error.h: how a failure inside the library carries its text up to the handle that the caller
 * holds. */
#ifndef SKV_ERROR_H
#define SKV_ERROR_H

#include "skv.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct skv__error {
  skv_status_t status; /* of the first failure */
  char text[1024];
} skv__error_t;

/* Records the first failure (later ones keep it) and returns `status`. `error` may be NULL. */
skv_status_t skv__fail(skv__error_t *error, skv_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void skv__error_clear(skv__error_t *error);

#ifdef __cplusplus
}
#endif

/* Return on failure. */
#define SKV_TRY(expression)                                                                        \
  do {                                                                                             \
    skv_status_t skv_try_status_ = (expression);                                                   \
    if (skv_try_status_ != SKV_OK)                                                                 \
      return skv_try_status_;                                                                      \
  } while (0)

/* Keep the first failure in `status` and go to `label`: for functions that must release something.
 */
#define SKV_TRY_GOTO(status, label, expression)                                                    \
  do {                                                                                             \
    (status) = (expression);                                                                       \
    if ((status) != SKV_OK)                                                                        \
      goto label;                                                                                  \
  } while (0)

#endif
