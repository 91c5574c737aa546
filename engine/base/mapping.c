/* Maps files for reading. A SIGBUS handler puts zeros where a file has shrunk. */
#include "engine/base/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/size.h"
#include "engine/base/thread.h"

enum { MOST_MAPPINGS = 4096, COPY_BYTES = 1 << 20 };

/* Address range of a mapping, for the signal handler. The fields are atomic, and entries are never
 * freed. `begin` is 0 in an unused entry, and 1 while an entry is being filled. */
struct guard {
    _Atomic uintptr_t begin, end;
    atomic_bool torn;
};

/* The state of a file when it was mapped; shared by all its mappings, which may be thousands. */
struct source {
    int fd; /* the source's own descriptor */
    struct stat opened;
    size_t users;
    struct source *next;
};

struct mapping {
    struct guard *guard; /* NULL after mapping_settle() */
    struct source *source;
    char *pages; /* page-aligned */
    size_t page_bytes;
    size_t lead;                /* position of the mapped bytes in `pages` */
    size_t tail_at, tail_bytes; /* position and size of the last page's bytes in `pages` */
    char tail[]; /* a copy of the last page: if the file ends inside it, reads raise no signal */
};

static struct guard guards[MOST_MAPPINGS];
static struct source *sources; /* guarded, with their `users`, by sources_lock */
static pthread_mutex_t sources_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before;
static size_t page_size;
static int install_error;

/* ---- the handler ---- */

static void pass_on(int number, siginfo_t *info, void *context)
{
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
    } else {
        /* Returning repeats the fault, which now ends the process. */
        struct sigaction otherwise = {.sa_handler = SIG_DFL};
        sigaction(number, &otherwise, NULL);
    }
}

/* Uses only atomics and mmap(), a bare system call on Linux. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
    int saved = errno;
    uintptr_t at = (uintptr_t)info->si_addr;
    for (size_t i = 0; i < MOST_MAPPINGS; i++) {
        uintptr_t begin = atomic_load(&guards[i].begin);
        if (begin <= 1 || at < begin || at >= atomic_load(&guards[i].end))
            continue;
        void *page = (void *)(at & ~(uintptr_t)(page_size - 1));
        if (mmap(page, page_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
            MAP_FAILED)
            break;
        atomic_store(&guards[i].torn, true);
        errno = saved;
        return;
    }
    errno = saved;
    pass_on(number, info, context);
}

static void install(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    page_size = (size_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, &action, &before))
        install_error = errno;
}

/* ---- files ---- */

static bool is_unchanged(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Returns the source of an open file, with one more user; NULL on failure. */
static struct source *take_source(int fd)
{
    struct stat now;
    if (fstat(fd, &now) != 0)
        return NULL;
    LOCK(&sources_lock);
    struct source *source = sources;
    while (source && (source->opened.st_dev != now.st_dev || source->opened.st_ino != now.st_ino ||
                      !is_unchanged(&source->opened, &now)))
        source = source->next;
    if (!source && (source = malloc(sizeof *source)) != NULL) {
        *source =
            (struct source){.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0), .opened = now, .next = sources};
        if (source->fd >= 0) {
            sources = source;
        } else {
            free(source);
            source = NULL;
        }
    }
    if (source)
        source->users++;
    return source;
}

static void give_source(struct source *source)
{
    LOCK(&sources_lock);
    if (source && --source->users == 0) {
        struct source **at = &sources;
        while (*at != source)
            at = &(*at)->next;
        *at = source->next;
        close(source->fd);
        free(source);
    }
}

static bool is_as_it_was(const struct source *source)
{
    struct stat now;
    return fstat(source->fd, &now) == 0 && is_unchanged(&source->opened, &now);
}

/* ---- mappings ---- */

static struct guard *take_guard(void)
{
    for (size_t i = 0; i < MOST_MAPPINGS; i++) {
        uintptr_t unused = 0;
        if (atomic_compare_exchange_strong(&guards[i].begin, &unused, 1))
            return &guards[i];
    }
    return NULL;
}

static void give_guard(struct guard *guard)
{
    if (guard)
        atomic_store(&guard->begin, 0);
}

enum status mapping_create(int fd, uint64_t offset, size_t bytes, struct mapping **ret,
                           struct error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
    if (install_error)
        return error_set(err, STATUS_IO, "cannot install the handler for mapped files (SIGBUS): %s",
                         strerror(install_error));
    size_t lead = (size_t)(offset % page_size), whole;
    if (!size_add(bytes, lead + page_size - 1, &whole) || offset > INT64_MAX)
        return error_set(err, STATUS_NO_MEMORY, "%zu bytes cannot be mapped", bytes);
    struct mapping *mapping = calloc(1, sizeof *mapping + page_size);
    struct source *source = mapping ? take_source(fd) : NULL;
    struct guard *guard = source ? take_guard() : NULL;
    if (!guard) {
        give_source(source);
        free(mapping);
        return error_set(err, STATUS_NO_MEMORY, "out of memory, or too many files or mappings");
    }
    whole -= whole % page_size;
    void *pages = mmap(NULL, whole, PROT_READ, MAP_PRIVATE, fd, (off_t)(offset - (uint64_t)lead));
    if (pages == MAP_FAILED) {
        enum status status = errno == ENOMEM ? STATUS_NO_MEMORY : STATUS_IO;
        error_set(err, status, "%zu bytes cannot be mapped: %s", bytes, strerror(errno));
        give_guard(guard);
        give_source(source);
        free(mapping);
        return status;
    }
    *mapping = (struct mapping){
        .guard = guard, .source = source, .pages = pages, .page_bytes = whole, .lead = lead};
    mapping->tail_at = whole - page_size < lead ? lead : whole - page_size;
    mapping->tail_bytes = lead + bytes - mapping->tail_at;
    const uint64_t tail = offset - lead + mapping->tail_at;
    const ssize_t read = pread(fd, mapping->tail, mapping->tail_bytes, (off_t)tail);
    atomic_store(&guard->torn, read != (ssize_t)mapping->tail_bytes);
    atomic_store(&guard->end, (uintptr_t)pages + whole);
    atomic_store(&guard->begin, (uintptr_t)pages);
    *ret = mapping;
    return STATUS_OK;
}

void mapping_free(struct mapping *mapping)
{
    if (!mapping)
        return;
    munmap(mapping->pages, mapping->page_bytes);
    give_guard(mapping->guard);
    give_source(mapping->source);
    free(mapping);
}

void *mapping_data(const struct mapping *mapping)
{
    return mapping->pages + mapping->lead;
}

bool mapping_torn(const struct mapping *mapping)
{
    return mapping->guard && atomic_load(&mapping->guard->torn);
}

bool mapping_is_whole(const struct mapping *mapping)
{
    return !mapping->guard ||
           (memcmp(mapping->pages + mapping->tail_at, mapping->tail, mapping->tail_bytes) == 0 &&
            !mapping_torn(mapping) && is_as_it_was(mapping->source));
}

static enum status torn(struct error *err)
{
    return error_set(err, STATUS_IO, MAPPING_CHANGED);
}

/* Copies in blocks, so that little more memory than the bytes themselves is needed. */
static enum status replace_pages(const struct mapping *mapping, char *copy, struct error *err)
{
    for (size_t at = 0; at < mapping->page_bytes; at += COPY_BYTES) {
        size_t size = mapping->page_bytes - at < COPY_BYTES ? mapping->page_bytes - at : COPY_BYTES;
        memcpy(copy, mapping->pages + at, size);
        if (!mapping_is_whole(mapping))
            return torn(err);
        if (mmap(mapping->pages + at, size, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
            return error_set(err, STATUS_NO_MEMORY, "out of memory: %zu bytes of weights",
                             mapping->page_bytes);
        memcpy(mapping->pages + at, copy, size);
    }
    return STATUS_OK;
}

enum status mapping_settle(struct mapping *mapping, struct error *err)
{
    if (!mapping->guard)
        return STATUS_OK;
    if (mapping_torn(mapping))
        return torn(err);
    char *copy = malloc(COPY_BYTES);
    enum status status = copy ? replace_pages(mapping, copy, err) : error_no_memory(err, NULL);
    free(copy);
    TRY(status);
    give_guard(mapping->guard);
    give_source(mapping->source);
    mapping->guard = NULL;
    mapping->source = NULL;
    return STATUS_OK;
}

void mapping_let_go(struct mapping *mapping)
{
    if (mapping->guard)
        madvise(mapping->pages, mapping->page_bytes, MADV_DONTNEED);
}
