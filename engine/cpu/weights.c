/* Packed weights: each constant is brought into the layout its primitive likes, once.
 *
 * Programs for several batch sizes come from clones of one graph, which share constants by
 * reference, and oneDNN mostly asks for the same layout whatever the batch size; so most weights
 * exist once. Constants that were made separately for each clone (a folded Reshape) are recognised
 * by their contents. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/cpu/program.h"
#include "engine/tensor_file.h"

struct weight {
    struct weight *next;
    struct tensor *constant;
    uint64_t hash; /* of the contents */
    dnnl_memory_desc_t given, wanted;
    const char *layout; /* one of lensd's own, instead of `wanted`; NULL */
    size_t bytes;
    void *data; /* packed, or the constant's own bytes */
    bool owned;
};

/* FNV-1a over 8-byte words: quick, and compared bytes decide. */
static uint64_t hash_bytes(const void *data, size_t size)
{
    const unsigned char *p = data;
    uint64_t hash = 0xcbf29ce484222325u, word;
    for (; size >= 8; size -= 8, p += 8) {
        memcpy(&word, p, 8);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    while (size--)
        hash = (hash ^ *p++) * 0x100000001b3u;
    return hash;
}

static bool same_contents(const struct tensor *a, const struct tensor *b)
{
    return a->bytes == b->bytes && !memcmp(a->data, b->data, a->bytes);
}

static bool is_packed_so(const struct weight *w, const dnnl_memory_desc_t *given,
                         const dnnl_memory_desc_t *wanted)
{
    return !w->layout && dnnl_memory_desc_equal(&w->given, given) &&
           dnnl_memory_desc_equal(&w->wanted, wanted);
}

static struct weight *find_same(struct backend *backend, const struct tensor *constant,
                                const dnnl_memory_desc_t *given, const dnnl_memory_desc_t *wanted)
{
    for (struct weight *w = backend->weights; w; w = w->next)
        if (w->constant == constant && is_packed_so(w, given, wanted))
            return w;
    return NULL;
}

static bool is_equal(const struct weight *weight, const struct tensor *constant, uint64_t hash)
{
    return weight->constant && weight->hash == hash && same_contents(weight->constant, constant);
}

static struct weight *find_equal(struct backend *backend, const struct tensor *constant,
                                 uint64_t hash, const dnnl_memory_desc_t *given,
                                 const dnnl_memory_desc_t *wanted)
{
    for (struct weight *w = backend->weights; w; w = w->next)
        if (is_equal(w, constant, hash) && is_packed_so(w, given, wanted))
            return w;
    return NULL;
}

static enum status reorder(struct backend *backend, void *from, const dnnl_memory_desc_t *given,
                           void *to, const dnnl_memory_desc_t *wanted, struct error *err)
{
    dnnl_memory_t src = NULL, dst = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_primitive_t primitive = NULL;
    enum status status =
        dnnl_check(dnnl_memory_create(&src, given, backend->engine, from), "memory", err);
    if (status == STATUS_OK)
        status = dnnl_check(dnnl_memory_create(&dst, wanted, backend->engine, to), "memory", err);
    if (status == STATUS_OK)
        status = dnnl_check(dnnl_reorder_primitive_desc_create(&desc, given, backend->engine,
                                                               wanted, backend->engine, NULL),
                            "weight reorder", err);
    if (status == STATUS_OK)
        status = dnnl_check(dnnl_primitive_create(&primitive, desc), "weight reorder", err);
    if (status == STATUS_OK) {
        dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, src}, {DNNL_ARG_TO, dst}};
        status = dnnl_check(dnnl_primitive_execute(primitive, backend->stream, 2, args),
                            "weight reorder", err);
    }
    dnnl_primitive_destroy(primitive);
    dnnl_primitive_desc_destroy(desc);
    dnnl_memory_destroy(src);
    dnnl_memory_destroy(dst);
    return status;
}

/* A constant in a mapped file was read through: the system may have the pages again. */
static void let_go(const struct tensor *constant)
{
    struct mapping *mapping = tensor_mapping(constant);
    if (mapping)
        mapping_let_go(mapping);
}

static void enter(struct backend *backend, struct weight *weight, struct tensor *constant,
                  size_t bytes)
{
    weight->bytes = bytes;
    weight->constant = tensor_ref(constant);
    weight->next = backend->weights;
    backend->weights = weight;
    backend->weight_bytes += bytes;
}

enum status weights_get(struct backend *backend, struct tensor *constant,
                        const dnnl_memory_desc_t *given, const dnnl_memory_desc_t *wanted,
                        void **ret_data, struct error *err)
{
    uint64_t hash = 0;
    struct weight *weight = find_same(backend, constant, given, wanted);
    if (!weight) {
        hash = hash_bytes(constant->data, constant->bytes);
        weight = find_equal(backend, constant, hash, given, wanted);
    }
    if (weight) {
        *ret_data = weight->data;
        return STATUS_OK;
    }
    size_t bytes = dnnl_memory_desc_get_size(wanted);
    weight = calloc(1, sizeof *weight);
    if (!weight)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while packing weights");
    weight->given = *given;
    weight->wanted = *wanted;
    weight->hash = hash;
    if (dnnl_memory_desc_equal(given, wanted)) {
        weight->data = constant->data;
    } else {
        weight->data = aligned_alloc(TENSOR_ALIGN, size_align(bytes ? bytes : 1, TENSOR_ALIGN));
        enum status status =
            weight->data ? reorder(backend, constant->data, given, weight->data, wanted, err)
                         : error_set(err, STATUS_NO_MEMORY,
                                     "out of memory: %zu bytes of packed weights", bytes);
        if (status != STATUS_OK) {
            free(weight->data);
            free(weight);
            return status;
        }
        weight->owned = true;
        let_go(constant);
    }
    enter(backend, weight, constant, bytes);
    *ret_data = weight->data;
    return STATUS_OK;
}

static struct weight *find_own(struct backend *backend, const struct tensor *constant,
                               const char *layout, size_t bytes)
{
    struct weight *candidates = NULL;
    for (struct weight *w = backend->weights; w; w = w->next) {
        if (!w->layout || w->bytes != bytes || strcmp(w->layout, layout) != 0)
            continue;
        if (w->constant == constant)
            return w;
        candidates = candidates ? candidates : w;
    }
    uint64_t hash = candidates ? hash_bytes(constant->data, constant->bytes) : 0;
    for (struct weight *w = candidates; w; w = w->next)
        if (w->layout && w->bytes == bytes && !strcmp(w->layout, layout) &&
            is_equal(w, constant, hash))
            return w;
    return NULL;
}

enum status weights_pack_own(struct backend *backend, struct tensor *constant, const char *layout,
                             size_t bytes, weights_pack pack, const void *context,
                             const float **ret, struct error *err)
{
    struct weight *same = find_own(backend, constant, layout, bytes);
    if (same) {
        *ret = same->data;
        return STATUS_OK;
    }
    struct weight *weight = calloc(1, sizeof *weight);
    if (weight)
        weight->data = aligned_alloc(TENSOR_ALIGN, size_align(bytes ? bytes : 1, TENSOR_ALIGN));
    if (!weight || !weight->data || !pack(context, constant, weight->data)) {
        free(weight ? weight->data : NULL);
        free(weight);
        return error_set(err, STATUS_NO_MEMORY, "out of memory: %zu bytes of packed weights",
                         bytes);
    }
    weight->layout = layout;
    weight->hash = hash_bytes(constant->data, constant->bytes);
    weight->owned = true;
    let_go(constant);
    enter(backend, weight, constant, bytes);
    *ret = weight->data;
    return STATUS_OK;
}

static void drop(struct weight *weight)
{
    if (weight->owned)
        free(weight->data);
    tensor_unref(weight->constant);
    free(weight);
}

void weights_drop(struct backend *backend, struct weight *newest, const struct weight *oldest)
{
    struct weight **link = &backend->weights;
    if (newest == oldest)
        return;
    while (*link != newest)
        link = &(*link)->next;
    while (*link != oldest) {
        struct weight *weight = *link;
        *link = weight->next;
        backend->weight_bytes -= weight->bytes;
        drop(weight);
    }
}

void weights_seal(struct backend *backend)
{
    for (struct weight *w = backend->weights; w; w = w->next) {
        if (!w->owned)
            continue;
        tensor_unref(w->constant);
        w->constant = NULL;
    }
}

void weights_free(struct backend *backend)
{
    for (struct weight *w = backend->weights, *next; w; w = next) {
        next = w->next;
        drop(w);
    }
    backend->weights = NULL;
}
