/* The table of options, and how to read values; for config.c, config_values.c, config_help.c. */
#pragma once

#include "server/app/config.h"

enum option_kind {
    OPTION_TEXT,    /* char *; an empty text is an error */
    OPTION_NUMBER,  /* an integer, min … max */
    OPTION_BYTES,   /* an integer, min … max, such as "64M"; K, M and G are powers of 1024 */
    OPTION_SECONDS, /* "1.5", "250ms", "2m"; the field is in ms, `min` and `max` are in s */
    OPTION_CHOICE,  /* the field has an index into `value`: 1 for "bf16" in "fp32|bf16" */
    OPTION_SWITCH,  /* bool */
};

struct option {
    const char *name; /* "max-body": the flag without dashes, and the key in a file */
    enum option_kind kind;
    unsigned commands;   /* bits of enum command */
    size_t offset, size; /* of the field in struct config; integers have 1, 4 or 8 bytes */
    int64_t min, max;
    const char *fallback; /* the default as the user would write it; NULL: none */
    const char *value;    /* placeholder in the help ("N", "FILE"), or the choices */
    const char *group;    /* heading of the help */
    const char *help;
    const char *other_help; /* instead of `help` for lensd health and lensd pull; NULL: `help` */
};

extern const struct option config_options[];
extern const size_t config_option_count;

/* Reads bytes such as "64K", "16M", "1GiB" or "65536". Returns false for other texts and for
 * numbers that do not fit. */
bool config_read_bytes(const char *text, int64_t *ret);

/* Parses `text` into the option's field of *config. Errors name `origin` ("--port"). */
enum status config_set(struct config *config, const struct option *option, const char *origin,
                       const char *text, struct error *err) MUST_USE;
