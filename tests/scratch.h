/* scratch.h: a folder for one test's files, gone when the test ends. */
#ifndef SCRATCH_H
#define SCRATCH_H

#include <criterion/criterion.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static char scratch_folder[64];

static inline void scratch_create(void) {
  const char *root = getenv("TMPDIR");
  snprintf(scratch_folder, sizeof scratch_folder, "%.40s/splitkv.XXXXXX", root ? root : "/tmp");
  cr_assert_not_null(mkdtemp(scratch_folder));
}

/* Most memory that the process has had, in KiB. Sanitizers multiply it: then always 0. */
static inline long scratch_peak_kib(void) {
#ifdef __SANITIZE_ADDRESS__
  return 0;
#else
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
#endif
}

/* Files in it; `last` (or NULL) becomes a copy of the last one's name. */
static inline int scratch_count(char *last) {
  int count = 0;
  DIR *folder = opendir(scratch_folder);
  for (struct dirent *entry; folder && (entry = readdir(folder));)
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
      count++;
      if (last)
        strcpy(last, entry->d_name);
    }
  if (folder)
    closedir(folder);
  return count;
}

static inline void scratch_remove(void) {
  char name[NAME_MAX + 1], path[PATH_MAX];
  while (scratch_count(name) > 0) {
    snprintf(path, sizeof path, "%s/%s", scratch_folder, name);
    if (remove(path) != 0)
      break;
  }
  rmdir(scratch_folder);
}

/* A path in the folder; one of eight buffers, in turn. */
static inline const char *scratch_path(const char *name) {
  static char paths[8][PATH_MAX];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, PATH_MAX, "%s/%s", scratch_folder, name);
  return path;
}

static inline const char *scratch_write(const char *name, const void *data, size_t bytes) {
  const char *path = scratch_path(name);
  FILE *file = fopen(path, "wb");
  cr_assert_not_null(file, "%s", path);
  cr_assert_eq(fwrite(data, 1, bytes, file), bytes);
  cr_assert_eq(fclose(file), 0);
  return path;
}

#endif
