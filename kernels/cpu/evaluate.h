/* evaluate.h: jobs on threads, with the tiles of one instruction set. See skv__kernel_t. */
#ifndef SKV_CPU_EVALUATE_H
#define SKV_CPU_EVALUATE_H

#include "kernels/cpu/tile.h"
#include "kernels/kernel.h"

size_t skv__cpu_scratch_bytes(const skv__job_t *job, int32_t threads);
skv_status_t skv__cpu_evaluate(const skv__tile_t *tile, const skv__job_t *job, void *scratch,
                               int32_t threads, skv_status_t (*poll)(void *user), void *user,
                               skv__error_t *error);
void skv__cpu_merge(const skv__tile_t *tile, float *into, const float *right, int64_t rows,
                    int64_t value_head_dim, int32_t threads);
void skv__cpu_finish(const skv__job_t *job, int32_t owner, const float *slice,
                     const skv__finish_t *finish, int32_t threads);

#endif
