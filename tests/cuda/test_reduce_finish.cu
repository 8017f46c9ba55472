/* test_reduce_finish.cu: rows that the one-kernel reduction finishes as it merges them, against the
 * CPU's finish of the merged states: outputs, LSE and digests, bit for bit. Two ranks on one
 * device. */
#include "tests/cuda/reduce_cases.cuh"
#include "tests/cuda/reduce_world.cuh"

enum { SEQUENCES = 2, HEADS = 4, QUERIES = 9, MOST_RUNS = 4 };

typedef struct setting {
  skv__job_t job;
  skv__run_t runs[MOST_RUNS];
  int64_t k_tokens[SEQUENCES], q_start[SEQUENCES];
  float sinks[HEADS];
  skv__finish_t finish;
  size_t o_bytes, lse_bytes;
} setting_t;

/* Rank 0 owns the first five queries of each sequence, unless rows go round-robin. */
static void make_setting(setting_t *s, reduction_t *c, bool round_robin, skv_dtype_t dtype,
                         bool sinks) {
  memset(s, 0, sizeof *s);
  s->job.q_heads = HEADS, s->job.value_head_dim = c->dim, s->job.batch = SEQUENCES;
  s->job.ranks = c->ranks, s->job.round_robin = round_robin;
  s->job.k_tokens = s->k_tokens, s->job.q_start = s->q_start, s->job.runs = s->runs;
  s->job.slice_rows = c->rows;
  int64_t begin[2] = {0, 0}, row = 0;
  for (int owner = 0; owner < (round_robin ? 1 : 2); ++owner)
    for (int sequence = 0; sequence < SEQUENCES; ++sequence) {
      skv__run_t *run = &s->runs[s->job.run_count++];
      *run = {sequence, owner * 5, round_robin ? QUERIES : owner ? QUERIES - 5 : 5, 0, owner};
      run->row_begin = round_robin ? row : begin[owner];
      begin[owner] += run->q_count * HEADS, row += run->q_count * HEADS;
      s->q_start[sequence] = 1000 * sequence + 7;
    }
  for (int owner = 0; owner < 2; ++owner)
    c->rows[owner] = round_robin ? row / 2 : begin[owner];
  for (int head = 0; head < HEADS; ++head)
    s->sinks[head] = (float)head - 1.5f;
  s->finish.out_dtype = dtype, s->finish.sinks = sinks ? s->sinks : NULL;
  const int64_t dim = c->dim + 3; /* a gap that nobody writes */
  s->finish.o.stride[0] = QUERIES * HEADS * dim, s->finish.o.stride[1] = HEADS * dim;
  s->finish.o.stride[2] = dim, s->finish.o.stride[3] = 1;
  s->finish.lse_stride[0] = QUERIES * HEADS, s->finish.lse_stride[1] = HEADS;
  s->finish.lse_stride[2] = 1;
  s->o_bytes = SEQUENCES * QUERIES * HEADS * (size_t)dim * 4;
  s->lse_bytes = SEQUENCES * QUERIES * HEADS * 4;
}

typedef struct results {
  unsigned char *o, *lse;
  uint64_t bits;
} results_t;

static results_t on_host(const setting_t *s, const reduction_t *c, int rank) {
  skv__error_t error = {};
  const skv__kernel_t *kernel = skv__kernel_pick(SKV_BACKEND_CPU, "cpu.portable", &error);
  results_t r = {(unsigned char *)malloc(s->o_bytes), (unsigned char *)malloc(s->lse_bytes), 0};
  memset(r.o, 0x5a, s->o_bytes), memset(r.lse, 0x5a, s->lse_bytes);
  for (int slice = 0; slice < c->ranks; ++slice) {
    skv__finish_t finish = s->finish;
    finish.o.data = r.o, finish.lse = (float *)r.lse;
    finish.bits = slice == rank ? &r.bits : NULL;
    if (c->to_all || slice == rank)
      kernel->finish(&s->job, slice, c->root[0][slice] + GUARD, &finish, 1, NULL, &error);
  }
  return r;
}

static results_t on_device(const setting_t *s, const reduction_t *c, const world_t *w, int rank,
                           results_t *device, bool begins) {
  const skv__window_t *window = w->window[rank];
  results_t r = {NULL, NULL, 0};
  if (begins) {
    float *image = window_image(c, rank, 0, place_of(c, c->nodes, 0));
    check(cudaMemcpy(window->memory[rank], image, place_of(c, c->nodes, 0),
                     cudaMemcpyDeviceToDevice));
    check(cudaFree(image));
    check(cudaMalloc((void **)&device->o, s->o_bytes));
    check(cudaMalloc((void **)&device->lse, s->lse_bytes + 8));
    check(cudaMemset(device->o, 0x5a, s->o_bytes));
    check(cudaMemset(device->lse, 0x5a, s->lse_bytes));
    check(cudaMemset(device->lse + s->lse_bytes, 0, 8));
    check(cudaDeviceSynchronize());
    return r;
  }
  check(cudaDeviceSynchronize());
  r = {(unsigned char *)malloc(s->o_bytes), (unsigned char *)malloc(s->lse_bytes), 0};
  check(cudaMemcpy(r.o, device->o, s->o_bytes, cudaMemcpyDeviceToHost));
  check(cudaMemcpy(r.lse, device->lse, s->lse_bytes, cudaMemcpyDeviceToHost));
  check(cudaMemcpy(&r.bits, device->lse + s->lse_bytes, 8, cudaMemcpyDeviceToHost));
  check(cudaFree(device->o));
  check(cudaFree(device->lse));
  return r;
}

static void launch(const setting_t *s, const reduction_t *c, const world_t *w, int rank,
                   const results_t *device) {
  skv__reduce_t reduce = reduction_for(c, w->window[rank], NULL);
  for (int i = 0; i < reduce.parts; ++i)
    reduce.part[i].writes = true, reduce.part[i].counts = reduce.part[i].owner == rank;
  skv__finish_t finish = s->finish;
  finish.o.data = device->o, finish.lse = (float *)device->lse;
  finish.bits = (uint64_t *)(device->lse + s->lse_bytes);
  if (skv__launch_reduce(w->window[rank], &reduce, &s->job, &finish, w->stream[rank]) != SKV_OK)
    ++failures, printf("FAIL launch\n");
}

static void test(const world_t *w, bool round_robin, skv_dtype_t dtype, bool sinks, int64_t dim,
                 bool to_all) {
  reduction_t c;
  setting_t s;
  results_t device[2];
  memset(&c, 0, sizeof c);
  c.ranks = 2, c.blocks = 5, c.dim = dim, c.to_all = to_all;
  make_setting(&s, &c, round_robin, dtype, sinks);
  cut(&c, {0, c.blocks}, cuts_of({0, c.blocks}) - 1);
  make_case(&c);
  for (int rank = 0; rank < 2; ++rank)
    on_device(&s, &c, w, rank, &device[rank], true);
  for (int rank = 0; rank < 2; ++rank)
    launch(&s, &c, w, rank, &device[rank]);
  int differ = 0;
  for (int rank = 0; rank < 2; ++rank) {
    results_t here = on_device(&s, &c, w, rank, &device[rank], false), host = on_host(&s, &c, rank);
    differ += memcmp(here.o, host.o, s.o_bytes) != 0;
    differ += memcmp(here.lse, host.lse, s.lse_bytes) != 0;
    differ += here.bits != host.bits || !host.bits;
    free(here.o), free(here.lse), free(host.o), free(host.lse);
  }
  failures += differ != 0;
  printf("%s finished rows, %s, dtype %d, %ssinks, dim %lld, to %s: %d differ\n",
         differ ? "FAIL" : "ok  ", round_robin ? "round-robin" : "by position", (int)dtype,
         sinks ? "" : "no ", (long long)dim, to_all ? "all" : "owners", differ);
  drop_case(&c);
}

int main(void) {
  static const skv_dtype_t dtypes[] = {SKV_FP32, SKV_FP16, SKV_BF16};
  static const int64_t dims[] = {64, 128, 255, 6};
  skv__window_t windows[SKV__WINDOW_RANKS];
  uint32_t *stop;
  world_t w;
  check(cudaHostAlloc((void **)&stop, sizeof *stop, cudaHostAllocMapped));
  *stop = 0;
  open_world(&w, windows, stop, 2);
  for (int i = 0; i < 24; ++i)
    test(&w, i % 2, dtypes[i % 3], i / 2 % 2, dims[i % 4], i / 4 % 2);
  close_world(&w);
  printf("%d failures\n", failures);
  return failures ? 1 : 0;
}
