/* Photos in folders, found by the endings of their names. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

/* True if the name ends like a format that lensd reads, such as .jpg or .HEIC. */
bool photo_files_has_ending(const char *name);

/* Lists the paths of the photos in a folder (NULL: none) and 16 levels of sub-folders, sorted. If
 * there are more than `most`, selects `most` of them, evenly spread. Skips names that begin with a
 * dot, and does not follow links to folders. A missing folder has no photos. The caller frees *ret
 * with photo_files_free(). STATUS_NO_MEMORY. */
enum status photo_files_list(const char *folder, size_t most, char ***ret, size_t *ret_count,
                             struct error *err) MUST_USE;

void photo_files_free(char **names, size_t count);
