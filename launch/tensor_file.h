/* tensor_file.h: tensors in .npy and safetensors files. Files are untrusted: every size is checked
 * against the file before anything is allocated, and a malformed file is refused with one message
 * in under a second. */
#ifndef SKV_TENSOR_FILE_H
#define SKV_TENSOR_FILE_H

#include <stdbool.h>

#include "error.h"

/* A safetensors header may not be longer: refusing a file then takes less than 16 MiB. (The format
 * allows 100 MB; a header describes about 40 000 tensors in 4 MiB.) */
#define SKV__SAFETENSORS_HEADER_MAX (4 << 20)

/* What a file says of a tensor. Kept open: reading is pread, by any rank, of its own part only. */
typedef struct skv__tensor_file {
  int fd;
  char path[4096];
  char name[256]; /* safetensors; "" for npy */
  skv_dtype_t dtype;
  int32_t rank_count; /* dimensions, 0 to 8 */
  int64_t shape[8];
  int64_t data_offset, data_bytes; /* in the file */
  uint64_t header_digest;          /* XXH64 of the header: ranks compare it */
} skv__tensor_file_t;

/* `spec` is PATH.npy, or PATH.safetensors:NAME (the name may be left out if the file holds one
 * tensor). <u2 npy files are taken as `u2_dtype` (SKV_BF16), and refused when u2_dtype is SKV_FP32.
 */
skv_status_t skv__tensor_open(skv__tensor_file_t *file, const char *spec, skv_dtype_t u2_dtype,
                              skv__error_t *error);
void skv__tensor_close(skv__tensor_file_t *file);
/* Read `bytes` at `offset` bytes into the tensor's data. Short reads (file shrank) are SKV_IO. */
skv_status_t skv__tensor_read(const skv__tensor_file_t *file, int64_t offset, void *data,
                              int64_t bytes, skv__error_t *error);

/* Header parsers on memory: what the fuzz targets call. `file_bytes` is the size of the whole file.
 */
skv_status_t skv__npy_parse(skv__tensor_file_t *file, const unsigned char *head, size_t head_bytes,
                            int64_t file_bytes, skv_dtype_t u2_dtype, skv__error_t *error);
skv_status_t skv__safetensors_parse(skv__tensor_file_t *file, const unsigned char *head,
                                    size_t head_bytes, int64_t file_bytes, const char *name,
                                    skv__error_t *error);

typedef enum skv__tensor_layout { SKV__THD, SKV__HTD, SKV__BTHD, SKV__BHTD } skv__tensor_layout_t;
/* Extents by meaning, whatever the order in the file. */
typedef struct skv__extents {
  int64_t batch, tokens, heads, dim;
} skv__extents_t;
skv_status_t skv__tensor_extents(const skv__tensor_file_t *file, skv__tensor_layout_t layout,
                                 skv__extents_t *extents, skv__error_t *error);
/* Read tokens [begin, end) of one sequence into dense [tokens][heads][dim] memory, whatever the
 * file's layout. */
skv_status_t skv__tensor_read_tokens(const skv__tensor_file_t *file, skv__tensor_layout_t layout,
                                     int64_t sequence, int64_t begin, int64_t end, void *out,
                                     skv__error_t *error);

/* An output file that appears whole under its name or not at all: written to an unnamed (or
 * randomly named 0600) file in the same folder, synced, then linked or renamed into place. */
typedef struct skv__output skv__output_t;
skv_status_t skv__output_open(skv__output_t **output, const char *path, skv__error_t *error);
int skv__output_fd(const skv__output_t *output);
skv_status_t skv__output_write(skv__output_t *output, int64_t offset, const void *data,
                               int64_t bytes, skv__error_t *error);
skv_status_t skv__output_commit(skv__output_t *output,
                                skv__error_t *error); /* frees output, whatever happens */
void skv__output_discard(skv__output_t *output);

/* Several ranks write parts of one output. Rank 0 opens it, sends `place` to the others as bytes,
 * and they join; a failed join is that rank's failure. Then: everybody writes, the joined commit
 * (sync and close), all meet at a barrier, and rank 0 commits, which gives the file its name. Any
 * of them may discard instead. With same_host the file has no name until then, and a killed job
 * leaves nothing behind; otherwise it has a random name beside `path`, on a file system that all
 * see. */
typedef struct skv__output_place {
  char path[4096]; /* of the temporary file, absolute where the working directory is known */
  char name[256];  /* the output's own, for messages */
  uint64_t device, inode;
  int32_t same_host;
} skv__output_place_t;
skv_status_t skv__output_open_shared(skv__output_t **output, skv__output_place_t *place,
                                     const char *path, bool same_host, skv__error_t *error);
skv_status_t skv__output_join(skv__output_t **output, const skv__output_place_t *place,
                              skv__error_t *error);
/* Whether `path` names the very file that `input` reads: an output must not replace an input. */
bool skv__output_same_file(const char *path, const skv__tensor_file_t *input);

/* Headers. npy: returns the bytes of the header (a multiple of 64) written to `head` (at least 4096
 * bytes). */
int64_t skv__npy_header(char *head, skv_dtype_t dtype, int32_t rank_count, const int64_t *shape);
typedef struct skv__named_tensor {
  const char *name;
  skv_dtype_t dtype;
  int32_t rank_count;
  int64_t shape[8];
} skv__named_tensor_t;
/* safetensors: allocates *head (8-byte length included, data starts right after); the caller frees
 * it. */
skv_status_t skv__safetensors_header(char **head, int64_t *head_bytes,
                                     const skv__named_tensor_t *tensors, int32_t count,
                                     skv__error_t *error);

#endif
