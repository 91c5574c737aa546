/* Files for parsers that read files: in a folder of this process, removed when it exits. */
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/fuzz/target.h"

static char scratch_path[PATH_MAX];

static inline void scratch_remove(void)
{
    DIR *folder = opendir(scratch_path);
    for (const struct dirent *entry; folder && (entry = readdir(folder));)
        (void)unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder)
        closedir(folder);
    (void)rmdir(scratch_path);
}

/* The folder's path; made by the first call. */
static inline const char *scratch_folder(void)
{
    if (!scratch_path[0]) {
        const char *top = getenv("TMPDIR");
        snprintf(scratch_path, sizeof scratch_path, "%s/lensd-fuzz-XXXXXX", top ? top : "/tmp");
        HOLDS(mkdtemp(scratch_path) && !atexit(scratch_remove));
    }
    return scratch_path;
}

/* Writes a file, replacing what it had. Returns its path, valid until the next call. */
static inline const char *scratch_write(const char *name, const void *data, size_t size)
{
    static char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", scratch_folder(), name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    HOLDS(fd >= 0 && write(fd, data, size) == (ssize_t)size && !close(fd));
    return path;
}
