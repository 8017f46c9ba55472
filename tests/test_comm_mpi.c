/* test_comm_mpi.c: mpi_comm_probe under mpirun, judged from outside: exit code, clock, what it
 * says. SKV_TEST_LARGE=1 adds a message of more than 2^31 bytes. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kit/comm_bodies.h"

#define MPIRUN_PROBE "mpi_comm_probe"
#include "mpirun.h"

Test(comm_mpi, messages_collectives_agreement) {
  for (int ranks = 1; ranks <= 4; ranks++)
    expect(ranks, "30 0 healthy 0", SKV_OK, "");
}

Test(comm_mpi, messages_in_pieces) {
  for (int ranks = 2; ranks <= 4; ranks++)
    expect(ranks, "30 37 healthy 0", SKV_OK, "");
  expect(2, "30 1000000 message 2500000", SKV_OK, "");
}

Test(comm_mpi, a_message_over_2_31_bytes) {
  if (!getenv("SKV_TEST_LARGE"))
    cr_skip_test("needs 9 GB: set SKV_TEST_LARGE=1");
  expect(2, "60 0 message 268435456", SKV_OK, "");
  expect(2, "60 0 message 536870912", SKV_OK, "");
}

Test(comm_mpi, disagreement) {
  static const struct {
    kit_difference_t difference;
    skv_status_t status;
    const char *text;
  } cases[] = {{KIT_VALUE, SKV_DISAGREE, "'causal' is 1 on rank 0, 0 on rank 2\n"},
               {KIT_NUMBER, SKV_DISAGREE, "rank 0 states 3 facts about it, rank 2 2\n"},
               {KIT_TWO_FAILED, SKV_IO, "SKV_IO: rank 1: trouble on 1\n"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char arguments[64];
    snprintf(arguments, sizeof arguments, "30 0 agree %d", (int)cases[i].difference);
    expect(3, arguments, (int)cases[i].status, cases[i].text);
  }
}

Test(comm_mpi, unequal_byte_counts_are_refused) {
  expect_in_time(2, "2 0 unequal 50", SKV_PEER, "rank 0 sent fewer bytes than the 100");
  expect_in_time(2, "2 0 unequal 101", SKV_PEER, "rank 0 sent more bytes than the 100");
  expect_in_time(2, "2 0 unequal 1000000", SKV_PEER, "rank 0 sent more bytes than the 100");
}

Test(comm_mpi, a_killed_rank_ends_the_job) {
  char arguments[64];
  snprintf(arguments, sizeof arguments, "2 0 lose %d", SIGKILL);
  expect_in_time(3, arguments, 128 + SIGKILL, "rank 2");
}

Test(comm_mpi, a_rank_that_leaves_ends_the_job) {
  expect_in_time(3, "2 0 lose 0", 0, "rank 2");
}

Test(comm_mpi, a_stopped_rank_is_named) {
  char arguments[64];
  snprintf(arguments, sizeof arguments, "2 0 lose %d", SIGSTOP);
  expect_in_time(3, arguments, SKV_TIMEOUT, "; rank 2 has died, stopped");
  snprintf(arguments, sizeof arguments, "2 0 chain %d", SIGSTOP);
  const outcome_t *outcome = run(4, arguments);
  cr_expect_eq(outcome->code, SKV_TIMEOUT, "%d: %s", outcome->code, outcome->text);
  cr_expect(strstr(outcome->text, "rank 1: waited 2.0 s for rank 2 (receive 'chain', 1 bytes), "
                                  "which in turn waits for rank 3; rank 3 has died, stopped") ||
                strstr(outcome->text, "rank 2: waited 2.0 s for rank 3 (receive 'chain', 1 bytes); "
                                      "rank 3 has died, stopped"),
            "%s", outcome->text);
  cr_expect(!strstr(outcome->text, "; rank 1 has") && !strstr(outcome->text, "; rank 2 has"), "%s",
            outcome->text);
}

Test(comm_mpi, watches_last_while_everybody_lives) {
  char arguments[64];
  expect(3, "1 0 watches 0", SKV_OK, "");
  expect(1, "1 0 watches 0", SKV_OK, "");
  expect(2, "1 0 watches -1", SKV_TIMEOUT, "'watching' took longer than 1.0 s, though every rank");
  snprintf(arguments, sizeof arguments, "1 0 watches %d", SIGSTOP);
  expect(3, arguments, SKV_TIMEOUT, "of rank 2 for 1.");
  expect(3, arguments, SKV_TIMEOUT, "rank 2 has died, stopped");
}

Test(comm_mpi, mpi_must_be_running) {
  expect(2, "2 0 uninitialised 0", SKV_INVALID, "MPI is not initialised");
  expect(2, "2 0 single 0", SKV_INVALID, "MPI_THREAD_FUNNELED");
  expect(2, "2 0 finalized 0", SKV_INVALID, "MPI has been finalized");
}

Test(comm_mpi, contexts_fail_alike) {
  expect(3, "2 0 context same", SKV_OK, "");
  expect(1, "2 0 context same", SKV_OK, "");
  expect(3, "2 0 context kernel", SKV_INVALID, "SKV_INVALID: rank 2: ");
  expect(3, "2 0 context threads", SKV_INVALID, "rank 2: context options: threads is -1");
  expect(3, "2 0 context timeout", SKV_DISAGREE,
         "'timeout in ms' is 2000 on rank 0, 3000 on rank 2");
  expect(2, "2 0 context null", SKV_INVALID, "MPI_COMM_NULL");
  expect_in_time(3, "2 0 context stopped", SKV_TIMEOUT, "for the other ranks to open");
}

Test(comm_mpi, a_watchdog_guards_init_and_finalize) {
  expect_in_time(3, "2 0 watched MPI_Init", 77, ": MPI_Init took longer than 2.0 s");
  expect_in_time(3, "2 0 watched MPI_Finalize", 77, ": MPI_Finalize took longer than 2.0 s");
  expect(3, "30 0 watched nothing", 0, "");
}
