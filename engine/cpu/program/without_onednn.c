/* Implements onednn.h in a build without oneDNN: all products are lensd's own. */
#include <stdlib.h>

#include "engine/cpu/program/own_products.h"
#include "engine/cpu/program/parallel.h"

struct onednn {
    int threads;
};

struct packed_layout {
    struct own_layout *own;
};

struct onednn_product {
    struct own_product *own;
    struct packed_layout weights; /* own's */
};

enum status onednn_open(struct onednn **ret, struct error *err)
{
    *ret = malloc(sizeof **ret);
    if (!*ret)
        return error_no_memory(err, NULL);
    (*ret)->threads = forkjoin_threads();
    return STATUS_OK;
}

void onednn_close(struct onednn *onednn)
{
    free(onednn);
}

void onednn_drop_unused(void)
{
}

bool onednn_pairs_saturate(void)
{
    return false;
}

bool onednn_sums_fit(const struct tensor *weights, enum dtype src)
{
    (void)weights;
    (void)src;
    return true;
}

struct packed_layout *packed_layout_clone(const struct packed_layout *layout)
{
    struct packed_layout *copy = malloc(sizeof *copy);
    if (!copy)
        return NULL;
    copy->own = own_layout_clone(layout->own);
    if (copy->own)
        return copy;
    free(copy);
    return NULL;
}

void packed_layout_free(struct packed_layout *layout)
{
    if (layout)
        free(layout->own);
    free(layout);
}

size_t packed_layout_bytes(const struct packed_layout *layout)
{
    return own_layout_bytes(layout->own);
}

bool packed_layouts_equal(const struct packed_layout *a, const struct packed_layout *b)
{
    return own_layouts_equal(a->own, b->own);
}

bool packed_layout_is(const struct packed_layout *packed, const struct strided_layout *layout)
{
    (void)packed;
    (void)layout;
    return false;
}

enum status onednn_reorder(const struct onednn *onednn, const struct strided_layout *given,
                           void *from, const struct packed_layout *wanted, void *to,
                           struct error *err)
{
    (void)onednn;
    return own_reorder(given, from, wanted->own, to, err);
}

enum status onednn_product_create(const struct onednn *onednn, const struct product_desc *desc,
                                  const struct epilogue *epilogue, struct onednn_product **ret,
                                  struct error *err)
{
    struct own_product *own = NULL;
    if (desc->own)
        return STATUS_OK;
    TRY(own_product_create(onednn->threads, desc, epilogue, &own, err));
    *ret = calloc(1, sizeof **ret);
    if (!*ret) {
        own_product_free(own);
        return error_no_memory(err, "while compiling");
    }
    (*ret)->own = own;
    (*ret)->weights.own = own_product_weights(own);
    return STATUS_OK;
}

void onednn_product_free(struct onednn_product *product)
{
    if (product)
        own_product_free(product->own);
    free(product);
}

const char *onednn_product_name(const struct onednn_product *product)
{
    return own_product_name(product->own);
}

size_t onednn_product_scratch(const struct onednn_product *product)
{
    return own_product_scratch(product->own);
}

const struct packed_layout *onednn_product_weights(const struct onednn_product *product)
{
    return &product->weights;
}

enum status onednn_product_bind(struct onednn_product *product, void *weights, void *bias,
                                struct error *err)
{
    (void)err;
    own_product_bind(product->own, weights, bias);
    return STATUS_OK;
}

enum status onednn_product_run(const struct onednn_product *product, void *src, void *weights,
                               void *dst, void *scratch, struct error *err)
{
    (void)err;
    own_product_run(product->own, src, weights, dst, scratch);
    return STATUS_OK;
}
