/* Opens and reads regular files. Pipes and devices are refused at once, without waiting for data.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"

/* Reads the file at `path` into memory that the caller frees. A byte of 0 follows the *ret_size
 * bytes and is not counted. STATUS_NOT_FOUND when there is no such file, STATUS_IO when it cannot
 * be opened or read (errno has the reason; 0 if the file became shorter), STATUS_INVALID when it is
 * not regular, STATUS_TOO_LARGE beyond `limit` bytes (*ret_size is then its size),
 * STATUS_NO_MEMORY. The sentence has only the cause; the caller puts the file's name in front. Any
 * thread. */
enum status file_read(const char *path, size_t limit, uint8_t **ret, size_t *ret_size,
                      struct error *err) MUST_USE;

/* Opens it instead, for reading; *ret_size is its size now. The caller closes *ret_fd. */
enum status file_open(const char *path, int *ret_fd, size_t *ret_size, struct error *err) MUST_USE;

/* file_read() for the file `name` in a folder. STATUS_INVALID also if a link leads out of it, as
 * file_open_beneath() says. */
enum status file_read_beneath(const char *folder, const char *name, size_t limit, uint8_t **ret,
                              size_t *ret_size, struct error *err) MUST_USE;

/* Opens `name` in an open folder for reading, without waiting for a pipe's writer. `name` must not
 * be absolute or contain "..". Returns -1 with errno on failure; EXDEV or ELOOP if a link leads out
 * of the folder. In a folder MODEL/snapshots/REVISION, as in Hugging Face's cache, links may lead
 * to all of MODEL. */
int file_open_beneath(int folder, const char *name) MUST_USE;
