/* A map from byte strings to ids that is searched byte by byte. It finds whole tokens, or all
 * tokens at a position of a text. One thread builds it, then any number of threads may read it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

struct trie {
    struct trie_edge {
        uint32_t key; /* node << 8 | byte */
        uint32_t to;  /* 0: the slot is empty */
    } * edges;        /* a hash table of 1 << bits slots */
    unsigned bits;
    int32_t *ids; /* by node: the id of the token that ends there; -1: no token */
    size_t nodes, room;
};

/* Adds `size` bytes with an id other than -1; replaces an older id. A zeroed trie is empty. Returns
 * the new number of nodes, or 0 if memory runs out or there would be more than 2^24. */
size_t trie_add(struct trie *trie, const char *text, size_t size, int32_t id);
void trie_done(struct trie *trie); /* a zeroed trie is fine */

/* Returns the node after `byte`; 0: there is no such node. A walk starts at the root, 0. */
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

/* Returns the node after `size` bytes; 0: there is no such node. Without bytes, returns `node`. */
static inline uint32_t trie_walk(const struct trie *trie, uint32_t node, const char *text,
                                 size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (!(node = trie_step(trie, node, text[i])))
            return 0;
    return node;
}

/* Returns the id of exactly these bytes, -1 if there is none. */
static inline int32_t trie_find(const struct trie *trie, const char *text, size_t size)
{
    const uint32_t node = trie_walk(trie, 0, text, size);
    return node ? trie->ids[node] : -1;
}

/* Continues a walk from `node` along text[0 … size). Returns the id of the longest token found
 * whose id is not negative, and the number of its bytes in `text`; -1 if there is none. */
int32_t trie_longest(const struct trie *trie, uint32_t node, const char *text, size_t size,
                     size_t *ret_length);
