/* kit_poison.c: memory that shows when somebody reads what was never written, or writes outside. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "kit.h"

static_assert(sizeof(wchar_t) == 4, "wmemset fills words of 4 bytes");

/* NaN as fp32 (signalling), as fp16 and as bf16, at any even offset. */
#define POISON 0x7fa17fa1
#define GUARD_BYTES 64
#define GUARD 0xa5

/* What lies before the caller's memory: one aligned line with the size, one line of guard. */
typedef struct header {
  size_t bytes;
  unsigned char padding[64 - sizeof(size_t)];
  unsigned char guard[GUARD_BYTES];
} header_t;

static header_t *header_of(const void *memory) {
  return (header_t *)(uintptr_t)((const unsigned char *)memory - sizeof(header_t));
}

void *kit_poisoned(size_t bytes) {
  size_t total = (sizeof(header_t) + bytes + GUARD_BYTES + 63) / 64 * 64;
  header_t *header = aligned_alloc(64, total);
  if (header == NULL)
    abort();
  header->bytes = bytes;
  memset(header->guard, GUARD, GUARD_BYTES);
  unsigned char *memory = (unsigned char *)(header + 1);
  /* Whole words, the last of which may reach into the guard. Workspaces are large: be quick. */
  wmemset((wchar_t *)(header + 1), POISON, (bytes + 3) / 4);
  memset(memory + bytes, GUARD, GUARD_BYTES);
  return memory;
}

bool kit_guards_intact(const void *memory) {
  const header_t *header = header_of(memory);
  const unsigned char *after = (const unsigned char *)memory + header->bytes;
  for (size_t i = 0; i < GUARD_BYTES; i++)
    if (header->guard[i] != GUARD || after[i] != GUARD)
      return false;
  return true;
}

void kit_poisoned_free(void *memory) {
  if (memory != NULL)
    free(header_of(memory));
}
