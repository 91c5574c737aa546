/* file_read: limits, pipes, and the byte behind the end. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"

Test(file, limits_and_kinds)
{
    char folder[] = "/tmp/lensd-file-XXXXXX", path[64], pipe_path[64];
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(pipe_path, sizeof pipe_path, "%s/pipe", folder);
    FILE *file = fopen(path, "w");
    cr_assert(file && fputs("twelve bytes", file) >= 0 && fclose(file) == 0);
    cr_assert(mkfifo(pipe_path, 0600) == 0);

    uint8_t *data = NULL;
    size_t size = 0;
    struct error err;
    cr_assert(file_read(path, 12, true, &data, &size, &err) == STATUS_OK);
    cr_expect(size == 12 && !strcmp((char *)data, "twelve bytes"));
    free(data);
    cr_expect(file_read(path, 11, true, &data, &size, &err) == STATUS_TOO_LARGE && size == 12);
    cr_expect(file_read(pipe_path, 12, true, &data, &size, &err) == STATUS_INVALID);
    cr_expect(file_read(folder, 12, false, &data, &size, &err) == STATUS_IO && errno == EISDIR);

    /* Open for reading and writing, a pipe needs no other process. */
    int fd = open(pipe_path, O_RDWR | O_NONBLOCK);
    cr_assert(fd >= 0 && write(fd, "twelve bytes", 12) == 12);
    cr_expect(file_read(pipe_path, 11, false, &data, &size, &err) == STATUS_TOO_LARGE);
    close(fd);

    cr_expect(unlink(path) == 0 && unlink(pipe_path) == 0);
    cr_expect(file_read(path, 12, false, &data, &size, &err) == STATUS_NOT_FOUND);
    cr_expect(rmdir(folder) == 0);
}
