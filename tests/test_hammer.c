/* test_hammer.c: ten seconds of random trials, other ones each day. SKV_HAMMER="SEED SECONDS" asks
 * for others. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

Test(hammer, random_trials) {
  char command[512];
  const char *asked = getenv("SKV_HAMMER");
  snprintf(command, sizeof command, "'%s/hammer_probe' %lld %s", SKV_TEST_BIN,
           (long long)time(NULL) / 86400 * 1000000, "10");
  if (asked)
    snprintf(command, sizeof command, "'%s/hammer_probe' %.100s", SKV_TEST_BIN, asked);
  cr_expect_eq(system(command), 0, "%s", command);
}
