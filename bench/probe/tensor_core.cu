/* tensor_core.cu: what a row of a Hopper matrix product depends on. Prints one JSON line a
 * question, with how many of the compared fp32 results differ in any bit. docs/probe.md tells what
 * follows.
 *
 * Each trial is a product D[64][N] = C + A[64][64] B[64][N] as four k16 steps, on random bf16
 * values of random magnitude (exponents spread over 2^+-`spread`). */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "kernels/cuda/wgmma.cuh"
#include "tests/cuda/random.cuh"

enum { ROWS = 64, DEPTH = 64, WIDTH = 256, TRIALS = 256 };

typedef struct probe {
  const uint16_t *a; /* [TRIALS][ROWS][DEPTH] bf16 */
  const uint16_t *b; /* [TRIALS][WIDTH][DEPTH]: B transposed */
  const float *c;    /* [TRIALS][ROWS][WIDTH] */
  float *d;          /* [TRIALS][ROWS][WIDTH] */
} probe_t;

/* Byte offset of a 16-bit element in a slab of 128-byte rows, swizzled 128B. */
SKV_DEVICE uint32_t swizzled(uint32_t row, uint32_t column) {
  return row * 128 + ((column / 8 ^ row % 8) * 16) + column % 8 * 2;
}

template <int N> SKV_DEVICE void load_accumulators(float (&d)[N / 2], const float *c) {
  uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    d[i] = c[(row + 8 * (i / 2 % 2)) * WIDTH + 8 * (i / 4) + 2 * (threadIdx.x % 4) + i % 2];
}

template <int N> SKV_DEVICE void store_accumulators(const float (&d)[N / 2], float *out) {
  uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    out[(row + 8 * (i / 2 % 2)) * WIDTH + 8 * (i / 4) + 2 * (threadIdx.x % 4) + i % 2] = d[i];
}

/* A and B in shared memory, both with rows along M and N. */
template <int N> __global__ void __launch_bounds__(128) product_ss(probe_t p) {
  __shared__ __align__(1024) uint8_t a[ROWS * 128], b[N * 128];
  p.a += (int64_t)blockIdx.x * ROWS * DEPTH, p.b += (int64_t)blockIdx.x * WIDTH * DEPTH;
  for (uint32_t i = threadIdx.x; i < ROWS * DEPTH; i += 128)
    *(uint16_t *)(a + swizzled(i / DEPTH, i % DEPTH)) = p.a[i];
  for (uint32_t i = threadIdx.x; i < N * DEPTH; i += 128)
    *(uint16_t *)(b + swizzled(i / DEPTH, i % DEPTH)) = p.b[i];
  proxy_fence();
  __syncthreads();
  float d[N / 2];
  load_accumulators<N>(d, p.c + (int64_t)blockIdx.x * ROWS * WIDTH);
  wgmma_pin(d);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < 4; ++k)
    wgmma<bf16_type, N>::ss(d, descriptor(descriptor_rows(a) + 2 * k),
                            descriptor(descriptor_rows(b) + 2 * k), 1);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(d);
  store_accumulators<N>(d, p.d + (int64_t)blockIdx.x * ROWS * WIDTH);
}

SKV_DEVICE void load_fragment(uint32_t *fragment, const uint16_t *a, int k) {
  uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint16_t *at =
        a + (row + 8 * (i % 2)) * DEPTH + 16 * k + 8 * (i / 2) + 2 * (threadIdx.x % 4);
    fragment[i] = at[0] | (uint32_t)at[1] << 16;
  }
}

/* A in registers, B in shared memory with rows along K: slabs of 64 columns. */
template <int N> __global__ void __launch_bounds__(128) product_rs(probe_t p) {
  __shared__ __align__(1024) uint8_t b[N / 64 * DEPTH * 128];
  p.a += (int64_t)blockIdx.x * ROWS * DEPTH, p.b += (int64_t)blockIdx.x * WIDTH * DEPTH;
  for (uint32_t i = threadIdx.x; i < N * DEPTH; i += 128) {
    uint32_t column = i / DEPTH, k = i % DEPTH;
    *(uint16_t *)(b + column / 64 * DEPTH * 128 + swizzled(k, column % 64)) = p.b[i];
  }
  proxy_fence();
  __syncthreads();
  float d[N / 2];
  uint32_t fragments[4][4];
#pragma unroll
  for (int k = 0; k < 4; ++k)
    load_fragment(fragments[k], p.a, k);
  load_accumulators<N>(d, p.c + (int64_t)blockIdx.x * ROWS * WIDTH);
  wgmma_pin(d);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < 4; ++k)
    wgmma<bf16_type, N>::rs(d, fragments[k],
                            descriptor(descriptor_columns(b, DEPTH * 128) + 128 * k), 1);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(d);
  store_accumulators<N>(d, p.d + (int64_t)blockIdx.x * ROWS * WIDTH);
}

/* mma.sync m16n8k16, one warp for 16 rows. */
__global__ void __launch_bounds__(128) product_mma(probe_t p) {
  p.a += (int64_t)blockIdx.x * ROWS * DEPTH, p.b += (int64_t)blockIdx.x * WIDTH * DEPTH;
  p.c += (int64_t)blockIdx.x * ROWS * WIDTH, p.d += (int64_t)blockIdx.x * ROWS * WIDTH;
  uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  for (int column = 0; column < WIDTH; column += 8) {
    float d[4];
    for (int i = 0; i < 4; ++i)
      d[i] = p.c[(row + 8 * (i / 2)) * WIDTH + column + 2 * (lane % 4) + i % 2];
    for (int k = 0; k < 4; ++k) {
      uint32_t a[4], b[2];
      load_fragment(a, p.a, k);
      for (int i = 0; i < 2; ++i) {
        const uint16_t *at = p.b + (column + lane / 4) * DEPTH + 16 * k + 8 * i + 2 * (lane % 4);
        b[i] = at[0] | (uint32_t)at[1] << 16;
      }
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                   "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                   : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    for (int i = 0; i < 4; ++i)
      p.d[(row + 8 * (i / 2)) * WIDTH + column + 2 * (lane % 4) + i % 2] = d[i];
  }
}

/* ---- host ---- */

typedef void (*product_t)(probe_t);

typedef struct inputs {
  uint16_t *a, *b;
  float *c;
} inputs_t;

static uint16_t bf16_of(float value) { /* truncates: inputs only need to be arbitrary */
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)(bits >> 16);
}

static float random_value(int spread) {
  float value = (float)(int32_t)random_bits() * 0x1p-31f;
  int shift = spread ? (int)(random_bits() % (2 * (uint32_t)spread + 1)) - spread : 0;
  uint32_t bits = (uint32_t)(shift + 127) << 23;
  float power;
  memcpy(&power, &bits, sizeof power);
  return value * power;
}

static inputs_t inputs_random(int spread) {
  inputs_t in;
  in.a = (uint16_t *)malloc(sizeof *in.a * TRIALS * ROWS * DEPTH);
  in.b = (uint16_t *)malloc(sizeof *in.b * TRIALS * WIDTH * DEPTH);
  in.c = (float *)malloc(sizeof *in.c * TRIALS * ROWS * WIDTH);
  for (int i = 0; i < TRIALS * ROWS * DEPTH; ++i)
    in.a[i] = bf16_of(random_value(spread));
  for (int i = 0; i < TRIALS * WIDTH * DEPTH; ++i)
    in.b[i] = bf16_of(random_value(spread));
  for (int i = 0; i < TRIALS * ROWS * WIDTH; ++i)
    in.c[i] = random_value(spread);
  return in;
}

static void inputs_free(inputs_t in) {
  free(in.a), free(in.b), free(in.c);
}

static float *run_product(product_t product, inputs_t in) {
  uint16_t *a, *b;
  float *c, *d, *out = (float *)malloc(sizeof *out * TRIALS * ROWS * WIDTH);
  size_t a_bytes = sizeof *a * TRIALS * ROWS * DEPTH, b_bytes = sizeof *b * TRIALS * WIDTH * DEPTH;
  size_t c_bytes = sizeof *c * TRIALS * ROWS * WIDTH;
  check(cudaMalloc((void **)&a, a_bytes));
  check(cudaMalloc((void **)&b, b_bytes));
  check(cudaMalloc((void **)&c, c_bytes));
  check(cudaMalloc((void **)&d, c_bytes));
  check(cudaMemcpy(a, in.a, a_bytes, cudaMemcpyHostToDevice));
  check(cudaMemcpy(b, in.b, b_bytes, cudaMemcpyHostToDevice));
  check(cudaMemcpy(c, in.c, c_bytes, cudaMemcpyHostToDevice));
  check(cudaMemset(d, 0xff, c_bytes));
  product<<<TRIALS, 128>>>((probe_t){a, b, c, d});
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
  check(cudaMemcpy(out, d, c_bytes, cudaMemcpyDeviceToHost));
  check(cudaFree(a)), check(cudaFree(b)), check(cudaFree(c)), check(cudaFree(d));
  return out;
}

/* Rows [0, rows) of x against rows map[row] of y (map NULL: the same rows), columns [0, width). */
static void compare(const char *question, int spread, const float *x, const float *y,
                    const int *map, int rows, int width) {
  int64_t compared = 0, differing = 0;
  for (int trial = 0; trial < TRIALS; ++trial)
    for (int row = 0; row < rows; ++row)
      for (int column = 0; column < width; ++column) {
        int64_t at = ((int64_t)trial * ROWS + row) * WIDTH + column;
        int64_t other = ((int64_t)trial * ROWS + (map ? map[row] : row)) * WIDTH + column;
        ++compared;
        differing += memcmp(x + at, y + other, sizeof *x) != 0;
      }
  printf("{\"probe\": \"%s\", \"spread\": %d, \"compared\": %lld, \"differ\": %lld}\n", question,
         spread, (long long)compared, (long long)differing);
  fflush(stdout);
}

static void probe_shapes(int spread, inputs_t in, const float *base) {
  struct {
    const char *question;
    product_t product;
    int width;
  } cases[] = {
      {"the same again", product_ss<128>, 128},
      {"N 32 against 128", product_ss<32>, 32},
      {"N 64 against 128", product_ss<64>, 64},
      {"N 96 against 128", product_ss<96>, 96},
      {"N 192 against 128", product_ss<192>, 128},
      {"N 256 against 128", product_ss<256>, 128},
      {"A in registers and B transposed, N 64, against shared memory", product_rs<64>, 64},
      {"A in registers and B transposed, N 128, against shared memory", product_rs<128>, 128},
      {"A in registers and B transposed, N 256, against shared memory", product_rs<256>, 128},
      {"mma.sync m16n8k16 against wgmma k16", product_mma, 128},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    float *d = run_product(cases[i].product, in);
    compare(cases[i].question, spread, d, base, NULL, ROWS, cases[i].width);
    free(d);
  }
}

static void probe_slots(int spread, inputs_t in, const float *base) {
  int map[ROWS];
  for (int row = 0; row < ROWS; ++row)
    map[row] = (row * 29 + 17) % ROWS; /* a permutation: 29 is odd */
  inputs_t moved = inputs_random(spread);
  memcpy(moved.b, in.b, sizeof *in.b * TRIALS * WIDTH * DEPTH);
  for (int trial = 0; trial < TRIALS; ++trial)
    for (int row = 0; row < ROWS; ++row) {
      int64_t to = trial * ROWS + row, from = trial * ROWS + map[row];
      memcpy(moved.a + to * DEPTH, in.a + from * DEPTH, sizeof *in.a * DEPTH);
      memcpy(moved.c + to * WIDTH, in.c + from * WIDTH, sizeof *in.c * WIDTH);
    }
  float *d = run_product(product_ss<128>, moved);
  compare("rows in other slots", spread, d, base, map, ROWS, 128);
  free(d);
  inputs_free(moved);
}

/* Row 5 stays, all other rows become other values, or NaN, or infinity. */
static void probe_neighbours(int spread, inputs_t in, const float *base) {
  static const char *questions[] = {"other values in the other rows", "NaN in the other rows",
                                    "infinity in the other rows"};
  static const int map[1] = {5};
  for (int kind = 0; kind < 3; ++kind) {
    inputs_t other = inputs_random(spread);
    memcpy(other.b, in.b, sizeof *in.b * TRIALS * WIDTH * DEPTH);
    for (int64_t row = 0; row < TRIALS * ROWS; ++row) {
      bool kept = row % ROWS == 0; /* row 0 of `other` is row 5 of `in` */
      for (int k = 0; k < DEPTH && !kept && kind; ++k)
        other.a[row * DEPTH + k] = kind == 1 ? 0x7fc0 : 0x7f80;
      if (kept) {
        memcpy(other.a + row * DEPTH, in.a + (row + 5) * DEPTH, sizeof *in.a * DEPTH);
        memcpy(other.c + row * WIDTH, in.c + (row + 5) * WIDTH, sizeof *in.c * WIDTH);
      }
    }
    float *d = run_product(product_ss<128>, other);
    compare(questions[kind], spread, d, base, map, 1, 128);
    free(d);
    inputs_free(other);
  }
}

/* A is zero in the last `zeros` of the 64 columns. There B holds values of 2^`shift`, or zeros: is
 * the result the same? The other values of B and all of C are 2^`live` times the random ones. */
static void probe_zeros(int spread, int zeros, int shift, int live) {
  inputs_t in = inputs_random(spread);
  for (int64_t i = 0; i < TRIALS * ROWS * DEPTH; ++i)
    if (i % DEPTH >= DEPTH - zeros)
      in.a[i] = 0;
  for (int64_t i = 0; i < TRIALS * ROWS * WIDTH; ++i)
    in.c[i] = ldexpf(in.c[i], live);
  inputs_t zero = in;
  zero.b = (uint16_t *)malloc(sizeof *in.b * TRIALS * WIDTH * DEPTH);
  for (int64_t i = 0; i < TRIALS * WIDTH * DEPTH; ++i) {
    bool dead = i % DEPTH >= DEPTH - zeros;
    uint16_t exponent = (uint16_t)(127 + shift) << 7;
    uint32_t bits = (uint32_t)in.b[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    in.b[i] = dead ? (uint16_t)((in.b[i] & 0x807f) | exponent) : bf16_of(ldexpf(value, live));
    zero.b[i] = dead ? 0 : in.b[i];
  }
  float *with = run_product(product_ss<128>, in), *without = run_product(product_ss<128>, zero);
  char question[128];
  snprintf(question, sizeof question,
           "%d of 64 products are 0 times 2^%d, others about 2^%d, against 0 times 0", zeros, shift,
           live);
  compare(question, spread, with, without, NULL, ROWS, 128);
  free(with), free(without), free(zero.b);
  inputs_free(in);
}

/* Negative controls: orders that are expected to matter. */
static void probe_orders(int spread, inputs_t in, const float *base) {
  static const char *questions[] = {"columns of each k16 reversed", "k16 steps in reverse order"};
  for (int kind = 0; kind < 2; ++kind) {
    inputs_t other = inputs_random(spread);
    memcpy(other.c, in.c, sizeof *in.c * TRIALS * ROWS * WIDTH);
    for (int64_t i = 0; i < TRIALS * WIDTH * DEPTH; ++i) {
      int64_t from = kind ? i ^ 48 : i ^ 15;
      other.b[i] = in.b[from];
      if (i < TRIALS * ROWS * DEPTH)
        other.a[i] = in.a[from];
    }
    float *d = run_product(product_ss<128>, other);
    compare(questions[kind], spread, d, base, NULL, ROWS, 128);
    free(d);
    inputs_free(other);
  }
}

int main(void) {
  for (int spread = 0; spread <= 24; spread += 12) {
    inputs_t in = inputs_random(spread);
    float *base = run_product(product_ss<128>, in);
    probe_shapes(spread, in, base);
    probe_slots(spread, in, base);
    probe_neighbours(spread, in, base);
    probe_orders(spread, in, base);
    for (int shift = 0; shift <= 120; shift += 40) {
      probe_zeros(spread, 16, shift, 0);
      probe_zeros(spread, 24, shift, 0);
    }
    for (int live = 0; live >= -64; live -= 8)
      probe_zeros(spread, 24, 120, live);
    free(base);
    inputs_free(in);
  }
  return 0;
}
