/* agree.c: all ranks have the same facts, or all end with one status and one text.
 *
 * Every rank sends rank 0 a card of fixed size (status, number of facts, their digest), so ranks
 * with different numbers of facts, or none because they failed, still understand each other. Facts
 * travel only when digests differ, to name what differs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "comm/comm.h"

static const char operation[] = "agreement on the work";

typedef struct card {
  int32_t status, unused;
  uint64_t count, digest;
  char text[1024];
} card_t;

typedef struct verdict {
  int32_t status, wants_facts;
  char text[1024];
} verdict_t;

/* Small values, negative ones included, in decimal; digests in hexadecimal. */
static const char *fact_text(uint64_t value, char text[24]) {
  int64_t number = (int64_t)value;
  bool small = number > -(INT64_C(1) << 53) && number < (INT64_C(1) << 53);
  snprintf(text, 24, small ? "%lld" : "%#llx", (long long)number);
  return text;
}

/* Verdict on the cards; wants_facts when only their digests differ. */
static verdict_t judge_cards(const card_t *cards, int32_t ranks) {
  verdict_t verdict = {.status = SKV_OK};
  for (int32_t rank = 0; rank < ranks; rank++) {
    if (cards[rank].status == SKV_OK)
      continue;
    verdict.status = cards[rank].status;
    if (ranks == 1)
      snprintf(verdict.text, sizeof verdict.text, "%.1000s", cards[rank].text);
    else
      snprintf(verdict.text, sizeof verdict.text, "rank %d: %.1000s", (int)rank, cards[rank].text);
    return verdict;
  }
  for (int32_t rank = 1; rank < ranks; rank++) {
    if (cards[rank].count != cards[0].count) {
      verdict.status = SKV_DISAGREE;
      snprintf(verdict.text, sizeof verdict.text,
               "ranks were given different work: rank 0 states %llu facts about it, rank %d %llu",
               (unsigned long long)cards[0].count, (int)rank,
               (unsigned long long)cards[rank].count);
      return verdict;
    }
    if (cards[rank].digest != cards[0].digest)
      verdict.wants_facts = 1;
  }
  return verdict;
}

/* Verdict on [ranks][count] facts that are known to differ somewhere. */
static verdict_t judge_facts(const skv__fact_t *facts, int32_t ranks, size_t count) {
  verdict_t verdict = {.status = SKV_DISAGREE};
  for (size_t i = 0; i < count; i++) {
    for (int32_t rank = 1; rank < ranks; rank++) {
      const skv__fact_t *mine = &facts[i], *theirs = &facts[(size_t)rank * count + i];
      char my_value[24], their_value[24];
      if (!memcmp(mine, theirs, sizeof *mine))
        continue;
      bool same_name = !memcmp(mine->name, theirs->name, sizeof mine->name);
      snprintf(verdict.text, sizeof verdict.text,
               "ranks were given different work: '%.24s' is %s on rank 0, %s%.24s%s%s on rank %d",
               mine->name, fact_text(mine->value, my_value), same_name ? "" : "but '",
               same_name ? "" : theirs->name, same_name ? "" : "' is ",
               fact_text(theirs->value, their_value), (int)rank);
      return verdict;
    }
  }
  return verdict;
}

static skv_status_t exchange_cards(skv__comm_t *comm, const card_t *card, verdict_t *verdict) {
  card_t *cards = NULL;
  if (comm->rank == 0 && !(cards = calloc((size_t)comm->ranks, sizeof *cards)))
    return skv__fail(comm->error, SKV_MEMORY, "no memory to compare the work of %d ranks",
                     (int)comm->ranks);
  skv_status_t status = skv__comm_gather(comm, card, sizeof *card, cards, operation);
  if (status == SKV_OK && comm->rank == 0)
    *verdict = judge_cards(cards, comm->ranks);
  free(cards);
  SKV_TRY(status);
  return skv__comm_broadcast(comm, verdict, sizeof *verdict, operation);
}

static skv_status_t exchange_facts(skv__comm_t *comm, const skv__fact_t *facts, size_t count,
                                   verdict_t *verdict) {
  skv__fact_t *all = NULL;
  if (comm->rank == 0 && !(all = calloc((size_t)comm->ranks * count, sizeof *all)))
    return skv__fail(comm->error, SKV_MEMORY, "no memory to compare the work of %d ranks",
                     (int)comm->ranks);
  skv_status_t status = skv__comm_gather(comm, facts, count * sizeof *facts, all, operation);
  if (status == SKV_OK && comm->rank == 0)
    *verdict = judge_facts(all, comm->ranks, count);
  free(all);
  SKV_TRY(status);
  return skv__comm_broadcast(comm, verdict, sizeof *verdict, operation);
}

skv_status_t skv__comm_agree(skv__comm_t *comm, const skv__fact_t *facts, size_t count,
                             skv_status_t status, const char *text) {
  card_t card = {
      .status = (int32_t)status, .count = count, .digest = XXH64(facts, count * sizeof *facts, 0)};
  snprintf(card.text, sizeof card.text, "%s", text ? text : skv_status_text(status));
  verdict_t verdict = {.status = SKV_OK};
  SKV_TRY(exchange_cards(comm, &card, &verdict));
  if (verdict.wants_facts)
    SKV_TRY(exchange_facts(comm, facts, count, &verdict));
  if (verdict.status == SKV_OK)
    return SKV_OK;
  if (comm->error)
    skv__error_clear(comm->error); /* this rank's own failure gives way to the common one */
  return skv__fail(comm->error, (skv_status_t)verdict.status, "%s", verdict.text);
}
