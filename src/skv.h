/* skv.h: exact attention over sequences whose keys and values are sharded over ranks; one answer.
 *
 * For every row (a query of a query head) with logits x_j = scale * <q, k_j> over the keys j that
 * it may see
 *
 *     O   = sum_j exp(x_j) v_j / sum_j exp(x_j)          LSE = log sum_j exp(x_j)
 *
 * with natural logarithms.
 *
 * The bits of (O, LSE) depend on the input, the mask, the pinned order, the dtype and the build.
 * They do not depend on the number of ranks or threads, the layout, the direction, the reduction,
 * chunking, batch-mates or spare capacity. docs/numerics.md states the order; the partial states
 * follow the online normaliser of Milakov and Gimelshein (arXiv:1805.02867) with a base-2 integer
 * exponent.
 *
 * Use: context -> plan -> execute. Creating a plan decides everything; executing it allocates
 * nothing. Handles are opaque, owned by the caller from create to destroy, and used by one thread
 * at a time. Buffers are borrowed for the length of a call (CUDA: see skv_execute). The library
 * never prints, never exits, never reads the environment. The MPI constructor lives in
 * skv_mpi.h; this header names no type of MPI or CUDA.
 */
#ifndef SKV_H
#define SKV_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SKV_VERSION "0.1.0"

#if defined(__GNUC__)
#define SKV_API __attribute__((visibility("default")))
#else
#define SKV_API
#endif

/* ---- status ---- */

#define SKV_STATUS_MAP(X)                                                                          \
  X(OK, 0, "success")                                                                              \
  X(INVALID, 1, "an argument is not valid")                                                        \
  X(UNSUPPORTED, 2, "this build or device cannot do that")                                         \
  X(MEMORY, 3, "out of memory, or a buffer is too small")                                          \
  X(DISAGREE, 4, "ranks were given different work")                                                \
  X(TIMEOUT, 5, "a wait outlived its deadline")                                                    \
  X(PEER, 6, "a peer failed")                                                                      \
  X(TRANSPORT, 7, "the transport reported an error")                                               \
  X(IO, 8, "a file could not be read or written")                                                  \
  X(FORMAT, 9, "a file is malformed")                                                              \
  X(INTERNAL, 10, "a bug in splitkv")

typedef enum skv_status {
#define X(name, code, text) SKV_##name = code,
  SKV_STATUS_MAP(X)
#undef X
} skv_status_t;

SKV_API const char *skv_status_name(skv_status_t status); /* "SKV_OK"; static storage */
SKV_API const char *skv_status_text(skv_status_t status); /* "success"; static storage */
SKV_API const char *skv_version(void);

/* ---- the problem ---- */

typedef enum skv_dtype { SKV_FP32 = 0, SKV_FP16 = 1, SKV_BF16 = 2 } skv_dtype_t;

/* PINNED: the canonical tree. FREE: merge as partials arrive (prices the promise; the negative
 * control). */
typedef enum skv_order { SKV_ORDER_PINNED = 0, SKV_ORDER_FREE = 1 } skv_order_t;

#define SKV_UNBOUNDED (-1) /* window sides */

/* What is computed. Fill it with skv_problem_init, then change fields. The same on every rank. */
typedef struct skv_problem {
  size_t struct_bytes;        /* sizeof(skv_problem_t) */
  int64_t batch;              /* sequences, >= 1 */
  int64_t q_tokens;           /* most queries of a sequence in one execute, >= 0 */
  int64_t kv_capacity_tokens; /* most keys of a sequence, ever; the layout is a function of this,
                                 not of lengths */
  int64_t q_heads, kv_heads;  /* q_heads is a multiple of kv_heads (GQA; MQA has kv_heads 1) */
  int64_t head_dim;           /* of Q and K: 1 to 256 */
  int64_t value_head_dim;     /* of V and O: 1 to 256 */
  skv_dtype_t dtype;          /* of Q, K and V */
  skv_dtype_t out_dtype;      /* of O */
  float scale;                /* finite, > 0; init sets 1/sqrt(head_dim) */
  int causal; /* 1: key position <= query position (bottom-right aligned unless q_start says else)
               */
  int64_t
      window_left_tokens; /* keys before the query's position that it sees; SKV_UNBOUNDED or >= 0 */
  int64_t window_right_tokens; /* keys after it; SKV_UNBOUNDED or >= 0; causal makes it 0 */
  float softcap;       /* 0: off; else logits become softcap * tanh(logit / softcap); finite, > 0 */
  int64_t leaf_tokens; /* keys of a leaf: a multiple of 64 (CUDA: of 128 up to head_dim 128) */
  int64_t block_tokens; /* keys of a block, the unit of ownership: a multiple of leaf_tokens */
  skv_order_t order;
} skv_problem_t;

/* Defaults for these heads: batch 1, no tokens, fp32, scale 1/sqrt(head_dim), no mask, pinned
 * order, default leaf and block. `struct_bytes` is sizeof(skv_problem_t) as the caller compiled it.
 */
SKV_API void skv_problem_init(skv_problem_t *problem, size_t struct_bytes, int64_t q_heads,
                              int64_t kv_heads, int64_t head_dim);

/* ---- context: a process's place among the ranks, its threads, its last error ---- */

typedef struct skv_context skv_context_t;

/* AUTO is the CPU: a CUDA device is used only where it is asked for, since its kernels take device
 * memory and have bits of their own. CUDA means the device that is current in the calling thread,
 * at plan creation and at every execute. */
typedef enum skv_backend {
  SKV_BACKEND_AUTO = 0,
  SKV_BACKEND_CPU = 1,
  SKV_BACKEND_CUDA = 2
} skv_backend_t;

typedef struct skv_context_options {
  size_t struct_bytes;    /* sizeof(skv_context_options_t) */
  int32_t threads;        /* host threads; 0: all that the process may run on */
  double timeout_seconds; /* without a sign of life, every wait ends by then; 0: 60; at most 1e9 */
  skv_backend_t backend;
  const char *kernel; /* NULL, or the name of one kernel ("cpu.portable"), whatever the backend: for
                         tests */
} skv_context_options_t;

/* One rank. `options` may be NULL. On failure *context is a handle that only carries
 * skv_context_error and must be destroyed too, or NULL when there was no memory even for that. */
SKV_API skv_status_t skv_context_create(skv_context_t **context,
                                        const skv_context_options_t *options);
SKV_API void skv_context_destroy(skv_context_t *context);
SKV_API const char *
skv_context_error(const skv_context_t *context); /* text of the last error; "" if none */
SKV_API int32_t skv_context_rank(const skv_context_t *context);
SKV_API int32_t skv_context_ranks(const skv_context_t *context);
SKV_API const char *
skv_context_kernel(const skv_context_t *context); /* name of the kernel in use */

/* A digest of all that the bits depend on besides the tensors and the mask: the leaf order of the
 * context's kernel, leaf, block, head dimensions, dtype. */
SKV_API uint64_t skv_order_id(const skv_context_t *context, const skv_problem_t *problem);

/* ---- plan ---- */

typedef enum skv_layout_kind {
  SKV_CONTIGUOUS = 0,
  SKV_ZIGZAG = 1,
  SKV_BLOCKS = 2
} skv_layout_kind_t;
typedef enum skv_direction {
  SKV_DIRECTION_AUTO = 0,
  SKV_PASS_Q = 1,
  SKV_PASS_KV = 2
} skv_direction_t;
typedef enum skv_reduce {
  SKV_REDUCE_AUTO = 0,
  SKV_GATHER = 1,
  SKV_SCATTER = 2,
  SKV_TREE = 3,
  SKV_BUTTERFLY = 4,
  SKV_RING = 5
} skv_reduce_t; /* pass-KV knows ring and gather */
typedef enum skv_results {
  SKV_RESULTS_OWNER = 0,
  SKV_RESULTS_ROOT = 1,
  SKV_RESULTS_ALL = 2
} skv_results_t;
/* Who owns a row: the rank that owns its token's position (prefill), or rank (row index mod ranks)
 * (decode). */
typedef enum skv_row_owner { SKV_ROWS_BY_POSITION = 0, SKV_ROWS_ROUND_ROBIN = 1 } skv_row_owner_t;

/* One node that was evaluated, for order logs. `state` is [rows][value_head_dim] O, then [rows] e,
 * then [rows] l. */
typedef struct skv_node_event {
  size_t struct_bytes;
  int64_t pass;  /* row pass within the execute */
  int32_t owner; /* whose rows these are */
  int64_t rows, value_head_dim;
  int64_t blocks;            /* blocks of the whole tree */
  int64_t begin, split, end; /* node [begin, end) in blocks; children [begin, split), [split, end);
                                split 0: a leaf event */
  uint64_t left_digest, right_digest, out_digest; /* XXH64 of the states' bytes */
  const float *state;                             /* the result, borrowed */
} skv_node_event_t;
typedef void (*skv_node_observer_t)(void *user, const skv_node_event_t *event);

/* How states get from GPU to GPU. Directly: one kernel on every rank reads them where they lie, in
 * memory that GPUs of one host or NVLink domain can load from each other, and merges them. */
typedef enum skv_path {
  SKV_PATH_AUTO = 0,   /* direct where it can be and pass-Q with scatter is chosen */
  SKV_PATH_DIRECT = 1, /* or SKV_UNSUPPORTED with the reason. Goes with pass-Q and scatter */
  SKV_PATH_MESSAGES = 2
} skv_path_t;

/* What the hardware of one rank reaches, for predictions, and for the choice of direction and
 * reduction where they are auto. `splitkv tune` measures it. All rates are above 0. */
typedef struct skv_machine {
  size_t struct_bytes;                           /* sizeof(skv_machine_t) */
  double flop_per_second, read_bytes_per_second; /* of attention; the latter of K and V */
  double merge_bytes_per_second;                 /* read and written by merges */
  double prefill_seconds,
      decode_seconds;                    /* that an evaluation takes besides, however small;
                                            decode:        of at most 64 rows that share a KV head */
  double round_seconds, message_seconds; /* of a round of messages, and of each in it */
  double bytes_per_second;               /* in each direction */
  double far_round_seconds, far_message_seconds, far_bytes_per_second; /* between nodes */
  int32_t node_ranks; /* ranks of a node, numbered one after the other; 0: all are on one node */
  int32_t overlaps;   /* 1: messages and merges move beside evaluations */
} skv_machine_t;

/* None of these changes a bit of the result. Zero-initialised is the default of each. */
typedef struct skv_plan_options {
  size_t struct_bytes; /* sizeof(skv_plan_options_t) */
  skv_layout_kind_t layout;
  int64_t layout_run_blocks; /* SKV_BLOCKS: blocks of a round-robin run, >= 1; 2^16 runs at most */
  skv_direction_t direction;
  skv_reduce_t reduce;
  skv_results_t results;
  skv_row_owner_t row_owner;
  skv_path_t path;
  int partial; /* 1: leave sinks out, so that (O, LSE) can be merged with other states */
  int64_t
      workspace_bytes; /* target for buffers besides pending states; 0: 64 MiB, on a GPU 1 GiB */
  skv_node_observer_t observer; /* or NULL; called on the executing thread for each node, from
                                   blocks up; an execute with a GPU waits for each */
  void *observer_user;
  const skv_machine_t *machine; /* or NULL: typical figures; the same on every rank; borrowed for
                                   the call */
} skv_plan_options_t;

typedef struct skv_plan skv_plan_t;

typedef struct skv_interval {
  int64_t begin, end; /* token positions [begin, end) */
} skv_interval_t;

typedef struct skv_plan_info {
  size_t struct_bytes;
  skv_direction_t direction; /* as chosen */
  skv_reduce_t reduce;       /* as chosen */
  skv_path_t path;           /* as chosen: direct or messages */
  int64_t blocks;            /* of the tree over the capacity */
  int64_t frontier_nodes;    /* of this rank */
  int64_t rounds;            /* of communication per pass */
  int64_t passes;            /* at q_tokens queries a sequence */
  int64_t sent_bytes;        /* by this rank in one execute at full size */
  int64_t workspace_bytes;   /* that execute needs */
  int64_t pending_bytes;     /* for pending states: a part of it, but with the direct path the
                                plan's own, on the GPU */
} skv_plan_info_t;

/* Collective over the context's ranks: they agree on problem, options and version, or all get
 * SKV_DISAGREE. On failure *plan is NULL and skv_context_error tells why. `options` may be NULL. */
SKV_API skv_status_t skv_plan_create(skv_plan_t **plan, skv_context_t *context,
                                     const skv_problem_t *problem,
                                     const skv_plan_options_t *options);
SKV_API void skv_plan_destroy(skv_plan_t *plan);

/* The positions whose keys and values `rank` holds, ascending; at most *count of them are written,
 * and *count becomes how many there are. They cover the capacity; each sequence of the batch uses
 * the same ones. */
SKV_API skv_status_t skv_plan_key_intervals(const skv_plan_t *plan, int32_t rank,
                                            skv_interval_t *intervals, size_t *count);
SKV_API skv_status_t skv_plan_info(const skv_plan_t *plan, skv_plan_info_t *info);

/* ---- execute ---- */

/* Element (sequence, token, head, d) lies at data + (sequence*stride[0] + token*stride[1] +
 * head*stride[2] + d) elements. stride[3] must be 1; other values are refused. Strides may be 0 or
 * negative for inputs. */
typedef struct skv_tensor {
  void *data;
  int64_t stride[4]; /* in elements: sequence, token, head, head_dim */
} skv_tensor_t;

typedef struct skv_inputs {
  size_t struct_bytes;
  skv_tensor_t q; /* [batch][q_tokens][q_heads][head_dim]: addressed by query index on every rank.
                     Pass-Q reads all rows, pass-KV only the rows that the rank owns */
  skv_tensor_t k; /* [batch][owned tokens][kv_heads][head_dim]: the rank's key intervals,
                     concatenated ascending */
  skv_tensor_t v; /* [batch][owned tokens][kv_heads][value_head_dim] */
  const float *sinks;      /* [q_heads] natural-log sink logits, or NULL */
  const int64_t *q_tokens; /* [batch] queries of each sequence, or NULL: problem.q_tokens */
  const int64_t *k_tokens; /* [batch] keys of each sequence, or NULL: problem.kv_capacity_tokens */
  const int64_t *q_start;  /* [batch] absolute position of query 0 (may be negative), or NULL:
                              k_tokens - q_tokens */
} skv_inputs_t;

typedef struct skv_outputs {
  size_t struct_bytes;
  skv_tensor_t o; /* [batch][q_tokens][q_heads][value_head_dim], addressed by query index; a rank
                     writes only the rows that results gives it, and nothing else */
  float *lse;     /* natural log, -inf for a row that sees no key; or NULL */
  int64_t lse_stride[3]; /* in elements: sequence, token, head */
  uint64_t *
      bits; /* or NULL; the sum modulo 2^64, over the rows this rank owns, of XXH64 over (O in fp32,
               LSE) seeded by (sequence, position, head), is added to it: sum it over the ranks */
} skv_outputs_t;

/* Of the last execute, on this rank. With CUDA, of enqueueing it. */
typedef struct skv_times {
  size_t struct_bytes;
  double compute_seconds, communicate_seconds, wait_seconds;
} skv_times_t;

/* Collective. `workspace` holds skv_plan_info.workspace_bytes, aligned to 64. Errors leave outputs
 * unspecified; after SKV_TIMEOUT, SKV_PEER or SKV_TRANSPORT the context can only be destroyed.
 *
 * CPU: all is host memory, `stream` is NULL, and the work is done on return.
 * CUDA: q, k, v, o, lse, bits and workspace are device memory; sinks, q_tokens, k_tokens and
 * q_start are host memory and are read before the call returns. The work is enqueued on `stream` (a
 * CUDA stream; NULL: the default one), so buffers must live until it is done, and executes of
 * one plan, or with one workspace, must follow one another there. Nothing is allocated, and without
 * an observer, on one rank or over NCCL, nothing waits: a CUDA graph may capture it, and keeps the
 * lengths and positions that it was captured with. With `bits` NULL it is fastest: digests are of O
 * before it is rounded, which takes a way through memory. What fails on the device shows where the
 * caller waits for it. */
SKV_API skv_status_t skv_execute(skv_plan_t *plan, const skv_inputs_t *inputs,
                                 const skv_outputs_t *outputs, void *workspace,
                                 size_t workspace_bytes, void *stream);
/* Waits until what was given to `stream` is done. On a CPU it returns at once. With a device of its
 * own and no other ranks it waits for the stream alone. Where other ranks have a part in the stream
 * (skv_nccl.h) it is the one safe way to wait: all ranks wait alike, for as long as every one of
 * them gives a sign of life, however long the work is; a rank that is silent for the timeout is
 * named, what the device or NCCL reports is returned, and then the stream is freed of messages
 * that will never come, and the context can only be destroyed. */
SKV_API skv_status_t skv_wait(skv_context_t *context, void *stream);
SKV_API skv_status_t skv_plan_times(const skv_plan_t *plan, skv_times_t *times);

/* ---- foreign states: (O, LSE) as vLLM, SGLang and FlashInfer pass them ---- */

typedef enum skv_lse_base { SKV_LSE_NATURAL = 0, SKV_LSE_BASE2 = 1 } skv_lse_base_t;

/* out = a merged with b, rows x dim, normalised O and one fp32 LSE a row; a covers the lower
 * positions. +inf and -inf LSE both mean empty on input; -inf on output. dtype is that of all three
 * O; rows are dense. `out` may be `a`. Error against exact arithmetic: see docs/numerics.md. */
SKV_API skv_status_t skv_merge_lse(void *o_out, float *lse_out, const void *o_a, const float *lse_a,
                                   const void *o_b, const float *lse_b, int64_t rows, int64_t dim,
                                   skv_dtype_t dtype, skv_lse_base_t base);

#ifdef __cplusplus
}
#endif
#endif
