/* solve.h: one case computed by the library on some ranks, through the public interface. */
#ifndef KIT_SOLVE_H
#define KIT_SOLVE_H

#include "fake_device.h"
#include "kit.h"

/* How to compute it. Zero-initialised (but struct_bytes of options): one rank, auto everything. */
typedef struct kit_way {
  int32_t ranks, threads; /* 0: 1 */
  const char *kernel;     /* NULL: the best */
  uint64_t delay_seed;
  bool without_bits;     /* of the answer too: 0 */
  kit_wiring_t wiring;   /* ranks with devices that are none */
  int64_t chunk_queries; /* > 0: so many queries an execute; causal chunks see no later key */
  skv_plan_options_t options;
} kit_way_t;

/* Results: dense O of out_dtype and LSE, as kit_check takes them, and the bits. Poisoned before. */
typedef struct kit_answer {
  void *o;
  float *lse;
  uint64_t bits;
  size_t o_bytes, lse_bytes;
} kit_answer_t;

kit_answer_t *kit_answer_create(const kit_case_t *test);
void kit_answer_free(kit_answer_t *answer);
bool kit_answer_same(const kit_answer_t *a, const kit_answer_t *b); /* bytes and bits */
/* Prints to stderr what failed, and returns false. Ranks write into one answer (results owner);
 * with results all or root, rank 0 does. Guards around every buffer are checked. */
bool kit_solve(const kit_case_t *test, const kit_way_t *way, kit_answer_t *answer);
/* The executes of one rank, whose plan allows way->chunk_queries queries, or all. */
skv_status_t kit_execute(const kit_case_t *test, const kit_way_t *way, skv_plan_t *plan,
                         const skv_inputs_t *inputs, const skv_outputs_t *outputs, void *workspace,
                         size_t workspace_bytes, void *stream);
/* K and V of a case as `rank` of the plan holds them, dense; free their data with
 * kit_poisoned_free. */
void kit_own_keys(const kit_case_t *test, const skv_plan_t *plan, int32_t rank,
                  skv_inputs_t *inputs);
void kit_way_describe(const kit_way_t *way, char *text, size_t text_bytes);

#endif
