/* chance.h: choices that are the same everywhere for the same seed. Shapes need no better quality.
 */
#ifndef KIT_CHANCE_H
#define KIT_CHANCE_H

#include <stdbool.h>
#include <stdint.h>

/* splitmix64 */
static inline uint64_t kit_draw(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static inline int64_t kit_between(uint64_t *state, int64_t low, int64_t high) {
  return low + (int64_t)(kit_draw(state) % (uint64_t)(high - low + 1));
}

static inline bool kit_one_in(uint64_t *state, int64_t n) {
  return kit_between(state, 1, n) == 1;
}

#endif
