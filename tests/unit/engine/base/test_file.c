/* file_read: limits, pipes, folders and links. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/size.h"

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
    cr_assert(file_read(path, 12, &data, &size, &err) == STATUS_OK);
    cr_expect(size == 12 && !strcmp((char *)data, "twelve bytes"));
    free(data);
    cr_expect(file_read(path, 11, &data, &size, &err) == STATUS_TOO_LARGE && size == 12);
    cr_expect(file_read(pipe_path, 12, &data, &size, &err) == STATUS_INVALID);
    cr_expect(file_read(folder, 12, &data, &size, &err) == STATUS_INVALID);
    cr_expect(unlink(path) == 0 && unlink(pipe_path) == 0);
    cr_expect(file_read(path, 12, &data, &size, &err) == STATUS_NOT_FOUND);
    cr_expect(rmdir(folder) == 0);
}

static void expect_beneath(const char *folder, const char *name, enum status expected)
{
    uint8_t *data = NULL;
    size_t size = 0;
    struct error err = {0};
    enum status status = file_read_beneath(folder, name, 12, &data, &size, &err);
    cr_expect_eq(status, expected, "%s: %s", name, err.message);
    if (status == STATUS_OK)
        free(data);
}

static void expect_to_stay_beneath(void)
{
    char folder[] = "/tmp/lensd-file-XXXXXX";
    cr_assert(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
    cr_assert(mkdir("m", 0700) == 0 && mkdir("m/sub", 0700) == 0);
    FILE *outside = fopen("outside", "w"), *inside = fopen("m/sub/inside", "w");
    cr_assert(outside && inside && fclose(outside) == 0 && fclose(inside) == 0);
    cr_assert(symlink("../outside", "m/out") == 0 && symlink("..", "m/up") == 0 &&
              symlink("sub/inside", "m/in") == 0 && symlink("nowhere", "m/dangling") == 0 &&
              mkfifo("m/pipe", 0600) == 0);
    expect_beneath("m", "sub/inside", STATUS_OK);
    expect_beneath("m", "in", STATUS_OK);
    expect_beneath("m", "out", STATUS_INVALID);
    expect_beneath("m", "up/outside", STATUS_INVALID);
    expect_beneath("m", "dangling", STATUS_NOT_FOUND);
    expect_beneath("m", "pipe", STATUS_INVALID);
    expect_beneath("m", "sub", STATUS_INVALID);
    expect_beneath("none", "sub", STATUS_NOT_FOUND);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_expect_eq(system(command), 0);
}

Test(file, stays_beneath_its_folder)
{
    expect_to_stay_beneath();
}

/* As kernels before 5.6 answer. The mounts of Kubernetes consist of links. */
Test(file, stays_beneath_its_folder_without_openat2)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = COUNT_OF(filter), .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        cr_skip("no system call can be filtered here");
    cr_assert_eq(syscall(SYS_openat2, 0, NULL, NULL, 0), -1);
    cr_assert_eq(errno, ENOSYS);
    expect_to_stay_beneath();
}
