/* siblings.c: see siblings.h. PMIx, which Open MPI starts ranks with, gives each process the job's
 * name and its rank as variables, before MPI does anything. */
#define _GNU_SOURCE /* dirent64 */
#include "launch/siblings.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { RANKS_MAX = 4096, ENVIRONMENT_BYTES = 1 << 16 };

typedef struct family {
  const char *job;
  long stopped_rank, stopped_process; /* -1: none */
  uint64_t seen[RANKS_MAX / 64];
  char environment[ENVIRONMENT_BYTES];
} family_t;

static long read_file(const char *process, const char *name, char *data, size_t bytes) {
  char path[64];
  size_t done = 0;
  ssize_t got = 0;
  snprintf(path, sizeof path, "/proc/%.20s/%s", process, name);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return -1;
  while (done < bytes - 1 && (got = read(file, data + done, bytes - 1 - done)) > 0)
    done += (size_t)got;
  close(file);
  data[done] = '\0';
  return (long)done;
}

/* In "A=1\0B=2\0"; NULL if it is not there. */
static const char *find(const char *environment, long bytes, const char *name) {
  size_t name_bytes = strlen(name);
  for (const char *at = environment; at < environment + bytes; at += strlen(at) + 1)
    if (strncmp(at, name, name_bytes) == 0 && at[name_bytes] == '=')
      return at + name_bytes + 1;
  return NULL;
}

static bool is_stopped(const char *process) {
  char status[512];
  if (read_file(process, "stat", status, sizeof status) < 0)
    return false;
  const char *name_end = strrchr(status, ')'); /* a name may hold anything */
  return name_end && (name_end[2] == 'T' || name_end[2] == 't');
}

static void meet(family_t *family, const char *process) {
  long bytes = read_file(process, "environ", family->environment, sizeof family->environment);
  const char *job = find(family->environment, bytes, "PMIX_NAMESPACE");
  const char *rank_text = find(family->environment, bytes, "PMIX_RANK");
  if (!job || !rank_text || strcmp(job, family->job) != 0)
    return;
  long rank = strtol(rank_text, NULL, 10);
  if (rank < 0 || rank >= RANKS_MAX)
    return;
  family->seen[rank / 64] |= UINT64_C(1) << rank % 64;
  if (family->stopped_rank < 0 && is_stopped(process)) {
    family->stopped_rank = rank;
    family->stopped_process = strtol(process, NULL, 10);
  }
}

static bool meet_all(family_t *family) {
  _Alignas(struct dirent64) char entries[8192];
  long bytes;
  int folder = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0)
    return false;
  while ((bytes = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0)
    for (long at = 0; at < bytes;) {
      const struct dirent64 *entry = (const struct dirent64 *)(const void *)(entries + at);
      if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
        meet(family, entry->d_name);
      at += entry->d_reclen;
    }
  close(folder);
  return bytes == 0;
}

static long number_of(const char *name) {
  const char *text = getenv(name);
  return text ? strtol(text, NULL, 10) : 0;
}

/* How many ranks the job has, if all are on this host; else 0. */
static long ranks_here(void) {
  long ranks = number_of("OMPI_COMM_WORLD_SIZE");
  if (ranks > 0)
    return ranks == number_of("OMPI_COMM_WORLD_LOCAL_SIZE") ? ranks : 0;
  return number_of("SLURM_STEP_NUM_NODES") == 1 ? number_of("SLURM_STEP_NUM_TASKS") : 0;
}

bool skv__siblings_blame(char *text, size_t bytes, bool gone) {
  family_t family = {.job = getenv("PMIX_NAMESPACE"), .stopped_rank = -1};
  long ranks = ranks_here();
  text[0] = '\0';
  if (!family.job || !meet_all(&family))
    return false;
  if (family.stopped_rank >= 0) {
    snprintf(text, bytes, "rank %ld is stopped (process %ld)", family.stopped_rank,
             family.stopped_process);
    return true;
  }
  if (!gone || ranks > RANKS_MAX)
    return false;
  for (long rank = 0; rank < ranks; rank++)
    if (!(family.seen[rank / 64] >> rank % 64 & 1)) {
      snprintf(text, bytes, "rank %ld is gone", rank);
      return true;
    }
  return false;
}
