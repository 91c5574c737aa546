/* A map from byte strings to ids that is walked byte by byte: whole tokens, and all tokens that
 * begin at a place of a text. Built by one thread, then read by any number. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

struct trie {
    struct trie_edge {
        uint32_t key; /* node << 8 | byte */
        uint32_t to;  /* 0: the slot is free */
    } * edges;        /* a hash table of 1 << bits slots */
    unsigned bits;
    int32_t *ids; /* of each node; -1: no token ends there */
    size_t nodes, room;
};

/* Adds `size` bytes with an id >= 0, replacing an older id. Zeroes are an empty trie. Returns the
 * number of nodes it has then, or 0 when memory is short or there would be more than 2^24. */
size_t trie_add(struct trie *trie, const char *text, size_t size, int32_t id);
void trie_done(struct trie *trie); /* zeroes are fine */

/* The node that `byte` leads to; 0: none. The root is 0, so a walk begins there. */
static inline uint32_t trie_step(const struct trie *trie, uint32_t node, char byte)
{
    const uint32_t key = node << 8 | (uint8_t)byte;
    if (!trie->bits)
        return 0;
    for (uint32_t slot = key * UINT32_C(0x9E3779B1) >> (32 - trie->bits);;
         slot = (slot + 1) & ((UINT32_C(1) << trie->bits) - 1))
        if (trie->edges[slot].key == key || !trie->edges[slot].to)
            return trie->edges[slot].key == key ? trie->edges[slot].to : 0;
}

/* The node behind `size` bytes; 0: none, or no bytes. */
static inline uint32_t trie_walk(const struct trie *trie, uint32_t node, const char *text,
                                 size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (!(node = trie_step(trie, node, text[i])))
            return 0;
    return node;
}

/* The id of exactly these bytes; -1: none. */
static inline int32_t trie_find(const struct trie *trie, const char *text, size_t size)
{
    const uint32_t node = trie_walk(trie, 0, text, size);
    return node ? trie->ids[node] : -1;
}

/* The longest token that begins at text[0 … size), after a walk to `node`: its id and its bytes;
 * -1: none. */
int32_t trie_longest(const struct trie *trie, uint32_t node, const char *text, size_t size,
                     size_t *ret_length);
