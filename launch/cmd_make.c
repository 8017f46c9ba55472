/* cmd_make.c: splitkv make: seeded q, k and v as a file. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "launch/checked.h"
#include "launch/exit_codes.h"
#include "launch/options.h"
#include "launch/report.h"
#include "launch/seeded.h"
#include "launch/shape.h"
#include "launch/tensor_file.h"

#define PIECE_BYTES (4 << 20)

typedef struct make {
  const char *out, *shape_text;
  skv__shape_t shape;
  int64_t batch, tokens, value_head_dim, seed, outliers;
  int dtype, tensor; /* tensor: 0 all, else skv__which_t + 1 */
} make_t;

static int64_t heads_of(const make_t *make, skv__which_t which) {
  return which == SKV__Q ? make->shape.q_heads : make->shape.kv_heads;
}

static int64_t dim_of(const make_t *make, skv__which_t which) {
  return which == SKV__V ? make->shape.value_head_dim : make->shape.head_dim;
}

static skv__named_tensor_t describe(const make_t *make, skv__which_t which) {
  static const char *const names[] = {"q", "k", "v"};
  skv__named_tensor_t tensor = {names[which], (skv_dtype_t)make->dtype, 0, {0}};
  if (make->batch > 1)
    tensor.shape[tensor.rank_count++] = make->batch;
  tensor.shape[tensor.rank_count++] = make->tokens;
  tensor.shape[tensor.rank_count++] = heads_of(make, which);
  tensor.shape[tensor.rank_count++] = dim_of(make, which);
  return tensor;
}

static bool ends_with(const char *text, const char *end) {
  size_t text_bytes = strlen(text), end_bytes = strlen(end);
  return text_bytes > end_bytes && strcmp(text + text_bytes - end_bytes, end) == 0;
}

/* What the command line says, beyond what each option checks of itself. */
static skv_status_t check(make_t *make, skv__error_t *error) {
  int64_t bits;
  if (!make->shape_text || make->tokens < 0 || !make->out)
    return skv__fail(error, SKV_INVALID,
                     "make needs --shape, --tokens and --out; see splitkv make --help");
  SKV_TRY(skv__shape_parse(make->shape_text, &make->shape, error));
  if (make->value_head_dim > 256)
    return skv__fail(error, SKV_INVALID, "--value-dim is 1 to 256");
  if (make->value_head_dim > 0)
    make->shape.value_head_dim = make->value_head_dim;
  if (make->outliers > make->shape.head_dim)
    return skv__fail(error, SKV_INVALID, "--outliers is at most the head dimension, %" PRId64,
                     make->shape.head_dim);
  if (make->tokens >= (int64_t)1 << 48 || make->batch > INT32_MAX)
    return skv__fail(error, SKV_INVALID, "--tokens or --batch is too large");
  for (skv__which_t which = SKV__Q; which <= SKV__V; which++) {
    skv__named_tensor_t tensor = describe(make, which);
    if (!skv__checked_bits(tensor.rank_count, tensor.shape, 64, &bits))
      return skv__fail(error, SKV_INVALID, "a file of this shape is too large");
  }
  if (!ends_with(make->out, make->tensor ? ".npy" : ".safetensors"))
    return skv__fail(error, SKV_INVALID,
                     make->tensor ? "--out %.200s: one tensor is written as .npy"
                                  : "--out %.200s: q, k and v are written as .safetensors; for "
                                    ".npy, name one with --tensor",
                     make->out);
  return SKV_OK;
}

static skv_status_t write_header(skv__output_t *output, const make_t *make, int64_t *head_bytes,
                                 skv__error_t *error) {
  if (make->tensor) {
    char head[4096];
    skv__named_tensor_t tensor = describe(make, (skv__which_t)(make->tensor - 1));
    *head_bytes = skv__npy_header(head, tensor.dtype, tensor.rank_count, tensor.shape);
    return skv__output_write(output, 0, head, *head_bytes, error);
  }
  char *head;
  skv__named_tensor_t tensors[3];
  for (skv__which_t which = SKV__Q; which <= SKV__V; which++)
    tensors[which] = describe(make, which);
  SKV_TRY(skv__safetensors_header(&head, head_bytes, tensors, 3, error));
  skv_status_t status = skv__output_write(output, 0, head, *head_bytes, error);
  free(head);
  return status;
}

/* One tensor at *offset, which moves past it. */
static skv_status_t write_tensor(skv__output_t *output, const make_t *make, skv__which_t which,
                                 int64_t *offset, void *piece, skv__progress_t *progress,
                                 skv__error_t *error) {
  static const char *const phases[] = {"writing q", "writing k", "writing v"};
  skv__seeded_t seeded = {.seed = (uint64_t)make->seed, .outliers = (int32_t)make->outliers};
  int64_t heads = heads_of(make, which), dim = dim_of(make, which);
  int64_t token_bytes = heads * dim * skv__dtype_bytes((skv_dtype_t)make->dtype);
  int64_t piece_tokens = PIECE_BYTES / token_bytes > 0 ? PIECE_BYTES / token_bytes : 1;
  for (int64_t sequence = 0; sequence < make->batch; sequence++)
    for (int64_t begin = 0; begin < make->tokens; begin += piece_tokens) {
      int64_t left = make->tokens - begin, count = left < piece_tokens ? left : piece_tokens;
      skv__progress_set(progress, phases[which], sequence * make->tokens + begin,
                        make->batch * make->tokens);
      skv__seeded_fill(&seeded, which, sequence, begin, count, heads, dim, (skv_dtype_t)make->dtype,
                       piece);
      SKV_TRY(skv__output_write(output, *offset, piece, count * token_bytes, error));
      *offset += count * token_bytes;
    }
  return SKV_OK;
}

/* Says at once, not after hours of writing, that the disk is too small. */
static skv_status_t check_space(const skv__output_t *output, const make_t *make,
                                skv__error_t *error) {
  struct statvfs disk;
  int64_t needed = 0, bits = 0;
  for (skv__which_t which = SKV__Q; which <= SKV__V; which++) {
    skv__named_tensor_t tensor = describe(make, which);
    if (make->tensor != 0 && make->tensor != (int)which + 1)
      continue;
    skv__checked_bits(tensor.rank_count, tensor.shape, 8 * skv__dtype_bytes(tensor.dtype), &bits);
    needed += bits / 8;
  }
  if (fstatvfs(skv__output_fd(output), &disk) == 0 &&
      needed / (int64_t)disk.f_frsize >= (int64_t)disk.f_bavail)
    return skv__fail(error, SKV_IO, "%s: needs %s but the disk has only %s left", make->out,
                     skv__bytes_text((double)needed).text,
                     skv__bytes_text((double)disk.f_bavail * (double)disk.f_frsize).text);
  return SKV_OK;
}

static skv_status_t write_all(skv__output_t *output, const make_t *make, skv__error_t *error) {
  int64_t widest = make->shape.q_heads * 256 * 4; /* bytes of a token, at most */
  void *piece = malloc((size_t)(widest > PIECE_BYTES ? widest : PIECE_BYTES));
  if (!piece)
    return skv__fail(error, SKV_MEMORY, "out of memory");
  int64_t offset;
  skv__progress_t *progress = skv__progress_start(false);
  skv_status_t status = write_header(output, make, &offset, error);
  for (skv__which_t which = SKV__Q; which <= SKV__V && status == SKV_OK; which++)
    if (make->tensor == 0 || make->tensor == (int)which + 1)
      status = write_tensor(output, make, which, &offset, piece, progress, error);
  skv__progress_stop(progress);
  free(piece);
  return status;
}

static skv_status_t run(const make_t *make, skv__error_t *error) {
  skv__output_t *output;
  SKV_TRY(skv__output_open(&output, make->out, error));
  skv_status_t status = check_space(output, make, error);
  if (status == SKV_OK)
    status = write_all(output, make, error);
  if (status == SKV_OK)
    return skv__output_commit(output, error);
  skv__output_discard(output);
  return status;
}

int skv__cmd_make(int argc, const char **argv) {
  make_t make = {.batch = 1, .tokens = -1};
  const skv__option_t options[] = {
      {"shape", SKV__TEXT, &make.shape_text, "QH,KVH,D[,DV]", "heads and sizes, or a model's name",
       0},
      {"tokens", SKV__SIZE, &make.tokens, "N", "tokens of a sequence", 0},
      {"batch", SKV__SIZE, &make.batch, "N", "sequences (1); above 1 tensors get a first axis", 1},
      {"value-dim", SKV__SIZE, &make.value_head_dim, "N", "head size of v, if not the shape's", 1},
      {"seed", SKV__SIZE, &make.seed, "N", "what the numbers are made from (0)", 0},
      {"dtype", SKV__CHOICE, &make.dtype, "fp32|fp16|bf16", "of all three (fp32)", 0},
      {"outliers", SKV__SIZE, &make.outliers, "N",
       "channels of q and k that are 8 times larger (0)", 0},
      {"tensor", SKV__CHOICE, &make.tensor, "all|q|k|v", "which to write; one goes to a .npy (all)",
       0},
      {"out", SKV__TEXT, &make.out, "FILE", "FILE.safetensors, or FILE.npy with --tensor", 0},
  };
  skv__arguments_t arguments = {0};
  skv__error_t error = {0};
  int code = skv__options_parse("make", options, sizeof options / sizeof options[0], &arguments,
                                argc, argv);
  if (code < 0 && check(&make, &error) != SKV_OK) {
    skv__complain(&error);
    code = SKV__EXIT_USAGE;
  }
  if (code < 0)
    code = run(&make, &error) == SKV_OK ? SKV__EXIT_OK : skv__complain(&error);
  skv__arguments_free(&arguments);
  return code;
}
