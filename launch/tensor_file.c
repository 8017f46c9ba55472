/* tensor_file.c: opens tensor files, reads parts of them by pread, and gives extents their meaning
 * by layout. Nothing is mapped: a file that shrinks is a short read, never a signal. */
#include "launch/tensor_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch/checked.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are read as they lie");

#define NPY_HEAD_BYTES 16384    /* holds the longest header that npy.c accepts */
#define READ_BYTES (1 << 30)    /* of one pread: the kernel stops short of 2 GiB */
#define SCATTER_BYTES (1 << 20) /* buffer for layouts with heads outside tokens */

/* Split PATH.safetensors:NAME; *name points into spec or is NULL. */
static skv_status_t split_spec(skv__tensor_file_t *file, const char *spec, bool *is_npy,
                               const char **name, skv__error_t *error) {
  static const char npy[] = ".npy", safetensors[] = ".safetensors";
  size_t spec_bytes = strlen(spec), path_bytes = spec_bytes;
  const char *found = strstr(spec, ".safetensors:");
  *name = NULL;
  *is_npy = false;
  if (found) {
    path_bytes = (size_t)(found - spec) + sizeof safetensors - 1;
    *name = spec + path_bytes + 1;
    if (**name == '\0')
      return skv__fail(error, SKV_INVALID, "%s: the tensor's name after ':' is missing", spec);
  } else if (spec_bytes >= sizeof npy && strcmp(spec + spec_bytes - (sizeof npy - 1), npy) == 0) {
    *is_npy = true;
  } else if (spec_bytes < sizeof safetensors ||
             strcmp(spec + spec_bytes - (sizeof safetensors - 1), safetensors) != 0) {
    return skv__fail(error, SKV_INVALID,
                     "%.200s: a tensor file is PATH.npy or PATH.safetensors:NAME", spec);
  }
  if (path_bytes >= sizeof file->path)
    return skv__fail(error, SKV_INVALID, "%.200s...: the path is too long", spec);
  memcpy(file->path, spec, path_bytes);
  file->path[path_bytes] = '\0';
  return SKV_OK;
}

/* Opens only regular files, and looks before it opens: opening a device may do something. */
static skv_status_t open_regular(skv__tensor_file_t *file, int64_t *file_bytes,
                                 skv__error_t *error) {
  struct stat status;
  if (stat(file->path, &status) != 0)
    return skv__fail(error, SKV_IO, "%s: cannot be opened: %s", file->path, strerror(errno));
  if (S_ISREG(status.st_mode)) {
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file->fd < 0 || fstat(file->fd, &status) != 0)
      return skv__fail(error, SKV_IO, "%s: cannot be opened: %s", file->path, strerror(errno));
  }
  if (!S_ISREG(status.st_mode))
    return skv__fail(error, SKV_IO,
                     "%s: is not a regular file (a directory, pipe or device?); save the tensor to "
                     "a file first",
                     file->path);
  *file_bytes = status.st_size;
  return SKV_OK;
}

static skv_status_t read_all(const skv__tensor_file_t *file, int64_t offset, void *data,
                             int64_t bytes, skv__error_t *error) {
  for (int64_t done = 0; done < bytes;) {
    int64_t piece = bytes - done < READ_BYTES ? bytes - done : READ_BYTES;
    ssize_t got = pread(file->fd, (char *)data + done, (size_t)piece, offset + done);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return skv__fail(error, SKV_IO, "%s: cannot be read: %s", file->path, strerror(errno));
    if (got == 0)
      return skv__fail(error, SKV_IO,
                       "%s: ends at byte %" PRId64 ": it shrank after it was opened; let nothing "
                       "write it during a run",
                       file->path, offset + done);
    done += got;
  }
  return SKV_OK;
}

/* The bytes that the header's parser needs: never more than a header may have. */
static skv_status_t head_bytes_of(const skv__tensor_file_t *file, bool is_npy, int64_t file_bytes,
                                  int64_t *head_bytes, skv__error_t *error) {
  *head_bytes = NPY_HEAD_BYTES;
  if (!is_npy) {
    unsigned char length[8];
    *head_bytes = 8;
    if (file_bytes >= 8) {
      SKV_TRY(read_all(file, 0, length, 8, error));
      uint64_t claimed = 0;
      for (int i = 7; i >= 0; i--)
        claimed = claimed << 8 | length[i];
      if (claimed <= SKV__SAFETENSORS_HEADER_MAX)
        *head_bytes += (int64_t)claimed;
    }
  }
  if (*head_bytes > file_bytes)
    *head_bytes = file_bytes;
  return SKV_OK;
}

static skv_status_t read_header(skv__tensor_file_t *file, bool is_npy, const char *name,
                                int64_t file_bytes, skv_dtype_t u2_dtype, skv__error_t *error) {
  int64_t head_bytes;
  SKV_TRY(head_bytes_of(file, is_npy, file_bytes, &head_bytes, error));
  unsigned char *head = malloc((size_t)head_bytes + 1);
  if (!head)
    return skv__fail(error, SKV_MEMORY, "%s: out of memory", file->path);
  skv_status_t status = read_all(file, 0, head, head_bytes, error);
  if (status == SKV_OK)
    status = is_npy
                 ? skv__npy_parse(file, head, (size_t)head_bytes, file_bytes, u2_dtype, error)
                 : skv__safetensors_parse(file, head, (size_t)head_bytes, file_bytes, name, error);
  free(head);
  return status;
}

skv_status_t skv__tensor_open(skv__tensor_file_t *file, const char *spec, skv_dtype_t u2_dtype,
                              skv__error_t *error) {
  bool is_npy;
  const char *name;
  int64_t file_bytes = 0;
  memset(file, 0, sizeof *file);
  file->fd = -1;
  SKV_TRY(split_spec(file, spec, &is_npy, &name, error));
  skv_status_t status = open_regular(file, &file_bytes, error);
  if (status == SKV_OK)
    status = read_header(file, is_npy, name, file_bytes, u2_dtype, error);
  if (status != SKV_OK)
    skv__tensor_close(file);
  return status;
}

void skv__tensor_close(skv__tensor_file_t *file) {
  if (file->fd >= 0)
    close(file->fd);
  file->fd = -1;
}

skv_status_t skv__tensor_read(const skv__tensor_file_t *file, int64_t offset, void *data,
                              int64_t bytes, skv__error_t *error) {
  if (offset < 0 || bytes < 0 || offset > file->data_bytes || bytes > file->data_bytes - offset)
    return skv__fail(error, SKV_INTERNAL, "%s: a read outside of the tensor", file->path);
  return read_all(file, file->data_offset + offset, data, bytes, error);
}

skv_status_t skv__tensor_extents(const skv__tensor_file_t *file, skv__tensor_layout_t layout,
                                 skv__extents_t *extents, skv__error_t *error) {
  static const struct {
    const char *name;
    int32_t rank_count, tokens, heads;
  } places[] = {[SKV__THD] = {"thd", 3, 0, 1},
                [SKV__HTD] = {"htd", 3, 1, 0},
                [SKV__BTHD] = {"bthd", 4, 1, 2},
                [SKV__BHTD] = {"bhtd", 4, 2, 1}};
  int32_t rank_count = places[layout].rank_count;
  if (file->rank_count != rank_count)
    return skv__fail(error, SKV_INVALID,
                     "%s: the tensor has %d dimensions but layout %s has %d; see --tensor-layout",
                     file->path, file->rank_count, places[layout].name, rank_count);
  extents->batch = rank_count == 4 ? file->shape[0] : 1;
  extents->tokens = file->shape[places[layout].tokens];
  extents->heads = file->shape[places[layout].heads];
  extents->dim = file->shape[rank_count - 1];
  return SKV_OK;
}

/* Tokens of one head lie together in the file; in memory, heads do. */
static skv_status_t read_head(const skv__tensor_file_t *file, const skv__extents_t *extents,
                              int64_t offset, int64_t tokens, char *out, char *buffer,
                              int64_t buffer_bytes, skv__error_t *error) {
  int64_t row_bytes = extents->dim * skv__dtype_bytes(file->dtype);
  int64_t piece_tokens = buffer_bytes / row_bytes;
  for (int64_t begin = 0; begin < tokens; begin += piece_tokens) {
    int64_t count = tokens - begin < piece_tokens ? tokens - begin : piece_tokens;
    SKV_TRY(skv__tensor_read(file, offset + begin * row_bytes, buffer, count * row_bytes, error));
    for (int64_t token = 0; token < count; token++)
      memcpy(out + (begin + token) * extents->heads * row_bytes, buffer + token * row_bytes,
             (size_t)row_bytes);
  }
  return SKV_OK;
}

static skv_status_t read_heads(const skv__tensor_file_t *file, const skv__extents_t *extents,
                               int64_t sequence, int64_t begin, int64_t end, void *out,
                               skv__error_t *error) {
  int64_t row_bytes = extents->dim * skv__dtype_bytes(file->dtype);
  int64_t buffer_bytes = row_bytes > SCATTER_BYTES ? row_bytes : SCATTER_BYTES;
  char *buffer = malloc((size_t)buffer_bytes);
  if (!buffer)
    return skv__fail(error, SKV_MEMORY, "%s: out of memory", file->path);
  skv_status_t status = SKV_OK;
  for (int64_t head = 0; head < extents->heads && status == SKV_OK; head++) {
    int64_t first = (sequence * extents->heads + head) * extents->tokens + begin;
    status = read_head(file, extents, first * row_bytes, end - begin,
                       (char *)out + head * row_bytes, buffer, buffer_bytes, error);
  }
  free(buffer);
  return status;
}

skv_status_t skv__tensor_read_tokens(const skv__tensor_file_t *file, skv__tensor_layout_t layout,
                                     int64_t sequence, int64_t begin, int64_t end, void *out,
                                     skv__error_t *error) {
  skv__extents_t extents = {0};
  SKV_TRY(skv__tensor_extents(file, layout, &extents, error));
  if (sequence < 0 || sequence >= extents.batch || begin < 0 || begin > end || end > extents.tokens)
    return skv__fail(error, SKV_INTERNAL, "%s: a read outside of the tensor", file->path);
  int64_t token_bytes = extents.heads * extents.dim * skv__dtype_bytes(file->dtype);
  if (token_bytes == 0 || begin == end)
    return SKV_OK;
  if (layout == SKV__HTD || layout == SKV__BHTD)
    return read_heads(file, &extents, sequence, begin, end, out, error);
  return skv__tensor_read(file, (sequence * extents.tokens + begin) * token_bytes, out,
                          (end - begin) * token_bytes, error);
}
