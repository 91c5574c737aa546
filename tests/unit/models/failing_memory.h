/* Allocators of which the n-th call fails. A program that includes this is linked with --wrap for
 * each of them. Those of libraries (cJSON, protobuf-c) never fail. */
#pragma once

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/arena.h"

static atomic_long left = LONG_MAX; /* allocations that succeed before one fails */
static atomic_bool has_failed;

static bool allocation_fails(void)
{
    if (atomic_fetch_sub(&left, 1) != 1)
        return false;
    atomic_store(&has_failed, true);
    return true;
}

#define WRAP(type, name, parameters, ...)                                                          \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        return allocation_fails() ? NULL : __real_##name(__VA_ARGS__);                             \
    }

WRAP(void *, malloc, (size_t size), size)
WRAP(void *, calloc, (size_t count, size_t size), count, size)
WRAP(void *, realloc, (void *data, size_t size), data, size)
WRAP(char *, strdup, (const char *text), text)
WRAP(char *, strndup, (const char *text, size_t size), text, size)
/* An arena has room for many of these before it needs more memory. */
WRAP(void *, arena_alloc, (struct arena * arena, size_t count, size_t size), arena, count, size)
WRAP(char *, arena_copy_text, (struct arena * arena, const char *text, size_t size), arena, text,
     size)
