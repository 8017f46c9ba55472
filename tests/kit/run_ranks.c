/* run_ranks.c: one body on several ranks that are threads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm_threads.h"
#include "context.h"
#include "kit.h"

typedef struct seated {
  kit_seat_t seat;
  skv_context_options_t options;
  kit_rank_body_t body;
  void *user;
  int result;
} seated_t;

static void *run_rank(void *argument) {
  seated_t *seated = argument;
  skv_context_t *context;
  skv_status_t status =
      skv__context_create(&context, kit_world_open, &seated->seat, NULL, &seated->options);
  if (status == SKV_OK) {
    seated->result = seated->body(seated->seat.rank, context, seated->user);
  } else {
    fprintf(stderr, "kit: no context: %s\n", skv_context_error(context));
    seated->result = 1000 + (int)status;
  }
  skv_context_destroy(context);
  return NULL;
}

int kit_run_ranks(int32_t ranks, int32_t threads, const char *kernel, uint64_t delay_seed,
                  kit_rank_body_t body, void *user) {
  kit_world_t *world = kit_world_create(ranks, delay_seed);
  seated_t *seated = calloc((size_t)ranks, sizeof *seated);
  pthread_t *running = calloc((size_t)ranks, sizeof *running);
  for (int32_t rank = 0; rank < ranks; rank++) {
    seated[rank] = (seated_t){
        .seat = {world, rank},
        .options = {.struct_bytes = sizeof seated->options, .threads = threads, .kernel = kernel},
        .body = body,
        .user = user};
    if (pthread_create(&running[rank], NULL, run_rank, &seated[rank])) {
      fprintf(stderr, "kit: no thread for rank %d\n", (int)rank);
      abort();
    }
  }
  int result = 0;
  for (int32_t rank = 0; rank < ranks; rank++) {
    pthread_join(running[rank], NULL);
    if (!result)
      result = seated[rank].result;
  }
  free(running);
  free(seated);
  kit_world_destroy(world);
  return result;
}
