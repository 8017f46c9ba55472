/* test_numerics.c: docs/numerics.md read by someone who has only that page. Sections 2 to 7 are
 * written again here, plainly, sharing no code with the library; the bits must come out the same.
 */
#include "leaf_job.h"

typedef struct row_state {
  float e, l, o[256];
} row_state_t;

/* What one row sees and reads. */
typedef struct reader {
  const kit_case_t *test;
  int64_t sequence, query, head;
  int64_t first, end; /* keys it sees */
  float q[256], c, g;
} reader_t;

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* ---- section 4 ---- */

static float canonical_number(float x) {
  return isnan(x) ? from_bits(0x7fc00000) : x;
}

static float larger(float x, float y) {
  return x > y ? x : y;
}

static float power_of_two(float d) {
  return isnan(d) ? from_bits(0x7fc00000) : d < -126 ? 0 : ldexpf(1, (int)d);
}

/* fma(... fma(fma(c[0], x, c[1]), x, c[2]) ..., x, c[count - 1]) */
static float chain(const uint32_t *c, int count, float x) {
  float p = from_bits(c[0]);
  for (int i = 1; i < count; ++i)
    p = fmaf(p, x, from_bits(c[i]));
  return p;
}

static float power(float x) {
  static const uint32_t c[] = {0x392452ea, 0x3aafc4fb, 0x3c1d90e4, 0x3d6356d3,
                               0x3e75fdf3, 0x3f317219, 0x3f800000};
  const float magic = from_bits(0x4b40007f);
  if (x < -126)
    return 0;
  float t = x + magic;
  float f = x - (t - magic);
  return canonical_number(chain(c, 7, f) * from_bits(to_bits(t) << 23));
}

static float logarithm(float x) {
  static const uint32_t c[] = {0x3d5b200e, 0xbddfcbcc, 0x3df8082f, 0xbe0081de, 0x3e1181b6,
                               0xbe2a978c, 0x3e4cd2a0, 0xbe800038, 0x3eaaaaa4};
  if (!(x > 0) || isinf(x))
    return x == 0 ? -INFINITY : x > 0 ? x : from_bits(0x7fc00000);
  int z = x < 0x1p-126f ? 23 : 0;
  uint32_t k = to_bits(z ? x * 0x1p23f : x) - 0x3f3504f3u;
  float f = from_bits((k & 0x7fffff) + 0x3f3504f3u) - 1;
  float e = (float)((int32_t)k >> 23) - (float)z;
  float s = f * f, y = (f * s) * chain(c, 9, f);
  y = fmaf(-0.5f, s, fmaf(e, from_bits(0xb102e308), y));
  return fmaf(e, from_bits(0x3f317218), f + y);
}

static float hyperbolic_tangent(float x) {
  static const uint32_t c[] = {0xbbbb3d0a, 0x3ca92620, 0xbd5c2162, 0x3e0883af, 0xbeaaaa9a};
  float a = fabsf(x), s = a * a, t = power(a * from_bits(0xc038aa3b));
  float y = a < 0.625f ? fmaf(a * s, chain(c, 5, s), a) : 1 - (t + t) / (1 + t);
  return copysignf(y, x);
}

static float exponent_of(float t) {
  if (t > 0x1p30f)
    return INFINITY;
  if (t < -0x1p30f && !isinf(t))
    return -0x1p30f;
  return canonical_number(ceilf(t) + 0.0f);
}

/* ---- section 6 ---- */

static void merge_rows(row_state_t *a, const row_state_t *b, int64_t columns) {
  if (b->e == -INFINITY)
    return;
  if (a->e == -INFINITY) {
    *a = *b;
    return;
  }
  float m = canonical_number(larger(a->e, b->e));
  float wa = power_of_two(a->e - m), wb = power_of_two(b->e - m);
  a->l = canonical_number(fmaf(b->l, wb, a->l * wa));
  for (int64_t n = 0; n < columns; ++n)
    a->o[n] = canonical_number(fmaf(b->o[n], wb, a->o[n] * wa));
  a->e = m;
}

/* ---- section 5 ---- */

static float logit(const reader_t *reader, int64_t key) {
  const skv_problem_t *p = &reader->test->problem;
  int64_t kv_head = reader->head / (p->q_heads / p->kv_heads);
  int64_t at = (reader->sequence * p->kv_capacity_tokens + key) * p->kv_heads + kv_head;
  float s = 0;
  for (int64_t d = 0; d < p->head_dim; ++d)
    s = fmaf(reader->q[d], kit_widen(p->dtype, reader->test->k, at * p->head_dim + d), s);
  return p->softcap != 0 ? hyperbolic_tangent(s * reader->g) : s;
}

static void take_tile(const reader_t *reader, int64_t tile, row_state_t *state, float *lanes) {
  const skv_problem_t *p = &reader->test->problem;
  int64_t kv_head = reader->head / (p->q_heads / p->kv_heads);
  int64_t begin = reader->first > tile ? reader->first : tile;
  int64_t end = reader->end < tile + 64 ? reader->end : tile + 64;
  float u[64], m = -INFINITY;
  for (int64_t key = begin; key < end; ++key)
    m = larger(u[key - tile] = logit(reader, key), m);
  float e = larger(state->e, exponent_of(m * reader->c));
  float factor = e == state->e ? 1 : power_of_two(state->e - e);
  for (int i = 0; i < 16; ++i)
    lanes[i] *= factor;
  for (int64_t n = 0; n < p->value_head_dim; ++n)
    state->o[n] *= factor;
  state->e = e;
  for (int64_t key = begin; key < end; ++key) {
    float weight = power(fmaf(u[key - tile], reader->c, e == -INFINITY ? 0 : -e));
    int64_t at = (reader->sequence * p->kv_capacity_tokens + key) * p->kv_heads + kv_head;
    lanes[key % 16] += weight;
    for (int64_t n = 0; n < p->value_head_dim; ++n)
      state->o[n] = fmaf(weight, kit_widen(p->dtype, reader->test->v, at * p->value_head_dim + n),
                         state->o[n]);
  }
}

static void take_leaf(const reader_t *reader, int64_t leaf, row_state_t *state) {
  const skv_problem_t *p = &reader->test->problem;
  float lanes[16] = {0};
  *state = (row_state_t){.e = -INFINITY};
  for (int64_t tile = leaf; tile < leaf + p->leaf_tokens; tile += 64)
    if (reader->first < tile + 64 && reader->end > tile)
      take_tile(reader, tile, state, lanes);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i)
      lanes[i] += lanes[i + half];
  state->l = canonical_number(lanes[0] + 0.0f);
  if (isnan(state->l))
    state->e = from_bits(0x7fc00000);
  for (int64_t n = 0; n < p->value_head_dim; ++n)
    state->o[n] = canonical_number(state->o[n] + 0.0f);
}

/* ---- section 2 ---- */

static void take_blocks(const reader_t *reader, int64_t begin, int64_t end, row_state_t *state) {
  const skv_problem_t *p = &reader->test->problem;
  row_state_t right;
  if (end - begin == 1) {
    *state = (row_state_t){.e = -INFINITY};
    for (int64_t i = 0; i < p->block_tokens; i += p->leaf_tokens) {
      take_leaf(reader, begin * p->block_tokens + i, &right);
      merge_rows(state, &right, p->value_head_dim);
    }
    return;
  }
  int64_t split = 1;
  while (split * 2 < end - begin)
    split *= 2;
  take_blocks(reader, begin, begin + split, state);
  take_blocks(reader, begin + split, end, &right);
  merge_rows(state, &right, p->value_head_dim);
}

static void look(reader_t *reader) {
  const skv_problem_t *p = &reader->test->problem;
  int64_t s = reader->sequence, keys = reader->test->k_tokens[s];
  int64_t position = leaf_start(reader->test, s) + reader->query;
  int64_t right = p->causal ? 0 : p->window_right_tokens;
  reader->first = p->window_left_tokens < 0 || position < p->window_left_tokens
                      ? 0
                      : position - p->window_left_tokens;
  reader->end = right < 0 || position + right + 1 > keys ? keys : position + right + 1;
  int64_t at = (s * p->q_tokens + reader->query) * p->q_heads + reader->head;
  for (int64_t d = 0; d < p->head_dim; ++d)
    reader->q[d] = kit_widen(p->dtype, reader->test->q, at * p->head_dim + d);
  bool capped = p->softcap != 0;
  reader->c = (float)((double)(capped ? p->softcap : p->scale) * 1.4426950408889634);
  reader->g = capped ? p->scale / p->softcap : 0;
}

/* ---- section 7 ---- */

static void add_sink(row_state_t *state, float z, int64_t columns) {
  row_state_t sink = {.e = exponent_of(z * from_bits(0x3fb8aa3b))};
  sink.l = power(fmaf(z, from_bits(0x32a57060), fmaf(z, from_bits(0x3fb8aa3b), -sink.e)));
  merge_rows(state, &sink, columns);
}

static void check_row(const reader_t *reader, const leaf_result_t *result, const char *what) {
  const skv_problem_t *p = &reader->test->problem;
  int64_t columns = p->value_head_dim;
  row_state_t state;
  take_blocks(reader, 0, leaf_blocks(reader->test), &state);
  if (reader->test->sinks)
    add_sink(&state, reader->test->sinks[reader->head], columns);
  bool empty = state.e == -INFINITY;
  float lse = empty ? -INFINITY
              : state.l == 0
                  ? from_bits(0x7fc00000)
                  : canonical_number(fmaf(state.e, from_bits(0x3f317218), logarithm(state.l)));
  int64_t row = (reader->sequence * p->q_tokens + reader->query) * p->q_heads + reader->head;
  cr_assert_eq(to_bits(result->lse[row]), to_bits(lse), "%s: LSE of row %ld", what, (long)row);
  for (int64_t n = 0; n < columns; ++n) {
    float o = empty ? 0 : canonical_number(state.o[n] / state.l), wanted = 0;
    kit_narrow(p->out_dtype, &wanted, 0, o);
    cr_assert_eq(to_bits(kit_widen(p->out_dtype, result->o, row * columns + n)),
                 to_bits(kit_widen(p->out_dtype, &wanted, 0)), "%s: row %ld column %ld", what,
                 (long)row, (long)n);
  }
}

Test(numerics, the_page_alone_gives_the_bits) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    kit_case_t *test = kit_case_random(seed);
    char what[512];
    kit_case_describe(test, what, sizeof what);
    leaf_result_t result = leaf_run(test, &(leaf_way_t){.threads = 2});
    for (int64_t s = 0; s < test->problem.batch; ++s)
      for (int64_t q = 0; q < test->q_tokens[s]; ++q)
        for (int64_t h = 0; h < test->problem.q_heads; ++h) {
          reader_t reader = {.test = test, .sequence = s, .query = q, .head = h};
          look(&reader);
          check_row(&reader, &result, what);
        }
    leaf_free(&result);
    kit_case_free(test);
  }
}
