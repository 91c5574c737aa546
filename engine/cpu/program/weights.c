/* Packed weights: each constant is packed once into the layout that its kernel reads.
 *
 * Programs for several batch sizes come from clones of one graph, which share constants, and a
 * kernel has one layout for all sizes, so most weights exist once. Constants that each clone
 * creates separately (a folded Reshape) are recognised by their contents. Equal weights of other
 * sessions are recognised in the same way: each image size of a model has its own session. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/size.h"
#include "engine/base/thread.h"
#include "engine/cpu/program/program.h"
#include "engine/tensor/tensor_file.h"

/* Packed bytes, shared by equal weights of one or more sessions. */
struct packed_block {
    struct packed_block *next;
    uint64_t hash;
    size_t bytes, users;
    void *data;
};

enum {
    LEAST_BLOCK = 4096, /* bytes; smaller blocks are not shared */
    MOST_COMPARED = 8 /* per hash: many weights may differ only in bytes that hash_bytes() skips */
};
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;
static struct packed_block *blocks; /* a list; blocks_lock guards it and its blocks */

struct weight {
    struct weight *next;
    struct tensor *constant;
    uint64_t hash; /* hash of the contents */
    struct strided_layout given;
    struct packed_layout wanted; /* set if a compiled product reads the weight */
    const char *layout;          /* name of the layout of a kernel's own packing, or NULL */
    size_t bytes;
    void *data;
    struct packed_block *block; /* owns `data`; NULL: `data` is not shared */
};

void strided_layout_row_major(struct strided_layout *layout)
{
    int64_t stride = 1;
    for (int a = layout->rank - 1; a >= 0; a--) {
        layout->strides[a] = stride;
        stride *= layout->dims[a];
    }
}

void strided_layout_swap(struct strided_layout *layout, int a, int b)
{
    const int64_t dim = layout->dims[a], stride = layout->strides[a];
    layout->dims[a] = layout->dims[b];
    layout->strides[a] = layout->strides[b];
    layout->dims[b] = dim;
    layout->strides[b] = stride;
}

/* Hashes at most 256 words of 8 bytes, evenly spread, so that a large constant is not read twice.
 * Bytes may be skipped, because weights with equal hashes are compared. */
static uint64_t hash_bytes(const void *data, size_t size)
{
    const unsigned char *p = data;
    const size_t words = size / 8, stride = words / 256 + 1;
    uint64_t hash = fnv1a(FNV1A_START, &size, sizeof size);
    for (size_t i = 0; i < words; i += stride)
        hash = fnv1a(hash, p + 8 * i, 8);
    return fnv1a(hash, p + 8 * words, size % 8);
}

/* Also compares shapes: a constant [K, N] and a constant [N, K] with equal numbers are packed in
 * different orders. */
static bool same_contents(const struct tensor *a, const struct tensor *b)
{
    return shape_equal(&a->shape, &b->shape) && a->bytes == b->bytes &&
           !memcmp(a->data, b->data, a->bytes);
}

static bool strided_layouts_equal(const struct strided_layout *a, const struct strided_layout *b)
{
    bool equal = a->dtype == b->dtype && a->rank == b->rank;
    for (int i = 0; equal && i < a->rank; i++)
        equal = a->dims[i] == b->dims[i] && a->strides[i] == b->strides[i];
    return equal;
}

static bool is_packed_alike(const struct weight *a, const struct weight *b)
{
    if (a->layout || b->layout)
        return a->layout && b->layout && a->bytes == b->bytes && strcmp(a->layout, b->layout) == 0;
    return strided_layouts_equal(&a->given, &b->given) &&
           packed_layouts_equal(&a->wanted, &b->wanted);
}

/* Returns the weight in the layout `wanted` that holds `constant` or an equal constant. If there is
 * none, returns NULL and sets wanted->hash. */
static struct weight *weight_find(struct backend *backend, const struct tensor *constant,
                                  struct weight *wanted)
{
    for (struct weight *w = backend->weights; w; w = w->next)
        if (w->constant == constant && is_packed_alike(w, wanted))
            return w;
    int compared = 0;
    wanted->hash = hash_bytes(constant->data, constant->bytes);
    for (struct weight *w = backend->weights; w && compared < MOST_COMPARED; w = w->next) {
        if (!w->constant || w->hash != wanted->hash || !is_packed_alike(w, wanted))
            continue;
        if (same_contents(w->constant, constant))
            return w;
        compared++;
    }
    return NULL;
}

/* Replaces the weight's bytes by equal bytes of another session, or offers them to all sessions. */
static void block_take(struct backend *backend, struct weight *weight)
{
    struct memory_budget *memory = backend->options.memory;
    if (!memory || weight->bytes < LEAST_BLOCK)
        return;
    const uint64_t hash = hash_bytes(weight->data, weight->bytes);
    LOCK(&blocks_lock);
    struct packed_block *block = blocks;
    for (int compared = 0; block; block = block->next) {
        if (block->hash != hash || block->bytes != weight->bytes)
            continue;
        if (!memcmp(block->data, weight->data, weight->bytes))
            break;
        if (++compared == MOST_COMPARED)
            return;
    }
    if (block) {
        memory_free_charged(memory, weight->data, weight->bytes); /* keeps this session's charge */
        weight->data = block->data;
    } else if ((block = malloc(sizeof *block)) != NULL) {
        *block = (struct packed_block){blocks, hash, weight->bytes, 0, weight->data};
        blocks = block;
    } else {
        return;
    }
    block->users++;
    weight->block = block;
}

/* Removes the weight from its block. Returns true if no other weight uses the block; the caller
 * then frees the bytes. */
static bool block_leave(const struct weight *weight)
{
    struct packed_block *block = weight->block;
    if (!block)
        return true;
    LOCK(&blocks_lock);
    if (--block->users > 0)
        return false;
    struct packed_block **link = &blocks;
    while (*link != block)
        link = &(*link)->next;
    *link = block->next;
    free(block);
    return true;
}

static void weight_release(struct backend *backend, const struct weight *weight)
{
    if (block_leave(weight))
        memory_free(backend->options.memory, weight->data, weight->bytes);
    else
        memory_uncharge(backend->options.memory, weight->bytes);
}

/* Releases the pages of a constant in a mapped file after it was read. */
static void release_mapping(const struct tensor *constant)
{
    struct mapping *mapping = tensor_mapping(constant);
    if (mapping)
        mapping_let_go(mapping);
}

/* Adds a copy of `made` to backend->weights; made->data then belongs to the copy. */
static enum status weight_enter(struct backend *backend, const struct weight *made,
                                struct tensor *constant, struct weight **ret, struct error *err)
{
    struct weight *weight = malloc(sizeof *weight);
    if (!weight) {
        memory_free(backend->options.memory, made->data, made->bytes);
        return error_no_memory(err, "while packing weights");
    }
    *weight = *made;
    release_mapping(constant);
    block_take(backend, weight);
    weight->constant = tensor_ref(constant);
    weight->next = backend->weights;
    backend->weights = weight;
    backend->weight_bytes += weight->bytes;
    *ret = weight;
    return STATUS_OK;
}

enum status weights_get(struct backend *backend, struct tensor *constant,
                        const struct strided_layout *given, const struct packed_layout *wanted,
                        const void **ret_data, struct error *err)
{
    struct weight made = {.given = *given, .wanted = *wanted, .bytes = packed_layout_bytes(wanted)};
    struct weight *weight = weight_find(backend, constant, &made);
    if (!weight) {
        TRY(memory_alloc(backend->options.memory, made.bytes, &made.data, err));
        pack_weights(given, constant->data, wanted, made.data);
        TRY(weight_enter(backend, &made, constant, &weight, err));
    }
    *ret_data = weight->data;
    return STATUS_OK;
}

enum status weights_pack_own(struct backend *backend, struct tensor *constant, const char *layout,
                             size_t bytes, weights_pack pack, const void *context,
                             const float **ret, struct error *err)
{
    struct weight made = {.layout = layout, .bytes = bytes};
    struct weight *weight = weight_find(backend, constant, &made);
    if (!weight) {
        TRY(memory_alloc(backend->options.memory, made.bytes, &made.data, err));
        pack(context, constant, made.data);
        TRY(weight_enter(backend, &made, constant, &weight, err));
    }
    *ret = weight->data;
    return STATUS_OK;
}

void weights_free_since(struct backend *backend, const struct weight *oldest)
{
    while (backend->weights != oldest) {
        struct weight *weight = backend->weights;
        backend->weights = weight->next;
        backend->weight_bytes -= weight->bytes;
        weight_release(backend, weight);
        tensor_unref(weight->constant);
        free(weight);
    }
}

void weights_seal(struct backend *backend)
{
    for (struct weight *w = backend->weights; w; w = w->next) {
        tensor_unref(w->constant);
        w->constant = NULL;
    }
}
