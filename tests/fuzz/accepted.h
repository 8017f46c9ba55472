/* accepted.h: what must hold of a parser's answer, by arithmetic of its own. */
#ifndef ACCEPTED_H
#define ACCEPTED_H

#include <stdbool.h>
#include <string.h>

#include "launch/tensor_file.h"

static inline bool is_printable(const char *text) {
  for (; *text; text++)
    if ((unsigned char)*text < ' ' || *text == 0x7f)
      return false;
  return true;
}

static inline bool is_consistent(const skv__tensor_file_t *file, const skv__error_t *error,
                                 skv_status_t status, int64_t file_bytes) {
  if (status != SKV_OK) /* one printable message */
    return error->status == status && error->text[0] != '\0' && is_printable(error->text) &&
           (status == SKV_FORMAT || status == SKV_INVALID);
  if (file->rank_count < 0 || file->rank_count > 8 || error->text[0] != '\0' ||
      !is_printable(file->name) || !memchr(file->name, 0, sizeof file->name))
    return false;
  __int128 bytes = file->dtype == SKV_FP32 ? 4 : 2;
  for (int32_t i = 0; i < file->rank_count; i++) {
    if (file->shape[i] < 0)
      return false;
    bytes *= file->shape[i];
    if (bytes > file_bytes) /* long before 128 bits are full; a later 0 would have made it 0 */
      break;
  }
  for (int32_t i = 0; i < file->rank_count; i++)
    if (file->shape[i] == 0)
      bytes = 0;
  return bytes == file->data_bytes && file->data_offset > 0 && file->data_offset <= file_bytes &&
         file->data_bytes <= file_bytes - file->data_offset;
}

#endif
