/* The logging extension of the Open Inference Protocol, as Triton has it (/v2/logging). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

/* A level each is on or off there; the lowest one that is on counts. */
struct logging_settings {
    bool error, warning, info;
    int verbose;  /* 1 and more: debug */
    bool as_json; /* log_format "json"; otherwise "default" */
};

/* {"log_file":"","log_info":true,"log_warning":true,"log_error":true,"log_verbose_level":0,
 * "log_format":"default"}; malloc'ed, NULL when out of memory. */
char *logging_json(const struct logging_settings *settings, size_t *ret_size);

/* Changes what the object in `text` names, and leaves the rest. STATUS_INVALID for a name that is
 * unknown, a value that cannot be, and a log_file: no request names a path here. *settings is then
 * untouched. */
enum status logging_json_read(const char *text, size_t size, struct logging_settings *settings,
                              struct error *err) MUST_USE;
