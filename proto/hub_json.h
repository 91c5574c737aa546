/* Reads the answer of Hugging Face's hub about a repository: GET
 * /api/models/REPOSITORY/revision/REVISION. Source: huggingface.co/docs/hub/api. */
#pragma once

#include <stddef.h>

#include "engine/base/status.h"

#define HUB_FILES_MAX 20000

struct hub_list {
    char commit[41]; /* lower-case hexadecimal digits */
    char **paths;    /* from the repository's root; checked only for control bytes */
    size_t count;
};

/* Reads the answer. STATUS_CONFIG: the answer is not the hub's; STATUS_NO_MEMORY. The caller always
 * frees *ret with hub_list_done(). */
enum status hub_list_read(const char *text, size_t size, struct hub_list *ret,
                          struct error *err) MUST_USE;
void hub_list_done(struct hub_list *list);
