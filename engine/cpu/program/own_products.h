/* Private to engine/cpu/program/: the products of onednn.h by lensd's own kernels. Without oneDNN
 * they compute all products, otherwise those that oneDNN would compute wrongly. onednn.h documents
 * the functions with similar names. */
#pragma once

#include "engine/cpu/program/onednn.h"

struct own_layout; /* of packed weights; free() frees a clone */

/* Returns NULL when out of memory. */
struct own_layout *own_layout_clone(const struct own_layout *layout);
size_t own_layout_bytes(const struct own_layout *layout);
bool own_layouts_equal(const struct own_layout *a, const struct own_layout *b);
enum status own_reorder(const struct strided_layout *given, const void *from,
                        const struct own_layout *wanted, void *to, struct error *err) MUST_USE;

struct own_product;

/* threads: as for parallel_for(). STATUS_NO_MEMORY. */
enum status own_product_create(int threads, const struct product_desc *desc,
                               const struct epilogue *epilogue, struct own_product **ret,
                               struct error *err) MUST_USE;
void own_product_free(struct own_product *product);              /* NULL is fine */
const char *own_product_name(const struct own_product *product); /* static */
size_t own_product_scratch(const struct own_product *product);
struct own_layout *own_product_weights(struct own_product *product); /* owned by `product` */
void own_product_bind(struct own_product *product, const void *weights, const void *bias);
void own_product_run(const struct own_product *product, const void *src, const void *weights,
                     void *dst, void *scratch);
