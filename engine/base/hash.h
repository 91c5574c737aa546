/* FNV-1a: a hash of bytes for tables and comparisons. Attackers can construct collisions, unless
 * the initial hash is random. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define FNV1A_START UINT64_C(0xcbf29ce484222325)

/* Adds bytes to the hash. */
static inline uint64_t fnv1a(uint64_t hash, const void *bytes, size_t size)
{
    for (const unsigned char *p = bytes; size > 0; p++, size--)
        hash = (hash ^ *p) * UINT64_C(0x100000001b3);
    return hash;
}
