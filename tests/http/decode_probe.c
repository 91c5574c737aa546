/* Tries forbidden system calls inside the real server's threads: preloaded into it (LD_PRELOAD).
 *
 * Each place where a stranger's bytes arrive is tried once: "decode-N" when it gives a photo to
 * libjpeg, the thread "http" when it accepts a connection after that; and, to compare, the process
 * before it confines itself, and a thread that the decode worker makes. Each writes a line to
 * standard error that test_confine.py reads: "probe WHERE execve=1 openat=0 …", errno or 0 for each
 * call. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <jpeglib.h> /* needs stdio.h */

#include "tests/unit/server/app/forbidden_calls.h"

#define EXPORT __attribute__((visibility("default")))

static unsigned char page[4096] __attribute__((aligned(4096)));

/* What other threads may do, and a decode worker may not. */
static const struct {
    const char *name;
    long number, arguments[6];
} narrower[] = {
    {"openat", SYS_openat, {AT_FDCWD, (long)"/proc/self/stat", O_RDONLY | O_CLOEXEC}},
    {"read", SYS_read, {-1}},
    {"pread64", SYS_pread64, {-1}},
    {"close", SYS_close, {-1}},
    {"fcntl", SYS_fcntl, {-1, F_GETFL}},
    {"newfstatat", SYS_newfstatat, {AT_FDCWD, (long)"/", (long)page}},
    {"getdents64", SYS_getdents64, {-1}},
    {"unlinkat", SYS_unlinkat, {AT_FDCWD, (long)"/nowhere/at/all"}},
    {"renameat2", SYS_renameat2, {-1, (long)"a", -1, (long)"b"}},
    {"recvfrom", SYS_recvfrom, {-1}},
    {"sendto", SYS_sendto, {-1, (long)page, 1}},
    {"accept4", SYS_accept4, {-1}},
    {"setsockopt", SYS_setsockopt, {-1}},
    {"epoll_ctl", SYS_epoll_ctl, {-1, 1, -1}},
    {"eventfd2", SYS_eventfd2, {NOTHING, -1}},
    {"inotify_init1", SYS_inotify_init1, {-1}},
    {"code_mmap",
     SYS_mmap,
     {NOTHING, NOTHING, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1}},
    {"code_mprotect", SYS_mprotect, {(long)page + 1, 4096, PROT_READ | PROT_EXEC}},
    {"seccomp", SYS_seccomp, {-1}},
};

static int outcome(long number, const long a[6])
{
    errno = 0;
    return syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]) == -1 ? errno : 0;
}

/* One write: lines of the server's log do not come between. */
static void probe(const char *where)
{
    char line[4096];
    size_t used = (size_t)snprintf(line, sizeof line, "probe %s", where);
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++) {
        const long *a = forbidden[i].arguments, all[6] = {a[0], a[1], a[2], a[3], a[4]};
        used += (size_t)snprintf(line + used, sizeof line - used, " %s=%d", forbidden[i].name,
                                 outcome(forbidden[i].number, all));
    }
    for (size_t i = 0; i < sizeof narrower / sizeof *narrower; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, " %s=%d", narrower[i].name,
                                 outcome(narrower[i].number, narrower[i].arguments));
    line[used++] = '\n';
    (void)!write(STDERR_FILENO, line, used);
}

__attribute__((constructor)) static void before_main(void)
{
    probe("start");
}

static void *helper(void *context)
{
    probe("helper");
    return context;
}

/* Whether the calling thread's name begins with `name`, for the first time. */
static bool is_first(const char *name, atomic_flag *was_tried)
{
    char own[16];
    return !prctl(PR_GET_NAME, own) && strncmp(own, name, strlen(name)) == 0 &&
           !atomic_flag_test_and_set(was_tried);
}

/* A photo was decoded, so the process is confined. The first connections may arrive before that. */
static atomic_bool has_photo;

EXPORT boolean jpeg_start_decompress(j_decompress_ptr photo)
{
    static atomic_flag was_tried = ATOMIC_FLAG_INIT;
    static _Atomic uintptr_t real;
    pthread_t thread;
    if (!real)
        real = (uintptr_t)dlsym(RTLD_NEXT, "jpeg_start_decompress");
    if (is_first("decode-", &was_tried)) {
        probe("decode");
        if (pthread_create(&thread, NULL, helper, NULL) == 0)
            pthread_join(thread, NULL);
    }
    has_photo = true;
    return ((boolean(*)(j_decompress_ptr))real)(photo);
}

EXPORT int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags)
{
    static atomic_flag was_tried = ATOMIC_FLAG_INIT;
    static _Atomic uintptr_t real;
    if (!real)
        real = (uintptr_t)dlsym(RTLD_NEXT, "accept4");
    if (has_photo && is_first("http", &was_tried))
        probe("http");
    return ((int (*)(int, struct sockaddr *, socklen_t *, int))real)(fd, address, size, flags);
}
