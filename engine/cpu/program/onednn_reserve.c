/* The reserve consists of blocks. One is freed when an allocation of oneDNN fails.
 *
 * oneDNN finds posix_memalign() and mmap() here instead of in libc, because the program comes first
 * in the dynamic linker's order. */
#include "engine/cpu/program/onednn_reserve.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* A code buffer of oneDNN has 256 KiB, and a convolution has dozens of them. The blocks are never
 * written, so they use address space but no memory. */
#define BLOCK_BYTES ((size_t)512 << 10)
#define BLOCKS      32

/* oneDNN checks the result of larger allocations itself. */
#define SMALL_BYTES BLOCK_BYTES

static void *_Atomic blocks[BLOCKS];
static atomic_bool is_short = true; /* some block is missing */

/* Frees a block. Returns false when there is none left. */
static bool give_block(void)
{
    const int before = errno;
    atomic_store(&is_short, true);
    void *block = NULL;
    for (size_t i = 0; i < BLOCKS && !block; i++)
        block = atomic_exchange(&blocks[i], NULL);
    if (block)
        (void)munmap(block, BLOCK_BYTES);
    errno = before;
    return block != NULL;
}

/* std::new_handler: operator new retries when it returns. */
static void on_new_failed(void)
{
    static const char text[] = "lensd: out of memory inside oneDNN, with the reserve used up; give "
                               "the process more memory, or serve fewer models\n";
    struct pollfd reader = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (give_block())
        return;
    if (poll(&reader, 1, 1000) != 0) /* a reader that stalls must not block the process */
        (void)!write(STDERR_FILENO, text, sizeof text - 1);
    quick_exit(EXIT_FAILURE); /* flushes the log */
}

/* libstdc++ comes with oneDNN, but its headers are C++. */
static void set_handler(void)
{
    typedef void (*handler)(void);
    handler (*set)(handler) = NULL;
    *(void **)(void *)&set = dlsym(RTLD_DEFAULT, "_ZSt15set_new_handlerPFvvE");
    if (set)
        (void)set(on_new_failed);
}

enum status onednn_reserve_fill(struct error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!atomic_load_explicit(&is_short, memory_order_relaxed) ||
        !atomic_exchange(&is_short, false))
        return STATUS_OK;
    (void)pthread_once(&once, set_handler);
    for (size_t i = 0; i < BLOCKS; i++) {
        if (atomic_load(&blocks[i]))
            continue;
        void *none = NULL, *block = mmap(NULL, BLOCK_BYTES, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED) {
            atomic_store(&is_short, true);
            return error_set(err, STATUS_NO_MEMORY,
                             "out of memory for oneDNN; give the process more memory, or serve "
                             "fewer models");
        }
        if (!atomic_compare_exchange_strong(&blocks[i], &none, block))
            (void)munmap(block, BLOCK_BYTES); /* another thread has done it */
    }
    return STATUS_OK;
}

#ifndef __has_feature
#define __has_feature(name) 0
#endif
/* Sanitizers define these functions themselves. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) &&                             \
    !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer) &&                       \
    !__has_feature(memory_sanitizer)

#define EXPORT __attribute__((visibility("default")))

EXPORT int reserved_memalign(void **ret, size_t alignment, size_t size) __asm__("posix_memalign");
EXPORT void *reserved_mmap(void *address, size_t size, int protection, int flags, int fd,
                           off_t offset) __asm__("mmap");

int reserved_memalign(void **ret, size_t alignment, size_t size)
{
    if (alignment < sizeof(void *) || (alignment & (alignment - 1)) != 0)
        return EINVAL;
    const int before = errno;
    void *block = aligned_alloc(alignment, size);
    while (!block && size <= SMALL_BYTES && give_block())
        block = aligned_alloc(alignment, size);
    errno = before;
    if (!block)
        return ENOMEM;
    *ret = block;
    return 0;
}

/* lensd itself calls libc's function, called mmap64 if off_t has 64 bits. */
void *reserved_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    void *block = mmap(address, size, protection, flags, fd, offset);
    while (block == MAP_FAILED && errno == ENOMEM && size <= SMALL_BYTES && give_block())
        block = mmap(address, size, protection, flags, fd, offset);
    return block;
}

#endif
