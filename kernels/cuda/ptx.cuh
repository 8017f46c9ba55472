/* ptx.cuh: the Hopper instructions that CUDA C has no words for: mbarriers, bulk tensor copies,
 * proxies, named barriers, register budgets. One function an instruction. */
#ifndef SKV_CUDA_PTX_CUH
#define SKV_CUDA_PTX_CUH

#include <stdint.h>

#include <cuda.h>

#define SKV_DEVICE static __device__ __forceinline__

SKV_DEVICE uint32_t shared_address(const void *pointer) {
  return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* The value, which the compiler may no longer compute again or later: for what must be ready early.
 */
SKV_DEVICE uint32_t settled(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

/* ---- mbarriers ---- */

SKV_DEVICE void barrier_init(uint64_t *barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}

/* After the inits, before anybody uses the barriers through the async proxy. */
SKV_DEVICE void barrier_init_fence(void) {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

SKV_DEVICE void barrier_arrive(uint64_t *barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

SKV_DEVICE void barrier_expect(uint64_t *barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

/* Whether that phase has ended; never waits. */
SKV_DEVICE bool barrier_test(uint64_t *barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n"
               ".reg .pred p;\n"
               "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
               "selp.u32 %0, 1, 0, p;\n"
               "}"
               : "=r"(done)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
  return done;
}

SKV_DEVICE void barrier_wait(uint64_t *barrier, uint32_t parity) {
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@done bra ready;\n"
               "bra again;\n"
               "ready:\n"
               "}" ::"r"(shared_address(barrier)),
               "r"(parity)
               : "memory");
}

/* ---- bulk tensor copies ---- */

SKV_DEVICE void tensor_prefetch(const CUtensorMap *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* A box of (head_dim, token, head, sequence) to shared memory; completes on `barrier`. */
SKV_DEVICE void tensor_load(void *to, const CUtensorMap *map, uint64_t *barrier, int32_t column,
                            int32_t token, int32_t head, int32_t sequence) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
               "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(token), "r"(head),
               "r"(sequence)
               : "memory");
}

/* For what is read once: the L2 cache gives it up first, and keeps code and states. */
SKV_DEVICE uint64_t read_once_policy(void) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/* tensor_load with such a policy. */
SKV_DEVICE void tensor_load_by(uint64_t policy, void *to, const CUtensorMap *map, uint64_t *barrier,
                               int32_t column, int32_t token, int32_t head, int32_t sequence) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
               "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(token), "r"(head),
               "r"(sequence), "l"(policy)
               : "memory");
}

/* Ordinary shared-memory stores before it are seen by wgmma and bulk copies after the next barrier.
 */
SKV_DEVICE void proxy_fence(void) {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- named barriers (1 to 15) ---- */

SKV_DEVICE void named_sync(uint32_t name, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

SKV_DEVICE void named_arrive(uint32_t name, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/* ---- registers a thread of this warpgroup may use from here on ---- */

template <int Registers> SKV_DEVICE void registers_raise(void) {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers> SKV_DEVICE void registers_lower(void) {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

/* ---- global memory ---- */

/* One more, after whatever this thread has seen happen and before whatever it then looks at. */
SKV_DEVICE uint32_t count_arrival(uint32_t *counter) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

/* 2^x, about 2 ulp; 0 below -126. Part of the pinned order of sm_90 leaves. */
SKV_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* 1 / x, about 1 ulp. Part of the pinned order too. */
SKV_DEVICE float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#endif
