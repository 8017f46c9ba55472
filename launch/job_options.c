/* job_options.c: see job_options.h. */
#include "launch/job_options.h"

#include <string.h>

#include "launch/size.h"

enum { LEAST_LEAF = 64, MOST_REPEATS = 1000000 };

static const char DTYPES[] = "fp32|fp16|bf16";
static const char REDUCES[] = "auto|gather|scatter|tree|butterfly|ring";
static const char DIRECTIONS[] = "auto|pass-q|pass-kv";

skv__job_options_t skv__job_defaults(bool decode) {
  return (skv__job_options_t){.decode = decode,
                              .tensor_layout = -1,
                              .dtype = -1,
                              .tokens = -1,
                              .seed = -1,
                              .batch = -1,
                              .outliers = -1,
                              .queries = -1,
                              .chunk = -1,
                              .capacity = -1,
                              .kv_len = -1,
                              .leaf = -1,
                              .block = -1,
                              .timeout = 60.0};
}

static int32_t add(skv__option_t *table, const skv__option_t *options, size_t bytes) {
  memcpy(table, options, bytes);
  return (int32_t)(bytes / sizeof *options);
}

static int32_t add_files(skv__job_options_t *job, skv__option_t *table) {
  const skv__option_t options[] = {
      {NULL, SKV__FLAG, NULL, NULL, "input from files", 0},
      {"q", SKV__TEXT, &job->q, "FILE", "queries: PATH.npy or PATH.safetensors:NAME", 0},
      {"k", SKV__TEXT, &job->k, "FILE", "keys", 0},
      {"v", SKV__TEXT, &job->v, "FILE", "values", 0},
      {"tensor-layout", SKV__CHOICE, &job->tensor_layout, "thd|htd|bthd|bhtd",
       "order of axes in files (thd for 3 axes, bthd for 4)", 0},
      {"sinks", SKV__TEXT, &job->sinks, "FILE", "sink logits: .npy, fp32, one per query head", 0},
      {"kv-len", SKV__SIZE, &job->kv_len, "N", "use only the first N keys (all)", 0},
      {"chunk", SKV__SIZE, &job->chunk, "N", "run N queries at a time (all at once)", 1},
  };
  return add(table, options, sizeof options);
}

static int32_t add_shape(skv__job_options_t *job, skv__option_t *table) {
  const skv__option_t options[] = {
      {NULL, SKV__FLAG, NULL, NULL, "input by its size", 0},
      {"shape", SKV__TEXT, &job->shape, "SHAPE",
       "query heads,KV heads,head dim[,value head dim], or a model (llama3-8b)", 0},
      {"tokens", SKV__SIZE, &job->tokens, "N", "keys of each sequence", 0},
      {"queries", SKV__SIZE, &job->queries, "N",
       job->decode ? "the last N positions (1)" : "the last N positions (all)", 0},
      {"batch", SKV__SIZE, &job->batch, "N", "sequences (1)", 1},
      {"dtype", SKV__CHOICE, &job->dtype, DTYPES,
       "of Q, K, V (fp32); bf16 also says what <u2 .npy files hold", 0},
  };
  return add(table, options, sizeof options);
}

static int32_t add_seed(skv__job_options_t *job, skv__option_t *table) {
  const skv__option_t options[] = {
      {"seed", SKV__SIZE, &job->seed, "N", "of the values (0)", 0},
      {"outliers", SKV__SIZE, &job->outliers, "N",
       "channels of Q and K that are 8 times larger (0)", 0},
  };
  return add(table, options, sizeof options);
}

static int32_t add_problem(skv__job_options_t *job, skv__option_t *table) {
  const skv__option_t options[] = {
      {NULL, SKV__FLAG, NULL, NULL, "what is computed", 0},
      {"causal", SKV__FLAG, &job->causal, "", "keys up to the query's position, bottom-right", 0},
      {"window", SKV__TEXT, &job->window, "L,R",
       "keys at most L before and R after the query; -1: unbounded", 0},
      {"softcap", SKV__NUMBER, &job->softcap, "X", "logits become X tanh(logit / X)", 0},
      {"scale", SKV__NUMBER, &job->scale, "X", "of logits (1 / sqrt(head dim))", 0},
      {"leaf", SKV__SIZE, &job->leaf, "N", "keys of a leaf, a multiple of 64; changes bits", 1},
      {"block", SKV__SIZE, &job->block, "N",
       "keys of a block, a multiple of the leaf; changes bits", 1},
      {"order", SKV__CHOICE, &job->order, "pinned|free",
       "pinned: the same bits on any number of ranks", 0},
      {"partial", SKV__FLAG, &job->partial, "", "leave sinks out, so that results can be merged",
       0},
  };
  return add(table, options, sizeof options);
}

static int32_t add_plan(skv__job_options_t *job, skv__option_t *table) {
  const skv__option_t options[] = {
      {NULL, SKV__FLAG, NULL, NULL, "how it is divided (never changes a bit in pinned order)", 0},
      {"capacity", SKV__SIZE, &job->capacity, "N", "lay out for N keys (those of the input)", 0},
      {"layout", SKV__TEXT, &job->layout, "LAYOUT",
       "contiguous, zigzag or blocks:N (causal prefill: zigzag, else contiguous)", 0},
      {"direction", SKV__CHOICE, &job->direction, DIRECTIONS, "what travels: states, or keys", 0},
      {"reduce", SKV__CHOICE, &job->reduce, REDUCES, "how; pass-kv knows ring and gather", 0},
      {"results", SKV__CHOICE, &job->results, "owner|root|all", "who gets the output rows", 0},
      {"path", SKV__CHOICE, &job->path, "auto|direct|messages",
       "of states between GPUs: one kernel that loads them (pass-q, scatter), or messages", 0},
      {"tuned", SKV__TEXT, &job->tune, "FILE",
       "choose by these figures of splitkv tune (typical ones)", 0},
  };
  return add(table, options, sizeof options);
}

static int32_t add_run(skv__job_options_t *job, skv__option_t *table) {
  const skv__option_t options[] = {
      {NULL, SKV__FLAG, NULL, NULL, "the run", 0},
      {"threads", SKV__SIZE, &job->threads, "N", "of each rank (its share of the cores)", 1},
      {"bind", SKV__CHOICE, &job->bind, "cores|none", "keep ranks and threads on their cores", 0},
      {"backend", SKV__CHOICE, &job->backend, "auto|cpu|cuda",
       "where it is computed; auto: the CPU", 0},
      {"transport", SKV__CHOICE, &job->transport, "auto|self|mpi|nccl",
       "what moves the bytes; auto: nccl where every rank has a GPU of its own, else mpi", 0},
      {"timeout", SKV__NUMBER, &job->timeout, "S", "seconds that any wait may last (60)", 0},
  };
  return add(table, options, sizeof options);
}

static int32_t add_output(skv__job_options_t *job, skv__option_t *table) {
  const skv__option_t options[] = {
      {NULL, SKV__FLAG, NULL, NULL, "output", 0},
      {"out", SKV__TEXT, &job->out, "FILE", "O as .npy", 0},
      {"lse", SKV__TEXT, &job->lse, "FILE", "log-sum-exp as .npy, fp32, natural logarithm", 0},
      {"out-dtype", SKV__CHOICE, &job->out_fp32, "same|fp32", "of O; bf16 is stored as <u2", 0},
      {"repeat", SKV__SIZE, &job->repeat, "N",
       "run it N times: the median time; exit 1 if bits differ (1)", 1},
      {"order-log", SKV__TEXT, &job->order_log, "FILE", "every evaluated node, for replay", 0},
      {"order-states", SKV__FLAG, &job->order_states, "",
       "with it, the state of every block, in FILE.states", 0},
      {"check", SKV__FLAG, &job->check, "", "compare with plain fp64 attention; exit 1 if wrong",
       0},
      {"json", SKV__FLAG, &job->json, "", "report as one JSON object on stdout", 0},
  };
  return add(table, options, sizeof options);
}

int32_t skv__job_table(skv__job_options_t *job, unsigned groups, skv__option_t *table) {
  static int32_t (*const adders[])(skv__job_options_t *, skv__option_t *) = {
      add_files, add_shape, add_seed, add_problem, add_plan, add_run, add_output};
  int32_t count = 0;
  for (unsigned group = 0; group < sizeof adders / sizeof *adders; ++group)
    if (groups & 1u << group)
      count += adders[group](job, table + count);
  return count;
}

skv_status_t skv__job_check(const skv__job_options_t *job, skv__error_t *error) {
  bool files = job->q || job->k || job->v;
  if (files && job->shape)
    return skv__fail(error, SKV_INVALID,
                     "--shape and --q/--k/--v: input is either seeded or from files");
  if (!files && !job->shape)
    return skv__fail(error, SKV_INVALID,
                     "no input: give --q, --k and --v, or --shape and --tokens");
  if (files && !(job->q && job->k && job->v))
    return skv__fail(error, SKV_INVALID, "--%s is missing: files are --q, --k and --v together",
                     !job->q   ? "q"
                     : !job->k ? "k"
                               : "v");
  if (files && (job->tokens >= 0 || job->queries >= 0 || job->batch >= 0 || job->seed >= 0 ||
                job->outliers >= 0))
    return skv__fail(error, SKV_INVALID,
                     "--tokens, --queries, --batch, --seed and --outliers go with --shape: files "
                     "say for themselves what they hold");
  if (!files && job->tokens < 0)
    return skv__fail(error, SKV_INVALID, "--shape needs --tokens");
  if (job->timeout > 1e6)
    return skv__fail(error, SKV_INVALID, "--timeout: at most 1e6 seconds");
  if (job->threads > 4096)
    return skv__fail(error, SKV_INVALID, "--threads: at most 4096");
  if (job->partial && job->sinks)
    return skv__fail(error, SKV_INVALID, "--partial leaves sinks out: drop --sinks or --partial");
  if (job->out && job->lse && strcmp(job->out, job->lse) == 0)
    return skv__fail(error, SKV_INVALID, "--out and --lse name the same file");
  if (job->repeat > MOST_REPEATS)
    return skv__fail(error, SKV_INVALID, "--repeat: at most %d", (int)MOST_REPEATS);
  if (job->repeat > 1 && job->order_log)
    return skv__fail(error, SKV_INVALID, "--order-log is of one run: drop --repeat");
  if (job->order_states && !job->order_log)
    return skv__fail(error, SKV_INVALID, "--order-states goes with --order-log FILE");
  skv_plan_options_t ignored;
  return skv__job_plan_options(job, &ignored, error);
}

/* "L,R", each -1 or a size. */
static skv_status_t read_window(const char *text, skv_problem_t *problem, skv__error_t *error) {
  int64_t *sides[2] = {&problem->window_left_tokens, &problem->window_right_tokens};
  char copy[64];
  char *comma = NULL;
  if (strlen(text) < sizeof copy) {
    strcpy(copy, text);
    comma = strchr(copy, ',');
  }
  if (!comma)
    return skv__fail(error, SKV_INVALID, "--window %.60s: give two numbers, as in 4095,0", text);
  *comma = '\0';
  const char *parts[2] = {copy, comma + 1};
  for (int side = 0; side < 2; ++side) {
    skv__error_t cause = {0};
    if (strcmp(parts[side], "-1") == 0)
      *sides[side] = SKV_UNBOUNDED;
    else if (skv__size_parse(parts[side], sides[side], &cause) != SKV_OK)
      return skv__fail(error, SKV_INVALID, "--window %.60s: each side is -1 or a number of keys",
                       text);
  }
  return SKV_OK;
}

/* Who gives one of leaf and block gets the other to fit. */
static void set_order(const skv__job_options_t *job, skv_problem_t *problem) {
  if (job->leaf > 0) {
    problem->leaf_tokens = job->leaf;
    problem->block_tokens += job->leaf - 1;
    problem->block_tokens -= problem->block_tokens % job->leaf;
  }
  if (job->block > 0)
    problem->block_tokens = job->block;
  while (job->leaf < 1 && problem->block_tokens % problem->leaf_tokens &&
         problem->leaf_tokens > LEAST_LEAF)
    problem->leaf_tokens /= 2;
}

skv_status_t skv__job_problem(const skv__job_options_t *job, const skv__job_extents_t *extents,
                              skv_problem_t *problem, skv__error_t *error) {
  skv_problem_init(problem, sizeof *problem, extents->q_heads, extents->kv_heads,
                   extents->head_dim);
  problem->batch = extents->batch;
  problem->q_tokens = extents->q_tokens;
  problem->kv_capacity_tokens = extents->capacity_tokens;
  problem->value_head_dim = extents->value_head_dim;
  problem->dtype = extents->dtype;
  problem->out_dtype = job->out_fp32 ? SKV_FP32 : extents->dtype;
  problem->causal = job->causal;
  problem->softcap = (float)job->softcap;
  problem->order = (skv_order_t)job->order;
  if (job->scale > 0.0)
    problem->scale = (float)job->scale;
  set_order(job, problem);
  return job->window ? read_window(job->window, problem, error) : SKV_OK;
}

skv_status_t skv__job_plan_options(const skv__job_options_t *job, skv_plan_options_t *options,
                                   skv__error_t *error) {
  *options =
      (skv_plan_options_t){.struct_bytes = sizeof *options,
                           .direction = (skv_direction_t)job->direction,
                           .reduce = (skv_reduce_t)job->reduce,
                           .results = (skv_results_t)job->results,
                           .path = (skv_path_t)job->path,
                           .row_owner = job->decode ? SKV_ROWS_ROUND_ROBIN : SKV_ROWS_BY_POSITION,
                           .partial = job->partial};
  static const char *const words[] = {"contiguous", "zigzag", "blocks:"};
  if (!job->layout) { /* a causal prefill has its work where the later keys are */
    options->layout = job->causal && !job->decode ? SKV_ZIGZAG : SKV_CONTIGUOUS;
    return SKV_OK;
  }
  if (strcmp(job->layout, words[0]) == 0)
    return SKV_OK;
  if (strcmp(job->layout, words[1]) == 0) {
    options->layout = SKV_ZIGZAG;
    return SKV_OK;
  }
  skv__error_t cause = {0};
  if (strncmp(job->layout, words[2], strlen(words[2])) == 0 &&
      skv__size_parse(job->layout + strlen(words[2]), &options->layout_run_blocks, &cause) ==
          SKV_OK &&
      options->layout_run_blocks > 0) {
    options->layout = SKV_BLOCKS;
    return SKV_OK;
  }
  const char *closest = skv__suggest(job->layout, words, 2);
  return skv__fail(error, SKV_INVALID,
                   "--layout %.60s: unknown%s%s%s; it takes contiguous, zigzag or blocks:N "
                   "(N at least 1)",
                   job->layout, closest ? "; did you mean " : "", closest ? closest : "",
                   closest ? "?" : "");
}

skv__session_options_t skv__job_session(const skv__job_options_t *job) {
  return (skv__session_options_t){.transport = (skv__transport_choice_t)job->transport,
                                  .backend = (skv_backend_t)job->backend,
                                  .threads = (int32_t)job->threads,
                                  .timeout_seconds = job->timeout,
                                  .bind = job->bind == 0};
}

const char *skv__layout_word(skv_layout_kind_t kind) {
  static const char *const words[] = {"contiguous", "zigzag", "blocks"};
  return words[kind];
}

const char *skv__direction_word(skv_direction_t direction) {
  static const char *const words[] = {"auto", "pass-q", "pass-kv"};
  return words[direction];
}

const char *skv__reduce_word(skv_reduce_t reduce) {
  static const char *const words[] = {"auto", "gather", "scatter", "tree", "butterfly", "ring"};
  return words[reduce];
}

const char *skv__dtype_word(skv_dtype_t dtype) {
  static const char *const words[] = {"fp32", "fp16", "bf16"};
  return words[dtype];
}
