/* Reads whole files. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"

/* Reads the file at `path` into memory that the caller frees. A byte of 0 follows the *ret_size
 * bytes and is not counted. `only_regular`: refuses pipes and devices, without waiting for them.
 * STATUS_NOT_FOUND when there is no such file, STATUS_IO when it cannot be opened or read (errno
 * says why, 0: it became shorter), STATUS_INVALID when it is not regular, STATUS_TOO_LARGE beyond
 * `limit` bytes (*ret_size is then the size of a regular file), STATUS_NO_MEMORY. The sentence
 * names the cause only; put a prefix with the file's name in front. Any thread. */
enum status file_read(const char *path, size_t limit, bool only_regular, uint8_t **ret,
                      size_t *ret_size, struct error *err) MUST_USE;
