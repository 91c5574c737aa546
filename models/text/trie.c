/* The trie is a hash table of edges: a step is one probe, and 256,000 tokens take about 12 MB. */
#include "models/text/trie.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"

enum { NODES_MAX = 1 << 24 };

static struct trie_edge *find_slot(const struct trie *trie, uint32_t key)
{
    uint32_t slot = key * UINT32_C(0x9E3779B1) >> (32 - trie->bits);
    while (trie->edges[slot].to && trie->edges[slot].key != key)
        slot = (slot + 1) & ((UINT32_C(1) << trie->bits) - 1);
    return &trie->edges[slot];
}

/* Doubles the room for nodes and edges. At most half of the slots are taken. */
static bool grow(struct trie *trie)
{
    const struct trie old = *trie;
    const size_t room = trie->room ? 2 * trie->room : 1024;
    int32_t *ids = realloc(trie->ids, room * sizeof *ids);
    if (!ids)
        return false;
    trie->ids = ids;
    struct trie_edge *edges = calloc(2 * room, sizeof *edges);
    if (!edges)
        return false;
    if (!trie->nodes)
        ids[trie->nodes++] = -1;
    trie->edges = edges;
    trie->bits = (unsigned)__builtin_ctzl(2 * room);
    trie->room = room;
    for (size_t i = 0; old.edges && i < 2 * old.room; i++)
        if (old.edges[i].to)
            *find_slot(trie, old.edges[i].key) = old.edges[i];
    free(old.edges);
    return true;
}

size_t trie_add(struct trie *trie, const char *text, size_t size, int32_t id)
{
    uint32_t node = 0;
    if (!trie->nodes && !grow(trie))
        return 0;
    for (size_t i = 0; i < size; i++) {
        const uint32_t key = node << 8 | (uint8_t)text[i];
        if ((node = trie_step(trie, node, text[i])))
            continue;
        if (trie->nodes == trie->room && (trie->room >= NODES_MAX || !grow(trie)))
            return 0;
        node = (uint32_t)trie->nodes++;
        trie->ids[node] = -1;
        *find_slot(trie, key) = (struct trie_edge){key, node};
    }
    if (size)
        trie->ids[node] = id;
    return trie->nodes;
}

void trie_done(struct trie *trie)
{
    FREE_ALL(trie->edges, trie->ids);
    memset(trie, 0, sizeof *trie);
}

int32_t trie_longest(const struct trie *trie, uint32_t node, const char *text, size_t size,
                     size_t *ret_length)
{
    int32_t best = -1;
    for (size_t i = 0; i < size && (node = trie_step(trie, node, text[i])); i++)
        if (trie->ids[node] >= 0) {
            best = trie->ids[node];
            *ret_length = i + 1;
        }
    return best;
}
