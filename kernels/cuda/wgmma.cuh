/* wgmma.cuh: warpgroup matrix products D[64][N] += A[64][16] B[16][N], fp32 accumulators.
 *
 * Operands in shared memory lie in slabs of 64 16-bit columns: rows of 128 bytes, swizzled 128B, a
 * slab 1024-byte aligned. The accumulator element d[i] of thread t of the warpgroup is row
 * 16 (t / 32) + (t % 32) / 4 + 8 (i / 2 % 2), column 8 (i / 4) + 2 (t % 4) + i % 2. */
#ifndef SKV_CUDA_WGMMA_CUH
#define SKV_CUDA_WGMMA_CUH

#include "kernels/cuda/ptx.cuh"

typedef struct bf16_type bf16_type;
typedef struct fp16_type fp16_type;

/* ---- descriptors ---- */

/* The low word of a descriptor names the address; the high word is the same for all operands here.
 * `uniform` tells the compiler that all threads of the warp have one value, so that it can keep
 * descriptors in uniform registers and step them there. */
SKV_DEVICE uint32_t uniform(uint32_t value) {
  return __reduce_or_sync(0xffffffff, value);
}

SKV_DEVICE uint64_t descriptor(uint32_t low) {
  uint64_t whole;
  asm("mov.b64 %0, {%1, %2};" : "=l"(whole) : "r"(low), "r"(1024u >> 4 | 1u << 30));
  return whole;
}

/* Rows of the operand run along M or N: 8 of them are 1024 bytes. A step of 16 columns adds 2, at
 * most three times; then the next slab. */
SKV_DEVICE uint32_t descriptor_rows(const void *slab) {
  return (shared_address(slab) & 0x3ffff) >> 4 | 1u << 16;
}

/* Rows of the operand run along K (B transposed): 64 columns a slab, the next 64 `slab_bytes`
 * later. A step of 16 rows adds 128. */
SKV_DEVICE uint32_t descriptor_columns(const void *slab, uint32_t slab_bytes) {
  return (shared_address(slab) & 0x3ffff) >> 4 | slab_bytes >> 4 << 16;
}

/* ---- order ---- */

SKV_DEVICE void wgmma_begin(void) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
SKV_DEVICE void wgmma_commit(void) {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* At most `Groups` committed groups are still under way afterwards. */
template <int Groups> SKV_DEVICE void wgmma_wait(void) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Groups) : "memory");
}
/* Pins values in registers between asynchronous products and ordinary arithmetic. */
template <int Count> SKV_DEVICE void wgmma_pin(float (&values)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i)
    asm volatile("" : "+f"(values[i])::"memory");
}
template <int Count> SKV_DEVICE void wgmma_pin(uint32_t (&values)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i)
    asm volatile("" : "+r"(values[i])::"memory");
}

/* What products will overwrite: old values need no registers. */
template <int Count> SKV_DEVICE void wgmma_forget(float (&values)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i)
    asm volatile("" : "=f"(values[i]));
}

/* ---- products: both operands in shared memory (ss), or A in registers (rs) and B transposed ----
 */

template <typename Type, int N> struct wgmma;

/* clang-format off */
#define R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define R8 "%8, %9, %10, %11, %12, %13, %14, %15"
#define R16 "%16, %17, %18, %19, %20, %21, %22, %23"
#define R24 "%24, %25, %26, %27, %28, %29, %30, %31"
#define R32 "%32, %33, %34, %35, %36, %37, %38, %39"
#define R40 "%40, %41, %42, %43, %44, %45, %46, %47"
#define R48 "%48, %49, %50, %51, %52, %53, %54, %55"
#define R56 "%56, %57, %58, %59, %60, %61, %62, %63"
#define R64 "%64, %65, %66, %67, %68, %69, %70, %71"
#define R72 "%72, %73, %74, %75, %76, %77, %78, %79"
#define R80 "%80, %81, %82, %83, %84, %85, %86, %87"
#define R88 "%88, %89, %90, %91, %92, %93, %94, %95"
#define R96 "%96, %97, %98, %99, %100, %101, %102, %103"
#define R104 "%104, %105, %106, %107, %108, %109, %110, %111"
#define R112 "%112, %113, %114, %115, %116, %117, %118, %119"
#define R120 "%120, %121, %122, %123, %124, %125, %126, %127"
#define D8(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define REGISTERS_32 R0 ", " R8
#define OUTPUTS_32 D8(0), D8(8)
#define REGISTERS_64 R0 ", " R8 ", " R16 ", " R24
#define OUTPUTS_64 D8(0), D8(8), D8(16), D8(24)
#define REGISTERS_96 R0 ", " R8 ", " R16 ", " R24 ", " R32 ", " R40
#define OUTPUTS_96 D8(0), D8(8), D8(16), D8(24), D8(32), D8(40)
#define REGISTERS_128 R0 ", " R8 ", " R16 ", " R24 ", " R32 ", " R40 ", " R48 ", " R56
#define OUTPUTS_128 D8(0), D8(8), D8(16), D8(24), D8(32), D8(40), D8(48), D8(56)
#define REGISTERS_192 R0 ", " R8 ", " R16 ", " R24 ", " R32 ", " R40 ", " R48 ", " R56 ", " R64 ", " R72 ", " R80 ", " R88
#define OUTPUTS_192 D8(0), D8(8), D8(16), D8(24), D8(32), D8(40), D8(48), D8(56), D8(64), D8(72), D8(80), D8(88)
#define REGISTERS_256 R0 ", " R8 ", " R16 ", " R24 ", " R32 ", " R40 ", " R48 ", " R56 ", " R64 ", " R72 ", " R80 ", " R88 ", " R96 ", " R104 ", " R112 ", " R120
#define OUTPUTS_256 D8(0), D8(8), D8(16), D8(24), D8(32), D8(40), D8(48), D8(56), D8(64), D8(72), D8(80), D8(88), D8(96), D8(104), D8(112), D8(120)
#define WGMMA(type, name, N, A, B, P, RB, RP)                                                      \
  template <> struct wgmma<type, N> {                                                              \
    SKV_DEVICE_MEMBER void ss(float (&d)[N / 2], uint64_t a, uint64_t b, int keep) {               \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\n"                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." name "." name " {"            \
                   REGISTERS_##N "}, " A ", " B ", p, 1, 1, 0, 0;\n}"                              \
                   : OUTPUTS_##N : "l"(a), "l"(b), "r"(keep));                                     \
    }                                                                                              \
    SKV_DEVICE_MEMBER void rs(float (&d)[N / 2], const uint32_t *a, uint64_t b, int keep) {        \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " RP ", 0;\n"                                 \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." name "." name " {"            \
                   REGISTERS_##N "}, {" RB ", p, 1, 1, 1;\n}"                                      \
                   : OUTPUTS_##N : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep)); \
    }                                                                                              \
    SKV_DEVICE_MEMBER void rs_rows(float (&d)[N / 2], const uint32_t *a, uint64_t b, int keep) {   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " RP ", 0;\n"                                 \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." name "." name " {"            \
                   REGISTERS_##N "}, {" RB ", p, 1, 1, 0;\n}"                                      \
                   : OUTPUTS_##N : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep)); \
    }                                                                                              \
  };
#define SKV_DEVICE_MEMBER static __device__ __forceinline__
WGMMA(bf16_type, "bf16", 32, "%16", "%17", "%18", "%16, %17, %18, %19}, %20", "%21")
WGMMA(fp16_type, "f16", 32, "%16", "%17", "%18", "%16, %17, %18, %19}, %20", "%21")
WGMMA(bf16_type, "bf16", 64, "%32", "%33", "%34", "%32, %33, %34, %35}, %36", "%37")
WGMMA(fp16_type, "f16", 64, "%32", "%33", "%34", "%32, %33, %34, %35}, %36", "%37")
WGMMA(bf16_type, "bf16", 96, "%48", "%49", "%50", "%48, %49, %50, %51}, %52", "%53")
WGMMA(fp16_type, "f16", 96, "%48", "%49", "%50", "%48, %49, %50, %51}, %52", "%53")
WGMMA(bf16_type, "bf16", 128, "%64", "%65", "%66", "%64, %65, %66, %67}, %68", "%69")
WGMMA(fp16_type, "f16", 128, "%64", "%65", "%66", "%64, %65, %66, %67}, %68", "%69")
WGMMA(bf16_type, "bf16", 192, "%96", "%97", "%98", "%96, %97, %98, %99}, %100", "%101")
WGMMA(fp16_type, "f16", 192, "%96", "%97", "%98", "%96, %97, %98, %99}, %100", "%101")
WGMMA(bf16_type, "bf16", 256, "%128", "%129", "%130", "%128, %129, %130, %131}, %132", "%133")
WGMMA(fp16_type, "f16", 256, "%128", "%129", "%130", "%128, %129, %130, %131}, %132", "%133")
#undef R0
#undef R8
#undef R16
#undef R24
#undef R32
#undef R40
#undef R48
#undef R56
#undef R64
#undef R72
#undef R80
#undef R88
#undef R96
#undef R104
#undef R112
#undef R120
#undef D8
#undef REGISTERS_32
#undef OUTPUTS_32
#undef REGISTERS_64
#undef OUTPUTS_64
#undef REGISTERS_96
#undef OUTPUTS_96
#undef REGISTERS_128
#undef OUTPUTS_128
#undef REGISTERS_192
#undef OUTPUTS_192
#undef REGISTERS_256
#undef OUTPUTS_256
#undef WGMMA
/* clang-format on */

/* ---- two floats to a pair of 16-bit values, `low` in the low half ---- */

template <typename Type> __device__ __forceinline__ uint32_t pack(float low, float high);
template <> __device__ __forceinline__ uint32_t pack<bf16_type>(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
template <> __device__ __forceinline__ uint32_t pack<fp16_type>(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

#endif
