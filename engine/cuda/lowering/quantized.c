/* Products of 8-bit integers: QLinearConv, ConvInteger, QLinearMatMul, MatMulInteger, QGemm, with
 * constant weights. A matrix product is a convolution of one pixel.
 *
 * Packing subtracts the weights' zero point. If the result fits signed 8 bits, and the channels of
 * a group are a multiple of four (without groups they are padded), products run on tensor cores;
 * the autotuner chooses among several candidates. Other products run without tensor cores, with
 * 16-bit weights. If x's zero point is constant, the bias includes its effect. If a run computes
 * the zero point, the epilogue subtracts it times the sums of the weights. */
#include "engine/cuda/lowering/lowering.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/families.h"

enum { PADDING = 16, ALIGN = 256 };

struct int8_step {
    struct cuda_step step;
    struct cuda_conv conv;
    struct cuda_int8_epilogue epilogue;
    const void *weights;
    uint32_t x_zero;         /* cuda_index_of() x's zero point if a run computes it */
    size_t fill_bytes;       /* bytes of the workspace before x and sums */
    struct conv_tiles tiles; /* count 0: runs without tensor cores */
    int candidate;
};

/* ---- operands ---- */

/* The operands of a product, for every operator. */
struct quantized_operands {
    const struct value *x, *y;
    const struct value *x_zero; /* may be computed by a run; NULL: none */
    const struct value *weights, *weights_zero;
    const struct value *x_scale, *weights_scale, *bias; /* NULL: no bias */
    size_t y_terms; /* index of the operand with y's scale; 0: none, y is int32 or float */
    bool is_conv;
    enum weight_layout layout; /* for tensor cores */
    int64_t channels;          /* channels of y */
    enum dtype stored;         /* type of the product, before a table */
};

static bool quantized_read_operands(const struct node *node, struct quantized_operands *ret)
{
    *ret = (struct quantized_operands){.x = node_input(node, 0), .y = node_output(node, 0)};
    if (ret->y && ret->y->dtype == DTYPE_I32) { /* ConvInteger, MatMulInteger */
        ret->weights = node_input(node, 1);
        ret->x_zero = node_input(node, 2);
        ret->weights_zero = node_input(node, 3);
    } else {
        const bool is_gemm = node->op == OP_QGEMM;
        ret->x_scale = node_input(node, 1);
        ret->x_zero = node_input(node, 2);
        ret->weights = node_input(node, 3);
        ret->weights_scale = node_input(node, 4);
        ret->weights_zero = node_input(node, 5);
        ret->bias = is_gemm                       ? node_input(node, 6)
                    : node->op == OP_QLINEAR_CONV ? node_input(node, QUANTIZED_BIAS)
                                                  : NULL;
        ret->y_terms = !is_gemm ? 6 : node_input(node, 7) ? 7 : 0;
    }
    if (!ret->x || !ret->y || !ret->weights || !ret->weights->known)
        return false;
    const struct shape *w = &ret->weights->known->shape;
    ret->is_conv = node->op == OP_QLINEAR_CONV || node->op == OP_CONV_INTEGER;
    const struct value *zero = ret->y_terms ? node_input(node, ret->y_terms + 1) : NULL;
    ret->stored = zero ? zero->dtype : ret->y->dtype;
    ret->layout = ret->is_conv                                          ? WEIGHT_CONV_ROWS
                  : node->op == OP_QGEMM && node_int(node, "transB", 0) ? WEIGHT_ROWS
                                                                        : WEIGHT_TRANSPOSED;
    if (w->rank != (ret->is_conv ? 4 : 2))
        return false;
    ret->channels = w->dims[ret->layout == WEIGHT_TRANSPOSED ? 1 : 0];
    return true;
}

/* True for a constant with one number, or with one number per channel. */
static bool quantized_is_vector(const struct value *value, enum dtype dtype, int64_t channels)
{
    return value && value->known && value->known->dtype == dtype &&
           (shape_count(&value->known->shape) == 1 ||
            (shape_count(&value->known->shape) == (size_t)channels && value->shape.rank == 1));
}

static bool quantized_operands_fit(const struct node *node, const struct quantized_operands *o)
{
    const enum dtype x = o->x->dtype, w = o->weights->known->dtype;
    struct scale_zero ignored;
    if (o->x->known || !dtype_is_8bit(x) || !dtype_is_8bit(w) || !shape_count(&o->x->shape) ||
        !shape_count(&o->y->shape) || !shape_count(&o->weights->known->shape) ||
        (o->weights_zero && !quantized_is_vector(o->weights_zero, w, o->channels)) ||
        (o->x_zero && (o->x_zero->dtype != x || shape_count(&o->x_zero->shape) != 1)))
        return false;
    if (!o->x_scale)
        return o->y->dtype == DTYPE_I32 && (o->is_conv || o->x->shape.rank >= 2);
    return scale_zero_of(node, 1, x, &ignored) &&
           quantized_is_vector(o->weights_scale, DTYPE_F32, o->channels) &&
           (o->y_terms ? scale_zero_of(node, o->y_terms, o->stored, &ignored)
                       : o->y->dtype == DTYPE_F32) &&
           (!o->bias || (quantized_is_vector(o->bias, DTYPE_I32, o->channels) &&
                         shape_count(&o->bias->known->shape) == (size_t)o->channels)) &&
           (node->op != OP_QGEMM ||
            (node_float(node, "alpha", 1) == 1 && !node_int(node, "transA", 0))) &&
           (o->is_conv || o->x->shape.rank >= 2);
}

KERNEL_CLAIM(quantized_claim)
{
    struct quantized_operands o;
    if (!quantized_read_operands(node, &o) || !quantized_operands_fit(node, &o) ||
        (o.is_conv && o.x->shape.rank != 4))
        return false;
    if (o.is_conv)
        ret->can = KERNEL_CHANNELS_LAST;
    if (dtype_is_8bit(o.y->dtype))
        ret->can |= KERNEL_STORED_EPILOGUE;
    if (node_input(node, QUANTIZED_RESIDUAL))
        ret->in_place = QUANTIZED_RESIDUAL;
    return true;
}

static struct tensor *quantized_weights_zero(const struct quantized_operands *o)
{
    return o->weights_zero ? o->weights_zero->known : NULL;
}

/* ---- bias, scales and epilogue ---- */

/* Computes for each channel the sum of weights, or the bias minus that sum times x's zero point.
 * *ret_fit: the weights minus their zero points are signed 8-bit integers. */
static enum status make_bias(const struct cuda_lowering *compile,
                             const struct quantized_operands *o, struct cuda_int8_epilogue *e,
                             bool *ret_fit, struct error *err)
{
    const size_t channels = (size_t)o->channels;
    const struct tensor *weights = o->weights->known;
    const bool is_known = !o->x_zero || o->x_zero->known;
    const uint32_t zero = (uint32_t)(o->x_zero && is_known ? tensor_int(o->x_zero->known, 0) : 0);
    uint32_t *sums = alloc_array(channels, sizeof *sums); /* unsigned: they may wrap */
    TRY(check_memory(sums, "while compiling", err));
    *ret_fit = true;
    for (size_t i = 0, m; i < shape_count(&weights->shape); i++) {
        const int x = cuda_weight_at(weights, quantized_weights_zero(o), o->layout, i, &m);
        sums[m] += (uint32_t)x;
        *ret_fit = *ret_fit && x == (int8_t)x;
    }
    for (size_t m = 0; m < channels && is_known; m++)
        sums[m] = (uint32_t)(o->bias ? tensor_int(o->bias->known, m) : 0) - zero * sums[m];
    enum status status = cuda_weights_upload(compile->backend, DTYPE_I32, sums, channels,
                                             is_known ? &e->bias : &e->weight_sums, err);
    free(sums);
    return status;
}

/* Computes scales in the order of the reference kernel, so that both round equally. */
static enum status make_scales(const struct cuda_lowering *compile,
                               const struct quantized_operands *o, struct cuda_int8_epilogue *e,
                               struct error *err)
{
    const size_t channels = (size_t)o->channels;
    const struct tensor *own = o->weights_scale->known;
    struct scale_zero x = {0}, y = {.scale = 1};
    (void)scale_zero_of(compile->node, 1, o->x->dtype, &x);
    if (o->y_terms)
        (void)scale_zero_of(compile->node, o->y_terms, o->stored, &y);
    e->zero = y.zero;
    float *scales = alloc_array(channels, sizeof *scales);
    TRY(check_memory(scales, "while compiling", err));
    for (size_t m = 0; m < channels; m++) {
        const float w = (float)tensor_number(own, shape_count(&own->shape) == 1 ? 0 : m);
        scales[m] = x.scale * w / y.scale;
    }
    enum status status =
        cuda_weights_upload(compile->backend, DTYPE_F32, scales, channels, &e->scales, err);
    free(scales);
    return status;
}

/* Sets up the residual and table that a pass has attached to the product. */
static enum status make_further(const struct cuda_lowering *compile,
                                const struct quantized_operands *o, struct int8_step *s,
                                struct error *err)
{
    const struct node *node = compile->node;
    const struct value *residual = node_input(node, QUANTIZED_RESIDUAL);
    const struct value *table = node_input(node, QUANTIZED_TABLE);
    struct cuda_int8_epilogue *e = &s->epilogue;
    if (residual) {
        struct scale_zero own = {0}, other = {0}, sum = {0};
        if (!scale_zero_of(node, o->y_terms, o->stored, &own) ||
            !scale_zero_of(node, QUANTIZED_RESIDUAL + 1, o->stored, &other) ||
            !scale_zero_of(node, QUANTIZED_SUM_SCALE, o->stored, &sum))
            return error_set(
                err, STATUS_INTERNAL,
                "%s: the scales of a quantized sum are not constant; this is a bug in lensd",
                node->name);
        s->step.residual = residual->index;
        quantized_sum_factors(&own, &other, &sum, &e->own_ratio, &e->residual_ratio, &e->fixed);
    }
    return cuda_weights_of(compile->backend, table, DTYPE_U8, &e->table, err);
}

static enum status make_epilogue(const struct cuda_lowering *compile,
                                 const struct quantized_operands *o, struct int8_step *s,
                                 bool *ret_fit, struct error *err)
{
    s->epilogue.y_type = (int)o->stored;
    s->epilogue.x_type = (int)o->x->dtype;
    TRY(make_further(compile, o, s, err));
    TRY(make_bias(compile, o, &s->epilogue, ret_fit, err));
    if (o->x_scale)
        TRY(make_scales(compile, o, &s->epilogue, err));
    const struct value *computed = o->x_zero && !o->x_zero->known ? o->x_zero : NULL;
    s->x_zero = cuda_index_of(compile, computed);
    if (computed) { /* a run copies x_zero to the workspace */
        s->fill_bytes = ALIGN;
        return STATUS_OK;
    }
    uint8_t padding[PADDING];
    memset(padding, o->x_zero ? (int)tensor_int(o->x_zero->known, 0) & 0xff : 0, sizeof padding);
    return cuda_weights_upload(compile->backend, DTYPE_U8, padding, sizeof padding,
                               &s->epilogue.padding, err);
}

/* ---- steps ---- */

CUDA_RUN(quantized_run)
{
    struct int8_step *s = (struct int8_step *)base;
    struct cuda_backend *backend = program->backend;
    cudaStream_t stream = backend->stream;
    unsigned char *workspace = backend->arena + program->value_bytes;
    struct cuda_int8_epilogue epilogue = s->epilogue;
    const void *x = program->data[base->x];
    void *y = program->data[base->y];
    epilogue.x_zero = program->data[s->x_zero];
    if (epilogue.x_zero) {
        cuda_copy_strided(stream, 1, epilogue.x_zero, workspace,
                          &(struct cuda_access_map){.rank = 1, .dims = {PADDING}});
        epilogue.padding = workspace;
        workspace += s->fill_bytes;
    }
    x = conv_pad_channels(stream, &s->tiles, &s->conv, 1, x, &workspace);
    epilogue.residual = program->data[base->residual];
    if (s->tiles.count)
        cuda_int8_conv_tensor(stream, x, s->weights, y, &s->conv, &epilogue,
                              &s->tiles.candidates[s->candidate], workspace);
    else
        cuda_int8_conv_direct(stream, x, s->weights, y, &s->conv, &epilogue);
    return cuda_launched(base, program, err);
}

CUDA_RUN(quantized_tune)
{
    struct int8_step *s = (struct int8_step *)base;
    const struct conv_key key = {.conv = s->conv,
                                 .x_dtype = s->epilogue.x_type,
                                 .y_dtype = s->epilogue.y_type,
                                 .has_residual = program->data[base->residual] != NULL,
                                 .unpadded = s->tiles.unpadded};
    return tune_step(base, program, &s->candidate, s->tiles.count, &key, sizeof key, err);
}

static enum status quantized_fill(const struct cuda_lowering *compile,
                                  const struct quantized_operands *o, struct int8_step *s,
                                  struct error *err)
{
    struct tensor *weights = o->weights->known;
    struct cuda_conv *c = &s->conv;
    enum weight_layout layout = o->layout;
    enum dtype dtype = DTYPE_I8;
    bool fits;
    TRY(make_epilogue(compile, o, s, &fits, err));
    c->row = (int)cuda_weights_row(weights, layout, dtype);
    if (conv_is_for_tiles(c) && fits && conv_find_tiles(compile->backend, dtype, c, &s->tiles)) {
        s->step.kernel = "tensor-core int8 conv";
        s->step.tune = quantized_tune;
    } else {
        const bool depthwise = c->groups == c->c && c->m == c->c;
        s->step.kernel = depthwise ? "depthwise int8 conv" : "direct int8 conv";
        layout = depthwise ? WEIGHT_TAPS : o->is_conv ? WEIGHT_CONV : o->layout;
        dtype = DTYPE_I16;
        c->row = (int)cuda_weights_row(weights, layout, dtype);
    }
    s->step.workspace = s->fill_bytes + s->tiles.workspace;
    TRY(cuda_weights_without_zero(compile->backend, weights, quantized_weights_zero(o), layout,
                                  dtype, &s->weights, err));
    const size_t count = shape_count(&weights->shape);
    const double depth = (double)count / o->channels;
    s->step.flops = 2.0 * (double)shape_count(&o->y->shape) * depth;
    s->step.bytes += count;
    return STATUS_OK;
}

CUDA_CREATE(lower_quantized)
{
    const struct node *node = compile->node;
    struct quantized_operands o;
    struct cuda_conv conv;
    (void)quantized_read_operands(node, &o);
    if (o.is_conv) {
        struct window w;
        TRY(window_init(node, 2, o.x->shape.dims + 1, o.weights->known->shape.dims + 2, &w, err));
        TRY(window_of_conv(node, &w, node_int(node, "group", 1), &conv, err));
    } else {
        const int64_t depth = o.x->shape.dims[o.x->shape.rank - 1];
        const int64_t rows = (int64_t)shape_count(&o.x->shape) / depth;
        if (!window_of_rows(rows, o.channels, depth, &conv))
            return STATUS_OK;
    }
    struct int8_step *s = cuda_step_create(compile, NULL, sizeof *s, quantized_run, ret, err);
    TRY(allocated(s));
    s->conv = conv;
    return quantized_fill(compile, &o, s, err);
}

const struct cuda_kernel cuda_kernel_int8_product = {
    {"int8 product",
     {OP_QLINEAR_CONV, OP_QLINEAR_MATMUL, OP_QGEMM, OP_CONV_INTEGER, OP_MATMUL_INTEGER},
     quantized_claim},
    lower_quantized};
