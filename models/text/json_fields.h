/* Reads members of JSON objects. Members that are missing or null have no value. */
#pragma once

#include "engine/base/status.h"

struct cJSON;

/* Returns the member; NULL if it is missing or null. */
const struct cJSON *json_get(const struct cJSON *json, const char *key);
/* Reads a string; `other` if the member has no value. STATUS_MODEL for any other type. */
enum status json_text(const struct cJSON *json, const char *key, const char *other,
                      const char **ret, struct error *err) MUST_USE;
enum status json_flag(const struct cJSON *json, const char *key, bool other, bool *ret,
                      struct error *err) MUST_USE;
/* Reads an integer of at least 0; an integer above `most` becomes `most`. */
enum status json_size(const struct cJSON *json, const char *key, size_t other, size_t most,
                      size_t *ret, struct error *err) MUST_USE;
/* Returns STATUS_MODEL; the error says that `what` is not `expected`. */
enum status json_wrong(const char *what, const char *expected, struct error *err);
