/* Makes chosen calls of the program that it is preloaded into (LD_PRELOAD) fail, as on a machine
 * that runs out of memory, descriptors, threads or disk, or not return. It also moves the program's
 * wall clock.
 *
 * The calls of each kind are counted from the start of main(). The file that FAULTS_CONTROL names
 * holds the counters and which calls fail; test_faults.py maps it too, and reads and changes it at
 * any time. Calls between functions of libc are not seen, except those to malloc(). */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <malloc.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* test_faults.py has the same order. */
enum fault_kind {
    FAULT_MEMORY,
    FAULT_READ,
    FAULT_WRITE,
    FAULT_ACCEPT,
    FAULT_THREAD,
    FAULT_DISK,
    FAULT_STUCK,
    FAULT_KINDS
};

enum { STACKS = 1 << 17, FRAMES = 24, WHERE_BYTES = 1000 };

/* test_faults.py reads and writes these by their offsets. */
struct fault {
    _Atomic uint64_t calls;       /* so far */
    _Atomic uint64_t first, last; /* numbers, from 1, of the calls that fail; 0: none */
    _Atomic uint64_t failed;
    _Atomic int64_t error;   /* errno; 0: the usual one of the call */
    char where[WHERE_BYTES]; /* the callers of the last call that failed: "lensd+1f30 …" */
};

struct fault_control {
    struct fault kinds[FAULT_KINDS];
    _Atomic int64_t clock_offset;                 /* nanoseconds that the wall clock is ahead */
    _Atomic int64_t thread;                       /* calls of others do not count; 0: all do */
    _Atomic uint64_t records;                     /* not 0: fills `stacks` */
    _Atomic uint32_t stacks[FAULT_KINDS][STACKS]; /* [call - 1]: a hash of its callers */
};

static struct fault_control *control; /* NULL before main() */
static pid_t process;                 /* the one that main() began in */
static _Thread_local bool is_inside;  /* calls of this library are not counted */

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

/* ---- which call fails ---- */

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void describe_callers(struct fault *fault)
{
    void *frames[FRAMES];
    const int count = backtrace(frames, FRAMES);
    size_t used = 0;
    Dl_info info, own;
    if (!dladdr((void *)&control, &own))
        return;
    for (int i = 0; i < count && used < sizeof fault->where - 100; i++) {
        if (!dladdr(frames[i], &info) || !info.dli_fname || info.dli_fbase == own.dli_fbase)
            continue;
        const int length =
            snprintf(fault->where + used, 100, "%s%.60s+%tx", used ? " " : "",
                     file_name(info.dli_fname), (char *)frames[i] - (char *)info.dli_fbase);
        used += length < 100 ? (size_t)length : 99;
    }
}

/* The driver switches the randomness of addresses off while it records. */
static uint32_t hash_callers(void)
{
    void *frames[FRAMES];
    const int count = backtrace(frames, FRAMES);
    uint64_t hash = 14695981039346656037u;
    for (int i = 2; i < count; i++)
        hash = (hash ^ (uintptr_t)frames[i]) * 1099511628211u;
    return (uint32_t)(hash >> 32) | 1;
}

/* Whether the caller ends the process when it gets no memory, which lensd cannot change: GMP and
 * libtasn1, which GnuTLS uses, and libheif while the process itself loads it, after a child has
 * (SECURITY.md). */
static bool ends_process(const char *where)
{
    return strncmp(where, "libgmp.", 7) == 0 || strncmp(where, "libtasn1.", 9) == 0 ||
           (strncmp(where, "libstdc++.", 10) == 0 && getpid() == process &&
            (strstr(where, " ld-linux") || strstr(where, " libheif.")));
}

/* Counts a call; sets errno if it is to fail. */
static bool fails(enum fault_kind kind, int usual)
{
    if (!control || is_inside || (control->thread && control->thread != syscall(SYS_gettid)))
        return false;
    const int before = errno;
    is_inside = true;
    struct fault *fault = &control->kinds[kind];
    const uint64_t call = atomic_fetch_add(&fault->calls, 1) + 1, first = fault->first;
    bool is_chosen = first != 0 && call >= first && call <= fault->last;
    if (control->records && call <= STACKS)
        control->stacks[kind][call - 1] = hash_callers();
    if (is_chosen) {
        describe_callers(fault);
        is_chosen = !ends_process(fault->where);
        atomic_fetch_add(&fault->failed, is_chosen);
    }
    is_inside = false;
    errno = !is_chosen ? before : fault->error ? (int)fault->error : usual;
    return is_chosen;
}

static void open_control(void)
{
    const char *path = getenv("FAULTS_CONTROL");
    const int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *frames[1];
    (void)backtrace(frames, 1); /* loads what it needs */
    process = getpid();
    struct fault_control *map =
        (void *)syscall(SYS_mmap, NULL, sizeof *map, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED)
        control = map;
    close(fd);
}

/* The function that comes behind this library's in the order of the dynamic linker. */
#define NEXT(name)                                                                                 \
    ({                                                                                             \
        static __typeof__(&name) next_;                                                            \
        if (!next_) {                                                                              \
            const bool was_inside = is_inside;                                                     \
            is_inside = true;                                                                      \
            next_ = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                                    \
            is_inside = was_inside;                                                                \
        }                                                                                          \
        next_;                                                                                     \
    })

/* Loaded in the place of a library: one that ends the process, as C++ libraries do without memory.
 */
__attribute__((constructor)) static void abort_when_asked(void)
{
    if (getenv("FAULTS_ABORT"))
        abort();
}

typedef int main_fn(int, char **, char **);
static main_fn *real_main;

/* gcov, which writes its counters after the program's own handlers, ends it when it gets no memory.
 */
static void stop_counting(void)
{
    control = NULL;
}

static int counted_main(int argc, char **argv, char **environment)
{
    open_control();
    (void)atexit(stop_counting);
    return real_main(argc, argv, environment);
}

EXPORT int __libc_start_main(main_fn *main_function, int argc, char **argv, void (*init)(void),
                             void (*fini)(void), void (*rtld_fini)(void), void *stack_end);
int __libc_start_main(main_fn *main_function, int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end)
{
    real_main = main_function;
    return NEXT(__libc_start_main)(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}

/* ---- memory ---- */

EXPORT void *malloc(size_t size)
{
    return fails(FAULT_MEMORY, ENOMEM) ? NULL : __libc_malloc(size);
}

EXPORT void *calloc(size_t count, size_t size)
{
    return fails(FAULT_MEMORY, ENOMEM) ? NULL : __libc_calloc(count, size);
}

EXPORT void *realloc(void *block, size_t size)
{
    return fails(FAULT_MEMORY, ENOMEM) ? NULL : __libc_realloc(block, size);
}

EXPORT void *reallocarray(void *block, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return fails(FAULT_MEMORY, ENOMEM) ? NULL : __libc_realloc(block, bytes);
}

EXPORT void *memalign(size_t alignment, size_t size)
{
    return fails(FAULT_MEMORY, ENOMEM) ? NULL : __libc_memalign(alignment, size);
}

EXPORT void *aligned_alloc(size_t alignment, size_t size)
{
    return fails(FAULT_MEMORY, ENOMEM) ? NULL : __libc_memalign(alignment, size);
}

EXPORT int posix_memalign(void **ret, size_t alignment, size_t size)
{
    if (fails(FAULT_MEMORY, ENOMEM))
        return ENOMEM;
    void *block = __libc_memalign(alignment, size);
    if (!block)
        return ENOMEM;
    *ret = block;
    return 0;
}

static void *map_counted(void *address, size_t size, int protection, int flags, int fd,
                         off_t offset)
{
    if (fails(FAULT_MEMORY, ENOMEM))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset);
}

EXPORT void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    return map_counted(address, size, protection, flags, fd, offset);
}

EXPORT void *mmap64(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    return map_counted(address, size, protection, flags, fd, offset);
}

/* ---- input and output ---- */

/* Descriptors of the kernel's own (eventfd, signalfd, epoll) do not fail. */
static bool io_fails(enum fault_kind kind, int fd)
{
    struct stat stat;
    const int before = errno;
    if (!control || is_inside || fstat(fd, &stat) != 0 || (stat.st_mode & S_IFMT) == 0) {
        errno = before;
        return false;
    }
    const int usual = S_ISSOCK(stat.st_mode) ? ECONNRESET : kind == FAULT_READ ? EIO : ENOSPC;
    return fails(kind, usual);
}

#define IO(kind, type, name, parameters, ...)                                                      \
    EXPORT type name parameters                                                                    \
    {                                                                                              \
        return io_fails(kind, fd) ? -1 : NEXT(name)(__VA_ARGS__);                                  \
    }

IO(FAULT_READ, ssize_t, read, (int fd, void *buffer, size_t size), fd, buffer, size)
IO(FAULT_READ, ssize_t, pread, (int fd, void *buffer, size_t size, off_t offset), fd, buffer, size,
   offset)
IO(FAULT_READ, ssize_t, pread64, (int fd, void *buffer, size_t size, off_t offset), fd, buffer,
   size, offset)
IO(FAULT_READ, ssize_t, readv, (int fd, const struct iovec *parts, int count), fd, parts, count)
IO(FAULT_READ, ssize_t, recv, (int fd, void *buffer, size_t size, int flags), fd, buffer, size,
   flags)
IO(FAULT_READ, ssize_t, recvfrom,
   (int fd, void *buffer, size_t size, int flags, struct sockaddr *from, socklen_t *from_size), fd,
   buffer, size, flags, from, from_size)
IO(FAULT_READ, ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), fd, message, flags)

IO(FAULT_WRITE, ssize_t, write, (int fd, const void *bytes, size_t size), fd, bytes, size)
IO(FAULT_WRITE, ssize_t, pwrite, (int fd, const void *bytes, size_t size, off_t offset), fd, bytes,
   size, offset)
IO(FAULT_WRITE, ssize_t, writev, (int fd, const struct iovec *parts, int count), fd, parts, count)
IO(FAULT_WRITE, ssize_t, send, (int fd, const void *bytes, size_t size, int flags), fd, bytes, size,
   flags)
IO(FAULT_WRITE, ssize_t, sendto,
   (int fd, const void *bytes, size_t size, int flags, const struct sockaddr *to,
    socklen_t to_size),
   fd, bytes, size, flags, to, to_size)
IO(FAULT_WRITE, ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), fd, message,
   flags)
IO(FAULT_WRITE, ssize_t, sendfile, (int fd, int from, off_t *offset, size_t size), fd, from, offset,
   size)
IO(FAULT_WRITE, ssize_t, sendfile64, (int fd, int from, off_t *offset, size_t size), fd, from,
   offset, size)

EXPORT int accept(int fd, struct sockaddr *address, socklen_t *size)
{
    return fails(FAULT_ACCEPT, EMFILE) ? -1 : NEXT(accept)(fd, address, size);
}

EXPORT int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags)
{
    return fails(FAULT_ACCEPT, EMFILE) ? -1 : NEXT(accept4)(fd, address, size, flags);
}

/* ---- threads ---- */

EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument)
{
    if (fails(FAULT_THREAD, EAGAIN))
        return errno;
    return NEXT(pthread_create)(thread, attributes, start, argument);
}

/* ---- files ---- */

IO(FAULT_DISK, int, fsync, (int fd), fd)
IO(FAULT_DISK, int, fdatasync, (int fd), fd)

EXPORT int rename(const char *from, const char *to)
{
    return fails(FAULT_DISK, EIO) ? -1 : NEXT(rename)(from, to);
}

EXPORT int renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    return fails(FAULT_DISK, EIO) ? -1 : NEXT(renameat)(from_folder, from, to_folder, to);
}

/* `mode` is passed on also where there is none, as libc does. */
static int open_counted(int folder, const char *path, int flags, mode_t mode)
{
    if (fails(FAULT_DISK, EMFILE))
        return -1;
    return (int)syscall(SYS_openat, folder, path, flags, mode);
}

#define MODE_OF(flags)                                                                             \
    ({                                                                                             \
        mode_t mode_ = 0;                                                                          \
        if ((flags) & (O_CREAT | O_TMPFILE)) {                                                     \
            va_list arguments_;                                                                    \
            va_start(arguments_, flags);                                                           \
            mode_ = va_arg(arguments_, mode_t);                                                    \
            va_end(arguments_);                                                                    \
        }                                                                                          \
        mode_;                                                                                     \
    })

EXPORT int open(const char *path, int flags, ...)
{
    return open_counted(AT_FDCWD, path, flags, MODE_OF(flags));
}

EXPORT int open64(const char *path, int flags, ...)
{
    return open_counted(AT_FDCWD, path, flags, MODE_OF(flags));
}

EXPORT int openat(int folder, const char *path, int flags, ...)
{
    return open_counted(folder, path, flags, MODE_OF(flags));
}

EXPORT int openat64(int folder, const char *path, int flags, ...)
{
    return open_counted(folder, path, flags, MODE_OF(flags));
}

/* ---- operators ---- */

/* Erf of float64 numbers calls it; it does not return while the driver chooses its calls. */
EXPORT double erf(double x)
{
    while (fails(FAULT_STUCK, 0))
        (void)poll(NULL, 0, 10);
    return NEXT(erf)(x);
}

/* ---- the wall clock ---- */

EXPORT int clock_gettime(clockid_t clock, struct timespec *ret)
{
    const int failed = (int)syscall(SYS_clock_gettime, clock, ret);
    const int64_t offset = control ? control->clock_offset : 0;
    if (failed || offset == 0 || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    ret->tv_sec += offset / 1000000000;
    ret->tv_nsec += offset % 1000000000;
    if (ret->tv_nsec >= 1000000000 || ret->tv_nsec < 0) {
        const int carry = ret->tv_nsec < 0 ? -1 : 1;
        ret->tv_sec += carry;
        ret->tv_nsec -= carry * 1000000000L;
    }
    return 0;
}

EXPORT time_t time(time_t *ret)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (ret)
        *ret = now.tv_sec;
    return now.tv_sec;
}

EXPORT int gettimeofday(struct timeval *restrict ret, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    *ret = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}
