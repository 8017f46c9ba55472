/* guard.c: see guard.h. A handler of signals is not enough: Open MPI's mpirun sends SIGKILL as soon
 * as the first rank has died of SIGTERM, when another may not have met its own yet. So a process
 * in a session of its own waits at the other end of a line, for a word or for the end of us. */
#define _GNU_SOURCE /* posix_spawn_file_actions_addclosefrom_np */
#include "launch/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* A program, not a fork: a copy of this process would hold its memory, its sockets and its output,
 * and has the launcher's variables, by which siblings.c knows ranks. */
static int spawn(pid_t *process, int line, const char *path) {
  static char script[] = "read -r word || exec rm -f -- \"$1\"", shell[] = "sh", option[] = "-c";
  char *const arguments[] = {shell, option, script, shell, (char *)path, NULL}, *const none[] = {
                                                                                    NULL};
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  sigset_t all;
  sigfillset(&all);
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, line, STDIN_FILENO);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setsigmask(&attributes, &all);
  int failure = posix_spawn(process, "/bin/sh", &files, &attributes, arguments, none);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return failure;
}

skv__guard_t skv__guard_start(const char *path) {
  skv__guard_t guard = {0};
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return guard;
  guard.line = ends[0];
  if (spawn(&guard.process, ends[1], path) != 0) {
    guard.process = 0;
    close(ends[0]);
  }
  close(ends[1]);
  return guard;
}

void skv__guard_end(skv__guard_t *guard) {
  if (guard->process == 0)
    return;
  send(guard->line, "\n", 1, MSG_NOSIGNAL);
  close(guard->line);
  while (waitpid(guard->process, NULL, 0) < 0 && errno == EINTR)
    continue;
  guard->process = 0;
}
