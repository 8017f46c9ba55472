/* check.h: cr_assert tells the runner of every success, which is too slow for millions of them. */
#ifndef CHECK_H
#define CHECK_H

#include <criterion/criterion.h>

#define CHECK(condition, ...)                                                                      \
  do {                                                                                             \
    if (!(condition))                                                                              \
      cr_assert_fail(#condition " " __VA_ARGS__);                                                  \
  } while (0)

#endif
