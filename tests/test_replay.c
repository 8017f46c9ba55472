/* Order logs: splitkv prefill records a reduction, splitkv replay evaluates it again. One change,
 * however small, must be found, and the node that it hit must be named. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <sys/wait.h>

#include "launch/exit_codes.h"
#include "tests/scratch.h"

enum { LINES_MAX = 400, LINE_BYTES = 512 };
#define TWO_CALLS "--chunk 300"

typedef struct node {
  int64_t call, pass, owner, rank, rows, blocks, begin, split, end;
} node_t;

static char lines[LINES_MAX][LINE_BYTES]; /* of the log; 0 is its header */
static int line_count;
static char output[8192];

static void start(void) {
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  scratch_create();
}

TestSuite(replay, .init = start, .fini = scratch_remove);

/* Runs a command line; its text lies in `output`. Returns the exit code, or -1. */
static int run(const char *command) {
  FILE *pipe = popen(command, "r");
  cr_assert_not_null(pipe);
  output[fread(output, 1, sizeof output - 1, pipe)] = '\0';
  int code = pclose(pipe);
  return WIFEXITED(code) ? WEXITSTATUS(code) : -1;
}

static void write_log(int without, int twice) {
  FILE *file = fopen(scratch_path("log"), "w");
  cr_assert_not_null(file);
  for (int i = 0; i < line_count; i++)
    if (i != without)
      fprintf(file, "%s%s", lines[i], i == twice ? lines[i] : "");
  fclose(file);
}

/* Calls over up to eight blocks, several nodes per rank; states cross ranks where there are any. */
static void record(int ranks, const char *options) {
  char command[1024], launcher[128] = "";
  if (ranks > 1)
    snprintf(launcher, sizeof launcher, "timeout 60 mpirun --oversubscribe -np %d ", ranks);
  snprintf(command, sizeof command,
           "%s" SKV_TEST_COMMAND " prefill --shape 2,1,16 --tokens 500 --causal "
           "--leaf 64 --block 64 --direction pass-q --reduce tree --threads 1 --timeout 30 "
           "--order-log %s %s 2>&1",
           launcher, scratch_path("log"), options);
  cr_assert_eq(run(command), 0, "%s", output);
  FILE *file = fopen(scratch_path("log"), "r");
  cr_assert_not_null(file);
  for (line_count = 0; fgets(lines[line_count], LINE_BYTES, file); line_count++)
    cr_assert_lt(line_count, LINES_MAX - 1);
  fclose(file);
  cr_assert_gt(line_count, 20);
}

static int replay(void) {
  char command[512];
  snprintf(command, sizeof command, SKV_TEST_COMMAND " replay %s 2>&1", scratch_path("log"));
  return run(command);
}

static int64_t field(const char *line, const char *name) {
  char wanted[64];
  snprintf(wanted, sizeof wanted, "\"%s\":", name);
  const char *at = strstr(line, wanted);
  cr_assert_not_null(at, "%s in %s", name, line);
  return strtoll(at + strlen(wanted), NULL, 10);
}

static node_t node_of(int line) {
  const char *text = lines[line];
  return (node_t){field(text, "call"),  field(text, "pass"),  field(text, "owner"),
                  field(text, "rank"),  field(text, "rows"),  field(text, "blocks"),
                  field(text, "begin"), field(text, "split"), field(text, "end")};
}

/* Replay finds a difference, at this node, of this kind. */
static void expect_named(node_t node, bool recorded, const char *how) {
  char wanted[512], by[32] = " (not recorded)";
  int code = replay();
  if (recorded)
    snprintf(by, sizeof by, ", by rank %" PRId64, node.rank);
  snprintf(wanted, sizeof wanted,
           "DIFFERS first at node [%" PRId64 ", %" PRId64 ") of call %" PRId64 ", pass %" PRId64
           ", owner %" PRId64 "%s: %s",
           node.begin, node.end, node.call, node.pass, node.owner, by, how);
  cr_expect_eq(code, SKV__EXIT_DIFFERENT, "%d instead of '%s': %s", code, wanted, output);
  cr_expect(strstr(output, wanted), "no '%s' in: %s", wanted, output);
}

/* Flips the lowest bit of the last hexadecimal digit. */
static void flip_digest(char *line, const char *name) {
  char wanted[64];
  snprintf(wanted, sizeof wanted, "\"%s\":\"", name);
  char *digit = strstr(line, wanted) + strlen(wanted) + 15;
  const char digits[] = "0123456789abcdef";
  *digit = digits[(strchr(digits, *digit) - digits) ^ 1];
}

static void check_same(int64_t merges) {
  char wanted[64];
  write_log(-1, -1);
  cr_expect_eq(replay(), 0, "%s", output);
  snprintf(wanted, sizeof wanted, "%" PRId64 " merges evaluated again\n", merges);
  cr_expect(strstr(output, wanted), "no '%s' in: %s", wanted, output);
  cr_expect(strstr(output, "\nSAME\n"), "%s", output);
}

static int64_t count_merges(void) {
  int64_t merges = 0;
  for (int line = 1; line < line_count; line++)
    merges += node_of(line).split != 0;
  return merges;
}

/* ---- what is changed ---- */

static void change_digests(void) {
  for (int line = 1; line < line_count; line += 3) {
    node_t node = node_of(line);
    flip_digest(lines[line], "out");
    write_log(-1, -1);
    expect_named(node, true,
                 node.split ? "merging its two parts gives another result"
                            : "the state in the file has another digest than the log");
    flip_digest(lines[line], "out");
    for (int side = 0; node.split && side < 2; side++) {
      flip_digest(lines[line], side ? "right" : "left");
      write_log(-1, -1);
      expect_named(node, true, "it did not merge the results of its two parts");
      flip_digest(lines[line], side ? "right" : "left");
    }
  }
}

static void change_splits(void) {
  for (int line = 1; line < line_count; line += 2) {
    node_t node = node_of(line);
    char copy[LINE_BYTES], *at = strstr(lines[line], "\"split\":");
    strcpy(copy, lines[line]);
    if (!node.split)
      continue;
    snprintf(at, (size_t)(lines[line] + LINE_BYTES - at), "\"split\":%" PRId64 "%s", node.split + 1,
             strchr(copy + (at - lines[line]), ','));
    write_log(-1, -1);
    expect_named(node, true, "it divides where the canonical tree does not");
    strcpy(lines[line], copy);
  }
}

static void remove_and_repeat_lines(void) {
  for (int line = 1; line < line_count; line += 4) {
    write_log(line, -1);
    expect_named(node_of(line), false, "a node of the canonical tree is missing");
    write_log(-1, line);
    expect_named(node_of(line), true, "it was recorded twice");
  }
}

/* Where the states of each rank begin in their file. */
static int64_t state_base(int64_t rank) {
  const char *at = strstr(lines[0], "\"state_base\":[") + strlen("\"state_base\":[");
  for (; rank > 0; rank--)
    at = strchr(at, ',') + 1;
  return strtoll(at, NULL, 10);
}

static void flip_bit(int64_t byte, int bit) {
  FILE *file = fopen(scratch_path("log.states"), "r+b");
  cr_assert_not_null(file);
  fseek(file, (long)byte, SEEK_SET);
  int value = fgetc(file);
  cr_assert_neq(value, EOF, "no byte %" PRId64, byte);
  fseek(file, (long)byte, SEEK_SET);
  fputc(value ^ 1 << bit, file);
  fclose(file);
}

static void change_states(void) {
  enum { FLOATS_OF_A_ROW = 16 + 2 };
  write_log(-1, -1);
  for (int line = 1, n = 0; line < line_count; line++) {
    node_t node = node_of(line);
    if (node.split || n++ % 2)
      continue;
    int64_t bytes = node.rows * FLOATS_OF_A_ROW * 4;
    int64_t byte = state_base(node.rank) + field(lines[line], "offset") + n * 37 % bytes;
    flip_bit(byte, n % 8);
    expect_named(node, true, "the state in the file has another digest than the log");
    flip_bit(byte, n % 8);
  }
}

static void check_with_states(int ranks) {
  record(ranks, TWO_CALLS " --order-states");
  check_same(count_merges());
  change_states();
  change_digests();
  change_splits();
  remove_and_repeat_lines();
  check_same(count_merges());
}

Test(replay, one_rank) {
  check_with_states(1);
}

static void skip_without_mpi(void) {
#ifndef SKV_HAVE_MPI
  cr_skip_test("built without MPI");
#endif
#ifdef __SANITIZE_ADDRESS__
  cr_skip_test("Open MPI leaks");
#endif
}

Test(replay, three_ranks) {
  skip_without_mpi();
  check_with_states(3);
}

/* Without states only the shape and the chain of digests can be checked: a digest that was changed
 * is missed by the node above. */
Test(replay, without_states) {
  record(1, TWO_CALLS);
  check_same(0);
  for (int line = 1; line < line_count; line += 3) {
    node_t node = node_of(line), above = node;
    for (int other = 1; other < line_count; other++) {
      node_t parent = node_of(other);
      if (parent.call == node.call && parent.owner == node.owner && parent.split &&
          ((parent.begin == node.begin && parent.split == node.end) ||
           (parent.split == node.begin && parent.end == node.end)))
        above = parent;
    }
    if (above.end == node.end && above.begin == node.begin)
      continue;
    flip_digest(lines[line], "out");
    write_log(-1, -1);
    expect_named(above, true, "it did not merge the results of its two parts");
    flip_digest(lines[line], "out");
  }
}

/* Nobody misses the nodes of a call that was lost whole: the header counts them. */
Test(replay, a_whole_call_is_missing) {
  record(1, "--chunk 1 --queries 3 --order-states");
  while (node_of(line_count - 1).call == 2)
    line_count--;
  write_log(-1, -1);
  cr_expect_eq(replay(), SKV__EXIT_DIFFERENT, "%s", output);
  cr_expect(strstr(output, "but the header says"), "%s", output);
}

static void expect_refused(int code, const char *text) {
  int got = replay();
  cr_expect_eq(got, code, "%d, not %d: %s", got, code, output);
  cr_expect(strstr(output, text), "no '%s' in: %s", text, output);
}

/* Lines that no program wrote. */
Test(replay, hostile_logs) {
  static const char *const bad[] = {
      "\n", "[]\n", "{}\n", "{\"call\":0\n", "{\"call\":-1,\"pass\":0}\n", "nul\n", "\x80\n"};
  record(1, TWO_CALLS " --order-states");
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    for (int line = 0; line < 2; line++) {
      char copy[LINE_BYTES];
      strcpy(copy, lines[line]);
      strcpy(lines[line], bad[i]);
      write_log(-1, -1);
      expect_refused(SKV__EXIT_INPUT, line ? "line 2 is not" : "line 1 is not the header");
      strcpy(lines[line], copy);
    }
  static const char *const worse[][2] = {{"\"rows\":", "\"rows\":1099511627775,\"r\":"},
                                         {"\"rows\":", "\"rows\":1,\"r\":"},
                                         {"\"offset\":", "\"offset\":9007199254740992,\"o\":"},
                                         {"\"blocks\":", "\"blocks\":9007199254740992,\"b\":"}};
  for (size_t i = 0; i < sizeof worse / sizeof *worse; i++) {
    char copy[LINE_BYTES], *at = strstr(lines[1], worse[i][0]);
    cr_assert_not_null(at);
    strcpy(copy, lines[1]);
    snprintf(at, (size_t)(lines[1] + LINE_BYTES - at), "%s%s", worse[i][1],
             copy + (at - lines[1]) + strlen(worse[i][0]));
    write_log(-1, -1);
    int code = replay();
    cr_expect(code > 0 && code < 70, "'%s': %d: %s", worse[i][1], code, output);
    strcpy(lines[1], copy);
  }
  check_same(count_merges());
}

Test(replay, states_are_missing_or_short) {
  record(1, TWO_CALLS " --order-states");
  cr_assert_eq(truncate(scratch_path("log.states"), 100), 0);
  expect_refused(SKV__EXIT_IO, "log.states: shorter than the log says");
  cr_assert_eq(unlink(scratch_path("log.states")), 0);
  expect_refused(SKV__EXIT_IO, "states were written there");
  cr_assert_eq(unlink(scratch_path("log")), 0);
  expect_refused(SKV__EXIT_IO, "No such file");
  scratch_write("log", "", 0);
  expect_refused(SKV__EXIT_INPUT, "the file is empty");
}
