/* pack.cu: see pack.h. A thread copies words of the largest size that all parts are aligned to. */
#include "kernels/cuda/pack.h"

#include <string.h>

#include <cuda_runtime.h>

enum { PACKS = 32, THREADS = 256, CTAS = 512 };

typedef struct pack_params {
  int32_t count;
  int64_t first[PACKS + 1]; /* word of each part, counted through all of them */
  skv__pack_t packs[PACKS];
} pack_params_t;

template <typename Word> static __device__ void copy_word(const pack_params_t &p, int64_t number) {
  int32_t i = 0;
  while (number >= p.first[i + 1])
    ++i;
  const skv__pack_t &pack = p.packs[i];
  int64_t words = pack.head_bytes / (int64_t)sizeof(Word), at = number - p.first[i];
  int64_t run = at / words, token = run / pack.heads;
  const char *from = (const char *)pack.from + token * pack.token_stride +
                     (run - token * pack.heads) * pack.head_stride;
  ((Word *)pack.to)[at] = ((const Word *)from)[at - run * words];
}

template <typename Word>
static __global__ void __launch_bounds__(THREADS)
    pack_rows(const __grid_constant__ pack_params_t p) {
  int64_t step = (int64_t)gridDim.x * THREADS;
  for (int64_t number = (int64_t)blockIdx.x * THREADS + threadIdx.x; number < p.first[p.count];
       number += step)
    copy_word<Word>(p, number);
}

/* The lowest bit that is set in any address or stride, at most 16. */
static int64_t alignment_of(const skv__pack_t *packs, int32_t count) {
  uint64_t bits = sizeof(uint4);
  for (int32_t i = 0; i < count; ++i)
    bits |= (uint64_t)(uintptr_t)packs[i].from | (uint64_t)(uintptr_t)packs[i].to |
            (uint64_t)packs[i].head_bytes | (uint64_t)packs[i].token_stride |
            (uint64_t)packs[i].head_stride;
  return (int64_t)(bits & (~bits + 1));
}

static void launch(const skv__pack_t *packs, int32_t count, cudaStream_t stream) {
  pack_params_t p;
  int64_t word = alignment_of(packs, count);
  memset(&p, 0, sizeof p);
  p.count = count;
  memcpy(p.packs, packs, (size_t)count * sizeof *packs);
  for (int32_t i = 0; i < count; ++i)
    p.first[i + 1] = p.first[i] + packs[i].tokens * packs[i].heads * (packs[i].head_bytes / word);
  int64_t ctas = (p.first[count] + THREADS - 1) / THREADS;
  if (!ctas)
    return;
  unsigned grid = (unsigned)(ctas < CTAS ? ctas : (int64_t)CTAS);
  if (word == 16)
    pack_rows<uint4><<<grid, THREADS, 0, stream>>>(p);
  else if (word == 8)
    pack_rows<uint2><<<grid, THREADS, 0, stream>>>(p);
  else if (word == 4)
    pack_rows<uint32_t><<<grid, THREADS, 0, stream>>>(p);
  else
    pack_rows<uint16_t><<<grid, THREADS, 0, stream>>>(p);
}

skv_status_t skv__launch_pack(const skv__pack_t *packs, int32_t count, cudaStream_t stream) {
  for (int32_t first = 0; first < count; first += PACKS)
    launch(packs + first, count - first < (int32_t)PACKS ? count - first : (int32_t)PACKS, stream);
  return cudaPeekAtLastError() == cudaSuccess ? SKV_OK : SKV_INTERNAL;
}
