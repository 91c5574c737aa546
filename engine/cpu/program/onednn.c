/* Products through oneDNN: its engine, layouts and primitives, for onednn.h. */
#include "engine/cpu/program/onednn_version.h"

#include <pthread.h>
#include <string.h>

#include "engine/base/cpu.h"
#include "engine/cpu/program/onednn_reserve.h"
#include "engine/cpu/program/own_products.h"
#include "engine/cpu/program/parallel.h"

struct onednn {
    int threads;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
};

/* Returns STATUS_OK for dnnl_success, otherwise the error "oneDNN: what failed". */
static enum status onednn_check(dnnl_status_t status, const char *what, struct error *err)
{
    switch (status) {
    case dnnl_success:
        return STATUS_OK;
    case dnnl_out_of_memory:
        return error_set(err, STATUS_NO_MEMORY, "oneDNN: out of memory (%s)", what);
    case dnnl_unimplemented:
        return error_set(err, STATUS_UNSUPPORTED, "oneDNN: no implementation (%s)", what);
    case dnnl_invalid_arguments:
        return error_set(err, STATUS_INTERNAL, "oneDNN: invalid arguments (%s)", what);
    default:
        return error_set(err, STATUS_INTERNAL, "oneDNN: status %d (%s)", (int)status, what);
    }
}

enum status onednn_open(struct onednn **ret, struct error *err)
{
    TRY(onednn_reserve_fill(err));
    struct onednn *onednn = calloc(1, sizeof *onednn);
    TRY(check_memory(onednn, NULL, err));
    onednn->threads = forkjoin_threads();
    enum status status =
        onednn_check(dnnl_engine_create(&onednn->engine, dnnl_cpu, 0), "engine", err);
    if (status == STATUS_OK)
        status = onednn_check(
            dnnl_stream_create(&onednn->stream, onednn->engine, dnnl_stream_default_flags),
            "stream", err);
    if (status != STATUS_OK) {
        onednn_close(onednn);
        return status;
    }
    *ret = onednn;
    return STATUS_OK;
}

void onednn_close(struct onednn *onednn)
{
    if (!onednn)
        return;
    dnnl_stream_destroy(onednn->stream);
    dnnl_engine_destroy(onednn->engine);
    free(onednn);
}

/* One thread at a time: a second thread would read 0 as the capacity and restore it. */
void onednn_drop_unused(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int capacity;
    pthread_mutex_lock(&lock);
    if (dnnl_get_primitive_cache_capacity(&capacity) == dnnl_success) {
        (void)dnnl_set_primitive_cache_capacity(0);
        (void)dnnl_set_primitive_cache_capacity(capacity);
    }
    pthread_mutex_unlock(&lock);
}

/* Without VNNI instructions, or where ONEDNN_MAX_CPU_ISA forbids them. */
bool onednn_pairs_saturate(void)
{
    const unsigned isa = (unsigned)dnnl_get_effective_cpu_isa(),
                   wide = dnnl_cpu_isa_avx512_core_vnni;
    const bool allowed =
        (isa & wide) == wide || (isa & dnnl_cpu_isa_avx2_vnni) == dnnl_cpu_isa_avx2_vnni;
    return !allowed || (!cpu_features()->avx512_vnni && !cpu_features()->avx_vnni);
}

/* True if oneDNN's sums cannot saturate. If it adds pairs of u8 x i8 products in 16 bits, 255 * (a
 * + b) must fit. For i8 x i8 oneDNN halves the weights, so these never count as fitting. */
bool onednn_sums_fit(const struct tensor *weights, enum dtype src)
{
    enum { MOST = 64 };
    const int8_t *w = weights->data;
    if (!onednn_pairs_saturate())
        return true;
    if (src != DTYPE_U8)
        return false;
    for (size_t i = 0; i < weights->bytes; i++)
        if (w[i] > MOST || w[i] < -MOST)
            return false;
    return true;
}

/* ---- layouts ---- */

static dnnl_data_type_t type_of(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_BF16:
        return dnnl_bf16;
    case DTYPE_U8:
        return dnnl_u8;
    case DTYPE_I8:
        return dnnl_s8;
    case DTYPE_I32:
        return dnnl_s32;
    default:
        return dnnl_f32;
    }
}

static enum status layout_of(const struct strided_layout *layout, enum dtype dtype,
                             struct packed_layout *ret, struct error *err)
{
    dnnl_dims_t dims, strides;
    for (int a = 0; a < layout->rank; a++) {
        dims[a] = layout->dims[a];
        strides[a] = layout->strides[a];
    }
    return onednn_check(layout_strided(ret, layout->rank, dims, type_of(dtype), strides), "layout",
                        err);
}

/* The same dims, in a layout that oneDNN chooses. */
static enum status layout_free_of(const struct strided_layout *layout, enum dtype dtype,
                                  struct packed_layout *ret, struct error *err)
{
    dnnl_dims_t dims;
    for (int a = 0; a < layout->rank; a++)
        dims[a] = layout->dims[a];
    return onednn_check(layout_any(ret, layout->rank, dims, type_of(dtype)), "layout", err);
}

struct packed_layout *packed_layout_clone(const struct packed_layout *layout)
{
    struct packed_layout *copy = calloc(1, sizeof *copy);
    if (!copy)
        return NULL;
    if (layout->own)
        copy->own = own_layout_clone(layout->own);
    if (layout->own ? copy->own != NULL : layout_copy(copy, layout_desc(layout)) == dnnl_success)
        return copy;
    free(copy);
    return NULL;
}

void packed_layout_free(struct packed_layout *layout)
{
    if (!layout)
        return;
    if (layout->own)
        free(layout->own);
    else
        layout_done(layout);
    free(layout);
}

size_t packed_layout_bytes(const struct packed_layout *layout)
{
    return layout->own ? own_layout_bytes(layout->own)
                       : dnnl_memory_desc_get_size(layout_desc(layout));
}

bool packed_layouts_equal(const struct packed_layout *a, const struct packed_layout *b)
{
    if (a->own || b->own)
        return a->own && b->own && own_layouts_equal(a->own, b->own);
    return dnnl_memory_desc_equal(layout_desc(a), layout_desc(b));
}

bool packed_layout_is(const struct packed_layout *packed, const struct strided_layout *layout)
{
    struct packed_layout plain = {0};
    if (layout_of(layout, layout->dtype, &plain, NULL) != STATUS_OK)
        return false;
    const bool equal = packed_layouts_equal(packed, &plain);
    layout_done(&plain);
    return equal;
}

static enum status reorder(const struct onednn *onednn, const struct packed_layout *given,
                           void *from, const struct packed_layout *wanted, void *to,
                           struct error *err)
{
    static const char what[] = "weight reorder";
    dnnl_memory_t src = NULL, dst = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_primitive_t primitive = NULL;
    dnnl_status_t status = dnnl_memory_create(&src, layout_desc(given), onednn->engine, from);
    if (status == dnnl_success)
        status = dnnl_memory_create(&dst, layout_desc(wanted), onednn->engine, to);
    if (status == dnnl_success)
        status = dnnl_reorder_primitive_desc_create(&desc, layout_desc(given), onednn->engine,
                                                    layout_desc(wanted), onednn->engine, NULL);
    if (status == dnnl_success)
        status = dnnl_primitive_create(&primitive, desc);
    if (status == dnnl_success) {
        dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, src}, {DNNL_ARG_TO, dst}};
        status = dnnl_primitive_execute(primitive, onednn->stream, 2, args);
    }
    dnnl_primitive_destroy(primitive);
    dnnl_primitive_desc_destroy(desc);
    dnnl_memory_destroy(src);
    dnnl_memory_destroy(dst);
    return onednn_check(status, what, err);
}

enum status onednn_reorder(const struct onednn *onednn, const struct strided_layout *given,
                           void *from, const struct packed_layout *wanted, void *to,
                           struct error *err)
{
    struct packed_layout plain = {0};
    if (wanted->own)
        return own_reorder(given, from, wanted->own, to, err);
    TRY(onednn_reserve_fill(err));
    TRY(layout_of(given, given->dtype, &plain, err));
    const enum status status = reorder(onednn, &plain, from, wanted, to, err);
    layout_done(&plain);
    return status;
}

/* ---- attributes ---- */

/* oneDNN's names; HardSigmoid needs two of them. */
static const dnnl_alg_kind_t eltwise_kinds[] = {[ACTIVATION_RELU] = dnnl_eltwise_relu,
                                                [ACTIVATION_LEAKY_RELU] = dnnl_eltwise_relu,
                                                [ACTIVATION_CLIP] = dnnl_eltwise_clip,
                                                [ACTIVATION_SIGMOID] = dnnl_eltwise_logistic,
                                                [ACTIVATION_HARD_SIGMOID] = dnnl_eltwise_linear,
                                                [ACTIVATION_HARD_SWISH] = dnnl_eltwise_hardswish,
                                                [ACTIVATION_SILU] = dnnl_eltwise_swish,
                                                [ACTIVATION_GELU] = dnnl_eltwise_gelu_erf,
                                                [ACTIVATION_GELU_TANH] = dnnl_eltwise_gelu_tanh,
                                                [ACTIVATION_TANH] = dnnl_eltwise_tanh,
                                                [ACTIVATION_ELU] = dnnl_eltwise_elu};

static dnnl_status_t append_activation(dnnl_post_ops_t ops, const struct epilogue *e)
{
    dnnl_status_t status = dnnl_success;
    if (e->activation != ACTIVATION_NONE)
        status = append_eltwise(ops, eltwise_kinds[e->activation], e->alpha, e->beta);
    if (status == dnnl_success && e->activation == ACTIVATION_HARD_SIGMOID)
        status = append_eltwise(ops, dnnl_eltwise_clip, 0, 1);
    return status;
}

static dnnl_status_t set_post_ops(dnnl_primitive_attr_t attr, const struct product_desc *desc,
                                  const struct epilogue *epilogue)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t status = dnnl_post_ops_create(&ops);
    if (status == dnnl_success && epilogue->residual)
        status = append_sum(ops);
    if (status == dnnl_success)
        status = append_activation(ops, epilogue);
    if (status == dnnl_success && desc->dst_scale != 0)
        status =
            append_eltwise(ops, dnnl_eltwise_linear, 1 / desc->dst_scale, (float)desc->dst_zero);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(attr, ops);
    dnnl_post_ops_destroy(ops);
    return status;
}

static dnnl_status_t make_attr(const struct product_desc *desc, const struct epilogue *epilogue,
                               dnnl_primitive_attr_t *ret)
{
    dnnl_status_t status = dnnl_primitive_attr_create(ret);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(*ret, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && desc->scales)
        status = set_scales(*ret, desc);
    if (status == dnnl_success)
        status = set_zero_point(*ret, DNNL_ARG_SRC, &desc->src_zero);
    if (status == dnnl_success && desc->dst_scale == 0)
        status = set_zero_point(*ret, DNNL_ARG_DST, &desc->dst_zero);
    if (status == dnnl_success)
        status = set_post_ops(*ret, desc, epilogue);
    return status;
}

/* ---- products ---- */

enum { ARG_SRC, ARG_DST, ARG_WEIGHTS, ARG_OTHERS, ARG_MOST = 8 };

struct onednn_product {
    const struct onednn *onednn;
    dnnl_primitive_t primitive;
    const_dnnl_primitive_desc_t desc; /* borrowed from the primitive */
    struct packed_layout weights;
    dnnl_exec_arg_t args[ARG_MOST]; /* their memory is owned */
    int arg_count;
    dnnl_memory_t scratchpad; /* one of args; NULL: none is needed */
    struct quantized_args quantized;
    struct own_product *own; /* lensd's kernel replaces oneDNN's; then only weights.own is set */
};

/* True if this implementation is correct for `desc`. If a window lies entirely in the padding and
 * the result is added to dst, oneDNN's "brgconv" convolutions (2.6.3) access memory out of bounds,
 * and its "brdgmm" convolutions (3.7.2) mix the numbers of different images. */
static bool is_sound(const struct product_desc *desc, const_dnnl_primitive_desc_t implementation)
{
    const char *name = NULL;
    return !desc->beyond || (dnnl_primitive_desc_query(implementation, dnnl_query_impl_info_str, 0,
                                                       (void *)&name) == dnnl_success &&
                             strncmp(name, "brg", 3) != 0 && strncmp(name, "brdgmm", 6) != 0);
}

static void layouts_done(struct product_layouts *layouts)
{
    layout_done(&layouts->src);
    layout_done(&layouts->weights);
    layout_done(&layouts->bias);
    layout_done(&layouts->dst);
}

static enum status layouts_init(struct product_layouts *ret, const struct product_desc *desc,
                                struct error *err)
{
    TRY(layout_of(&desc->src, desc->src.dtype, &ret->src, err));
    TRY(layout_of(&desc->dst, desc->dst.dtype, &ret->dst, err));
    if (desc->bias_constant)
        TRY(layout_of(&desc->bias, bias_dtype(desc), &ret->bias, err));
    return desc->weights_constant
               ? layout_free_of(&desc->weights, desc->packed, &ret->weights, err)
               : layout_of(&desc->weights, desc->weights.dtype, &ret->weights, err);
}

/* Skips implementations that claim support but fail to generate their code, as some do for grouped
 * and dilated convolutions. *ret stays NULL when none is left. */
static enum status pick(const struct onednn *onednn, const struct product_desc *desc,
                        const struct product_layouts *layouts, const_dnnl_primitive_attr_t attr,
                        dnnl_primitive_t *ret, struct error *err)
{
    dnnl_dims_t stride, dilation, pad_begin, pad_end;
    for (int a = 0; a < 3; a++) {
        stride[a] = desc->stride[a];
        dilation[a] = desc->dilation[a] - 1;
        pad_begin[a] = desc->pad_begin[a];
        pad_end[a] = desc->pad_end[a];
    }
    struct implementations it;
    dnnl_status_t status =
        implementations_begin(&it, desc->op, layouts, desc->bias_constant != NULL, stride, dilation,
                              pad_begin, pad_end, attr, onednn->engine);
    if (status == dnnl_unimplemented)
        return STATUS_OK;
    TRY(onednn_check(status, "product", err));
    do {
        if (it.current && is_sound(desc, it.current))
            status = dnnl_primitive_create(ret, it.current);
    } while (!*ret && status != dnnl_out_of_memory && implementations_next(&it));
    implementations_end(&it);
    return status == dnnl_out_of_memory ? onednn_check(status, "product", err) : STATUS_OK;
}

static enum status make_primitive(const struct onednn *onednn, const struct product_desc *desc,
                                  const struct epilogue *epilogue, dnnl_primitive_t *ret,
                                  struct error *err)
{
    struct product_layouts layouts = {0};
    dnnl_primitive_attr_t attr = NULL;
    enum status status = layouts_init(&layouts, desc, err);
    if (status == STATUS_OK)
        status = onednn_check(make_attr(desc, epilogue, &attr), "attributes", err);
    if (status == STATUS_OK)
        status = pick(onednn, desc, &layouts, attr, ret, err);
    dnnl_primitive_attr_destroy(attr);
    layouts_done(&layouts);
    return status;
}

/* `data` NULL: set later. */
static dnnl_status_t add_arg(struct onednn_product *product, int arg, desc_ref desc, void *data)
{
    dnnl_exec_arg_t *added = &product->args[product->arg_count];
    added->arg = arg;
    const dnnl_status_t status = dnnl_memory_create(&added->memory, desc, product->onednn->engine,
                                                    data ? data : DNNL_MEMORY_NONE);
    product->arg_count += status == dnnl_success;
    return status;
}

static dnnl_status_t add_vector(struct onednn_product *product, int arg, dnnl_data_type_t type,
                                size_t count, void *data)
{
    const dnnl_dims_t dims = {(dnnl_dim_t)count}, strides = {1};
    struct packed_layout layout = {0};
    dnnl_status_t status = layout_strided(&layout, 1, dims, type, strides);
    if (status == dnnl_success)
        status = add_arg(product, arg, layout_desc(&layout), data);
    layout_done(&layout);
    return status;
}

static dnnl_status_t add_quantized_args(struct onednn_product *product)
{
    struct quantized_args *q = &product->quantized;
    dnnl_status_t status = dnnl_success;
    if (q->scales)
        status = add_vector(product, ARG_SCALES, dnnl_f32, q->count, q->scales);
    if (status == dnnl_success && q->src_zero)
        status = add_vector(product, DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_SRC, dnnl_s32, 1,
                            &q->src_zero);
    if (status == dnnl_success && q->dst_zero)
        status = add_vector(product, DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_DST, dnnl_s32, 1,
                            &q->dst_zero);
    return status;
}

static dnnl_status_t add_args(struct onednn_product *product)
{
    dnnl_status_t status = dnnl_primitive_get_primitive_desc(product->primitive, &product->desc);
    if (status != dnnl_success)
        return status;
    const const_dnnl_primitive_desc_t desc = product->desc;
    desc_ref weights = dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
    desc_ref scratchpad = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    status = layout_copy(&product->weights, weights);
    if (status == dnnl_success)
        status = add_arg(product, DNNL_ARG_SRC,
                         dnnl_primitive_desc_query_md(desc, dnnl_query_src_md, 0), NULL);
    if (status == dnnl_success)
        status = add_arg(product, DNNL_ARG_DST,
                         dnnl_primitive_desc_query_md(desc, dnnl_query_dst_md, 0), NULL);
    if (status == dnnl_success)
        status = add_arg(product, DNNL_ARG_WEIGHTS, weights, NULL);
    if (status == dnnl_success && dnnl_memory_desc_get_size(scratchpad)) {
        status = add_arg(product, DNNL_ARG_SCRATCHPAD, scratchpad, NULL);
        if (status == dnnl_success)
            product->scratchpad = product->args[ARG_OTHERS].memory;
    }
    return status == dnnl_success ? add_quantized_args(product) : status;
}

static enum status create_own(const struct onednn *onednn, const struct product_desc *desc,
                              const struct epilogue *epilogue, struct onednn_product **ret,
                              struct error *err)
{
    struct own_product *own = NULL;
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

enum status onednn_product_create(const struct onednn *onednn, const struct product_desc *desc,
                                  const struct epilogue *epilogue, struct onednn_product **ret,
                                  struct error *err)
{
    dnnl_primitive_t primitive = NULL;
    if (desc->own || (desc->packed == DTYPE_I8 && desc->weights_constant &&
                      !onednn_sums_fit(desc->weights_constant, desc->src.dtype)))
        return create_own(onednn, desc, epilogue, ret, err);
    TRY(onednn_reserve_fill(err));
    TRY(make_primitive(onednn, desc, epilogue, &primitive, err));
    if (!primitive)
        return STATUS_OK;
    struct onednn_product *product = calloc(1, sizeof *product);
    if (!product) {
        dnnl_primitive_destroy(primitive);
        return error_no_memory(err, "while compiling");
    }
    product->onednn = onednn;
    product->primitive = primitive;
    const enum status status = quantized_args_init(&product->quantized, desc)
                                   ? onednn_check(add_args(product), "arguments", err)
                                   : error_no_memory(err, "while compiling");
    if (status == STATUS_OK)
        *ret = product;
    else
        onednn_product_free(product);
    return status;
}

void onednn_product_free(struct onednn_product *product)
{
    if (!product)
        return;
    dnnl_primitive_destroy(product->primitive);
    for (int i = 0; i < product->arg_count; i++)
        dnnl_memory_destroy(product->args[i].memory);
    if (!product->own)
        layout_done(&product->weights);
    own_product_free(product->own);
    free(product->quantized.scales);
    free(product->quantized.bias);
    free(product);
}

const char *onednn_product_name(const struct onednn_product *product)
{
    const char *name = NULL;
    if (product->own)
        return own_product_name(product->own);
    return dnnl_primitive_desc_query(product->desc, dnnl_query_impl_info_str, 0, (void *)&name) ==
                   dnnl_success
               ? name
               : "oneDNN";
}

size_t onednn_product_scratch(const struct onednn_product *product)
{
    if (product->own)
        return own_product_scratch(product->own);
    return dnnl_memory_desc_get_size(
        dnnl_primitive_desc_query_md(product->desc, dnnl_query_scratchpad_md, 0));
}

const struct packed_layout *onednn_product_weights(const struct onednn_product *product)
{
    return &product->weights;
}

enum status onednn_product_bind(struct onednn_product *product, void *weights, void *bias,
                                struct error *err)
{
    struct quantized_args *q = &product->quantized;
    if (product->own) {
        own_product_bind(product->own, weights, bias);
        return STATUS_OK;
    }
    if (weights)
        dnnl_memory_set_data_handle(product->args[ARG_WEIGHTS].memory, weights);
    if (!bias)
        return STATUS_OK;
    if (q->scales) {
        for (size_t i = 0; i < q->count; i++)
            q->bias[i] = (float)((const int32_t *)bias)[i] * q->scales[i];
        bias = q->bias;
    }
    return onednn_check(
        add_arg(product, DNNL_ARG_BIAS,
                dnnl_primitive_desc_query_md(product->desc, dnnl_query_weights_md, 1), bias),
        "bias", err);
}

enum status onednn_product_run(const struct onednn_product *product, void *src, void *weights,
                               void *dst, void *scratch, struct error *err)
{
    if (product->own) {
        own_product_run(product->own, src, weights, dst, scratch);
        return STATUS_OK;
    }
    TRY(onednn_reserve_fill(err));
    dnnl_memory_set_data_handle(product->args[ARG_SRC].memory, src);
    dnnl_memory_set_data_handle(product->args[ARG_DST].memory, dst);
    if (weights)
        dnnl_memory_set_data_handle(product->args[ARG_WEIGHTS].memory, weights);
    if (product->scratchpad)
        dnnl_memory_set_data_handle(product->scratchpad, scratch);
    return onednn_check(dnnl_primitive_execute(product->primitive, product->onednn->stream,
                                               product->arg_count, product->args),
                        "run", err);
}
