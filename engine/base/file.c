/* Opens regular files, and reads them in one allocation of their size.
 *
 * openat2 with RESOLVE_BENEATH makes the kernel keep a name inside its folder, so there is no gap
 * between check and use. Without openat2, the opened file's path is compared with the folder's
 * path. */
#include "engine/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OPEN_FLAGS (O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)

char *path_join(const char *folder, const char *name)
{
    char *path;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

void path_folder(const char *path, char ret[static PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        path = ".";
    snprintf(ret, PATH_MAX, "%.*s", !slash || slash == path ? 1 : (int)(slash - path), path);
}

bool path_is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

bool path_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool folder_has_file(const char *folder, const char *name)
{
    char path[PATH_MAX]; /* no file has a longer path */
    return snprintf(path, sizeof path, "%s/%s", folder, name) < PATH_MAX && path_is_file(path);
}

bool file_read_start(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t n = fread(text, 1, size - 1, file);
    text[n] = '\0';
    fclose(file);
    return n > 0;
}

/* Closes a descriptor, if there is one, and keeps errno. */
static void close_quietly(int fd)
{
    const int cause = errno;
    if (fd >= 0)
        close(fd);
    errno = cause;
}

/* Fails with errno's reason if `fd` is negative. Fails and closes `fd` if it is not a regular file
 * of at most `limit` bytes. After a failure, errno is as file_read() documents. */
static enum status check_opened(int fd, size_t limit, size_t *ret_size, struct error *err)
{
    struct stat info;
    enum status status = STATUS_OK;
    if (fd < 0 && (errno == EXDEV || errno == ELOOP))
        return error_set(err, STATUS_INVALID,
                         "it leads out of its folder through a link; replace the link by the file");
    if (fd < 0) {
        bool absent = errno == ENOENT || errno == ENOTDIR;
        return error_set(err, absent ? STATUS_NOT_FOUND : STATUS_IO, "%s", strerror(errno));
    }
    if (fstat(fd, &info) != 0)
        status = error_set(err, STATUS_IO, "%s", strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = error_set(err, STATUS_INVALID, "not a regular file");
    else if ((*ret_size = (size_t)info.st_size) > limit)
        status =
            error_set(err, STATUS_TOO_LARGE, "it has %zu bytes, more than %zu", *ret_size, limit);
    if (status != STATUS_OK)
        close_quietly(fd);
    return status;
}

static enum status read_opened(int fd, size_t size, uint8_t **ret, struct error *err)
{
    uint8_t *data = malloc(size + 1);
    if (!data)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for its %zu bytes", size);
    for (size_t done = 0; done < size;) {
        const ssize_t n = TEMP_FAILURE_RETRY(read(fd, data + done, size - done));
        if (n <= 0) {
            errno = n ? errno : 0;
            free(data); /* keeps errno */
            return error_set(err, STATUS_IO, "%s",
                             n ? strerror(errno) : "it became shorter while it was read");
        }
        done += (size_t)n;
    }
    data[size] = 0;
    *ret = data;
    return STATUS_OK;
}

/* Reads an opened file and closes it. */
static enum status read_and_close(int fd, size_t limit, uint8_t **ret, size_t *ret_size,
                                  struct error *err)
{
    TRY(check_opened(fd, limit, ret_size, err));
    enum status status = read_opened(fd, *ret_size, ret, err);
    close_quietly(fd);
    return status;
}

enum status file_read(const char *path, size_t limit, uint8_t **ret, size_t *ret_size,
                      struct error *err)
{
    return read_and_close(open(path, OPEN_FLAGS), limit, ret, ret_size, err);
}

enum status file_open(const char *path, int *ret_fd, size_t *ret_size, struct error *err)
{
    const int fd = open(path, OPEN_FLAGS);
    TRY(check_opened(fd, SIZE_MAX, ret_size, err));
    *ret_fd = fd;
    return STATUS_OK;
}

/* ---- beneath a folder ---- */

/* Returns false if the open file has no path, or if the path is too long. */
static bool path_of(int fd, char path[static PATH_MAX])
{
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t size = readlink(link, path, PATH_MAX);
    path[size > 0 && size < PATH_MAX ? size : 0] = '\0';
    return path[0] == '/';
}

/* For kernels without openat2: opens the file and compares its path with the folder's. Returns -1
 * with errno set on failure. */
static int open_and_compare(int folder, const char *name)
{
    char top[PATH_MAX], path[PATH_MAX], link[32];
    const int found = openat(folder, name, O_PATH | O_CLOEXEC);
    if (found < 0)
        return -1;
    bool is_beneath = path_of(folder, top) && path_of(found, path);
    const size_t size = is_beneath && strcmp(top, "/") != 0 ? strlen(top) : 0;
    is_beneath = is_beneath && strncmp(path, top, size) == 0 && path[size] == '/';
    snprintf(link, sizeof link, "/proc/self/fd/%d", found);
    errno = EXDEV;
    const int fd = is_beneath ? open(link, OPEN_FLAGS) : -1;
    close_quietly(found);
    return fd;
}

static int open_beneath(int folder, const char *name)
{
    const struct open_how how = {.flags = OPEN_FLAGS,
                                 .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, folder, name, &how, sizeof how);
    /* Kernels before 5.6 lack openat2, and old seccomp filters of containers return EPERM. */
    if (fd < 0 && (errno == ENOSYS || errno == EPERM || errno == EAGAIN))
        fd = open_and_compare(folder, name);
    return fd;
}

/* In Hugging Face's cache the files of MODEL/snapshots/REVISION are links to MODEL/blobs. Returns
 * -1 if the folder is not such a revision, or if the link leads out of MODEL. */
static int open_in_revision(int folder, const char *name)
{
    char path[PATH_MAX], target[PATH_MAX];
    const char *revision = path_of(folder, path) ? strrchr(path, '/') : NULL;
    char *snapshots = revision ? memrchr(path, '/', (size_t)(revision - path)) : NULL;
    if (!snapshots || strncmp(snapshots, "/snapshots/", 11) != 0)
        return -1;
    const int length = snprintf(target, sizeof target, "%s/%s", snapshots + 1, name);
    *snapshots = '\0';
    const int model = open(path[0] ? path : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    const bool fits = length > 0 && (size_t)length < sizeof target;
    const int fd = model >= 0 && fits ? open_beneath(model, target) : -1;
    close_quietly(model);
    return fd;
}

int file_open_beneath(int folder, const char *name)
{
    const int fd = open_beneath(folder, name);
    const int cause = errno;
    const int linked = fd < 0 && cause == EXDEV ? open_in_revision(folder, name) : -1;
    errno = cause;
    return linked >= 0 ? linked : fd;
}

enum status file_read_beneath(const char *folder, const char *name, size_t limit, uint8_t **ret,
                              size_t *ret_size, struct error *err)
{
    int at = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = at < 0 ? -1 : file_open_beneath(at, name);
    close_quietly(at);
    return read_and_close(fd, limit, ret, ret_size, err);
}
