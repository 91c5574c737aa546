/* The logging extension of the Open Inference Protocol, compatible with Triton (/v2/logging). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

/* The protocol enables each level by itself; the lowest enabled level applies. */
struct logging_settings {
    bool error, warning, info;
    int verbose;  /* 1 or more: debug */
    bool as_json; /* log_format "json"; otherwise "default" */
};

/* Returns {"log_file":"","log_info":true,"log_warning":true,"log_error":true,
 * "log_verbose_level":0,"log_format":"default"}; malloc'ed, NULL when out of memory. */
char *logging_json(const struct logging_settings *settings);

/* Changes the settings in the object `text`, and no others. STATUS_INVALID for an unknown name, an
 * invalid value, and a log_file: requests must not name paths. Then *settings is undefined. */
enum status logging_json_read(const char *text, size_t size, struct logging_settings *settings,
                              struct error *err) MUST_USE;
