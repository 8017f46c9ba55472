/* The file of splitkv tune: written and read again, and refused when anything is wrong with it. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "cost.h"
#include "launch/tune.h"
#include "scratch.h"

static const char GOOD[] =
    "{\"splitkv_tune\": 1, \"flop_per_second\": 1e12, \"read_bytes_per_second\": 2e11,"
    " \"merge_bytes_per_second\": 3e11, \"prefill_seconds\": 0, \"decode_seconds\": 1e-6,"
    " \"round_seconds\": 2e-6, \"message_seconds\": 3e-6, \"bytes_per_second\": 4e9,"
    " \"far_round_seconds\": 5e-6, \"far_message_seconds\": 6e-6, \"far_bytes_per_second\": 7e8,"
    " \"node_ranks\": 8, \"overlaps\": 1, \"about\": {\"any\": [1, \"thing\"]}}\n";

Test(tune, good_file) {
  skv_machine_t machine;
  skv__error_t error = {0};
  cr_assert(skv__tune_parse("t.json", GOOD, strlen(GOOD), &machine, &error) == SKV_OK, "%s",
            error.text);
  cr_assert(machine.flop_per_second == 1e12 && machine.decode_seconds == 1e-6);
  cr_assert(machine.far_bytes_per_second == 7e8 && machine.node_ranks == 8 && machine.overlaps);
}

/* GOOD with one text replaced by another. */
static void check_refused(const char *what, const char *by, const char *expected) {
  char text[1024];
  skv_machine_t machine;
  skv__error_t error = {0};
  const char *at = strstr(GOOD, what);
  cr_assert(at);
  snprintf(text, sizeof text, "%.*s%s%s", (int)(at - GOOD), GOOD, by, at + strlen(what));
  cr_assert(skv__tune_parse("t.json", text, strlen(text), &machine, &error) == SKV_FORMAT, "%s",
            text);
  cr_assert(strncmp(error.text, "t.json: ", 8) == 0 && strstr(error.text, expected), "%s",
            error.text);
}

Test(tune, bad_files_are_refused) {
  check_refused("\"splitkv_tune\": 1", "\"splitkv_tune\": 2", "not a file of splitkv tune");
  check_refused("\"splitkv_tune\": 1, ", "", "not a file of splitkv tune");
  check_refused("\"round_seconds\": 2e-6, ", "", "round_seconds is missing");
  check_refused("2e-6", "\"2e-6\"", "round_seconds is missing");
  check_refused("2e-6", "-1", "round_seconds is -1");
  check_refused("2e-6", "1e999", "round_seconds is");
  check_refused("4e9", "0", "bytes_per_second is 0");
  check_refused("\"overlaps\": 1", "\"overlaps\": 2", "overlaps is -1");
  check_refused("\"node_ranks\": 8", "\"node_ranks\": 1.5", "node_ranks is -1");
  check_refused("\"about\"", "\"abuot\"", "it has 'abuot'");
  check_refused("\"about\"", "\"node_ranks\": 8, \"about\"", "'node_ranks' stands twice");
  check_refused("}}\n", "}}}", "not one JSON object");
  check_refused("}}\n", "}", "not one JSON object");
}

Test(tune, written_and_read_again, .init = scratch_create, .fini = scratch_remove) {
  char path[128];
  snprintf(path, sizeof path, "%s/tune.json", scratch_folder);
  skv__tuned_t tuned = {.machine = skv__machine_typical(SKV_BACKEND_CUDA), .ranks = 2};
  skv_machine_t read;
  skv__error_t error = {0};
  tuned.machine.round_seconds = 1.0 / 3;
  cr_assert(skv__tune_write(path, &tuned, &error) == SKV_OK, "%s", error.text);
  cr_assert(skv__tune_read(path, &read, &error) == SKV_OK, "%s", error.text);
  cr_assert(skv__machine_digest(&read) == skv__machine_digest(&tuned.machine));
  cr_assert(skv__tune_read("/dev/zero", &read, &error) == SKV_FORMAT);
  unlink(path);
  cr_assert(skv__tune_read(path, &read, &error) == SKV_IO);
}

Test(tune, line_through_two_times) {
  double rate, fixed;
  skv__tune_line((const double[]){100, 1100}, (const double[]){0.3, 1.3}, &rate, &fixed);
  cr_assert_float_eq(rate, 1000, 1e-9);
  cr_assert_float_eq(fixed, 0.2, 1e-12);
  skv__tune_line((const double[]){100, 1100}, (const double[]){0.05, 1.05}, &rate, &fixed);
  cr_assert_float_eq(rate, 1000, 1e-9); /* less than nothing besides is nothing */
  cr_assert(fixed == 0);
  skv__tune_line((const double[]){100, 1000}, (const double[]){0.5, 0.5}, &rate, &fixed);
  cr_assert_float_eq(rate, 2000, 1e-9); /* no slope: the larger size alone */
  cr_assert(isfinite(fixed));
}
