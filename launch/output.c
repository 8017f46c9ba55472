/* output.c: files that appear whole under their name or not at all. See tensor_file.h. */
#define _GNU_SOURCE /* O_TMPFILE */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch/guard.h"
#include "launch/tensor_file.h"

struct skv__output {
  int fd, folder_fd;   /* folder_fd -1: joined, naming is somebody else's */
  char path[4096];     /* as given: for messages */
  const char *name;    /* last part of path */
  char temporary[300]; /* in the folder (joined: unused); "": the file has no name */
  char joined[4096];   /* joined: the temporary file's path; "" when it has none */
  skv__guard_t guard;  /* of what is called `temporary` */
};

/* O_PATH would do for everything but fsync. */
static skv_status_t open_folder(skv__output_t *output, const char *path, skv__error_t *error) {
  size_t path_bytes = strlen(path);
  char folder[4096];
  if (path_bytes == 0 || path_bytes >= sizeof output->path)
    return skv__fail(error, SKV_INVALID, "the output's path is %s",
                     path_bytes ? "too long" : "empty");
  memcpy(output->path, path, path_bytes + 1);
  char *slash = strrchr(output->path, '/');
  output->name = slash ? slash + 1 : output->path;
  snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - output->path) + 1 : 1,
           slash ? output->path : ".");
  if (strlen(output->name) > 255)
    return skv__fail(error, SKV_INVALID, "%.200s...: the output's name is too long", path);
  output->folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (output->folder_fd < 0)
    return skv__fail(error, SKV_IO, "%s: its folder cannot be opened: %s", path, strerror(errno));
  return SKV_OK;
}

/* What is there already may only be a regular file that its owner lets us write. */
static skv_status_t check_target(const skv__output_t *output, skv__error_t *error) {
  struct stat status;
  if (output->name[0] == '\0')
    return skv__fail(error, SKV_IO, "%s: is a directory; name a file", output->path);
  if (fstatat(output->folder_fd, output->name, &status, AT_SYMLINK_NOFOLLOW) != 0)
    return errno == ENOENT ? SKV_OK
                           : skv__fail(error, SKV_IO, "%s: %s", output->path, strerror(errno));
  if (S_ISDIR(status.st_mode))
    return skv__fail(error, SKV_IO, "%s: is a directory; name a file", output->path);
  if (S_ISLNK(status.st_mode))
    return skv__fail(error, SKV_IO, "%s: is a symbolic link; name the file it points to",
                     output->path);
  if (!S_ISREG(status.st_mode))
    return skv__fail(error, SKV_IO, "%s: is a device or pipe; outputs are regular files",
                     output->path);
  if (faccessat(output->folder_fd, output->name, W_OK, AT_EACCESS) != 0)
    return skv__fail(error, SKV_IO, "%s: exists and may not be written: %s", output->path,
                     strerror(errno));
  return SKV_OK;
}

/* A name that a file may have for a while: it is guarded. */
static bool choose_temporary(skv__output_t *output) {
  uint64_t word;
  char path[sizeof output->path + sizeof output->temporary];
  if (getrandom(&word, sizeof word, 0) != (ssize_t)sizeof word)
    return false;
  snprintf(output->temporary, sizeof output->temporary, ".%.200s.%016" PRIx64, output->name, word);
  snprintf(path, sizeof path, "%.*s%s", (int)(output->name - output->path), output->path,
           output->temporary);
  output->guard = skv__guard_start(path);
  return true;
}

static skv_status_t create_named(skv__output_t *output, skv__error_t *error) {
  if (!choose_temporary(output))
    return skv__fail(error, SKV_IO, "%s: no random name: %s", output->path, strerror(errno));
  output->fd = openat(output->folder_fd, output->temporary,
                      O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (output->fd < 0) {
    output->temporary[0] = '\0';
    return skv__fail(error, SKV_IO, "%s: cannot be created: %s", output->path, strerror(errno));
  }
  return SKV_OK;
}

/* Unnamed where the file system and /proc allow it. */
static skv_status_t create_file(skv__output_t *output, bool named, skv__error_t *error) {
  if (!named && access("/proc/self/fd", X_OK) == 0) {
    output->fd = openat(output->folder_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (output->fd >= 0)
      return SKV_OK;
  }
  return create_named(output, error);
}

static skv_status_t open_output(skv__output_t **output, const char *path, bool named,
                                skv__error_t *error) {
  *output = calloc(1, sizeof **output);
  if (!*output)
    return skv__fail(error, SKV_MEMORY, "%s: out of memory", path);
  (*output)->fd = (*output)->folder_fd = -1;
  skv_status_t status = open_folder(*output, path, error);
  if (status == SKV_OK)
    status = check_target(*output, error);
  if (status == SKV_OK)
    status = create_file(*output, named, error);
  if (status != SKV_OK) {
    skv__output_discard(*output);
    *output = NULL;
  }
  return status;
}

skv_status_t skv__output_open(skv__output_t **output, const char *path, skv__error_t *error) {
  return open_output(output, path, false, error);
}

/* The path under which another process opens the file. */
static skv_status_t describe_place(const skv__output_t *output, skv__output_place_t *place,
                                   skv__error_t *error) {
  struct stat status;
  if (fstat(output->fd, &status) != 0)
    return skv__fail(error, SKV_IO, "%s: %s", output->path, strerror(errno));
  memset(place, 0, sizeof *place);
  snprintf(place->name, sizeof place->name, "%s", output->name);
  place->device = status.st_dev;
  place->inode = status.st_ino;
  place->same_host = output->temporary[0] == '\0';
  if (place->same_host) {
    snprintf(place->path, sizeof place->path, "/proc/%ld/fd/%d", (long)getpid(), output->fd);
    return SKV_OK;
  }
  char folder[4096] = "";
  if (output->path[0] != '/' && !getcwd(folder, sizeof folder))
    return skv__fail(error, SKV_IO, "%s: the working directory has no path: %s", output->path,
                     strerror(errno));
  int written =
      snprintf(place->path, sizeof place->path, "%s%s%.*s%s", folder, folder[0] ? "/" : "",
               (int)(output->name - output->path), output->path, output->temporary);
  if (written < 0 || (size_t)written >= sizeof place->path)
    return skv__fail(error, SKV_INVALID, "%s: the path is too long", output->path);
  return SKV_OK;
}

skv_status_t skv__output_open_shared(skv__output_t **output, skv__output_place_t *place,
                                     const char *path, bool same_host, skv__error_t *error) {
  SKV_TRY(open_output(output, path, !same_host, error));
  skv_status_t status = describe_place(*output, place, error);
  if (status != SKV_OK) {
    skv__output_discard(*output);
    *output = NULL;
  }
  return status;
}

skv_status_t skv__output_join(skv__output_t **output, const skv__output_place_t *place,
                              skv__error_t *error) {
  struct stat status;
  skv__output_t *joined = *output = calloc(1, sizeof *joined);
  if (!joined)
    return skv__fail(error, SKV_MEMORY, "%s: out of memory", place->path);
  joined->folder_fd = -1;
  snprintf(joined->path, sizeof joined->path, "%.255s", place->name);
  /* The link in /proc is followed; a link where the named file should be is not. */
  joined->fd = open(place->path, O_RDWR | O_CLOEXEC | (place->same_host ? 0 : O_NOFOLLOW));
  /* A file system may have another device number on another host, but not on the same one. */
  if (joined->fd >= 0 && fstat(joined->fd, &status) == 0 && S_ISREG(status.st_mode) &&
      status.st_ino == place->inode && (!place->same_host || status.st_dev == place->device)) {
    if (!place->same_host)
      memcpy(joined->joined, place->path, sizeof joined->joined);
    return SKV_OK;
  }
  skv__fail(error, SKV_IO,
            "%s: rank 0's output file cannot be opened here: %s; outputs need a file system that "
            "all ranks see",
            place->path, joined->fd < 0 ? strerror(errno) : "it is another file");
  skv__output_discard(joined);
  *output = NULL;
  return SKV_IO;
}

int skv__output_fd(const skv__output_t *output) {
  return output->fd;
}

skv_status_t skv__output_write(skv__output_t *output, int64_t offset, const void *data,
                               int64_t bytes, skv__error_t *error) {
  for (int64_t done = 0; done < bytes;) {
    int64_t piece = bytes - done < 1 << 30 ? bytes - done : 1 << 30;
    ssize_t put = pwrite(output->fd, (const char *)data + done, (size_t)piece, offset + done);
    if (put < 0 && errno == EINTR)
      continue;
    if (put <= 0)
      return skv__fail(error, SKV_IO, "%s: cannot be written: %s; nothing was left there",
                       output->path, put < 0 ? strerror(errno) : "no progress");
    done += put;
  }
  return SKV_OK;
}

/* 0666 less the umask. Reading the umask means setting it; for a moment it is stricter. */
static mode_t wanted_mode(void) {
  mode_t mask = umask(077);
  umask(mask);
  return 0666 & ~mask;
}

/* Gives an unnamed file its name. A link cannot replace, so an existing file needs a rename. */
static int link_unnamed(skv__output_t *output) {
  char unnamed[64];
  snprintf(unnamed, sizeof unnamed, "/proc/self/fd/%d", output->fd);
  if (linkat(AT_FDCWD, unnamed, output->folder_fd, output->name, AT_SYMLINK_FOLLOW) == 0)
    return 0;
  if (errno != EEXIST || !choose_temporary(output))
    return -1;
  if (linkat(AT_FDCWD, unnamed, output->folder_fd, output->temporary, AT_SYMLINK_FOLLOW) == 0)
    return 0;
  output->temporary[0] = '\0';
  return -1;
}

static int publish(skv__output_t *output) {
  if (output->temporary[0] == '\0' && link_unnamed(output) != 0)
    return -1;
  if (output->temporary[0] != '\0') {
    if (renameat(output->folder_fd, output->temporary, output->folder_fd, output->name) != 0)
      return -1;
    output->temporary[0] = '\0';
  }
  return fsync(output->folder_fd) == 0 || errno == EINVAL ? 0 : -1;
}

skv_status_t skv__output_commit(skv__output_t *output, skv__error_t *error) {
  bool owner = output->folder_fd >= 0;
  skv_status_t status = SKV_OK;
  if (owner)
    status = check_target(output, error); /* it may have become something else meanwhile */
  if (status == SKV_OK && ((owner && fchmod(output->fd, wanted_mode()) != 0) ||
                           fsync(output->fd) != 0 || (owner && publish(output) != 0)))
    status =
        skv__fail(error, SKV_IO, "%s: cannot be put in place: %s", output->path, strerror(errno));
  if (status == SKV_OK)
    output->joined[0] = '\0'; /* whoever created it names or removes it */
  skv__output_discard(output);
  return status;
}

void skv__output_discard(skv__output_t *output) {
  if (!output)
    return;
  if (output->folder_fd >= 0 && output->temporary[0] != '\0')
    unlinkat(output->folder_fd, output->temporary, 0);
  if (output->joined[0] != '\0')
    unlink(output->joined);
  skv__guard_end(&output->guard);
  if (output->fd >= 0)
    close(output->fd);
  if (output->folder_fd >= 0)
    close(output->folder_fd);
  free(output);
}

bool skv__output_same_file(const char *path, const skv__tensor_file_t *input) {
  struct stat output, opened;
  return stat(path, &output) == 0 && fstat(input->fd, &opened) == 0 &&
         output.st_dev == opened.st_dev && output.st_ino == opened.st_ino;
}
