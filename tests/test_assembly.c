/* test_assembly.c: pass-KV on devices: parts of all shards cover the keys of every sequence, each
 * once, where the kernels look for them; and what travels is counted. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "assembly.h"
#include "kernels/convert.h"

enum { BLOCK = 64, BATCH = 3 };

static skv_problem_t problem_of(int64_t capacity, int64_t kv_heads) {
  skv_problem_t problem;
  skv_problem_init(&problem, sizeof problem, 2 * kv_heads, kv_heads, 24);
  problem.value_head_dim = 40;
  problem.batch = BATCH;
  problem.kv_capacity_tokens = capacity;
  problem.leaf_tokens = problem.block_tokens = BLOCK;
  return problem;
}

static skv__assembly_t open_assembly(const skv_problem_t *problem, skv__shard_t *shard,
                                     skv_reduce_t reduce, int32_t rank, int64_t target_bytes) {
  skv__error_t error = {0};
  skv__assembly_t assembly = {
      .problem = problem, .reduce = reduce, .rank = rank, .ranks = shard->ranks};
  cr_assert_eq(skv__assembly_open(&assembly, shard, target_bytes, false, &error), SKV_OK);
  return assembly;
}

static skv__shard_t shard_of(const skv_problem_t *problem, int32_t ranks, int layout) {
  skv__shard_t shard = {.blocks = (problem->kv_capacity_tokens + BLOCK - 1) / BLOCK,
                        .ranks = ranks,
                        .layout = {(skv_layout_kind_t)layout, 2}};
  return shard;
}

/* Marks the tokens of a part in `seen` [batch][capacity] of its tensor, through its address. */
static void mark_part(const skv__assembly_t *assembly, int64_t group, const skv__part_t *part,
                      char *seen) {
  static unsigned char buffer[1];
  const skv_problem_t *p = assembly->problem;
  skv_tensor_t k, v;
  skv__assembly_tensors(assembly, group, buffer, &k, &v);
  const skv_tensor_t *tensor = part->values ? &v : &k;
  int64_t item = skv__dtype_bytes(p->dtype), token_bytes = tensor->stride[1] * item;
  int64_t offset = part->offset - ((unsigned char *)tensor->data - buffer);
  cr_assert_eq(part->bytes, (part->end - part->begin) * token_bytes);
  cr_assert(part->offset + part->bytes <= assembly->buffer_bytes);
  for (int64_t i = 0; i < part->bytes / token_bytes; i++) {
    int64_t token = offset / token_bytes + i;
    cr_assert_eq(offset % token_bytes, 0);
    cr_assert_eq(token, part->sequence * p->kv_capacity_tokens + part->begin + i);
    seen[token]++;
  }
}

static void expect_cover(const skv__assembly_t *assembly, int64_t group, const int64_t *k_tokens) {
  const skv_problem_t *p = assembly->problem;
  char *seen[2];
  for (int values = 0; values < 2; values++)
    seen[values] = calloc((size_t)(p->batch * p->kv_capacity_tokens) + 1, 1);
  for (int32_t source = 0; source < assembly->ranks; source++)
    for (int64_t i = 0; i < skv__assembly_message_count(assembly, source); i++) {
      skv__part_t part = skv__assembly_part(assembly, group, source, i, k_tokens);
      mark_part(assembly, group, &part, seen[part.values]);
    }
  for (int values = 0; values < 2; values++) {
    for (int64_t s = 0; s < p->batch; s++)
      for (int64_t t = 0; t < p->kv_capacity_tokens; t++)
        cr_assert_eq(seen[values][s * p->kv_capacity_tokens + t], t < k_tokens[s],
                     "sequence %d token %d", (int)s, (int)t);
    free(seen[values]);
  }
}

Test(assembly, parts_cover_the_keys_once) {
  static const int64_t capacities[] = {0, 40, 64, 1000, 1024}, targets[] = {1, INT64_C(1) << 30};
  for (size_t c = 0; c < sizeof capacities / sizeof *capacities; c++)
    for (int32_t ranks = 1; ranks <= 7; ranks++)
      for (int layout = SKV_CONTIGUOUS; layout <= SKV_BLOCKS; layout++) {
        skv_problem_t problem = problem_of(capacities[c], 9);
        int64_t k_tokens[BATCH] = {capacities[c], capacities[c] / 3, 0};
        skv__shard_t shard = shard_of(&problem, ranks, layout);
        skv__assembly_t assembly =
            open_assembly(&problem, &shard, SKV_GATHER, 0, targets[ranks % 2]);
        expect_cover(&assembly, 0, k_tokens);
        expect_cover(&assembly, assembly.groups - 1, k_tokens);
        skv__assembly_close(&assembly);
      }
}

/* A shard's tokens lie one interval after the other where its rank holds them. */
Test(assembly, parts_are_found_among_held_tokens) {
  skv_problem_t problem = problem_of(1000, 2);
  const int64_t k_tokens[BATCH] = {1000, 1000, 1000};
  for (int layout = SKV_CONTIGUOUS; layout <= SKV_BLOCKS; layout++) {
    skv__shard_t shard = shard_of(&problem, 3, layout);
    skv__assembly_t assembly = open_assembly(&problem, &shard, SKV_RING, 1, 1);
    for (int32_t source = 0; source < 3; source++) {
      int64_t held = 0;
      for (int64_t i = 0; i < skv__assembly_message_count(&assembly, source) / BATCH; i += 2) {
        skv__part_t part = skv__assembly_part(&assembly, 0, source, i, k_tokens);
        cr_expect_eq(part.held, held);
        held += part.end - part.begin;
      }
    }
    skv__assembly_close(&assembly);
  }
}

Test(assembly, groups_hide_their_travel_and_fit) {
  static const struct {
    int64_t kv_heads, target_heads, heads, groups;
    int32_t buffers;
  } cases[] = {{8, 100, 2, 4, 3}, {8, 1, 1, 8, 3},    {1, 100, 1, 1, 1}, {2, 100, 1, 2, 2},
               {9, 100, 2, 5, 3}, {32, 100, 8, 4, 3}, {32, 5, 5, 7, 3}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    skv_problem_t problem = problem_of(1024, cases[i].kv_heads);
    skv__shard_t shard = shard_of(&problem, 2, SKV_ZIGZAG);
    int64_t head_bytes = BATCH * 1024 * (24 + 40) * 4;
    skv__assembly_t assembly =
        open_assembly(&problem, &shard, SKV_RING, 0, 3 * cases[i].target_heads * head_bytes);
    cr_expect_eq(assembly.heads, cases[i].heads);
    cr_expect_eq(assembly.groups, cases[i].groups);
    cr_expect_eq(assembly.buffers, cases[i].buffers);
    cr_expect(skv__assembly_bytes(&assembly) <=
              cases[i].buffers * (cases[i].heads * head_bytes + 512));
    cr_expect_eq(skv__assembly_heads(&assembly, assembly.groups - 1).end, cases[i].kv_heads);
    skv__assembly_close(&assembly);
  }
}

Test(assembly, what_travels_is_counted) {
  skv_problem_t problem = problem_of(1000, 2);
  const double token_bytes = 2 * (24 + 40) * 4;
  for (int reduce = 0; reduce < 2; reduce++) {
    double all = 0;
    skv__shard_t shard = shard_of(&problem, 5, SKV_CONTIGUOUS);
    for (int32_t rank = 0; rank < 5; rank++) {
      skv__assembly_t assembly =
          open_assembly(&problem, &shard, reduce ? SKV_RING : SKV_GATHER, rank, 1);
      all += skv__assembly_sent_bytes(&assembly);
      skv__assembly_close(&assembly);
    }
    cr_expect_eq(all, 4 * 1000 * BATCH * token_bytes); /* every token to four others */
  }
}
