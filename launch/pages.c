/* pages.c: see pages.h. */
#include "launch/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include "launch/report.h"

skv_status_t skv__pages_map(skv__pages_t *pages, const int64_t *extents, int32_t count,
                            int64_t element_bytes, const char *what, skv__error_t *error) {
  int64_t bytes = element_bytes;
  *pages = (skv__pages_t){0};
  for (int32_t i = 0; i < count; ++i)
    if (__builtin_mul_overflow(bytes, extents[i], &bytes))
      return skv__fail(error, SKV_MEMORY, "%s is larger than any memory", what);
  size_t mapped = bytes > 0 ? (size_t)bytes : 1;
  void *data = mmap(NULL, mapped, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED)
    return skv__fail(error, SKV_MEMORY, "no memory for %s, %s", what,
                     skv__bytes_text((double)bytes).text);
  *pages = (skv__pages_t){data, mapped};
  return SKV_OK;
}

void skv__pages_unmap(skv__pages_t *pages) {
  if (pages->data)
    munmap(pages->data, pages->bytes);
  *pages = (skv__pages_t){0};
}

skv_status_t skv__pages_fit(double bytes_of_rank, int32_t local_ranks, skv__error_t *error) {
  double host = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
  if (host <= 0.0 || bytes_of_rank * local_ranks <= host)
    return SKV_OK;
  return skv__fail(error, SKV_MEMORY,
                   "this host's %s cannot hold %d rank%s of %s; use more hosts, fewer tokens, or a "
                   "smaller dtype",
                   skv__bytes_text(host).text, (int)local_ranks, local_ranks == 1 ? "" : "s",
                   skv__bytes_text(bytes_of_rank).text);
}
