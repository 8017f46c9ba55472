/* test_comm.c: bytes between ranks, over the in-process transport with late messages. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "kit/comm_bodies.h"
#include "kit/comm_threads.h"

enum { MOST_RANKS = 8 };

typedef struct ranks {
  int32_t count;
  uint64_t delay_seed;
  double timeout_seconds;
  void (*body)(skv__comm_t *comm, kit_world_t *world, struct ranks *all);
  size_t piece_bytes; /* 0: the transport's */
  int argument;
  /* what each rank ended with */
  skv_status_t status[MOST_RANKS];
  char text[MOST_RANKS][1024];
  double seconds[MOST_RANKS];
} ranks_t;

typedef struct one {
  kit_seat_t seat;
  ranks_t *all;
} one_t;

/* The body keeps its status in all->status. */
static void *run_one(void *argument) {
  one_t *one = argument;
  ranks_t *all = one->all;
  skv__comm_t *comm;
  skv__error_t error = {0};
  if (kit_world_open(&comm, all->timeout_seconds, &one->seat, &error) != SKV_OK)
    abort();
  if (all->piece_bytes)
    comm->piece_bytes = all->piece_bytes;
  double begin = skv__comm_now();
  all->body(comm, one->seat.world, all);
  skv__comm_destroy(comm);
  all->seconds[one->seat.rank] = skv__comm_now() - begin;
  memcpy(all->text[one->seat.rank], error.text, sizeof error.text);
  return NULL;
}

static void run(ranks_t *all) {
  kit_world_t *world = kit_world_create(all->count, all->delay_seed);
  pthread_t threads[MOST_RANKS];
  one_t ones[MOST_RANKS];
  for (int32_t rank = 0; rank < all->count; rank++) {
    ones[rank] = (one_t){{world, rank}, all};
    cr_assert_eq(pthread_create(&threads[rank], NULL, run_one, &ones[rank]), 0);
  }
  for (int32_t rank = 0; rank < all->count; rank++)
    pthread_join(threads[rank], NULL);
  kit_world_destroy(world);
}

static void expect_all(const ranks_t *all, skv_status_t status) {
  for (int32_t rank = 0; rank < all->count; rank++)
    cr_expect_eq(all->status[rank], status, "rank %d of %d: %s %s", (int)rank, (int)all->count,
                 skv_status_name(all->status[rank]), all->text[rank]);
}

static void expect_text(const ranks_t *all, const char *text) {
  for (int32_t rank = 0; rank < all->count; rank++)
    cr_expect_str_eq(all->text[rank], text, "rank %d: '%s', not '%s'", (int)rank, all->text[rank],
                     text);
}

/* ---- messages ---- */

static void everybody(skv__comm_t *comm, kit_world_t *world, ranks_t *all) {
  (void)world;
  all->status[comm->rank] = kit_comm_everybody(comm);
}

Test(comm, messages_arrive_whole_and_in_order) {
  for (int32_t count = 1; count <= 5; count++) {
    for (uint64_t seed = 0; seed < 4; seed++) {
      ranks_t all = {.count = count, .delay_seed = seed, .timeout_seconds = 20, .body = everybody};
      run(&all);
      expect_all(&all, SKV_OK);
    }
  }
}

Test(comm, long_messages_are_cut_and_pieces_do_not_mix) {
  static const size_t pieces[] = {13, 500, 999, 1000, 3999, 4000};
  for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
    ranks_t all = {.count = 3,
                   .delay_seed = 100 + i,
                   .timeout_seconds = 20,
                   .body = everybody,
                   .piece_bytes = pieces[i]};
    run(&all);
    expect_all(&all, SKV_OK);
  }
}

static void talk_to_argument(skv__comm_t *comm, kit_world_t *world, ranks_t *all) {
  (void)world;
  skv__request_t request;
  char byte = 0;
  all->status[comm->rank] = skv__comm_send(comm, &request, all->argument, &byte, 1, 0);
}

Test(comm, only_other_ranks_can_be_talked_to) {
  static const int peers[] = {-1, 0, 1, INT32_MAX};
  for (size_t i = 0; i < sizeof peers / sizeof *peers; i++) {
    ranks_t all = {.count = 1,
                   .delay_seed = 0,
                   .timeout_seconds = 1,
                   .body = talk_to_argument,
                   .argument = peers[i]};
    run(&all);
    expect_all(&all, SKV_INTERNAL);
  }
}

/* Rank 0 sends `argument` bytes where rank 1 expects 100. */
static void unequal(skv__comm_t *comm, kit_world_t *world, ranks_t *all) {
  (void)world;
  char data[200] = {0};
  skv__request_t request;
  size_t bytes = comm->rank == 0 ? (size_t)all->argument : 100;
  skv_status_t status = comm->rank == 0 ? skv__comm_send(comm, &request, 1, data, bytes, 0)
                                        : skv__comm_receive(comm, &request, 0, data, bytes, 0);
  if (status == SKV_OK)
    status = skv__comm_wait(comm, &request, 1, "unequal");
  all->status[comm->rank] = status;
}

Test(comm, unequal_byte_counts_are_refused) {
  static const int sent[] = {99, 101, 200};
  for (size_t i = 0; i < sizeof sent / sizeof *sent; i++) {
    ranks_t all = {
        .count = 2, .delay_seed = 0, .timeout_seconds = 5, .body = unequal, .argument = sent[i]};
    run(&all);
    cr_expect_eq(all.status[1], SKV_PEER, "%d bytes: %s", sent[i], skv_status_name(all.status[1]));
    cr_expect(strstr(all.text[1], "rank 0 sent"), "%s", all.text[1]);
  }
}

/* ---- collectives ---- */

static void collect(skv__comm_t *comm, kit_world_t *world, ranks_t *all) {
  (void)world;
  all->status[comm->rank] = kit_comm_collect(comm);
}

Test(comm, collectives) {
  for (int32_t count = 1; count <= MOST_RANKS; count++) {
    ranks_t all = {
        .count = count, .delay_seed = (uint64_t)count, .timeout_seconds = 20, .body = collect};
    run(&all);
    expect_all(&all, SKV_OK);
  }
}

/* Nobody leaves a barrier before everybody has come. */
static int barrier_arrived;
static void arrive(skv__comm_t *comm, kit_world_t *world, ranks_t *all) {
  (void)world;
  skv_status_t status = SKV_OK;
  for (int round = 1; round <= 20 && status == SKV_OK; round++) {
    usleep((useconds_t)(comm->rank * 37 % 5) * 100);
    __atomic_fetch_add(&barrier_arrived, 1, __ATOMIC_SEQ_CST);
    status = skv__comm_barrier(comm, "barrier");
    if (__atomic_load_n(&barrier_arrived, __ATOMIC_SEQ_CST) < round * comm->ranks)
      status = SKV_INTERNAL;
  }
  all->status[comm->rank] = status;
}

Test(comm, barrier_holds_everybody) {
  ranks_t all = {.count = 5, .delay_seed = 3, .timeout_seconds = 20, .body = arrive};
  run(&all);
  expect_all(&all, SKV_OK);
}

/* ---- agreement ---- */

static void agree(skv__comm_t *comm, kit_world_t *world, ranks_t *all) {
  (void)world;
  all->status[comm->rank] = kit_comm_agree(comm, (kit_difference_t)all->argument);
}

static void expect_verdict(kit_difference_t difference, skv_status_t status, const char *text) {
  for (uint64_t seed = 0; seed < 3; seed++) {
    ranks_t all = {.count = 4,
                   .delay_seed = seed,
                   .timeout_seconds = 20,
                   .body = agree,
                   .argument = (int)difference};
    run(&all);
    expect_all(&all, status);
    expect_text(&all, text);
  }
}

Test(comm, agreement) {
  expect_verdict(KIT_NONE, SKV_OK, "");
  for (int32_t count = 1; count <= 3; count++) {
    ranks_t all = {.count = count,
                   .delay_seed = 1,
                   .timeout_seconds = 20,
                   .body = agree,
                   .argument = KIT_NONE};
    run(&all);
    expect_all(&all, SKV_OK);
  }
}

Test(comm, disagreement_names_the_fact_and_two_ranks) {
  expect_verdict(KIT_VALUE, SKV_DISAGREE,
                 "ranks were given different work: 'causal' is 1 on rank 0, 0 on rank 3");
  expect_verdict(KIT_NEGATIVE, SKV_DISAGREE,
                 "ranks were given different work: 'window' is 4096 on rank 0, -1 on rank 3");
  expect_verdict(KIT_DIGEST, SKV_DISAGREE,
                 "ranks were given different work: 'file' is 0xfedcba9876543210 on rank 0, "
                 "0xfedcba9876543211 on rank 3");
  expect_verdict(KIT_NAME, SKV_DISAGREE,
                 "ranks were given different work: 'window' is 4096 on rank 0, but 'softcap' is "
                 "4096 on rank 3");
  expect_verdict(KIT_NUMBER, SKV_DISAGREE,
                 "ranks were given different work: rank 0 states 3 facts about it, rank 3 2");
}

Test(comm, failures_are_shared_the_lowest_rank_speaks) {
  expect_verdict(KIT_ONE_FAILED, SKV_IO, "rank 1: trouble on 1");
  expect_verdict(KIT_TWO_FAILED, SKV_IO, "rank 1: trouble on 1");
  expect_verdict(KIT_FAILED_AND_DIFFERENT, SKV_IO, "rank 1: trouble on 1");
}

/* ---- deadlines ---- */

/* Rank 1 waits for rank 0, which says nothing until rank 1 has given up. */
static void wait_for_silence(skv__comm_t *comm, kit_world_t *world, ranks_t *all) {
  (void)world;
  char data[1000];
  skv__request_t request, late;
  if (comm->rank == 0)
    return;
  skv_status_t status = skv__comm_receive(comm, &request, 0, data, sizeof data, 5);
  if (status == SKV_OK)
    status = skv__comm_wait(comm, &request, 1, "state exchange");
  all->status[1] = status;
  if (skv__comm_send(comm, &late, 0, data, 1, 5) != status)
    all->status[1] = SKV_INTERNAL;
}

Test(comm, a_silent_peer_is_a_timeout) {
  ranks_t all = {.count = 2, .delay_seed = 0, .timeout_seconds = 0.4, .body = wait_for_silence};
  run(&all);
  cr_expect_eq(all.status[1], SKV_TIMEOUT, "%s", skv_status_name(all.status[1]));
  cr_expect(all.seconds[1] >= 0.4 && all.seconds[1] < 1.4, "%g s", all.seconds[1]);
  cr_expect_eq(strncmp(all.text[1],
                       "rank 1: waited 0.4 s for rank 0 (receive 'state exchange', 1000 bytes); ",
                       72),
               0, "%s", all.text[1]);
}

/* Rank 0 is slow, but never silent for as long as the deadline. */
static void wait_for_drops(skv__comm_t *comm, kit_world_t *world, ranks_t *all) {
  (void)world;
  enum { DROPS = 8 };
  char data[DROPS] = {0};
  skv__request_t requests[DROPS];
  skv_status_t status = SKV_OK;
  for (int i = 0; i < DROPS; i++) {
    if (comm->rank == 0)
      usleep(100000);
    status |= comm->rank == 0 ? skv__comm_send(comm, &requests[i], 1, &data[i], 1, 0)
                              : skv__comm_receive(comm, &requests[i], 0, &data[i], 1, 0);
  }
  all->status[comm->rank] = status ? status : skv__comm_wait(comm, requests, DROPS, "drops");
}

Test(comm, deadlines_count_from_the_last_arrival) {
  ranks_t all = {.count = 2, .delay_seed = 0, .timeout_seconds = 0.4, .body = wait_for_drops};
  run(&all);
  expect_all(&all, SKV_OK);
}

/* Rank 0 waits for rank 1, which waits for rank 2, which works for `argument` deadlines, or stops
 * half way when argument is negative. */
static void wait_for_work(skv__comm_t *comm, kit_world_t *world, ranks_t *all) {
  unsigned char byte = 0;
  double work = all->timeout_seconds * abs(all->argument), begin = skv__comm_now();
  skv__request_t request;
  skv_status_t status = SKV_OK;
  if (comm->rank < 2) {
    status = skv__comm_receive(comm, &request, comm->rank + 1, &byte, 1, 7);
    if (status == SKV_OK)
      status = skv__comm_wait(comm, &request, 1, "work");
  }
  while (comm->rank == 2 && skv__comm_now() - begin < work) {
    if (all->argument < 0 && skv__comm_now() - begin > work / 2)
      kit_world_mute(world, 2);
    skv__comm_pulse(comm);
    usleep(1000);
  }
  if (comm->rank > 0 && status == SKV_OK) {
    status = skv__comm_send(comm, &request, comm->rank - 1, &byte, 1, 7);
    if (status == SKV_OK)
      status = skv__comm_wait(comm, &request, 1, "work");
  }
  all->status[comm->rank] = status;
}

Test(comm, work_that_is_longer_than_the_deadline_does_not_trip_it) {
  ranks_t all = {.count = 3, .timeout_seconds = 0.5, .body = wait_for_work, .argument = 4};
  run(&all);
  for (int32_t rank = 0; rank < 3; rank++)
    cr_expect_eq(all.status[rank], SKV_OK, "rank %d: %s", (int)rank, all.text[rank]);
}

Test(comm, work_that_stops_is_a_timeout) {
  ranks_t all = {.count = 3, .timeout_seconds = 0.5, .body = wait_for_work, .argument = -8};
  run(&all);
  for (int32_t rank = 0; rank < 2; rank++) {
    cr_expect_eq(all.status[rank], SKV_TIMEOUT, "rank %d", (int)rank);
    cr_expect(all.seconds[rank] > 2 && all.seconds[rank] < 4, "rank %d took %g s", (int)rank,
              all.seconds[rank]);
  }
}

/* The muted rank is waited for by rank 0, in whatever collective. */
static void lose_a_rank(skv__comm_t *comm, kit_world_t *world, ranks_t *all) {
  if (comm->rank == 2)
    kit_world_mute(world, 2);
  skv__fact_t fact = {"causal", 1};
  uint64_t value = 1;
  all->status[comm->rank] = all->argument == 0 ? skv__comm_agree(comm, &fact, 1, SKV_OK, NULL)
                                               : skv__comm_sum(comm, &value, 1, "digest");
}

Test(comm, a_lost_rank_ends_collectives_in_time) {
  for (int argument = 0; argument < 2; argument++) {
    ranks_t all = {.count = 4,
                   .delay_seed = 0,
                   .timeout_seconds = 0.3,
                   .body = lose_a_rank,
                   .argument = argument};
    run(&all);
    expect_all(&all, SKV_TIMEOUT);
    for (int32_t rank = 0; rank < all.count; rank++)
      cr_expect(rank == 2 || strstr(all.text[rank], "; rank 2 has died"), "%s", all.text[rank]);
    for (int32_t rank = 0; rank < all.count; rank++)
      cr_expect(all.seconds[rank] < 1.3, "rank %d: %g s", (int)rank, all.seconds[rank]);
  }
}

/* ---- a transport that fails ---- */

typedef struct failing {
  const skv__transport_t *real;
  void *impl;
  int calls, fail_at, cancelled;
} failing_t;

static skv_status_t failing_start(void *impl, skv__request_t *request, size_t offset, size_t bytes,
                                  skv__error_t *error) {
  failing_t *failing = impl;
  if (++failing->calls == failing->fail_at)
    return skv__fail(error, SKV_TRANSPORT, "start failed on purpose");
  return failing->real->start(failing->impl, request, offset, bytes, error);
}
static skv_status_t failing_test(void *impl, skv__request_t *request, bool *done,
                                 skv__error_t *error) {
  failing_t *failing = impl;
  if (++failing->calls == failing->fail_at)
    return skv__fail(error, SKV_TRANSPORT, "test failed on purpose");
  return failing->real->test(failing->impl, request, done, error);
}
static void failing_cancel(void *impl, skv__request_t *request) {
  failing_t *failing = impl;
  failing->cancelled++;
  failing->real->cancel(failing->impl, request);
}

/* Rank 1's n-th call of the transport fails: everybody ends, with an error somewhere, or nobody. */
static void fail_once(skv__comm_t *comm, kit_world_t *world, ranks_t *all) {
  const skv__transport_t *real = comm->transport;
  failing_t failing = {real, comm->impl, .fail_at = all->argument};
  skv__transport_t transport = *real;
  transport.start = failing_start;
  transport.test = failing_test;
  transport.cancel = failing_cancel;
  if (comm->rank == 1) {
    comm->transport = &transport;
    comm->impl = &failing;
  }
  (void)world;
  all->status[comm->rank] = skv__comm_barrier(comm, "barrier");
  if (comm->rank == 1) {
    if (all->status[1] != SKV_OK && (!comm->broken || comm->first))
      all->status[1] = SKV_INTERNAL;
    skv__comm_break(comm);
    comm->transport = real;
    comm->impl = failing.impl;
    if (failing.calls < failing.fail_at)
      all->argument = 0;
  }
}

Test(comm, the_nth_call_fails) {
  int point = 0;
  for (bool reached = true; reached; point++) {
    ranks_t all = {.count = 3,
                   .delay_seed = 0,
                   .timeout_seconds = 0.2,
                   .body = fail_once,
                   .argument = point + 1};
    run(&all);
    reached = all.argument != 0;
    if (reached)
      cr_expect_eq(all.status[1], SKV_TRANSPORT, "call %d: %s", point,
                   skv_status_name(all.status[1]));
    else
      expect_all(&all, SKV_OK);
    for (int32_t rank = 0; rank < all.count; rank++)
      cr_expect(all.seconds[rank] < 1.2, "call %d, rank %d: %g s", point, (int)rank,
                all.seconds[rank]);
  }
  cr_expect_geq(point, 4); /* two starts and two tests at least */
}
