/* input.h: Q, K and V of a job, from files or from a seed, read in parts. */
#ifndef SKV_INPUT_H
#define SKV_INPUT_H

#include "comm/comm.h"
#include "launch/job_options.h"
#include "launch/seeded.h"
#include "launch/tensor_file.h"

typedef struct skv__input {
  bool seeded;
  skv__seeded_t seed;
  int64_t first_query;         /* token of query 0 of a seeded input */
  skv__tensor_file_t files[3]; /* by skv__which_t */
  int32_t open_files;
  skv__tensor_layout_t layout; /* of the files read, and of those written */
  skv__job_extents_t extents;  /* q_tokens: of the whole job */
  float *sinks;                /* [q_heads] or NULL */
  uint64_t sinks_digest;
} skv__input_t;

enum { SKV__INPUT_FACTS = 16 };

/* Opens files and checks that they fit together. Nothing of the tensors is read. Call close
 * whatever comes back. */
skv_status_t skv__input_open(skv__input_t *input, const skv__job_options_t *job,
                             skv__error_t *error);
void skv__input_close(skv__input_t *input);

/* What all ranks must have alike. Returns how many facts. */
size_t skv__input_facts(const skv__input_t *input, const skv__job_options_t *job,
                        skv__fact_t facts[SKV__INPUT_FACTS]);

/* Read tokens [begin, end) of one sequence (of Q: queries) into dense [tokens][heads][dim]. */
skv_status_t skv__input_read(const skv__input_t *input, skv__which_t which, int64_t sequence,
                             int64_t begin, int64_t end, void *out, skv__error_t *error);

int64_t skv__input_heads(const skv__input_t *input, skv__which_t which);
int64_t skv__input_dim(const skv__input_t *input, skv__which_t which);
int64_t skv__input_element_bytes(const skv__input_t *input);

#endif
