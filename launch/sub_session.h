/* sub_session.h: sessions of fewer ranks inside a running one, for verify. */
#ifndef SKV_SUB_SESSION_H
#define SKV_SUB_SESSION_H

#include "launch/mpi_session.h"

/* Collective over the world: its first `ranks` ranks form a session. On the others, and after a
 * failure, sub->context is NULL. */
skv_status_t skv__sub_session_open(skv__session_t *sub, skv__session_t *world, int32_t ranks,
                                   skv__error_t *error);
/* This rank by itself. */
skv_status_t skv__sub_session_alone(skv__session_t *sub, const skv__session_t *world,
                                    skv__error_t *error);
void skv__sub_session_close(skv__session_t *sub);

#endif
