/* tile_product.h: C[r][n] = chain over k of fmaf(A[r][k], B[k][n], C[r][n]), for scores and for
 * values. Which rows and columns share registers changes no bit: each element is one chain. */

typedef struct product {
  const float *a; /* element (r, k) at r * a_step + k */
  int64_t a_step;
  const float *b; /* (k, n) at n / 16 * b_panel + k * b_step + n mod 16 */
  int64_t b_step, b_panel;
  float *c; /* (r, n) at r * c_step + n */
  int64_t c_step;
  int64_t k;
  bool from_zero;      /* C starts as 0 and not as what is there */
  skv__ahead_t *ahead; /* or NULL: fetched between blocks */
} product_t;

enum { PANEL_VECTORS = SKV__PANEL / LANES };

static inline __attribute__((always_inline)) void
block(const product_t *p, const int rows, const int vectors, int64_t row, int64_t vector) {
  lanes_t c[BLOCK_ROWS][THIN_VECTORS];
  const int64_t a_step = p->a_step, b_step = p->b_step, b_panel = p->b_panel;
  const float *a = p->a + row * a_step;
  const float *b = p->b + vector / PANEL_VECTORS * b_panel;
  float *to = p->c + row * p->c_step + vector * LANES;
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < vectors; ++n)
      c[r][n] = p->from_zero ? lanes_all(0.0f) : lanes_load(to + r * p->c_step + n * LANES);
#pragma GCC unroll 4
  for (int64_t k = 0; k < p->k; ++k) {
    lanes_t column[THIN_VECTORS];
#pragma GCC unroll 16
    for (int n = 0; n < vectors; ++n)
      column[n] =
          lanes_load(b + n / PANEL_VECTORS * b_panel + k * b_step + n % PANEL_VECTORS * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      lanes_t factor = lanes_all(a[r * a_step + k]);
#pragma GCC unroll 16
      for (int n = 0; n < vectors; ++n)
        c[r][n] = lanes_fma(factor, column[n], c[r][n]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < vectors; ++n)
      lanes_store(to + r * p->c_step + n * LANES, c[r][n]);
}

#define BLOCK(ROWS, VECTORS)                                                                       \
  case ROWS * 16 + VECTORS:                                                                        \
    if (ROWS <= BLOCK_ROWS && VECTORS >= PANEL_VECTORS && VECTORS <= THIN_VECTORS)                 \
      block(p, ROWS, VECTORS, row, vector);                                                        \
    break;

/* One block of C. The shapes are those that block_rows and block_vectors choose. */
static void any_block(const product_t *p, int64_t rows, int64_t vectors, int64_t row,
                      int64_t vector) {
  switch (rows * 16 + vectors) {
    BLOCK(1, 1)
    BLOCK(2, 1)
    BLOCK(4, 1)
    BLOCK(6, 1)
    BLOCK(8, 1)
    BLOCK(12, 1)
    BLOCK(1, 2)
    BLOCK(2, 2)
    BLOCK(4, 2)
    BLOCK(6, 2)
    BLOCK(8, 2)
    BLOCK(12, 2)
    BLOCK(1, 4)
    BLOCK(2, 4)
    BLOCK(1, 8)
  default:
    break;
  }
}

static int64_t block_rows(int64_t left) {
  static const int8_t most[13] = {0, 1, 2, 2, 4, 4, 6, 6, 8, 8, 8, 8, 12};
  return most[left < BLOCK_ROWS ? left : BLOCK_ROWS];
}

/* Few rows take more columns, so that enough chains are under way to hide a chain's latency. */
static int64_t block_vectors(int64_t rows, int64_t left) {
  int64_t vectors = rows == 1 ? THIN_VECTORS : rows < 4 ? 4 : BLOCK_VECTORS;
  if (vectors > THIN_VECTORS)
    vectors = THIN_VECTORS;
  while (vectors > left)
    vectors /= 2;
  return vectors;
}

static void product(const product_t *p, int64_t rows, int64_t columns) {
  int64_t vectors = columns / LANES;
  int64_t across = vectors / block_vectors(rows, vectors);
  skv__ahead_spread(p->ahead, (rows + BLOCK_ROWS - 1) / BLOCK_ROWS * across);
  for (int64_t vector = 0; vector < vectors;) {
    int64_t wide = block_vectors(rows, vectors - vector);
    for (int64_t row = 0; row < rows;) {
      int64_t high = block_rows(rows - row);
      skv__fetch(p->ahead);
      any_block(p, high, wide, row, vector);
      row += high;
    }
    vector += wide;
  }
}
