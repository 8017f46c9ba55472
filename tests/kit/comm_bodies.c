#include "comm_bodies.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 8, MESSAGES = 24, TAGS = 2, LONGEST = 4000 };

static size_t message_bytes(int number) {
  static const size_t sizes[] = {0, 1, 37, LONGEST, 64, 999, 1000, 1001};
  return sizes[number % 8];
}

static void fill(unsigned char *data, size_t bytes, int32_t from, int32_t to, int number) {
  for (size_t i = 0; i < bytes; i++)
    data[i] = (unsigned char)(i * 7 + i / 251 + (size_t)from * 31 + (size_t)to * 17 +
                              (size_t)number * 101);
}

typedef struct traffic {
  skv__request_t requests[2 * MESSAGES * (MOST_RANKS - 1)];
  unsigned char sent[MOST_RANKS][MESSAGES][LONGEST], received[MOST_RANKS][MESSAGES][LONGEST];
} traffic_t;

skv_status_t kit_comm_everybody(skv__comm_t *comm) {
  traffic_t *traffic = calloc(1, sizeof *traffic);
  size_t count = 0;
  skv_status_t status = SKV_OK;
  for (int number = 0; number < MESSAGES; number++) {
    for (int32_t peer = 0; peer < comm->ranks; peer++) {
      if (peer == comm->rank)
        continue;
      size_t bytes = message_bytes(number);
      fill(traffic->sent[peer][number], bytes, comm->rank, peer, number);
      status |= skv__comm_receive(comm, &traffic->requests[count++], peer,
                                  traffic->received[peer][number], bytes, number % TAGS);
      status |= skv__comm_send(comm, &traffic->requests[count++], peer, traffic->sent[peer][number],
                               bytes, number % TAGS);
    }
  }
  /* In reverse, so that a long message has to be moved on by the test of a later one. */
  while (status == SKV_OK && count > 0)
    status = skv__comm_wait(comm, &traffic->requests[--count], 1, "everything");
  for (int32_t peer = 0; status == SKV_OK && peer < comm->ranks; peer++) {
    for (int number = 0; peer != comm->rank && number < MESSAGES; number++) {
      unsigned char want[LONGEST];
      fill(want, message_bytes(number), peer, comm->rank, number);
      if (memcmp(want, traffic->received[peer][number], message_bytes(number)))
        status = SKV_INTERNAL;
    }
  }
  free(traffic);
  return status;
}

skv_status_t kit_comm_collect(skv__comm_t *comm) {
  enum { COUNT = 150 }; /* more than one part */
  uint64_t ranks = (uint64_t)comm->ranks, values[COUNT], mine[2], gathered[2 * MOST_RANKS] = {0};
  for (uint64_t i = 0; i < COUNT; i++)
    values[i] = UINT64_MAX - i + (uint64_t)comm->rank; /* wraps */
  skv_status_t status = skv__comm_barrier(comm, "barrier");
  status |= skv__comm_sum(comm, values, COUNT, "sum");
  for (uint64_t i = 0; i < COUNT; i++)
    if (status == SKV_OK && values[i] != ranks * (UINT64_MAX - i) + ranks * (ranks - 1) / 2)
      status |= SKV_INTERNAL;
  mine[0] = 1000 + (uint64_t)comm->rank;
  mine[1] = 7;
  status |= skv__comm_gather(comm, mine, sizeof mine, gathered, "gather");
  status |= skv__comm_gather(comm, mine, 0, NULL, "gather of nothing");
  for (uint64_t rank = 0; status == SKV_OK && comm->rank == 0 && rank < ranks; rank++)
    if (gathered[2 * rank] != 1000 + rank || gathered[2 * rank + 1] != 7)
      status |= SKV_INTERNAL;
  status |= skv__comm_broadcast(comm, mine, sizeof mine, "broadcast");
  status |= skv__comm_broadcast(comm, mine, 0, "broadcast of nothing");
  if (status == SKV_OK && mine[0] != 1000)
    status |= SKV_INTERNAL;
  return status;
}

skv_status_t kit_comm_agree(skv__comm_t *comm, kit_difference_t difference) {
  skv__fact_t facts[3] = {{"causal", 1}, {"window", 4096}, {"file", 0xfedcba9876543210u}};
  size_t count = 3;
  skv_status_t failed = SKV_OK;
  char text[40] = "";
  if (comm->rank == comm->ranks - 1) {
    if (difference == KIT_VALUE || difference == KIT_FAILED_AND_DIFFERENT)
      facts[0].value = 0;
    if (difference == KIT_NEGATIVE)
      facts[1].value = (uint64_t)-1;
    if (difference == KIT_DIGEST)
      facts[2].value++;
    if (difference == KIT_NAME)
      strcpy(facts[1].name, "softcap");
    if (difference == KIT_NUMBER)
      count = 2;
    if (difference == KIT_TWO_FAILED)
      failed = SKV_MEMORY;
  }
  if (comm->rank == 1 && difference >= KIT_ONE_FAILED)
    failed = SKV_IO;
  snprintf(text, sizeof text, "trouble on %d", (int)comm->rank);
  skv_status_t status = skv__comm_agree(comm, facts, count, failed, text);
  if (comm->broken)
    return status;
  skv__error_t kept = *comm->error;
  if (skv__comm_barrier(comm, "still usable") != SKV_OK)
    return SKV_INTERNAL;
  *comm->error = kept;
  return status;
}
