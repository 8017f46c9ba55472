/* cluster.cuh: what CTAs of a cluster need of each other: ranks, a barrier of all, and stores to
 * another's shared memory that complete on an mbarrier there. */
#ifndef SKV_CUDA_CLUSTER_CUH
#define SKV_CUDA_CLUSTER_CUH

#include "kernels/cuda/ptx.cuh"

SKV_DEVICE uint32_t cluster_rank(void) {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/* Orders barrier_init_fence's inits, and no other memory. */
SKV_DEVICE void cluster_arrive(void) {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
SKV_DEVICE void cluster_wait(void) {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

/* Where `pointer`, an address in this CTA's shared memory, is in another CTA's. */
SKV_DEVICE uint32_t peer_address(const void *pointer, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(shared_address(pointer)), "r"(rank));
  return address;
}

/* 16 bytes to a peer; they count as bytes that its barrier expects. */
SKV_DEVICE void peer_store(uint32_t to, uint4 value, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
               "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
               : "memory");
}

#endif
