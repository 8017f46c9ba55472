/* plan_direct.c: whether a plan's states go directly from GPU to GPU, and the memory for that. */
#include "plan_parts.h"

#if defined(SKV_HAVE_NCCL)
#include "comm/comm_nccl.h"
#endif

/* What windows are opened on, or NULL: a forecast has no wire. */
static void *native_of(const skv__comm_t *wire) {
#if defined(SKV_HAVE_NCCL)
  return wire ? skv__comm_nccl_of(wire) : NULL;
#else
  (void)wire;
  return NULL;
#endif
}

bool skv__plan_peers(const skv_plan_t *plan, skv__error_t *error) {
  const skv__peers_t *peers = plan->context->kernel->peers;
  void *native = native_of(plan->context->wire);
  if (plan->ranks == 1)
    skv__fail(error, SKV_UNSUPPORTED, "there is one rank only");
  else if (!peers || !native)
    skv__fail(error, SKV_UNSUPPORTED, "states go directly only between GPUs, over NCCL");
  else if (plan->problem.order == SKV_ORDER_FREE)
    skv__fail(error, SKV_UNSUPPORTED, "the free order merges states as they arrive");
  else if (plan->options.observer)
    skv__fail(error, SKV_UNSUPPORTED, "an observer is told of every node");
  else
    return peers->available(native, error);
  return false;
}

static bool goes_directly(skv_plan_t *plan, skv__node_t *const *work, const int32_t *counts,
                          skv__error_t *error) {
  if (plan->options.direction != SKV_PASS_Q || plan->options.reduce != SKV_SCATTER)
    skv__fail(error, SKV_UNSUPPORTED, "only pass-Q with scatter goes directly");
  else if (!skv__plan_peers(plan, error))
    return false;
  else if (!skv__direct_cast(&plan->direct, work, counts))
    skv__fail(error, SKV_UNSUPPORTED, "the ranks have more than %d nodes in all",
              (int)SKV__REDUCE_NODES);
  else
    return true;
  return false;
}

skv_status_t skv__plan_path(skv_plan_t *plan, skv__node_t *const *work, const int32_t *counts,
                            skv__error_t *error) {
  skv__error_t why = {0};
  skv_path_t wanted = plan->options.path;
  plan->direct = (skv__direct_path_t){.rank = plan->rank,
                                      .ranks = plan->ranks,
                                      .optional = wanted == SKV_PATH_AUTO,
                                      .results = plan->options.results,
                                      .blocks = plan->shard.blocks};
  bool direct = wanted != SKV_PATH_MESSAGES && goes_directly(plan, work, counts, &why);
  if (wanted == SKV_PATH_DIRECT && !direct)
    return skv__fail(error, SKV_UNSUPPORTED, "no direct path: %s", why.text);
  plan->options.path = direct ? SKV_PATH_DIRECT : SKV_PATH_MESSAGES;
  plan->direct.calls = direct ? plan->context->kernel->peers : NULL;
  return SKV_OK;
}

void skv__plan_close_window(skv_plan_t *plan) {
  skv_context_t *context = plan->context;
  skv__window_t *window = plan->direct.window;
  if (!window)
    return;
  if (context->wire->broken || context->comm->broken)
    skv__context_stop(context);
  skv__window_t **link = &context->windows;
  while (*link != window)
    link = &(*link)->next;
  *link = window->next;
  plan->direct.calls->close(window);
  plan->direct.window = NULL;
}

static void send_messages(skv_plan_t *plan) {
  skv__plan_close_window(plan);
  plan->direct.calls = NULL;
  plan->options.path = SKV_PATH_MESSAGES;
  skv__plan_lay_out(plan);
}

/* All ranks hear how a step went on each of them. What one of them lacks, all do without where they
 * may; but a wire that failed, or a rank that did not come, is no choice of paths. */
static skv_status_t judge(skv_plan_t *plan, skv_status_t status, const char *text) {
  skv__comm_t *comm = plan->context->comm;
  bool may_lack = plan->direct.optional && status != SKV_TIMEOUT && status != SKV_PEER &&
                  status != SKV_TRANSPORT;
  uint64_t lacking = status != SKV_OK;
  SKV_TRY(skv__comm_agree(comm, NULL, 0, may_lack ? SKV_OK : status, text));
  SKV_TRY(skv__comm_sum(comm, &lacking, 1, "windows"));
  if (lacking)
    send_messages(plan);
  return SKV_OK;
}

skv_status_t skv__plan_open_window(skv_plan_t *plan) {
  skv_context_t *context = plan->context;
  const skv__peers_t *calls = plan->direct.calls;
  skv__window_t *window = NULL;
  skv__error_t mine = {0};
  if (!calls)
    return SKV_OK;
  skv_status_t status =
      calls->reserve(&window, native_of(context->wire), plan->banks * plan->bank_bytes, &mine);
  if (window) {
    window->next = context->windows;
    context->windows = plan->direct.window = window;
  }
  SKV_TRY(judge(plan, status, mine.text));
  if (!plan->direct.calls)
    return SKV_OK;
  status = calls->open(window, context->comm->timeout_seconds, &mine);
  return judge(plan, status, mine.text);
}
