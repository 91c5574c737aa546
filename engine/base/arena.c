/* Arenas: a list of zeroed chunks. Allocations are parts of chunks; all are freed together. */
#include "engine/base/arena.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"

#define ARENA_ALIGN 16
#define CHUNK_BYTES (64 * 1024)

struct chunk {
    struct chunk *next;
    size_t size, used; /* bytes of data[] */
    _Alignas(ARENA_ALIGN) unsigned char data[];
};

struct arena {
    struct chunk *head;
    size_t limit, used;
};

struct arena *arena_create(size_t limit)
{
    struct arena *arena = calloc(1, sizeof *arena);
    if (arena)
        arena->limit = limit;
    return arena;
}

void arena_free(struct arena *arena)
{
    if (!arena)
        return;
    for (struct chunk *chunk = arena->head, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    free(arena);
}

void *arena_alloc(struct arena *arena, size_t count, size_t size)
{
    size_t bytes;
    if (!size_mul(count, size, &bytes) || bytes > SIZE_MAX / 2)
        return NULL;
    bytes = size_align(bytes ? bytes : 1, ARENA_ALIGN);
    if (arena->limit && (bytes > arena->limit || arena->used > arena->limit - bytes))
        return NULL;
    struct chunk *chunk = arena->head;
    if (!chunk || chunk->size - chunk->used < bytes) {
        size_t room = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        chunk = calloc(1, sizeof *chunk + room);
        if (!chunk)
            return NULL;
        chunk->size = room;
        /* A big block is inserted after the head, so that the head's free space stays usable. */
        if (arena->head && bytes > CHUNK_BYTES) {
            chunk->next = arena->head->next;
            arena->head->next = chunk;
        } else {
            chunk->next = arena->head;
            arena->head = chunk;
        }
    }
    void *result = chunk->data + chunk->used;
    chunk->used += bytes;
    arena->used += bytes;
    return result;
}

void *arena_copy(struct arena *arena, const void *elements, size_t count, size_t size)
{
    void *copy = arena_alloc(arena, count, size);
    if (copy && count)
        memcpy(copy, elements, count * size);
    return copy;
}

char *arena_copy_text(struct arena *arena, const char *text, size_t size)
{
    if (size == SIZE_MAX)
        return NULL;
    char *copy = arena_alloc(arena, size + 1, 1);
    if (copy && size)
        memcpy(copy, text, size);
    return copy;
}
