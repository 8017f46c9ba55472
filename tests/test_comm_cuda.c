/* test_comm_cuda.c: messages of device memory: mpi_wire_probe under mpirun. Skipped without MPI or
 * a GPU; what needs two GPUs, without these or without NCCL. */
#include <criterion/criterion.h>
#include <cuda_runtime_api.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define MPIRUN_PROBE "mpi_wire_probe"
#include "mpirun.h"

/* At least so many GPUs, and what the tests are of. */
static void need(int gpus, bool nccl) {
  int count = 0;
#ifdef SKV_HAVE_NCCL
  bool has_nccl = true;
#else
  bool has_nccl = false;
#endif
#ifndef SKV_HAVE_MPI
  cr_skip_test("no MPI");
#endif
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < gpus)
    cr_skip_test("%d GPUs, not %d", count, gpus);
  if (nccl && !has_nccl)
    cr_skip_test("no NCCL");
}

static void expect_signal(const char *kind, int signal_number, const char *phase, int code,
                          const char *text) {
  char arguments[64];
  snprintf(arguments, sizeof arguments, "2 %s lose %d %s", kind, signal_number, phase);
  expect_in_time(2, arguments, code, text);
}

Test(comm_cuda, through_the_host) {
  need(1, false);
  expect(2, "20 staged sizes", SKV_OK, "");
  expect(5, "20 staged sizes", SKV_OK, "");
  expect(2, "2 staged busy", SKV_OK, "");
  expect_in_time(2, "2 staged unequal", SKV_PEER, "rank 0 sent 50 bytes where 100 were expected");
  expect_signal("staged", SIGKILL, "exchange", 128 + SIGKILL, "process rank 1 ");
  expect_signal("staged", SIGSTOP, "exchange", SKV_TIMEOUT, "; rank 1 has died, stopped");
}

Test(comm_cuda, one_gpu_is_not_for_two_ranks) {
  need(1, true);
  expect(5, "20 nccl nothing", SKV_INVALID, " have the same GPU (");
}

Test(comm_cuda, memory_that_nccl_lacks_is_told) {
  need(1, true);
  expect(1, "20 nccl nothing 0 full", SKV_MEMORY, "bytes of GPU memory are free");
}

Test(comm_cuda, through_nccl) {
  need(2, true);
  expect(2, "20 nccl sizes", SKV_OK, "");
  expect(2, "20 nccl capture", SKV_OK, "us a replay");
  expect(2, "2 nccl busy", SKV_OK, "");
}

Test(comm_cuda, who_is_lost_is_named) {
  need(2, true);
  static const char *const phases[] = {"open", "100", "500", "exchange"};
  for (size_t i = 0; i < sizeof phases / sizeof *phases; i++) {
    expect_signal("nccl", SIGKILL, phases[i], 128 + SIGKILL, "process rank 1 ");
    expect_signal("nccl", SIGSTOP, phases[i], SKV_TIMEOUT, "; rank 1 has died, stopped");
  }
  expect_signal("nccl", SIGSTOP, "leave", SKV_TIMEOUT, "rank 1 ");
  expect_signal("nccl", 0, "open", SKV_TIMEOUT, "; rank 1 has died, stopped");
}
