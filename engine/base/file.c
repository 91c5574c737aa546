/* Reads a regular file in one allocation of its size, anything else in one of the limit. */
#include "engine/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads up to `size` bytes; false with errno on failure. */
static bool read_up_to(int fd, uint8_t *data, size_t size, size_t *ret)
{
    size_t done = 0;
    while (done < size) {
        ssize_t n = read(fd, data + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    *ret = done;
    return true;
}

static enum status read_opened(int fd, size_t limit, bool only_regular, uint8_t **ret,
                               size_t *ret_size, struct error *err)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return error_set(err, STATUS_IO, "%s", strerror(errno));
    bool is_regular = S_ISREG(info.st_mode);
    if (only_regular && !is_regular)
        return error_set(err, STATUS_INVALID, "not a regular file");
    /* One byte more than the limit tells a pipe that is too long. */
    size_t size = is_regular ? (size_t)info.st_size : limit + 1, got = 0;
    *ret_size = size;
    if (is_regular && size > limit)
        return error_set(err, STATUS_TOO_LARGE, "it has %zu bytes, more than %zu", size, limit);
    uint8_t *data = malloc(size + 1);
    if (!data)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for its %zu bytes", size);
    enum status status = STATUS_OK;
    if (!read_up_to(fd, data, size, &got)) {
        status = error_set(err, STATUS_IO, "%s", strerror(errno));
    } else if (is_regular && got < size) {
        errno = 0;
        status = error_set(err, STATUS_IO, "it became shorter while it was read");
    } else if (got > limit) {
        status = error_set(err, STATUS_TOO_LARGE, "it has more than %zu bytes", limit);
    }
    if (status != STATUS_OK) {
        int cause = errno;
        free(data);
        errno = cause;
        return status;
    }
    data[got] = 0;
    *ret = data;
    *ret_size = got;
    return STATUS_OK;
}

enum status file_read(const char *path, size_t limit, bool only_regular, uint8_t **ret,
                      size_t *ret_size, struct error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | (only_regular ? O_NONBLOCK : 0));
    if (fd < 0) {
        bool absent = errno == ENOENT || errno == ENOTDIR;
        return error_set(err, absent ? STATUS_NOT_FOUND : STATUS_IO, "%s", strerror(errno));
    }
    enum status status = read_opened(fd, limit, only_regular, ret, ret_size, err);
    int cause = errno;
    close(fd);
    errno = cause;
    return status;
}
