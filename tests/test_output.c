/* Output files: whole under their name, or not there at all. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "launch/tensor_file.h"
#include "tests/scratch.h"

TestSuite(output, .init = scratch_create, .fini = scratch_remove);

static skv__output_t *output;
static skv__error_t error;

static void expect_content(const char *path, const char *wanted) {
  char text[64] = "";
  FILE *file = fopen(path, "rb");
  cr_assert_not_null(file, "%s", path);
  size_t got = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  cr_expect_eq(got, strlen(wanted));
  cr_expect_str_eq(text, wanted);
}

static void open_and_write(const char *path, const char *text) {
  cr_assert_eq(skv__output_open(&output, path, &error), SKV_OK, "%s", error.text);
  cr_assert_eq(skv__output_write(output, 0, text, (int64_t)strlen(text), &error), SKV_OK);
}

Test(output, appears_when_committed) {
  const char *path = scratch_path("o.npy");
  struct stat status;
  umask(027);
  open_and_write(path, "abcdef");
  cr_assert_eq(skv__output_write(output, 2, "XY", 2, &error), SKV_OK);
  cr_expect_eq(access(path, F_OK), -1, "there before it was committed");
  cr_assert_eq(skv__output_commit(output, &error), SKV_OK, "%s", error.text);
  expect_content(path, "abXYef");
  cr_expect_eq(scratch_count(NULL), 1);
  cr_assert_eq(stat(path, &status), 0);
  cr_expect_eq(status.st_mode & 07777, 0640);
  mode_t mask = umask(022);
  cr_expect_eq(mask, 027, "the umask was changed");
}

Test(output, replaces_whole_files) {
  const char *path = scratch_write("o.npy", "old", 3);
  char old[4] = "";
  int reader = open(path, O_RDONLY);
  open_and_write(path, "new and longer");
  expect_content(path, "old");
  cr_assert_eq(skv__output_commit(output, &error), SKV_OK, "%s", error.text);
  expect_content(path, "new and longer");
  cr_expect_eq(read(reader, old, 3), 3);
  cr_expect_str_eq(old, "old", "whoever had it open saw it change");
  close(reader);
  cr_expect_eq(scratch_count(NULL), 1);
}

Test(output, leaves_nothing_when_discarded) {
  const char *path = scratch_write("o.npy", "old", 3);
  open_and_write(path, "new");
  skv__output_discard(output);
  open_and_write(scratch_path("other.npy"), "new");
  skv__output_discard(output);
  skv__output_discard(NULL);
  expect_content(path, "old");
  cr_expect_eq(scratch_count(NULL), 1);
}

static void refuse(const char *path, skv_status_t wanted, const char *says) {
  skv__error_clear(&error);
  cr_expect_eq(skv__output_open(&output, path, &error), wanted, "%s", path);
  cr_expect_null(output);
  cr_expect_not_null(strstr(error.text, says), "'%s' does not say '%s'", error.text, says);
}

Test(output, refuses_what_is_no_regular_file) {
  const char *folder = scratch_path("folder"), *pipe = scratch_path("pipe");
  const char *link = scratch_path("link"), *slash = scratch_path("absent/o.npy");
  char longest[5000], name[400];
  memset(longest, 'x', sizeof longest);
  longest[sizeof longest - 1] = '\0';
  snprintf(name, sizeof name, "%.300s", longest);
  cr_assert_eq(mkdir(folder, 0700), 0);
  cr_assert_eq(mkfifo(pipe, 0600), 0);
  cr_assert_eq(symlink(scratch_write("target", "old", 3), link), 0);
  refuse(folder, SKV_IO, "is a directory");
  refuse(pipe, SKV_IO, "device or pipe");
  refuse(link, SKV_IO, "symbolic link");
  refuse("/dev/null", SKV_IO, "device or pipe");
  refuse(slash, SKV_IO, "its folder cannot be opened");
  refuse("/", SKV_IO, "is a directory");
  refuse("", SKV_INVALID, "empty");
  refuse(longest, SKV_INVALID, "too long");
  refuse(name, SKV_INVALID, "too long");
  cr_expect_eq(scratch_count(NULL), 4);
}

Test(output, refuses_files_that_may_not_be_written) {
  if (geteuid() == 0) {
    scratch_remove(); /* a skipped test has no end */
    cr_skip("root may write everything");
  }
  const char *path = scratch_write("o.npy", "old", 3);
  chmod(path, 0444);
  refuse(path, SKV_IO, "may not be written");
}

/* The target becomes a directory while the output is written. */
Test(output, looks_again_before_it_commits) {
  const char *path = scratch_path("o.npy");
  open_and_write(path, "new");
  cr_assert_eq(mkdir(path, 0700), 0);
  cr_expect_eq(skv__output_commit(output, &error), SKV_IO);
  cr_expect_not_null(strstr(error.text, "is a directory"));
  cr_expect_eq(scratch_count(NULL), 1);
}

/* A limit on file sizes fails as a full disk does: in write. */
Test(output, leaves_nothing_on_a_full_disk) {
  static char data[1 << 16];
  const char *path = scratch_path("o.npy");
  struct rlimit limit = {1 << 15, 1 << 15};
  signal(SIGXFSZ, SIG_IGN);
  cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
  cr_assert_eq(skv__output_open(&output, path, &error), SKV_OK);
  cr_expect_eq(skv__output_write(output, 0, data, sizeof data, &error), SKV_IO);
  cr_expect_not_null(strstr(error.text, "cannot be written"), "%s", error.text);
  skv__output_discard(output);
  cr_expect_eq(scratch_count(NULL), 0);
}

/* Runs `body` in a process of its own; returns its exit code, or 128 and the signal. */
static int in_child(int (*body)(void)) {
  pid_t child = fork();
  int status;
  if (child == 0)
    _exit(body());
  cr_assert_eq(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static skv__output_place_t place;

static int join_and_commit(void) {
  skv__output_t *joined;
  if (skv__output_join(&joined, &place, &error) != SKV_OK)
    return 1;
  if (skv__output_write(joined, 3, "def", 3, &error) != SKV_OK)
    return 2;
  return skv__output_commit(joined, &error) == SKV_OK ? 0 : 3;
}

static int join_and_discard(void) {
  skv__output_t *joined;
  if (skv__output_join(&joined, &place, &error) != SKV_OK)
    return 1;
  skv__output_discard(joined);
  return 0;
}

static void check_shared(bool same_host) {
  const char *path = scratch_path("o.npy");
  cr_assert_eq(skv__output_open_shared(&output, &place, path, same_host, &error), SKV_OK);
  cr_assert_eq(skv__output_write(output, 0, "abc", 3, &error), SKV_OK);
  cr_expect_eq(in_child(join_and_commit), 0);
  cr_expect_eq(access(path, F_OK), -1, "joining put it in place");
  cr_assert_eq(skv__output_commit(output, &error), SKV_OK, "%s", error.text);
  expect_content(path, "abcdef");
  cr_expect_eq(scratch_count(NULL), 1);
}

Test(output, is_shared_on_one_host) {
  check_shared(true);
}

Test(output, is_shared_between_hosts) {
  check_shared(false);
}

Test(output, temporary_file_is_private) {
  struct stat status;
  cr_assert_eq(skv__output_open_shared(&output, &place, scratch_path("o.npy"), false, &error),
               SKV_OK);
  cr_assert_eq(stat(place.path, &status), 0);
  cr_expect_eq(status.st_mode & 07777, 0600);
  skv__output_discard(output);
  cr_expect_eq(scratch_count(NULL), 0);
}

Test(output, any_rank_can_discard) {
  cr_assert_eq(skv__output_open_shared(&output, &place, scratch_path("o.npy"), false, &error),
               SKV_OK);
  cr_expect_eq(in_child(join_and_discard), 0);
  cr_expect_eq(scratch_count(NULL), 0);
  cr_expect_eq(skv__output_commit(output, &error), SKV_IO);
  cr_expect_eq(scratch_count(NULL), 0);
}

/* Somebody swaps the temporary file for another one, or for a link. */
Test(output, joins_no_other_file) {
  cr_assert_eq(skv__output_open_shared(&output, &place, scratch_path("o.npy"), false, &error),
               SKV_OK);
  const char *victim = scratch_write("victim", "old", 3), *moved = scratch_path("moved");
  cr_assert_eq(rename(place.path, moved), 0);
  cr_expect_eq(in_child(join_and_commit), 1, "joined an absent file");
  cr_assert_eq(symlink(moved, place.path), 0);
  cr_expect_eq(in_child(join_and_commit), 1, "followed a link");
  cr_assert_eq(unlink(place.path), 0);
  cr_assert_eq(rename(victim, place.path), 0);
  cr_expect_eq(in_child(join_and_commit), 1, "joined another file");
  expect_content(place.path, "old");
  skv__output_discard(output);
}

static bool unnamed;

static int write_and_die(void) {
  if (skv__output_open_shared(&output, &place, scratch_path("o.npy"), unnamed, &error) != SKV_OK ||
      skv__output_write(output, 0, "abc", 3, &error) != SKV_OK)
    return 1;
  raise(SIGKILL);
  return 2;
}

Test(output, killed_writers_leave_nothing) {
  unnamed = true;
  cr_expect_eq(in_child(write_and_die), 128 + SIGKILL);
  cr_expect_eq(scratch_count(NULL), 0);
}

/* Here it takes a moment. */
Test(output, killed_writers_leave_no_named_file) {
  cr_expect_eq(in_child(write_and_die), 128 + SIGKILL);
  for (int i = 0; i < 1000 && scratch_count(NULL) > 0; i++)
    usleep(10000);
  cr_expect_eq(scratch_count(NULL), 0);
}

Test(output, knows_its_inputs) {
  skv__tensor_file_t input = {.fd = open(scratch_write("a.npy", "a", 1), O_RDONLY)};
  const char *link = scratch_path("l.npy"), *hard = scratch_path("h.npy");
  cr_assert_eq(symlink(scratch_path("a.npy"), link), 0);
  cr_assert_eq(linkat(AT_FDCWD, scratch_path("a.npy"), AT_FDCWD, hard, 0), 0);
  cr_expect(skv__output_same_file(scratch_path("a.npy"), &input));
  cr_expect(skv__output_same_file(scratch_path("./a.npy"), &input));
  cr_expect(skv__output_same_file(link, &input));
  cr_expect(skv__output_same_file(hard, &input));
  cr_expect_not(skv__output_same_file(scratch_write("b.npy", "a", 1), &input));
  cr_expect_not(skv__output_same_file(scratch_path("absent.npy"), &input));
  close(input.fd);
}
