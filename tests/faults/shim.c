/* shim.c: something bad happens to one rank at one call. For LD_PRELOAD, in tests only:
 *
 *   SHIM_CALL=NAME      at this call; "start" is before main. "after:NAME": once it has returned
 *   SHIM_DO=ACTION      kill, stop: the signal, to itself; exit:CODE; delay:MS; fail:ERRNO;
 *                       jitter:US: a pause of any length up to US
 *   SHIM_NTH=N          the N-th such call (1)
 *   SHIM_RANK=R         on this rank alone (on every process)
 *   SHIM_TAG=T          counts only messages with this tag
 *   SHIM_EVER=1         fail:ERRNO, jitter:US for all calls from the N-th on
 *   SHIM_NO_TMPFILE=1   a file system without unnamed files
 *   SHIM_HIT=FILE       created just before it happens, so that a test knows that it did
 *
 * Calls of the C library are counted when the program itself makes them, not its libraries, and
 * from main on: the CUDA runtime, which is linked in, allocates before main and does not check. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef SHIM_MPI
#include <mpi.h>
#endif

enum { NO_TAG = -1 };

static struct {
  const char *call, *action, *hit;
  long nth, seen, tag;
  bool ready, after, ever, in_main;
  uintptr_t program_begin, program_end;
} shim;

static int find_program(struct dl_phdr_info *info, size_t bytes, void *user) {
  (void)bytes, (void)user;
  shim.program_begin = UINTPTR_MAX;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
    uintptr_t end = begin + info->dlpi_phdr[i].p_memsz;
    if (info->dlpi_phdr[i].p_type != PT_LOAD)
      continue;
    shim.program_begin = begin < shim.program_begin ? begin : shim.program_begin;
    shim.program_end = end > shim.program_end ? end : shim.program_end;
  }
  return 1; /* the program comes first */
}

static long number(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text ? strtol(text, NULL, 10) : otherwise;
}

static const char *argument(void) {
  const char *colon = strchr(shim.action, ':');
  return colon ? colon + 1 : "0";
}

/* True: the call is to fail. */
static bool act(void) {
  if (shim.hit) {
    int file = open(shim.hit, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    close(file);
  }
  switch (shim.action[0]) {
  case 'k':
    raise(SIGKILL);
    break;
  case 's':
    kill(getpid(), SIGSTOP);
    break;
  case 'e':
    _exit(atoi(argument()));
  case 'd': {
    long ms = atol(argument());
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
    break;
  }
  case 'j': { /* each process has its own seed: its number */
    static uint64_t state;
    state = (state ? state : (uint64_t)getpid()) * 6364136223846793005u + 1442695040888963407u;
    long us = (long)((state >> 33) % (uint64_t)(atol(argument()) + 1));
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
    break;
  }
  default:
    errno = atoi(argument());
    return true;
  }
  return false;
}

static bool is_program(const void *caller) {
  return (uintptr_t)caller >= shim.program_begin && (uintptr_t)caller < shim.program_end;
}

static bool meets(const char *name, bool after, long tag, const void *caller) {
  if (!shim.ready || !shim.in_main || shim.after != after || strcmp(shim.call, name) != 0 ||
      !is_program(caller) || (shim.tag != NO_TAG && tag != shim.tag))
    return false;
  long seen = __atomic_add_fetch(&shim.seen, 1, __ATOMIC_RELAXED);
  return seen == shim.nth || (shim.ever && seen > shim.nth);
}

__attribute__((constructor)) static void start(void) {
  const char *rank = getenv("PMIX_RANK"), *call = getenv("SHIM_CALL");
  long wanted = number("SHIM_RANK", -1);
  shim.action = getenv("SHIM_DO");
  if (!call || !shim.action || (wanted >= 0 && (!rank || atol(rank) != wanted)))
    return;
  shim.hit = getenv("SHIM_HIT");
  shim.nth = number("SHIM_NTH", 1);
  shim.tag = number("SHIM_TAG", NO_TAG);
  shim.ever = getenv("SHIM_EVER") != NULL;
  shim.after = strncmp(call, "after:", 6) == 0;
  shim.call = shim.after ? call + 6 : call;
  dl_iterate_phdr(find_program, NULL);
  if (strcmp(call, "start") == 0)
    act();
  else
    shim.ready = true;
}

typedef int main_t(int count, char **words, char **environment);
static main_t *program_main;

static int counted_main(int count, char **words, char **environment) {
  shim.in_main = true;
  return program_main(count, words, environment);
}

int __libc_start_main(main_t *main, int count, char **words, void (*init)(void), void (*fini)(void),
                      void (*end)(void), void *stack);
int __libc_start_main(main_t *main, int count, char **words, void (*init)(void), void (*fini)(void),
                      void (*end)(void), void *stack) {
  program_main = main;
  return ((__typeof__(__libc_start_main) *)dlsym(RTLD_NEXT, "__libc_start_main"))(
      counted_main, count, words, init, fini, end, stack);
}

/* One function that calls `next`, with what happens before and after. `tag` of a message. */
#define HOOK(type, name, parameters, next, arguments, tag, failure)                                \
  type name parameters;                                                                            \
  type name parameters {                                                                           \
    if (meets(#name, false, tag, __builtin_return_address(0)) && act())                            \
      return failure;                                                                              \
    type result = next arguments;                                                                  \
    if (meets(#name, true, tag, __builtin_return_address(0)) && act())                             \
      return failure;                                                                              \
    return result;                                                                                 \
  }
#define NEXT(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))
#define HOOK_C(type, name, parameters, arguments, failure)                                         \
  HOOK(type, name, parameters, NEXT(name), arguments, NO_TAG, failure)

/* dlsym itself allocates. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
HOOK(void *, malloc, (size_t bytes), __libc_malloc, (bytes), NO_TAG, NULL)
HOOK(void *, calloc, (size_t count, size_t bytes), __libc_calloc, (count, bytes), NO_TAG, NULL)
HOOK(void *, realloc, (void *memory, size_t bytes), __libc_realloc, (memory, bytes), NO_TAG, NULL)

HOOK_C(void *, mmap, (void *at, size_t bytes, int use, int flags, int file, off_t offset),
       (at, bytes, use, flags, file, offset), MAP_FAILED)
HOOK_C(ssize_t, pread, (int file, void *data, size_t bytes, off_t offset),
       (file, data, bytes, offset), -1)
HOOK_C(ssize_t, pwrite, (int file, const void *data, size_t bytes, off_t offset),
       (file, data, bytes, offset), -1)
HOOK_C(ssize_t, write, (int file, const void *data, size_t bytes), (file, data, bytes), -1)
HOOK_C(int, fsync, (int file), (file), -1)
HOOK_C(int, fstat, (int file, struct stat *status), (file, status), -1)
HOOK_C(int, fchmod, (int file, mode_t mode), (file, mode), -1)
HOOK_C(int, linkat, (int from, const char *path, int to, const char *name, int flags),
       (from, path, to, name, flags), -1)
HOOK_C(int, renameat, (int from, const char *path, int to, const char *name),
       (from, path, to, name), -1)
HOOK_C(int, munmap, (void *at, size_t bytes), (at, bytes), -1)
HOOK_C(int, clock_gettime, (clockid_t clock, struct timespec *now), (clock, now), -1)
HOOK_C(int, pthread_create,
       (pthread_t * thread, const pthread_attr_t *attributes, void *(*body)(void *), void *user),
       (thread, attributes, body, user), errno)
HOOK_C(int, posix_spawn,
       (pid_t * process, const char *path, const posix_spawn_file_actions_t *files,
        const posix_spawnattr_t *attributes, char *const words[], char *const environment[]),
       (process, path, files, attributes, words, environment), errno)

static mode_t mode_of(int flags, va_list list) {
  return flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
}

int open(const char *path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  mode_t mode = mode_of(flags, list);
  va_end(list);
  if (meets("open", false, NO_TAG, __builtin_return_address(0)) && act())
    return -1;
  return NEXT(open)(path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  mode_t mode = mode_of(flags, list);
  va_end(list);
  if (meets("openat", false, NO_TAG, __builtin_return_address(0)) && act())
    return -1;
  if ((flags & O_TMPFILE) == O_TMPFILE && getenv("SHIM_NO_TMPFILE")) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return NEXT(openat)(folder, path, flags, mode);
}

/* Where a kernel starts its threads: the middle of computing. */
void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags);
void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags) {
  if (meets("GOMP_parallel", false, NO_TAG, __builtin_return_address(0)))
    act();
  NEXT(GOMP_parallel)(body, data, threads, flags);
}

/* MPI_Init talks to its launcher through a socket: the middle of MPI_Init. */
int connect(int file, const struct sockaddr *address, socklen_t bytes) {
  if (shim.ready && strcmp(shim.call, "connect") == 0 &&
      __atomic_add_fetch(&shim.seen, 1, __ATOMIC_RELAXED) == shim.nth && act())
    return -1;
  return NEXT(connect)(file, address, bytes);
}

/* NCCL's: a group of messages is enqueued, and what happens once to each communicator. */
typedef struct nccl_id {
  char bytes[128];
} nccl_id_t;
int ncclGroupEnd(void);
int ncclCommInitRankConfig(void *comm, int ranks, nccl_id_t id, int rank, void *config);
int ncclCommFinalize(void *comm);
HOOK_C(int, ncclGroupEnd, (void), (), 1)
HOOK_C(int, ncclCommInitRankConfig, (void *comm, int ranks, nccl_id_t id, int rank, void *config),
       (comm, ranks, id, rank, config), 1)
HOOK_C(int, ncclCommFinalize, (void *comm), (comm), 1)

#ifdef SHIM_MPI
#define HOOK_MPI(name, parameters, arguments, tag)                                                 \
  HOOK(int, name, parameters, P##name, arguments, tag, MPI_ERR_OTHER)
HOOK_MPI(MPI_Init_thread, (int *count, char ***words, int wanted, int *level),
         (count, words, wanted, level), NO_TAG)
HOOK_MPI(MPI_Comm_split_type, (MPI_Comm from, int type, int key, MPI_Info info, MPI_Comm *to),
         (from, type, key, info, to), NO_TAG)
HOOK_MPI(MPI_Allgather,
         (const void *data, int count, MPI_Datatype type, void *all, int all_count,
          MPI_Datatype all_type, MPI_Comm comm),
         (data, count, type, all, all_count, all_type, comm), NO_TAG)
HOOK_MPI(MPI_Comm_split, (MPI_Comm from, int color, int key, MPI_Comm *to), (from, color, key, to),
         NO_TAG)
HOOK_MPI(MPI_Comm_idup, (MPI_Comm from, MPI_Comm *to, MPI_Request *request), (from, to, request),
         NO_TAG)
HOOK_MPI(MPI_Isend,
         (const void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
          MPI_Request *request),
         (data, count, type, peer, tag, comm, request), tag)
HOOK_MPI(MPI_Irecv,
         (void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
          MPI_Request *request),
         (data, count, type, peer, tag, comm, request), tag)
HOOK_MPI(MPI_Imrecv,
         (void *data, int count, MPI_Datatype type, MPI_Message *message, MPI_Request *request),
         (data, count, type, message, request), NO_TAG)
HOOK_MPI(MPI_Test, (MPI_Request * request, int *done, MPI_Status *status), (request, done, status),
         NO_TAG)
HOOK_MPI(MPI_Finalize, (void), (), NO_TAG)
#endif
