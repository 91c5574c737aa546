/* Photos in folders, found by the endings of their names. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

/* True if the name ends like a format that lensd reads, such as .jpg or .HEIC. */
bool photo_files_has_ending(const char *name);

/* Paths of photos; initially zero. Free with photo_files_done(), also after a failure. */
struct photo_files {
    char **paths;
    size_t count, capacity;
};
void photo_files_done(struct photo_files *files);

/* Adds a copy of a path. STATUS_NO_MEMORY. */
enum status photo_files_add(struct photo_files *files, const char *path,
                            struct error *err) MUST_USE;

/* Adds the paths of the photos in a folder (NULL: none) and 16 levels of sub-folders, sorted. If
 * the list then has more than `most` paths, keeps `most`, spread evenly. Skips names that begin
 * with a dot, and does not follow links to folders. A missing folder has no photos.
 * STATUS_NO_MEMORY. */
enum status photo_files_add_folder(struct photo_files *files, const char *folder, size_t most,
                                   struct error *err) MUST_USE;
