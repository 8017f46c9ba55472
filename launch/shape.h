/* shape.h: heads of a problem as the command line names them: a model's name or numbers. */
#ifndef SKV_SHAPE_H
#define SKV_SHAPE_H

#include "error.h"

typedef struct skv__shape {
  int64_t q_heads, kv_heads, head_dim, value_head_dim;
} skv__shape_t;

typedef struct skv__model {
  const char *name;
  skv__shape_t shape;
} skv__model_t;

/* The models that have names, ending with a NULL name. */
const skv__model_t *skv__models(void);
/* "32,8,128", "32,8,192,128" (with value_head_dim) or a model's name. */
skv_status_t skv__shape_parse(const char *text, skv__shape_t *shape, skv__error_t *error);

#endif
