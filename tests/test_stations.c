/* test_stations.c: what moves the bytes, decided from where the ranks stand; and whether their GPUs
 * hold what they need. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "launch/place.h"
#include "launch/stations.h"

enum { RANKS = 6 };

/* `ranks` ranks on GPUs, `each` to a GPU, two GPUs to a host. */
static void stand(skv__station_t *stations, int32_t ranks, int32_t each,
                  skv__transport_choice_t choice) {
  memset(stations, 0, (size_t)ranks * sizeof *stations);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    skv__station_t *station = &stations[rank];
    int32_t gpu = rank / each;
    snprintf(station->host, sizeof station->host, "node%d", (int)(gpu / 2));
    snprintf(station->bus_id, sizeof station->bus_id, "0000:%02d:00.0", (int)(gpu % 2));
    station->number = gpu % 2;
    station->unique[0] = (uint8_t)(gpu + 1);
    station->wants_cuda = 1;
    station->transport = choice;
  }
}

static skv_status_t decide(const skv__station_t *stations, int32_t ranks, bool nccl,
                           skv__transport_chosen_t *chosen, skv__error_t *error) {
  *error = (skv__error_t){0};
  return skv__stations_transport(stations, ranks, true, nccl, chosen, error);
}

Test(stations, auto_is_nccl_where_every_rank_has_a_gpu) {
  skv__station_t stations[RANKS];
  skv__transport_chosen_t chosen;
  skv__error_t error;
  stand(stations, RANKS, 1, SKV__TRANSPORT_AUTO);
  cr_assert_eq(decide(stations, RANKS, true, &chosen, &error), SKV_OK, "%s", error.text);
  cr_expect_eq(chosen.transport, SKV__TRANSPORT_NCCL);
  cr_expect_str_empty(chosen.why);
  cr_assert_eq(decide(stations, RANKS, false, &chosen, &error), SKV_OK);
  cr_expect_eq(chosen.transport, SKV__TRANSPORT_MPI);
  cr_expect(strstr(chosen.why, "no NCCL"));
  cr_assert_eq(decide(stations, 1, true, &chosen, &error), SKV_OK);
  cr_expect_eq(chosen.transport, SKV__TRANSPORT_MPI, "one rank sends nothing");
  stand(stations, RANKS, 2, SKV__TRANSPORT_AUTO);
  cr_assert_eq(decide(stations, RANKS, true, &chosen, &error), SKV_OK);
  cr_expect_eq(chosen.transport, SKV__TRANSPORT_MPI);
  cr_expect(strstr(chosen.why, "share"), "%s", chosen.why);
  stations[3].transport = SKV__TRANSPORT_MPI;
  cr_assert_eq(decide(stations, RANKS, true, &chosen, &error), SKV_OK);
  cr_expect_str_empty(chosen.why, "it was asked for");
}

Test(stations, on_cpus_it_is_mpi_or_self) {
  skv__station_t stations[2];
  skv__transport_chosen_t chosen;
  skv__error_t error = {0};
  stand(stations, 2, 1, SKV__TRANSPORT_AUTO);
  stations[0].wants_cuda = stations[1].wants_cuda = 0;
  cr_assert_eq(decide(stations, 2, true, &chosen, &error), SKV_OK);
  cr_expect_eq(chosen.transport, SKV__TRANSPORT_MPI);
  cr_assert_eq(skv__stations_transport(stations, 1, false, true, &chosen, &error), SKV_OK);
  cr_expect_eq(chosen.transport, SKV__TRANSPORT_SELF);
}

Test(stations, nccl_is_refused_where_it_cannot_work) {
  skv__station_t stations[RANKS];
  skv__transport_chosen_t chosen;
  skv__error_t error;
  stand(stations, RANKS, 1, SKV__TRANSPORT_NCCL);
  cr_assert_eq(decide(stations, RANKS, true, &chosen, &error), SKV_OK);
  cr_expect_eq(chosen.transport, SKV__TRANSPORT_NCCL);
  cr_expect_eq(decide(stations, RANKS, false, &chosen, &error), SKV_UNSUPPORTED);
  stations[5].unique[0] = stations[4].unique[0];
  cr_expect_eq(decide(stations, RANKS, true, &chosen, &error), SKV_INVALID);
  cr_expect(strstr(error.text, "ranks 4 and 5 share") && strstr(error.text, "node2") &&
                strstr(error.text, "--transport mpi"),
            "%s", error.text);
  stand(stations, RANKS, 1, SKV__TRANSPORT_NCCL);
  stations[2].number = SKV__NO_GPU;
  cr_expect_eq(decide(stations, RANKS, true, &chosen, &error), SKV_UNSUPPORTED);
  cr_expect(strstr(error.text, "rank 2, on host node1,"), "%s", error.text);
  stand(stations, RANKS, 1, SKV__TRANSPORT_NCCL);
  stations[3].transport = SKV__TRANSPORT_AUTO;
  cr_expect_eq(decide(stations, RANKS, true, &chosen, &error), SKV_DISAGREE);
  cr_expect(strstr(error.text, "rank 3"), "%s", error.text);
  stand(stations, RANKS, 1, SKV__TRANSPORT_NCCL);
  for (int32_t rank = 0; rank < RANKS; ++rank)
    stations[rank].wants_cuda = 0;
  cr_expect_eq(decide(stations, RANKS, false, &chosen, &error), SKV_INVALID);
  cr_expect(strstr(error.text, "--backend cuda"), "%s", error.text);
}

Test(stations, a_gpu_without_memory_is_told_as_such) {
  skv__station_t stations[RANKS];
  skv__transport_chosen_t chosen;
  skv__error_t error;
  stand(stations, RANKS, 1, SKV__TRANSPORT_AUTO);
  stations[2].number = SKV__NO_GPU;
  stations[2].full = 1;
  cr_expect_eq(decide(stations, RANKS, true, &chosen, &error), SKV_MEMORY);
  cr_expect(strstr(error.text, "rank 2, on host node1: its GPU has no memory left"), "%s",
            error.text);
}

Test(stations, all_compute_on_gpus_or_none) {
  skv__station_t stations[RANKS];
  skv__transport_chosen_t chosen;
  skv__error_t error;
  stand(stations, RANKS, 1, SKV__TRANSPORT_AUTO);
  stations[4].wants_cuda = 0;
  cr_expect_eq(decide(stations, RANKS, true, &chosen, &error), SKV_DISAGREE);
  cr_expect(strstr(error.text, "rank 0 computes on a GPU, rank 4 on the CPU"), "%s", error.text);
  stand(stations, RANKS, 1, SKV__TRANSPORT_AUTO);
  stations[1].number = SKV__NO_GPU;
  cr_expect_eq(decide(stations, RANKS, true, &chosen, &error), SKV_UNSUPPORTED);
  for (int32_t rank = 0; rank < RANKS; ++rank)
    stations[rank].number = SKV__NO_GPU;
  cr_expect_eq(decide(stations, RANKS, true, &chosen, &error), SKV_OK, "the kernel says why");
}

Test(stations, ranks_of_a_gpu_need_room_together) {
  skv__station_t stations[4];
  skv__error_t error = {0};
  skv__gpu_need_t needs[4] = {{60, 100, 200}, {40, 100, 200}, {10, 100, 200}, {90, 100, 200}};
  stand(stations, 4, 2, SKV__TRANSPORT_MPI);
  cr_expect_eq(skv__stations_fit(stations, needs, 4, &error), SKV_OK, "%s", error.text);
  needs[1].needed_bytes = 41;
  cr_expect_eq(skv__stations_fit(stations, needs, 4, &error), SKV_MEMORY);
  cr_expect(strstr(error.text, "1 GPU cannot") && strstr(error.text, "rank 0 and those") &&
                strstr(error.text, "101 bytes") && strstr(error.text, "100 bytes"),
            "%s", error.text);
  needs[3].free_bytes = 99; /* somebody else took some meanwhile */
  error = (skv__error_t){0};
  cr_expect_eq(skv__stations_fit(stations, needs, 4, &error), SKV_MEMORY);
  cr_expect(strstr(error.text, "2 GPUs cannot") && strstr(error.text, "rank 2 and those"), "%s",
            error.text);
  stand(stations, 4, 1, SKV__TRANSPORT_MPI);
  error = (skv__error_t){0};
  cr_expect_eq(skv__stations_fit(stations, needs, 4, &error), SKV_OK, "%s", error.text);
}

Test(stations, a_report_names_every_gpu_and_who_shares) {
  skv__station_t stations[12];
  char text[1024];
  stand(stations, 2, 1, SKV__TRANSPORT_AUTO);
  strcpy(stations[0].gpu, "NVIDIA H200");
  skv__stations_text(stations, 2, text, sizeof text);
  cr_expect_str_eq(text, "rank 0: GPU 0 (0000:00:00.0); rank 1: GPU 1 (0000:01:00.0), NVIDIA H200");
  stand(stations, 12, 2, SKV__TRANSPORT_AUTO);
  skv__stations_text(stations, 12, text, sizeof text);
  cr_expect(strstr(text, "rank 7: GPU 1 (0000:01:00.0) of node1; ..., ") &&
                strstr(text, "ranks 0 and 1 share a GPU"),
            "%s", text);
  skv__stations_text(stations, 12, text, 40);
  cr_expect_lt(strlen(text), 40);
  stations[0].number = SKV__NO_GPU;
  skv__stations_text(stations, 12, text, sizeof text);
  cr_expect_str_empty(text);
}
