/* Resizes arenas for their users. Memory is mapped without pages; the first access to a page
 * allocates the page. Huge pages save the first pass thousands of page faults. */
#include <sys/mman.h>

#include "engine/base/thread.h"
#include "engine/cpu/program/program.h"

bool pages_resize(unsigned char **pages, size_t before, size_t bytes)
{
    void *moved = NULL;
    if (bytes == before)
        return true;
    if (bytes == 0)
        munmap(*pages, before);
    else if (before == 0)
        moved = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    else
        moved = mremap(*pages, before, bytes, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED)
        return false;
    if (moved)
        madvise(moved, bytes, MADV_HUGEPAGE);
    *pages = moved;
    return true;
}

/* Resizes the arena to its users' largest need, or to `bytes` if that is more. Returns false when
 * out of memory. */
static bool fit_locked(struct shared_arena *arena, size_t bytes)
{
    for (const struct backend *user = arena->users; user; user = user->next_user)
        if (user->arena_bytes > bytes)
            bytes = user->arena_bytes;
    if (!pages_resize(&arena->base, arena->bytes, bytes))
        return false;
    arena->bytes = bytes;
    return true;
}

static pthread_mutex_t *wait_for(struct shared_arena *arena)
{
    atomic_fetch_add(&arena->waiting, 1);
    pthread_mutex_lock(&arena->lock);
    atomic_fetch_sub(&arena->waiting, 1);
    return &arena->lock;
}

/* Like LOCK(&arena->lock), and counts the waiting threads. */
#define LOCK_ARENA(arena)                                                                          \
    pthread_mutex_t *lock_held_ __attribute__((cleanup(lock_end), unused)) = wait_for(arena)

bool arena_fit(struct shared_arena *arena)
{
    LOCK_ARENA(arena);
    return fit_locked(arena, 0);
}

bool arena_join(struct backend *backend, struct shared_arena *arena)
{
    LOCK_ARENA(arena);
    if (!fit_locked(arena, backend->arena_bytes))
        return false;
    arena_leave(backend);
    backend->next_user = arena->users;
    arena->users = backend;
    backend->arena = arena;
    return true;
}

void arena_leave(struct backend *backend)
{
    struct shared_arena *arena = backend->arena;
    if (!arena)
        return;
    LOCK_ARENA(arena);
    struct backend **link = &arena->users;
    while (*link != backend)
        link = &(*link)->next_user;
    *link = backend->next_user;
    backend->arena = NULL;
    (void)fit_locked(arena, 0); /* shrinking needs no memory */
}
