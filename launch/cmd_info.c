/* cmd_info.c: splitkv info: what this build and this host have. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "kernels/kernel.h"
#include "launch/exit_codes.h"
#include "launch/gpu.h"
#include "launch/launcher.h"
#include "launch/map.h"
#include "launch/mpi_session.h"
#include "launch/options.h"
#include "launch/report.h"
#ifdef SKV_HAVE_MPI
#include <mpi.h>
#endif
#ifdef SKV_HAVE_NCCL
#include "comm/comm_nccl.h"
#endif

enum { TEXT_BYTES = 512, BINDING_BYTES = sizeof((skv__binding_t){0}.text) };

typedef struct info {
  char mpi[TEXT_BYTES], kernels[TEXT_BYTES], models[TEXT_BYTES];
  skv__host_t host;
  skv__adapters_t adapters;
  skv__gpu_map_t map;
  uint64_t order_id;
  const char (*bindings)[BINDING_BYTES]; /* of the session's ranks */
  char sharing[TEXT_BYTES];
} info_t;

static void describe_mpi(char text[TEXT_BYTES]) {
#ifdef SKV_HAVE_MPI
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(version, &length); /* allowed before MPI_Init */
  snprintf(text, TEXT_BYTES, "%.*s", (int)strcspn(version, ",\n"), version);
#else
  snprintf(text, TEXT_BYTES, "none: one rank only");
#endif
}

static void describe_kernels(char text[TEXT_BYTES], const char *used) {
  text[0] = '\0';
  for (const skv__kernel_t *const *kernel = skv__kernels(); *kernel; ++kernel)
    snprintf(text + strlen(text), TEXT_BYTES - strlen(text), "%s%s%s", text[0] ? ", " : "",
             (*kernel)->name,
             !(*kernel)->available(NULL)          ? " (not on this host)"
             : strcmp((*kernel)->name, used) == 0 ? " (in use)"
                                                  : "");
}

static void collect(info_t *info, const skv__session_t *session) {
  skv_problem_t problem;
  skv_problem_init(&problem, sizeof problem, 32, 8, 128);
  problem.dtype = SKV_BF16;
  problem.out_dtype = SKV_BF16;
  info->order_id = skv_order_id(session->context, &problem);
  info->host = skv__host();
  skv__adapters(&info->adapters);
  describe_mpi(info->mpi);
  describe_kernels(info->kernels, skv_context_kernel(session->context));
  skv__stations_sharing(session->stations, session->ranks, info->sharing, sizeof info->sharing);
}

/* A rank's GPU, if the session is for GPUs, and its cores. */
static void describe_rank(const info_t *info, const skv__session_t *session, int32_t rank,
                          char text[TEXT_BYTES]) {
  const skv__station_t *station = &session->stations[rank];
  char gpu[64] = "";
  if (station->number != SKV__NO_GPU)
    snprintf(gpu, sizeof gpu, "GPU %d (PCI %.19s), ", (int)station->number, station->bus_id);
  snprintf(text, TEXT_BYTES, "%s%s", gpu, info->bindings[rank]);
}

static void describe_nccl(char *text, size_t text_bytes) {
#ifdef SKV_HAVE_NCCL
  int version = skv__nccl_version();
  snprintf(text, text_bytes, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
#else
  snprintf(text, text_bytes, "no");
#endif
}

static const char *compiler(void) {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

static void print_gpus(const info_t *info) {
  for (int32_t i = 0; i < info->adapters.count; ++i) {
    const skv__adapter_t *adapter = &info->adapters.each[i];
    char place[TEXT_BYTES] = "not on the map";
    if (i < info->map.count)
      skv__gpu_place_text(&info->map.each[i], place, sizeof place);
    printf("GPU %-6d %s: compute capability %d.%d, %d multiprocessors, %s%s; %s\n", (int)i,
           adapter->name, (int)adapter->major, (int)adapter->minor, (int)adapter->multiprocessors,
           skv__bytes_text((double)adapter->memory_bytes).text,
           adapter->major < 8 ? ", too old" : "", place);
  }
}

static void print_text(const info_t *info, const skv__session_t *session) {
  char nccl[32];
  printf("splitkv    %s\n", skv_version());
  printf("compiler   %s\n", compiler());
  printf("MPI        %s%s\n", info->mpi, session->mpi ? "" : " (not started: no launcher)");
  describe_nccl(nccl, sizeof nccl);
  printf("CUDA       %s\nNCCL       %s\n", info->adapters.cuda, nccl);
  printf("kernels    %s\n", info->kernels);
  printf("order id   %s (32/8 heads of 128, bf16, default leaf and block)\n",
         skv__bits_text(info->order_id).text);
  printf("CPU        %s: %d package%s, %d NUMA node%s, %d cores, %d CPUs\n", info->host.model,
         (int)info->host.packages, info->host.packages == 1 ? "" : "s", (int)info->host.numa_nodes,
         info->host.numa_nodes == 1 ? "" : "s", (int)info->host.cores, (int)info->host.cpus);
  print_gpus(info);
  for (int32_t rank = 0; rank < session->ranks; ++rank) {
    char text[TEXT_BYTES];
    describe_rank(info, session, rank, text);
    printf("rank %-5d %s\n", (int)rank, text);
  }
  printf("transport  %s\n", skv__transport_word(session->chosen.transport));
  if (info->sharing[0])
    printf("note       %s\n", info->sharing);
}

static cJSON *gpus_of(const info_t *info) {
  cJSON *gpus = cJSON_CreateArray();
  for (int32_t i = 0; i < info->adapters.count; ++i) {
    const skv__adapter_t *adapter = &info->adapters.each[i];
    cJSON *entry = cJSON_CreateObject();
    cJSON_AddStringToObject(entry, "name", adapter->name);
    cJSON_AddNumberToObject(entry, "major", adapter->major);
    cJSON_AddNumberToObject(entry, "minor", adapter->minor);
    cJSON_AddNumberToObject(entry, "multiprocessors", adapter->multiprocessors);
    cJSON_AddNumberToObject(entry, "memory_bytes", (double)adapter->memory_bytes);
    if (i < info->map.count) {
      const skv__gpu_place_t *place = &info->map.each[i];
      cJSON_AddStringToObject(entry, "pci", place->bus_id);
      cJSON_AddNumberToObject(entry, "numa_node", place->numa);
      cJSON_AddStringToObject(entry, "cpus", place->cpus);
      cJSON *nvlink = cJSON_AddArrayToObject(entry, "nvlink");
      for (int32_t peer = 0; peer < info->map.count; ++peer)
        if (place->nvlink >> peer & 1)
          cJSON_AddItemToArray(nvlink, cJSON_CreateNumber(peer));
    }
    cJSON_AddItemToArray(gpus, entry);
  }
  return gpus;
}

static int print_json(const info_t *info, const skv__session_t *session) {
  char nccl[32];
  cJSON *object = cJSON_CreateObject();
  cJSON_AddStringToObject(object, "version", skv_version());
  cJSON_AddStringToObject(object, "compiler", compiler());
  cJSON_AddStringToObject(object, "mpi", info->mpi);
  cJSON_AddBoolToObject(object, "mpi_started", session->mpi);
  cJSON_AddBoolToObject(object, "cuda", strcmp(info->adapters.cuda, "no") != 0);
  cJSON_AddStringToObject(object, "cuda_version", info->adapters.cuda);
  cJSON_AddItemToObject(object, "gpus", gpus_of(info));
  describe_nccl(nccl, sizeof nccl);
  cJSON_AddBoolToObject(object, "nccl", strcmp(nccl, "no") != 0);
  cJSON_AddStringToObject(object, "nccl_version", nccl);
  cJSON_AddStringToObject(object, "kernels", info->kernels);
  cJSON_AddStringToObject(object, "kernel", skv_context_kernel(session->context));
  cJSON_AddStringToObject(object, "order_id", skv__bits_text(info->order_id).text);
  cJSON_AddStringToObject(object, "cpu", info->host.model);
  cJSON_AddNumberToObject(object, "packages", info->host.packages);
  cJSON_AddNumberToObject(object, "numa_nodes", info->host.numa_nodes);
  cJSON_AddNumberToObject(object, "cores", info->host.cores);
  cJSON_AddNumberToObject(object, "cpus", info->host.cpus);
  cJSON *ranks = cJSON_AddArrayToObject(object, "ranks");
  for (int32_t rank = 0; rank < session->ranks; ++rank) {
    char text[TEXT_BYTES];
    describe_rank(info, session, rank, text);
    cJSON_AddItemToArray(ranks, cJSON_CreateString(text));
  }
  cJSON_AddStringToObject(object, "transport", skv__transport_word(session->chosen.transport));
  cJSON_AddStringToObject(object, "sharing", info->sharing);
  return skv__print_json(object);
}

static int show(skv__session_t *session, bool json) {
  info_t info = {0};
  char(*all)[BINDING_BYTES] = calloc((size_t)session->ranks, sizeof *all);
  skv__error_t error = {0};
  int code = SKV__EXIT_OK;
  if (!all)
    skv__fail(&error, SKV_MEMORY, "no memory to collect the bindings");
  skv__gpu_map(&info.map);
  if (skv__session_agree(session, NULL, 0, &error) != SKV_OK) {
    code = skv__session_complain(session, &error, false);
  } else if (skv__comm_gather(session->context->comm, session->binding.text, sizeof *all, all,
                              "bindings") != SKV_OK) {
    code = skv__session_complain(session, &session->context->error, false);
  } else if (skv__session_speaks(session)) {
    info.bindings = all;
    collect(&info, session);
    if (json)
      code = print_json(&info, session);
    else
      print_text(&info, session);
  }
  free(all);
  return code;
}

int skv__cmd_info(int argc, const char **argv) {
  int64_t threads = 0;
  int bind = 0, transport = 0, backend = 0;
  double timeout = 60.0;
  bool json = false;
  const skv__option_t table[] = {
      {"threads", SKV__SIZE, &threads, "N", "of each rank (its share of the cores)", 1},
      {"bind", SKV__CHOICE, &bind, "cores|none", "keep ranks and threads on their cores", 0},
      {"backend", SKV__CHOICE, &backend, "auto|cpu|cuda", "whose ranks and order are shown", 0},
      {"transport", SKV__CHOICE, &transport, "auto|self|mpi|nccl", "what moves the bytes", 0},
      {"timeout", SKV__NUMBER, &timeout, "S", "seconds that any wait may last (60)", 0},
      {"json", SKV__FLAG, &json, "", "one JSON object on stdout", 0}};
  skv__arguments_t arguments = {0};
  int code =
      skv__options_parse("info", table, sizeof table / sizeof *table, &arguments, argc, argv);
  skv__arguments_free(&arguments);
  if (code >= 0)
    return code;
  skv__session_options_t options = {.transport = (skv__transport_choice_t)transport,
                                    .backend = (skv_backend_t)backend,
                                    .threads = (int32_t)(threads < 4096 ? threads : 4096),
                                    .timeout_seconds = timeout,
                                    .bind = bind == 0};
  skv__session_t session;
  skv__error_t error = {0};
  if (skv__session_open(&session, &options, &error) != SKV_OK)
    code = skv__session_complain(&session, &error, true);
  else
    code = show(&session, json);
  return skv__session_close(&session, code);
}
