/* tune.c: the file of splitkv tune. See tune.h. */
#include "launch/tune.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cost.h"
#include "launch/tensor_file.h"

enum { FILE_MAX = 65536, VERSION = 1 };

/* A whole number in [0, most] called `name`, or -1. */
static int32_t whole(const cJSON *object, const char *name, int32_t most) {
  const cJSON *entry = cJSON_GetObjectItemCaseSensitive(object, name);
  if (!cJSON_IsNumber(entry) || !(entry->valuedouble >= 0 && entry->valuedouble <= most) ||
      entry->valuedouble != (double)(int32_t)entry->valuedouble)
    return -1;
  return (int32_t)entry->valuedouble;
}

static bool is_known(const char *name) {
  static const char *const others[] = {"splitkv_tune", "about", "node_ranks", "overlaps"};
  for (int i = 0; i < SKV__FIGURES; ++i)
    if (strcmp(name, skv__figures[i].name) == 0)
      return true;
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i)
    if (strcmp(name, others[i]) == 0)
      return true;
  return false;
}

static skv_status_t check_names(const char *name, const cJSON *object, skv__error_t *error) {
  for (const cJSON *entry = object->child; entry; entry = entry->next) {
    if (!is_known(entry->string))
      return skv__fail(error, SKV_FORMAT, "%s: no tuning file of this version: it has '%.40s'",
                       name, entry->string);
    for (const cJSON *other = entry->next; other; other = other->next)
      if (strcmp(entry->string, other->string) == 0)
        return skv__fail(error, SKV_FORMAT, "%s: '%.40s' stands twice", name, entry->string);
  }
  return SKV_OK;
}

static skv_status_t take(const char *name, const cJSON *object, skv_machine_t *machine,
                         skv__error_t *error) {
  if (!cJSON_IsObject(object) || whole(object, "splitkv_tune", VERSION) != VERSION)
    return skv__fail(error, SKV_FORMAT,
                     "%s: not a file of splitkv tune (an object with \"splitkv_tune\": %d)", name,
                     VERSION);
  SKV_TRY(check_names(name, object, error));
  *machine = (skv_machine_t){.struct_bytes = sizeof *machine,
                             .node_ranks = whole(object, "node_ranks", 1 << 20),
                             .overlaps = whole(object, "overlaps", 1)};
  for (int i = 0; i < SKV__FIGURES; ++i) {
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(object, skv__figures[i].name);
    if (!cJSON_IsNumber(entry))
      return skv__fail(error, SKV_FORMAT, "%s: the number %s is missing", name,
                       skv__figures[i].name);
    memcpy((char *)machine + skv__figures[i].offset, &entry->valuedouble, sizeof(double));
  }
  skv__error_t cause = {0};
  if (skv__machine_check(machine, &cause) != SKV_OK)
    return skv__fail(error, SKV_FORMAT, "%s: %s", name, cause.text);
  return SKV_OK;
}

skv_status_t skv__tune_parse(const char *name, const char *text, size_t bytes,
                             skv_machine_t *machine, skv__error_t *error) {
  const char *end = NULL;
  cJSON *object = cJSON_ParseWithLengthOpts(text, bytes, &end, false);
  bool whole_text = object != NULL;
  for (; whole_text && end < text + bytes; ++end)
    whole_text = *end == ' ' || *end == '\n';
  skv_status_t status = whole_text ? take(name, object, machine, error)
                                   : skv__fail(error, SKV_FORMAT, "%s: not one JSON object", name);
  cJSON_Delete(object);
  return status;
}

skv_status_t skv__tune_read(const char *path, skv_machine_t *machine, skv__error_t *error) {
  char text[FILE_MAX];
  struct stat about;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return skv__fail(error, SKV_IO, "%s: %s", path, strerror(errno));
  ssize_t got = -1;
  bool regular = fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size < FILE_MAX;
  if (regular)
    got = pread(fd, text, sizeof text, 0);
  close(fd);
  if (!regular)
    return skv__fail(error, SKV_FORMAT, "%s: not a file of splitkv tune", path);
  if (got < 0)
    return skv__fail(error, SKV_IO, "%s: cannot be read", path);
  return skv__tune_parse(path, text, (size_t)got, machine, error);
}

static cJSON *object_of(const skv__tuned_t *tuned) {
  cJSON *object = cJSON_CreateObject();
  cJSON_AddNumberToObject(object, "splitkv_tune", VERSION);
  for (int i = 0; i < SKV__FIGURES; ++i)
    cJSON_AddNumberToObject(object, skv__figures[i].name, skv__figure(&tuned->machine, i));
  cJSON_AddNumberToObject(object, "node_ranks", tuned->machine.node_ranks);
  cJSON_AddNumberToObject(object, "overlaps", tuned->machine.overlaps);
  cJSON *about = cJSON_AddObjectToObject(object, "about");
  cJSON_AddStringToObject(about, "version", skv_version());
  cJSON_AddStringToObject(about, "kernel", tuned->kernel);
  cJSON_AddStringToObject(about, "transport", tuned->transport);
  cJSON_AddNumberToObject(about, "ranks", tuned->ranks);
  cJSON_AddStringToObject(about, "between_nodes", tuned->far_measured ? "measured" : "typical");
  return object;
}

skv_status_t skv__tune_write(const char *path, const skv__tuned_t *tuned, skv__error_t *error) {
  cJSON *object = object_of(tuned);
  char *text = cJSON_Print(object);
  cJSON_Delete(object);
  if (!text)
    return skv__fail(error, SKV_MEMORY, "%s: out of memory", path);
  skv__output_t *output = NULL;
  skv_status_t status = skv__output_open(&output, path, error);
  if (status == SKV_OK) {
    int64_t bytes = (int64_t)strlen(text);
    text[bytes] = '\n'; /* in place of the NUL: written by its length */
    status = skv__output_write(output, 0, text, bytes + 1, error);
    if (status == SKV_OK)
      status = skv__output_commit(output, error);
    else
      skv__output_discard(output);
  }
  cJSON_free(text);
  return status;
}
