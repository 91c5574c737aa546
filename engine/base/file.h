/* Reads whole files. Only regular ones: a pipe or a device is refused, and not waited for. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"

/* Reads the file at `path` into memory that the caller frees. A byte of 0 follows the *ret_size
 * bytes and is not counted. STATUS_NOT_FOUND when there is no such file, STATUS_IO when it cannot
 * be opened or read (errno says why, 0: it became shorter), STATUS_INVALID when it is not regular,
 * STATUS_TOO_LARGE beyond `limit` bytes (*ret_size is then its size), STATUS_NO_MEMORY. The
 * sentence names the cause only; put a prefix with the file's name in front. Any thread. */
enum status file_read(const char *path, size_t limit, uint8_t **ret, size_t *ret_size,
                      struct error *err) MUST_USE;

/* The same for the file `name` of a folder. STATUS_INVALID also when a link leads out of it. */
enum status file_read_beneath(const char *folder, const char *name, size_t limit, uint8_t **ret,
                              size_t *ret_size, struct error *err) MUST_USE;

/* Opens `name` of an open folder for reading, without waiting for a pipe's writer. `name` is
 * neither absolute nor does it hold "..". -1 with errno; EXDEV or ELOOP when a link leads out of
 * the folder.
 */
int file_open_beneath(int folder, const char *name) MUST_USE;
