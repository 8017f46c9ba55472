/* suggest.c: what somebody who mistyped a word probably meant. */
#include <string.h>

#include "launch/options.h"

enum { WORD_MAX = 64 };

static int32_t smallest(int32_t a, int32_t b, int32_t c) {
  int32_t least = a < b ? a : b;
  return least < c ? least : c;
}

/* Edits (insert, drop, replace, swap neighbours) between two words of at most WORD_MAX letters. */
static int32_t edits_between(const char *a, const char *b) {
  int32_t a_count = (int32_t)strlen(a), b_count = (int32_t)strlen(b);
  int32_t rows[3][WORD_MAX + 1];
  for (int32_t j = 0; j <= b_count; ++j)
    rows[0][j] = j;
  for (int32_t i = 1; i <= a_count; ++i) {
    int32_t *row = rows[i % 3], *above = rows[(i - 1) % 3], *twice = rows[(i + 1) % 3];
    row[0] = i;
    for (int32_t j = 1; j <= b_count; ++j) {
      row[j] = smallest(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
          twice[j - 2] + 1 < row[j])
        row[j] = twice[j - 2] + 1;
    }
  }
  return rows[a_count % 3][b_count];
}

const char *skv__suggest(const char *word, const char *const *words, int32_t count) {
  size_t letters = strlen(word);
  if (letters < 2 || letters > WORD_MAX)
    return NULL;
  const char *closest = NULL;
  int32_t least = (int32_t)(letters + 2) / 3 + 1;
  for (int32_t w = 0; w < count; ++w) {
    if (strlen(words[w]) > WORD_MAX)
      continue;
    int32_t edits = strncmp(word, words[w], letters) == 0 ? 1 : edits_between(word, words[w]);
    if (edits < least) {
      least = edits;
      closest = words[w];
    }
  }
  return closest;
}
