/* test_reduce.cu: the one-kernel reduction with all ranks in one process on one device, each with a
 * stream: see reduce_cases.cuh. And: a kernel whose peers never come ends when it is told to. */
#include "tests/cuda/reduce_cases.cuh"
#include "tests/cuda/reduce_world.cuh"

/* Rank 0 launches, rank 1 never does. */
static void test_stop(uint32_t *stop) {
  skv__window_t windows[SKV__WINDOW_RANKS];
  world_t w;
  open_world(&w, windows, stop, 2);
  skv__reduce_t reduce;
  memset(&reduce, 0, sizeof reduce);
  reduce.value_head_dim = 128, reduce.nodes = 1, reduce.parts = 1, reduce.most_rows = 5000;
  reduce.part[0].rows = 5000;
  reduce.part[0].states[0] = (const float *)windows[0].memory[0];
  reduce.part[0].out = (float *)windows[0].memory[0];
  skv__launch_reduce(&windows[0], &reduce, NULL, NULL, w.stream[0]);
  delay<<<1, 1, 0, w.stream[1]>>>(20000000);
  check(cudaStreamSynchronize(w.stream[1]));
  const bool waits = cudaStreamQuery(w.stream[0]) == cudaErrorNotReady;
  *(volatile uint32_t *)stop = 1;
  check(cudaStreamSynchronize(w.stream[0]));
  *stop = 0;
  failures += !waits;
  printf("%s a kernel whose peer never comes waits, and ends when told\n", waits ? "ok  " : "FAIL");
  close_world(&w);
}

int main(void) {
  uint32_t *stop;
  setvbuf(stdout, NULL, _IOLBF, 0);
  /* kernels of all ranks must run at once: no two streams may share a way to the device */
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  check(cudaHostAlloc((void **)&stop, sizeof *stop, cudaHostAllocMapped));
  *stop = 0;
  static const int worlds[] = {1, 2, 3, 5, 8};
  for (int ranks : worlds) {
    skv__window_t windows[SKV__WINDOW_RANKS];
    world_t w;
    open_world(&w, windows, stop, ranks);
    try_world(&w);
    close_world(&w);
  }
  test_stop(stop);
  printf("%d failures\n", failures);
  return failures ? 1 : 0;
}
