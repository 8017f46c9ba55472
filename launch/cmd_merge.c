/* cmd_merge.c: splitkv merge: two (O, LSE) pairs over disjoint keys become one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch/checked.h"
#include "launch/exit_codes.h"
#include "launch/options.h"
#include "launch/tensor_file.h"

#define PIECE_BYTES (4 << 20)

enum { A_OUT, A_LSE, B_OUT, B_LSE, INPUTS };

typedef struct merge {
  const char *specs[INPUTS], *out, *lse;
  int base; /* skv_lse_base_t */
  bool bf16;
  skv__tensor_file_t files[INPUTS];
  int64_t rows, dim;
} merge_t;

static const char *const option_names[] = {"a-out", "a-lse", "b-out", "b-lse"};

static bool same_shape(const skv__tensor_file_t *a, const skv__tensor_file_t *b, int32_t count) {
  return memcmp(a->shape, b->shape, (size_t)count * sizeof a->shape[0]) == 0;
}

/* LSE has O's shape without its last axis. */
static skv_status_t check_shapes(merge_t *merge, skv__error_t *error) {
  const skv__tensor_file_t *o = &merge->files[A_OUT];
  int32_t axes = o->rank_count - 1;
  if (axes < 0 || o->shape[axes] == 0)
    return skv__fail(error, SKV_INVALID, "%s: O needs a last axis of at least one value", o->path);
  merge->dim = o->shape[axes];
  merge->rows = o->data_bytes / skv__dtype_bytes(o->dtype) / merge->dim;
  const skv__tensor_file_t *b = &merge->files[B_OUT];
  if (b->dtype != o->dtype || b->rank_count != o->rank_count || !same_shape(o, b, axes + 1))
    return skv__fail(error, SKV_INVALID, "%s and %s differ in shape or dtype", o->path, b->path);
  for (int i = A_LSE; i < INPUTS; i += 2) {
    const skv__tensor_file_t *lse = &merge->files[i];
    if (lse->dtype != SKV_FP32 || lse->rank_count != axes || !same_shape(o, lse, axes))
      return skv__fail(error, SKV_INVALID,
                       "%s: LSE is fp32 with the shape of O without its last axis", lse->path);
  }
  return SKV_OK;
}

static skv_status_t check_outputs(const merge_t *merge, skv__error_t *error) {
  const char *outputs[] = {merge->out, merge->lse};
  if (strcmp(merge->out, merge->lse) == 0)
    return skv__fail(error, SKV_INVALID, "--out and --lse name the same file");
  for (int i = 0; i < 2; i++)
    for (int input = 0; input < INPUTS; input++)
      if (skv__output_same_file(outputs[i], &merge->files[input]))
        return skv__fail(error, SKV_INVALID, "%s: is an input (--%s); write to another file",
                         outputs[i], option_names[input]);
  return SKV_OK;
}

static skv_status_t open_inputs(merge_t *merge, skv__error_t *error) {
  for (int i = 0; i < INPUTS; i++)
    SKV_TRY(skv__tensor_open(&merge->files[i], merge->specs[i], merge->bf16 ? SKV_BF16 : SKV_FP32,
                             error));
  SKV_TRY(check_shapes(merge, error));
  return check_outputs(merge, error);
}

static skv_status_t write_header(skv__output_t *output, skv_dtype_t dtype, int32_t rank_count,
                                 const int64_t *shape, int64_t *head_bytes, skv__error_t *error) {
  char head[4096];
  *head_bytes = skv__npy_header(head, dtype, rank_count, shape);
  return skv__output_write(output, 0, head, *head_bytes, error);
}

/* Rows [begin, begin + count), through the four buffers. */
static skv_status_t merge_piece(const merge_t *merge, int64_t begin, int64_t count,
                                void *const buffers[INPUTS], skv__error_t *error) {
  skv_dtype_t dtype = merge->files[A_OUT].dtype;
  int64_t row_bytes = merge->dim * skv__dtype_bytes(dtype);
  for (int i = 0; i < INPUTS; i++) {
    int64_t bytes = i == A_OUT || i == B_OUT ? row_bytes : (int64_t)sizeof(float);
    SKV_TRY(skv__tensor_read(&merge->files[i], begin * bytes, buffers[i], count * bytes, error));
  }
  skv_status_t status =
      skv_merge_lse(buffers[A_OUT], buffers[A_LSE], buffers[A_OUT], buffers[A_LSE], buffers[B_OUT],
                    buffers[B_LSE], count, merge->dim, dtype, (skv_lse_base_t)merge->base);
  return status == SKV_OK ? SKV_OK : skv__fail(error, status, "merge: %s", skv_status_text(status));
}

static skv_status_t merge_rows(const merge_t *merge, skv__output_t *const outputs[2],
                               skv__error_t *error) {
  const skv__tensor_file_t *o = &merge->files[A_OUT];
  int64_t row_bytes = merge->dim * skv__dtype_bytes(o->dtype), heads[2];
  int64_t fit = PIECE_BYTES / row_bytes, piece_rows = fit > 0 ? fit : 1;
  SKV_TRY(write_header(outputs[0], o->dtype, o->rank_count, o->shape, &heads[0], error));
  SKV_TRY(write_header(outputs[1], SKV_FP32, o->rank_count - 1, o->shape, &heads[1], error));
  void *buffers[INPUTS] = {0};
  skv_status_t status = SKV_OK;
  for (int i = 0; i < INPUTS; i++) {
    buffers[i] = malloc((size_t)(piece_rows * (i % 2 ? (int64_t)sizeof(float) : row_bytes)));
    if (!buffers[i])
      status = skv__fail(error, SKV_MEMORY, "out of memory");
  }
  for (int64_t begin = 0; begin < merge->rows && status == SKV_OK; begin += piece_rows) {
    int64_t left = merge->rows - begin, count = left < piece_rows ? left : piece_rows;
    status = merge_piece(merge, begin, count, buffers, error);
    if (status == SKV_OK)
      status = skv__output_write(outputs[0], heads[0] + begin * row_bytes, buffers[A_OUT],
                                 count * row_bytes, error);
    if (status == SKV_OK)
      status =
          skv__output_write(outputs[1], heads[1] + begin * 4, buffers[A_LSE], count * 4, error);
  }
  for (int i = 0; i < INPUTS; i++)
    free(buffers[i]);
  return status;
}

static skv_status_t run(merge_t *merge, skv__error_t *error) {
  skv__output_t *outputs[2] = {NULL, NULL};
  skv_status_t status;
  SKV_TRY_GOTO(status, discard, open_inputs(merge, error));
  SKV_TRY_GOTO(status, discard, skv__output_open(&outputs[0], merge->out, error));
  SKV_TRY_GOTO(status, discard, skv__output_open(&outputs[1], merge->lse, error));
  SKV_TRY_GOTO(status, discard, merge_rows(merge, outputs, error));
  status = skv__output_commit(outputs[0], error);
  outputs[0] = NULL;
  if (status == SKV_OK) {
    status = skv__output_commit(outputs[1], error);
    outputs[1] = NULL;
  }
discard:
  skv__output_discard(outputs[0]);
  skv__output_discard(outputs[1]);
  for (int i = 0; i < INPUTS; i++)
    skv__tensor_close(&merge->files[i]);
  return status;
}

static int merge_checked(merge_t *merge) {
  skv__error_t error = {0};
  for (int i = 0; i < INPUTS; i++) {
    merge->files[i].fd = -1;
    if (!merge->specs[i])
      skv__fail(&error, SKV_INVALID, "merge needs --%s; see splitkv merge --help", option_names[i]);
  }
  if (!merge->out || !merge->lse)
    skv__fail(&error, SKV_INVALID, "merge needs --out and --lse; see splitkv merge --help");
  if (error.status != SKV_OK) {
    skv__complain(&error);
    return SKV__EXIT_USAGE;
  }
  return run(merge, &error) == SKV_OK ? SKV__EXIT_OK : skv__complain(&error);
}

int skv__cmd_merge(int argc, const char **argv) {
  merge_t *merge = calloc(1, sizeof *merge);
  if (!merge)
    return skv__complain(&(skv__error_t){.status = SKV_MEMORY});
  int dtype = 0;
  const skv__option_t options[] = {
      {"a-out", SKV__TEXT, &merge->specs[A_OUT], "FILE", "O of the lower positions", 0},
      {"a-lse", SKV__TEXT, &merge->specs[A_LSE], "FILE", "its LSE, fp32", 0},
      {"b-out", SKV__TEXT, &merge->specs[B_OUT], "FILE", "O of the higher positions", 0},
      {"b-lse", SKV__TEXT, &merge->specs[B_LSE], "FILE", "its LSE, fp32", 0},
      {"out", SKV__TEXT, &merge->out, "FILE.npy", "the merged O", 0},
      {"lse", SKV__TEXT, &merge->lse, "FILE.npy", "the merged LSE", 0},
      {"lse-base", SKV__CHOICE, &merge->base, "e|2", "base of the logarithm in all LSE (e)", 0},
      {"dtype", SKV__CHOICE, &dtype, "file|bf16", "bf16: take '<u2' files as bf16 (file)", 0},
  };
  skv__arguments_t arguments = {0};
  int code = skv__options_parse("merge", options, sizeof options / sizeof options[0], &arguments,
                                argc, argv);
  merge->bf16 = dtype == 1;
  if (code < 0)
    code = merge_checked(merge);
  skv__arguments_free(&arguments);
  free(merge);
  return code;
}
