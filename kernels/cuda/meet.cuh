/* meet.cuh: where kernels of different GPUs wait for each other: CTA i of each rank for CTA i of
 * the others, so that all launch the same number of CTAs.
 *
 * A window's header holds, for each CTA, a word that each other rank writes and the number of
 * meetings so far. Numbers only grow, so nothing is ever reset, and a CUDA graph may launch again
 * what it captured. NCCL's own barrier has no end when a rank is gone; this one looks at `stop`. */
#ifndef SKV_CUDA_MEET_CUH
#define SKV_CUDA_MEET_CUH

#include "kernels/cuda/window.h"

typedef struct meeting {
  uint32_t number; /* of the meeting to come */
} meeting_t;

enum { SPINS_PER_LOOK = 4096 }; /* a look at `stop` goes to the host */

static_assert((SKV__WINDOW_RANKS + 1) * SKV__WINDOW_CTAS * 4 <= SKV__WINDOW_HEADER,
              "the header holds a word for each CTA and rank, and a number for each CTA");

/* What rank `from` writes into the memory of rank `at`. */
static __device__ __forceinline__ uint32_t *meeting_word(const skv__window_t &window, int at,
                                                         int from) {
  uint32_t *words = (uint32_t *)(window.memory[at] - SKV__WINDOW_HEADER);
  return words + blockIdx.x * SKV__WINDOW_RANKS + from;
}

static __device__ __forceinline__ uint32_t *meeting_number(const skv__window_t &window) {
  uint32_t *words = (uint32_t *)(window.memory[window.rank] - SKV__WINDOW_HEADER);
  return words + SKV__WINDOW_CTAS * SKV__WINDOW_RANKS + blockIdx.x;
}

static __device__ __forceinline__ void wait_for(const skv__window_t &window, int peer,
                                                uint32_t number, int *stopped) {
  const uint32_t *word = meeting_word(window, window.rank, peer);
  uint32_t seen, spins = 0;
  do {
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(word) : "memory");
    if (++spins % SPINS_PER_LOOK == 0 && *window.stop)
      *stopped = 1;
  } while ((int32_t)(seen - number) < 0 && !*(volatile int *)stopped);
}

/* What any CTA of any rank did before a meeting is seen by all after it. `stopped` is shared memory
 * that starts as 0. Returns false when the kernel is to end. */
static __device__ __forceinline__ bool meet(const skv__window_t &window, meeting_t *meeting,
                                            int *stopped) {
  __syncthreads();
  const int peer = (int)threadIdx.x;
  const uint32_t number = ++meeting->number;
  if (peer < window.ranks && peer != window.rank) {
    asm volatile(
        "st.release.sys.global.u32 [%0], %1;" ::"l"(meeting_word(window, peer, window.rank)),
        "r"(number)
        : "memory");
    wait_for(window, peer, number, stopped);
  }
  __syncthreads();
  return !*stopped;
}

static __device__ __forceinline__ meeting_t meetings_begin(const skv__window_t &window) {
  return {*meeting_number(window)};
}
/* Once all threads of the CTA have begun. */
static __device__ __forceinline__ void meetings_end(const skv__window_t &window,
                                                    meeting_t meeting) {
  if (threadIdx.x == 0)
    *meeting_number(window) = meeting.number;
}

#endif
