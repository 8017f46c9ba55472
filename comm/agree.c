/* agree.c: all ranks have the same facts, or all end with one status and one text.
 *
 * Every rank sends rank 0 a card of fixed size, so ranks with different numbers of facts, or none
 * because they failed, still understand each other. Rank 0 answers with its ruling. That is all
 * when ranks agree; else a text is made of what the ruling asks for. Nothing is allocated, so ranks
 * that ran out of memory can say so.
 */
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "comm/comm.h"

static const char operation[] = "agreement on the work";
enum { TAG_TEXT = SKV__TAG_MAX + 4 };

typedef enum kind { AGREED, FAILED, COUNTS_DIFFER, FACTS_DIFFER } kind_t;

typedef struct ruling {
  uint32_t kind, status;
  int32_t rank; /* the lowest that failed, or whose count or facts differ from rank 0's */
} ruling_t;

typedef struct verdict {
  uint64_t status;
  char text[sizeof((skv__error_t *)0)->text];
} verdict_t;

/* Small values, negative ones included, in decimal; digests in hexadecimal. */
static const char *fact_text(uint64_t value, char text[24]) {
  int64_t number = (int64_t)value;
  bool small = number > -(INT64_C(1) << 53) && number < (INT64_C(1) << 53);
  snprintf(text, 24, small ? "%lld" : "%#llx", (long long)number);
  return text;
}

static ruling_t judge(const skv__card_t *cards, int32_t ranks) {
  for (int32_t rank = 0; rank < ranks; rank++)
    if (cards[rank].status != SKV_OK)
      return (ruling_t){FAILED, (uint32_t)cards[rank].status, rank};
  for (int32_t rank = 1; rank < ranks; rank++) {
    if (cards[rank].count != cards[0].count)
      return (ruling_t){COUNTS_DIFFER, SKV_DISAGREE, rank};
    if (cards[rank].digest != cards[0].digest)
      return (ruling_t){FACTS_DIFFER, SKV_DISAGREE, rank};
  }
  return (ruling_t){AGREED, SKV_OK, 0};
}

/* The text of the rank that failed. */
static skv_status_t tell_failure(skv__comm_t *comm, const ruling_t *ruling, const char *text,
                                 verdict_t *verdict) {
  char told[sizeof verdict->text] = "";
  skv__request_t request;
  if (comm->rank == ruling->rank)
    snprintf(told, sizeof told, "%s", text ? text : skv_status_text((skv_status_t)ruling->status));
  if (ruling->rank != 0 && comm->rank == ruling->rank) {
    SKV_TRY(skv__comm_send(comm, &request, 0, told, sizeof told, TAG_TEXT));
    return skv__comm_wait(comm, &request, 1, operation);
  }
  if (ruling->rank != 0 && comm->rank == 0) {
    SKV_TRY(skv__comm_receive(comm, &request, ruling->rank, told, sizeof told, TAG_TEXT));
    SKV_TRY(skv__comm_wait(comm, &request, 1, operation));
  }
  if (comm->ranks == 1)
    snprintf(verdict->text, sizeof verdict->text, "%s", told);
  else
    snprintf(verdict->text, sizeof verdict->text, "rank %d: %.1000s", (int)ruling->rank, told);
  return SKV_OK;
}

static void tell_counts(const skv__comm_t *comm, const ruling_t *ruling, verdict_t *verdict) {
  if (comm->rank == 0)
    snprintf(verdict->text, sizeof verdict->text,
             "ranks were given different work: rank 0 states %llu facts about it, rank %d %llu",
             (unsigned long long)comm->cards[0].count, (int)ruling->rank,
             (unsigned long long)comm->cards[ruling->rank].count);
}

static void tell_fact(const skv__fact_t *mine, const skv__fact_t *theirs, int32_t rank,
                      verdict_t *verdict) {
  char my_value[24], their_value[24];
  bool same_name = !memcmp(mine->name, theirs->name, sizeof mine->name);
  snprintf(verdict->text, sizeof verdict->text,
           "ranks were given different work: '%.24s' is %s on rank 0, %s%.24s%s%s on rank %d",
           mine->name, fact_text(mine->value, my_value), same_name ? "" : "but '",
           same_name ? "" : theirs->name, same_name ? "" : "' is ",
           fact_text(theirs->value, their_value), (int)rank);
}

/* The first fact of the ruling's rank that differs from rank 0's. They come one by one. */
static skv_status_t tell_facts(skv__comm_t *comm, const ruling_t *ruling, const skv__fact_t *facts,
                               size_t count, verdict_t *verdict) {
  for (size_t i = 0; i < count; i++) {
    skv__fact_t theirs = facts[i];
    skv__request_t request;
    if (comm->rank == ruling->rank)
      SKV_TRY(skv__comm_send(comm, &request, 0, &theirs, sizeof theirs, TAG_TEXT));
    else if (comm->rank == 0)
      SKV_TRY(skv__comm_receive(comm, &request, ruling->rank, &theirs, sizeof theirs, TAG_TEXT));
    else
      break;
    SKV_TRY(skv__comm_wait(comm, &request, 1, operation));
    if (memcmp(&facts[i], &theirs, sizeof theirs) && verdict->text[0] == '\0')
      tell_fact(&facts[i], &theirs, ruling->rank, verdict);
  }
  return SKV_OK;
}

skv_status_t skv__comm_agree(skv__comm_t *comm, const skv__fact_t *facts, size_t count,
                             skv_status_t status, const char *text) {
  skv__card_t card = {(uint64_t)status, count, XXH64(facts, count * sizeof *facts, 0)};
  ruling_t ruling = {0};
  SKV_TRY(skv__comm_gather(comm, &card, sizeof card, comm->cards, operation));
  if (comm->rank == 0)
    ruling = judge(comm->cards, comm->ranks);
  SKV_TRY(skv__comm_broadcast(comm, &ruling, sizeof ruling, operation));
  if (ruling.kind == AGREED)
    return SKV_OK;
  verdict_t verdict = {.status = ruling.status};
  if (ruling.kind == FAILED)
    SKV_TRY(tell_failure(comm, &ruling, text, &verdict));
  else if (ruling.kind == FACTS_DIFFER)
    SKV_TRY(tell_facts(comm, &ruling, facts, count, &verdict));
  else
    tell_counts(comm, &ruling, &verdict);
  SKV_TRY(skv__comm_broadcast(comm, &verdict, sizeof verdict, operation));
  if (comm->error)
    skv__error_clear(comm->error); /* this rank's own failure gives way to the common one */
  return skv__fail(comm->error, (skv_status_t)verdict.status, "%s", verdict.text);
}
