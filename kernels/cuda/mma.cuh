/* mma.cuh: warp matrix products and what feeds them, on sm_80 and later.
 *
 * A warp has D[16][8]: element d[i] of a lane is row lane / 4 + 8 (i / 2), column
 * 2 (lane % 4) + i % 2: the layout of wgmma.cuh, 16 rows of it. docs/probe.md: the products of a
 * k16 step are added as wgmma adds them, to the bit. */
#ifndef SKV_CUDA_MMA_CUH
#define SKV_CUDA_MMA_CUH

#include "kernels/cuda/wgmma.cuh"

/* D += A[16][16] B[16][8]. */
template <typename Type>
SKV_DEVICE void mma(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
#define MMA(type, name)                                                                            \
  template <>                                                                                      \
  __device__ __forceinline__ void mma<type>(float *d, const uint32_t(&a)[4], uint32_t b0,          \
                                            uint32_t b1) {                                         \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 "                    \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                 \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                  \
  }
MMA(bf16_type, "bf16")
MMA(fp16_type, "f16")
#undef MMA

/* Four matrices of 8 x 8 16-bit values from shared memory. Lane i names row i % 8 of matrix i / 8;
 * it gets elements 2 (lane % 4) and the next of row lane / 4 of each. */
SKV_DEVICE void load_matrices(uint32_t (&m)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_address(row))
               : "memory");
}
/* The same of the matrices transposed. */
SKV_DEVICE void load_transposed(uint32_t (&m)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_address(row))
               : "memory");
}

/* 16 bytes to shared memory, or zeros, by the time copies_wait returns; then a barrier shows them
 * to other threads. `from` is not read for zeros. */
SKV_DEVICE void copy_16(void *to, const void *from, bool zeros) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(zeros ? 0 : 16)
               : "memory");
}
SKV_DEVICE void copies_wait(void) {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

#endif
