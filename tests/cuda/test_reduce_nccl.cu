/* test_reduce_nccl.cu: the one-kernel reduction between GPUs, a rank each, over NCCL's windows: see
 * reduce_cases.cuh. Run by mpirun; exits 77 where ranks cannot load from each other. */
#include <mpi.h>
#include <nccl.h>

#include "tests/cuda/reduce_cases.cuh"

static int rank, ranks;

static void leave(int code) {
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  exit(code);
}

static ncclComm_t open_communicator(void) {
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  int devices = 0;
  check(cudaGetDeviceCount(&devices));
  if (devices < ranks) {
    if (rank == 0)
      printf("skipped: %d GPUs, %d ranks\n", devices, ranks);
    leave(77);
  }
  check(cudaSetDevice(rank));
  if (rank == 0)
    ncclGetUniqueId(&id);
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0; /* as the library's */
  ncclResult_t result = ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
  while (result == ncclSuccess || result == ncclInProgress) {
    ncclCommGetAsyncError(comm, &result);
    if (result == ncclSuccess)
      break;
  }
  if (result != ncclSuccess) {
    fprintf(stderr, "ncclCommInitRank: %s\n", ncclGetErrorString(result));
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return comm;
}

int main(int argc, char **argv) {
  int level, all = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  ncclComm_t comm = open_communicator();
  skv__error_t error = {};
  world_t w;
  w.ranks = ranks, w.begin = rank, w.end = rank + 1;
  if (!skv__window_available(comm, &error)) {
    printf("skipped: %s\n", error.text);
    leave(77);
  }
  if (skv__window_reserve(&w.window[rank], comm, (int64_t)WINDOW_BYTES, &error) != SKV_OK ||
      skv__window_open(w.window[rank], 20, &error) != SKV_OK) {
    printf("FAIL rank %d: %s\n", rank, error.text);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  check(cudaStreamCreateWithFlags(&w.stream[rank], cudaStreamNonBlocking));
  try_world(&w);
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  skv__window_close(w.window[rank]);
  if (rank == 0)
    printf("%d failures\n", all);
  leave(all ? 1 : 0);
}
