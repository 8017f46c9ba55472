/* direct.c: see direct.h. Where another rank's states lie follows from what every rank knows: banks
 * begin empty, and slots are taken in the order of nodes, and of the slices that have rows. */
#include "direct.h"

/* Results for ranks that are not the rows' owners are merged anew by each of them; from so many
 * rows on, with three ranks and more, it is less to send the owners' roots. */
enum { MOST_ROWS_TO_ALL = 2048 };

bool skv__direct_cast(skv__direct_path_t *path, skv__node_t *const *work, const int32_t *counts) {
  int32_t next[SKV__WINDOW_RANKS] = {0};
  if (path->ranks > SKV__WINDOW_RANKS)
    return false;
  for (path->node_count = 0;; path->node_count++) {
    int32_t first = -1;
    for (int32_t rank = 0; rank < path->ranks; rank++)
      if (next[rank] < counts[rank] &&
          (first < 0 || work[rank][next[rank]].begin < work[first][next[first]].begin))
        first = rank;
    if (first < 0)
      return true;
    if (path->node_count == SKV__REDUCE_NODES)
      return false;
    path->nodes[path->node_count] =
        (skv__direct_node_t){work[first][next[first]], first, next[first]};
    next[first]++;
  }
}

/* ---- what is wanted ---- */

static bool wants(const skv__direct_path_t *path, int32_t slice) {
  return path->results == SKV_RESULTS_ALL ||
         path->rank == (path->results == SKV_RESULTS_ROOT ? 0 : slice);
}

/* Rows that the busiest rank reduces. */
static int64_t most_rows(const skv__direct_path_t *path, const skv__bank_t *bank) {
  int64_t all = 0, most = 0;
  for (int32_t slice = 0; slice < path->ranks; slice++) {
    all += bank->slice_rows[slice];
    most = bank->slice_rows[slice] > most ? bank->slice_rows[slice] : most;
  }
  return path->results == SKV_RESULTS_OWNER ? most : all;
}

bool skv__direct_takes(const skv__direct_path_t *path, const skv__bank_t *bank,
                       const skv__finish_t *finish) {
  if (!path->calls || bank->used_blocks == 0)
    return false;
  if (path->results != SKV_RESULTS_OWNER && path->ranks > 2 &&
      most_rows(path, bank) > MOST_ROWS_TO_ALL)
    return false;
  return path->calls->finishes(&bank->job, finish);
}

/* ---- the order ---- */

static void note_fold(void *user, skv__held_t left, skv__held_t right) {
  skv__reduce_t *reduce = user;
  if (right.slot != SKV__NO_SLOT) /* EMPTY changes no bit */
    reduce->folds[reduce->nodes++] = (skv__fold_t){(uint8_t)left.slot, (uint8_t)right.slot};
}

/* The nodes in ascending order, through a pending set. Those past the keys come last: they are
 * EMPTY and were not stored. */
static void order_folds(const skv__direct_path_t *path, const skv__bank_t *bank,
                        skv__reduce_t *reduce) {
  skv__held_t held[SKV__REDUCE_NODES + 1];
  skv__pending_t set = {.blocks = path->blocks, .capacity = SKV__REDUCE_NODES + 1, .held = held};
  int32_t stored = 0;
  reduce->nodes = 0;
  for (int32_t n = 0; n < path->node_count; n++) {
    bool here = path->nodes[n].node.begin < bank->used_blocks;
    skv__pending_insert(&set, path->nodes[n].node, here ? n : SKV__NO_SLOT, note_fold, reduce);
    stored += here;
  }
  reduce->nodes = stored;
}

/* ---- the states ---- */

static const float *state_of(const skv__direct_path_t *path, const skv__bank_t *bank, int32_t n,
                             int32_t slice) {
  const skv__direct_node_t *node = &path->nodes[n];
  int64_t filled = 0, before = 0;
  for (int32_t s = 0; s < path->ranks; s++) {
    filled += bank->slice_rows[s] > 0;
    before += s < slice && bank->slice_rows[s] > 0;
  }
  int64_t bank_at = bank->memory - path->window->memory[path->rank];
  unsigned char *memory = path->window->memory[node->rank] + bank_at;
  return (const float *)(const void *)(memory + (node->index * filled + before) * bank->slot_bytes);
}

static void add_part(const skv__direct_path_t *path, const skv__bank_t *bank, int32_t slice,
                     skv__reduce_t *reduce) {
  skv__reduce_part_t *part = &reduce->part[reduce->parts++];
  *part = (skv__reduce_part_t){.owner = slice,
                               .rows = bank->slice_rows[slice],
                               .writes = wants(path, slice),
                               .counts = slice == path->rank};
  for (int32_t n = 0; n < reduce->nodes; n++)
    part->states[n] = state_of(path, bank, n, slice);
}

skv_status_t skv__direct_reduce(const skv__direct_path_t *path, skv__bank_t *bank,
                                const skv__finish_t *finish, skv__error_t *error) {
  skv__reduce_t reduce = {.value_head_dim = bank->job.value_head_dim,
                          .most_rows = most_rows(path, bank)};
  order_folds(path, bank, &reduce);
  for (int32_t slice = 0; slice < path->ranks; slice++)
    if (bank->slice_rows[slice] && (wants(path, slice) || slice == path->rank))
      add_part(path, bank, slice, &reduce);
  for (int32_t slice = 0; slice < path->ranks; slice++)
    bank->sets[slice].count = 0;
  skv_status_t status =
      path->calls->reduce(path->window, &reduce, &bank->job, finish, bank->stream);
  return status == SKV_OK
             ? SKV_OK
             : skv__fail(error, status, "the kernel that reduces between GPUs was not launched");
}
