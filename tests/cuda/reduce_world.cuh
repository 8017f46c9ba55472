/* reduce_world.cuh: all ranks of a world in one process on one device, each with a stream. */
#ifndef SKV_TESTS_REDUCE_WORLD_CUH
#define SKV_TESTS_REDUCE_WORLD_CUH

#include "tests/cuda/reduce_cases.cuh"

static void open_world(world_t *w, skv__window_t *windows, uint32_t *stop, int ranks) {
  w->ranks = ranks, w->begin = 0, w->end = ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    unsigned char *memory;
    check(cudaMalloc((void **)&memory, SKV__WINDOW_HEADER + WINDOW_BYTES));
    check(cudaMemset(memory, 0, SKV__WINDOW_HEADER));
    check(cudaStreamCreateWithFlags(&w->stream[rank], cudaStreamNonBlocking));
    for (int i = 0; i < ranks; ++i)
      windows[i].memory[rank] = memory + SKV__WINDOW_HEADER;
    windows[rank].rank = rank, windows[rank].ranks = ranks;
    windows[rank].bytes = (int64_t)WINDOW_BYTES, windows[rank].stop = stop;
    w->window[rank] = &windows[rank];
  }
  check(cudaDeviceSynchronize());
}

static void close_world(world_t *w) {
  for (int rank = 0; rank < w->ranks; ++rank) {
    check(cudaFree(w->window[0]->memory[rank] - SKV__WINDOW_HEADER));
    check(cudaStreamDestroy(w->stream[rank]));
  }
}

#endif
