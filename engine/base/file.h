/* Finds, opens and reads regular files. Pipes and devices are refused at once, without waiting for
 * data. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"

/* Returns "FOLDER/NAME", which the caller frees, or NULL when out of memory. */
char *path_join(const char *folder, const char *name);

/* Writes the folder of `path`: "." for a bare name, "/" for a file in the root. */
void path_folder(const char *path, char ret[static PATH_MAX]);

/* True if the path leads to a regular file, or to a folder; both functions follow links. */
bool path_is_file(const char *path);
bool path_is_folder(const char *path);
bool folder_has_file(const char *folder, const char *name);

/* Reads the file at `path` into memory that the caller frees. It adds a 0 byte that *ret_size does
 * not count. Errors: STATUS_NOT_FOUND; STATUS_IO: the file cannot be opened or read (errno has the
 * reason, or is 0 if the file became shorter); STATUS_INVALID: it is not a regular file;
 * STATUS_TOO_LARGE above `limit` bytes (*ret_size is then the file's size); STATUS_NO_MEMORY. The
 * error text has only the cause; the caller adds the file's name. Any thread. */
enum status file_read(const char *path, size_t limit, uint8_t **ret, size_t *ret_size,
                      struct error *err) MUST_USE;

/* Reads at most the first size - 1 bytes of a file, and adds a 0 byte. Returns false if it reads no
 * byte. */
bool file_read_start(const char *path, char *text, size_t size);

/* Opens a regular file of any size. *ret_size is its current size. The caller closes *ret_fd.
 * Errors are those of file_read(). */
enum status file_open(const char *path, int *ret_fd, size_t *ret_size, struct error *err) MUST_USE;

/* Like file_read(), for the file `name` in a folder. Also returns STATUS_INVALID if a link leads
 * out of the folder; see file_open_beneath(). */
enum status file_read_beneath(const char *folder, const char *name, size_t limit, uint8_t **ret,
                              size_t *ret_size, struct error *err) MUST_USE;

/* Opens `name` in an open folder for reading, without waiting for a pipe's writer. `name` must not
 * be absolute or contain "..". Returns -1 with errno on failure; EXDEV or ELOOP if a link leads out
 * of the folder. In a folder MODEL/snapshots/REVISION, as in Hugging Face's cache, links may lead
 * to all of MODEL. */
int file_open_beneath(int folder, const char *name) MUST_USE;
