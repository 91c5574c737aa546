/* Private to onednn.c: hides the differences between oneDNN 2 and 3. Version 3 has handles for
 * memory descriptors, takes scales and zero points as run-time arguments, and scales the sum before
 * it adds the bias.
 *
 * Source: oneDNN's "Transition from v2.x to v3.x"; dnnl.h of 2.6.3 and 3.7.2. */
#pragma once

#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>

#include "engine/base/size.h"
#include "engine/cpu/program/onednn.h"

#if DNNL_VERSION_MAJOR * 100 + DNNL_VERSION_MINOR < 206
#error lensd needs oneDNN 2.6 or later
#endif

/* Version 2: the descriptor itself; version 3: a handle that this struct owns. */
struct packed_layout {
    dnnl_memory_desc_t desc;
    struct own_layout *own; /* used instead of desc if lensd's own kernels compute the product */
};

/* The operands of a product. */
struct product_layouts {
    struct packed_layout src, weights, bias, dst;
};

/* Arguments that version 3 reads at every run. */
struct quantized_args {
    float *scales; /* per output channel; NULL: floats, or version 2 */
    size_t count;
    float *bias; /* multiplied by the scales */
    int32_t src_zero, dst_zero;
};

#if DNNL_VERSION_MAJOR < 3

enum { ARG_SCALES = DNNL_ARG_ATTR_OUTPUT_SCALES }; /* not used: attributes hold the scales */

typedef const dnnl_memory_desc_t *desc_ref;

static desc_ref layout_desc(const struct packed_layout *layout)
{
    return &layout->desc;
}

static dnnl_status_t layout_strided(struct packed_layout *ret, int rank, const dnnl_dims_t dims,
                                    dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(&ret->desc, rank, dims, type, strides);
}

static dnnl_status_t layout_any(struct packed_layout *ret, int rank, const dnnl_dims_t dims,
                                dnnl_data_type_t type)
{
    return dnnl_memory_desc_init_by_tag(&ret->desc, rank, dims, type, dnnl_format_tag_any);
}

static dnnl_status_t layout_copy(struct packed_layout *ret, desc_ref desc)
{
    ret->desc = *desc;
    return dnnl_success;
}

static void layout_done(struct packed_layout *layout)
{
    (void)layout;
}

static dnnl_status_t append_eltwise(dnnl_post_ops_t ops, dnnl_alg_kind_t kind, float alpha,
                                    float beta)
{
    return dnnl_post_ops_append_eltwise(ops, 1.0f, kind, alpha, beta);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}

static enum dtype bias_dtype(const struct product_desc *desc)
{
    return desc->bias.dtype;
}

static dnnl_status_t set_zero_point(dnnl_primitive_attr_t attr, int arg, const int32_t *zero)
{
    return *zero ? dnnl_primitive_attr_set_zero_points(attr, arg, 1, 0, zero) : dnnl_success;
}

static dnnl_status_t set_scales(dnnl_primitive_attr_t attr, const struct product_desc *desc)
{
    enum { OUTPUT_CHANNEL = 1 << 1 };
    return dnnl_primitive_attr_set_output_scales(attr, (dnnl_dim_t)desc->scale_count,
                                                 OUTPUT_CHANNEL, desc->scales);
}

static bool quantized_args_init(struct quantized_args *ret, const struct product_desc *desc)
{
    (void)desc;
    *ret = (struct quantized_args){0};
    return true;
}

/* ---- the implementations of a product, best first ---- */

struct implementations {
    union {
        dnnl_convolution_desc_t conv;
        dnnl_deconvolution_desc_t deconv;
        dnnl_matmul_desc_t matmul;
    } desc; /* read by the iterator */
    dnnl_primitive_desc_iterator_t iterator;
    dnnl_primitive_desc_t current; /* NULL: out of memory */
};

static dnnl_status_t implementations_begin(struct implementations *ret, enum product_op op,
                                           const struct product_layouts *of, bool bias,
                                           const dnnl_dims_t stride, const dnnl_dims_t dilation,
                                           const dnnl_dims_t pad_begin, const dnnl_dims_t pad_end,
                                           const_dnnl_primitive_attr_t attr, dnnl_engine_t engine)
{
    desc_ref src = layout_desc(&of->src), weights = layout_desc(&of->weights);
    desc_ref added = bias ? layout_desc(&of->bias) : NULL, dst = layout_desc(&of->dst);
    dnnl_status_t status;
    *ret = (struct implementations){0};
    if (op == PRODUCT_CONV)
        status = dnnl_dilated_convolution_forward_desc_init(
            &ret->desc.conv, dnnl_forward_inference, dnnl_convolution_direct, src, weights, added,
            dst, stride, dilation, pad_begin, pad_end);
    else if (op == PRODUCT_DECONV)
        status = dnnl_dilated_deconvolution_forward_desc_init(
            &ret->desc.deconv, dnnl_forward_inference, dnnl_deconvolution_direct, src, weights,
            added, dst, stride, dilation, pad_begin, pad_end);
    else
        status = dnnl_matmul_desc_init(&ret->desc.matmul, src, weights, added, dst);
    if (status != dnnl_success)
        return status;
    if (dnnl_primitive_desc_iterator_create(&ret->iterator, &ret->desc, attr, engine, NULL) !=
        dnnl_success)
        return dnnl_unimplemented;
    ret->current = dnnl_primitive_desc_iterator_fetch(ret->iterator);
    return dnnl_success;
}

static bool implementations_next(struct implementations *it)
{
    if (dnnl_primitive_desc_iterator_next(it->iterator) != dnnl_success)
        return false;
    dnnl_primitive_desc_destroy(it->current);
    it->current = dnnl_primitive_desc_iterator_fetch(it->iterator);
    return true;
}

static void implementations_end(struct implementations *it)
{
    dnnl_primitive_desc_destroy(it->current);
    dnnl_primitive_desc_iterator_destroy(it->iterator);
}

#else

enum { ARG_SCALES = DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS };

typedef const_dnnl_memory_desc_t desc_ref;

static desc_ref layout_desc(const struct packed_layout *layout)
{
    return layout->desc;
}

static dnnl_status_t layout_strided(struct packed_layout *ret, int rank, const dnnl_dims_t dims,
                                    dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(&ret->desc, rank, dims, type, strides);
}

static dnnl_status_t layout_any(struct packed_layout *ret, int rank, const dnnl_dims_t dims,
                                dnnl_data_type_t type)
{
    return dnnl_memory_desc_create_with_tag(&ret->desc, rank, dims, type, dnnl_format_tag_any);
}

static dnnl_status_t layout_copy(struct packed_layout *ret, desc_ref desc)
{
    return dnnl_memory_desc_clone(&ret->desc, desc);
}

static void layout_done(struct packed_layout *layout)
{
    if (layout->desc)
        dnnl_memory_desc_destroy(layout->desc);
}

static dnnl_status_t append_eltwise(dnnl_post_ops_t ops, dnnl_alg_kind_t kind, float alpha,
                                    float beta)
{
    return dnnl_post_ops_append_eltwise(ops, kind, alpha, beta);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}

static enum dtype bias_dtype(const struct product_desc *desc)
{
    return desc->scales ? DTYPE_F32 : desc->bias.dtype;
}

static dnnl_status_t set_zero_point(dnnl_primitive_attr_t attr, int arg, const int32_t *zero)
{
    return *zero ? dnnl_primitive_attr_set_zero_points_mask(attr, arg, 0) : dnnl_success;
}

static dnnl_status_t set_scales(dnnl_primitive_attr_t attr, const struct product_desc *desc)
{
    enum { CHANNEL = 1 << 0, GROUP_AND_CHANNEL = 3, COLUMN = 1 << 1 };
    int mask = desc->weights.rank > desc->src.rank ? GROUP_AND_CHANNEL : CHANNEL;
    if (desc->op == PRODUCT_MATMUL)
        mask = COLUMN;
    return dnnl_primitive_attr_set_scales_mask(attr, DNNL_ARG_WEIGHTS, mask);
}

static bool quantized_args_init(struct quantized_args *ret, const struct product_desc *desc)
{
    *ret = (struct quantized_args){.count = desc->scale_count,
                                   .src_zero = desc->src_zero,
                                   .dst_zero = desc->dst_scale == 0 ? desc->dst_zero : 0};
    if (!desc->scales)
        return true;
    ret->scales = alloc_array(desc->scale_count, sizeof *ret->scales);
    ret->bias = alloc_array(desc->scale_count, sizeof *ret->bias);
    if (!ret->scales || !ret->bias)
        return false;
    for (size_t i = 0; i < desc->scale_count; i++)
        ret->scales[i] = desc->scales[i];
    return true;
}

/* ---- the implementations of a product, best first ---- */

struct implementations {
    dnnl_primitive_desc_t current;
};

static dnnl_status_t implementations_begin(struct implementations *ret, enum product_op op,
                                           const struct product_layouts *of, bool bias,
                                           const dnnl_dims_t stride, const dnnl_dims_t dilation,
                                           const dnnl_dims_t pad_begin, const dnnl_dims_t pad_end,
                                           const_dnnl_primitive_attr_t attr, dnnl_engine_t engine)
{
    desc_ref src = of->src.desc, weights = of->weights.desc, dst = of->dst.desc;
    desc_ref added = bias ? of->bias.desc : NULL;
    *ret = (struct implementations){0};
    if (op == PRODUCT_CONV)
        return dnnl_convolution_forward_primitive_desc_create(
            &ret->current, engine, dnnl_forward_inference, dnnl_convolution_direct, src, weights,
            added, dst, stride, dilation, pad_begin, pad_end, attr);
    if (op == PRODUCT_DECONV)
        return dnnl_deconvolution_forward_primitive_desc_create(
            &ret->current, engine, dnnl_forward_inference, dnnl_deconvolution_direct, src, weights,
            added, dst, stride, dilation, pad_begin, pad_end, attr);
    return dnnl_matmul_primitive_desc_create(&ret->current, engine, src, weights, added, dst, attr);
}

static bool implementations_next(struct implementations *it)
{
    return dnnl_primitive_desc_next_impl(it->current) == dnnl_success;
}

static void implementations_end(struct implementations *it)
{
    dnnl_primitive_desc_destroy(it->current);
}

#endif
