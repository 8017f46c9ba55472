/* exit_codes.h: what the command's exit status means. Scripts rely on these numbers. */
#ifndef SKV_EXIT_CODES_H
#define SKV_EXIT_CODES_H

#include "skv.h"

typedef enum skv__exit {
  SKV__EXIT_OK = 0,
  SKV__EXIT_DIFFERENT = 1,   /* files differ, or a check failed */
  SKV__EXIT_USAGE = 2,       /* the command line, or the launcher, is wrong */
  SKV__EXIT_INPUT = 3,       /* bad input or a malformed file */
  SKV__EXIT_DISAGREE = 4,    /* ranks were given different work */
  SKV__EXIT_PEER = 5,        /* a peer failed, or a wait timed out */
  SKV__EXIT_MEMORY = 6,      /* out of memory */
  SKV__EXIT_IO = 7,          /* a file could not be read or written */
  SKV__EXIT_UNSUPPORTED = 8, /* this build or machine cannot do that */
  SKV__EXIT_INTERNAL = 70    /* a bug in splitkv */
} skv__exit_t;

static inline int skv__exit_code(skv_status_t status) {
  switch (status) {
  case SKV_OK:
    return SKV__EXIT_OK;
  case SKV_INVALID:
  case SKV_FORMAT:
    return SKV__EXIT_INPUT;
  case SKV_DISAGREE:
    return SKV__EXIT_DISAGREE;
  case SKV_TIMEOUT:
  case SKV_PEER:
  case SKV_TRANSPORT:
    return SKV__EXIT_PEER;
  case SKV_MEMORY:
    return SKV__EXIT_MEMORY;
  case SKV_IO:
    return SKV__EXIT_IO;
  case SKV_UNSUPPORTED:
    return SKV__EXIT_UNSUPPORTED;
  case SKV_INTERNAL:
    break;
  }
  return SKV__EXIT_INTERNAL;
}

#endif
