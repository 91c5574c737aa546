/* 8-bit integers: QLinearConv (and what matmul.c needs of QLinearMatMul) through oneDNN, and
 * lensd's own rows for QuantizeLinear, DequantizeLinear, QLinearAdd, MaxPool and
 * QLinearGlobalAveragePool, channels-last. One scale and zero point a tensor (weights: one scale an
 * output channel, zero point 0); anything else is left to the reference kernels. */
#include "engine/base/cpu.h"
#include "engine/base/size.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/product.h"
#include "engine/cpu/simd/simd.h"
#include "engine/ops/families.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_8bit(enum dtype dtype)
{
    return dtype == DTYPE_U8 || dtype == DTYPE_I8;
}

/* ---- parameters ---- */

struct params {
    float scale;
    int zero;
};

/* Operands `at` and `at + 1`: a float32 constant of one number, and a zero point of `dtype`. */
static bool read_params(const struct node *node, size_t at, enum dtype dtype, struct params *ret)
{
    const struct value *scale = node_input(node, at), *zero = node_input(node, at + 1);
    if (!scale || !scale->known || scale->known->dtype != DTYPE_F32 ||
        shape_count(&scale->known->shape) != 1 || !is_8bit(dtype))
        return false;
    if (zero &&
        (!zero->known || zero->known->dtype != dtype || shape_count(&zero->known->shape) != 1))
        return false;
    ret->scale = (float)tensor_number(scale->known, 0);
    ret->zero = zero ? (int)tensor_int(zero->known, 0) : 0;
    return zero || dtype == DTYPE_U8;
}

/* ---- QLinearConv ---- */

/* Without VNNI instructions oneDNN multiplies pairs of u8 x i8 into 16 bits that saturate: 255 * (a
 * + b) has to fit. */
static bool pairs_fit(const struct tensor *weights, enum dtype x)
{
    enum { MOST = 64 };
    const int8_t *w = weights->data;
    if (x != DTYPE_U8 || cpu_features()->avx512_vnni || cpu_features()->avx_vnni)
        return true;
    for (size_t i = 0; i < weights->bytes; i++)
        if (w[i] > MOST || w[i] < -MOST)
            return false;
    return true;
}

bool qconv_takes(const struct node *node)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    const struct value *w = node_input(node, 3), *scale = node_input(node, 4);
    const struct value *zero = node_input(node, 5), *bias = node_input(node, 8);
    struct params ignored;
    if (node->op != OP_QLINEAR_CONV || !x || !y || x->known || !is_8bit(x->dtype) ||
        !is_8bit(y->dtype) || x->shape.rank < 3 || x->shape.rank > 5 || !shape_count(&x->shape) ||
        !shape_count(&y->shape) || !read_params(node, 1, x->dtype, &ignored) ||
        !read_params(node, 6, y->dtype, &ignored) || !w->known || w->known->dtype != DTYPE_I8 ||
        !pairs_fit(w->known, x->dtype) || !scale->known || scale->known->dtype != DTYPE_F32 ||
        (bias && (!bias->known || bias->known->dtype != DTYPE_I32)))
        return false;
    for (size_t i = 0; zero && i < shape_count(&zero->shape); i++)
        if (!zero->known || tensor_int(zero->known, i))
            return false;
    const size_t scales = shape_count(&scale->known->shape);
    return scales == 1 || scales == (size_t)w->known->shape.dims[0];
}

enum status make_qconv(const struct compile *compile, struct step **ret, struct error *err)
{
    const struct node *node = compile->node;
    if (node->op != OP_QLINEAR_CONV || !node->channels_last || !qconv_takes(node))
        return STATUS_OK;
    const struct value *x = node->inputs[0], *y = node->outputs[0], *bias = node_input(node, 8);
    struct tensor *weights = node->inputs[3]->known;
    const struct tensor *w_scale = node->inputs[4]->known;
    struct params from = {0}, to = {0};
    read_params(node, 1, x->dtype, &from);
    read_params(node, 6, y->dtype, &to);
    const size_t channels = (size_t)weights->shape.dims[0];
    float *scales = alloc_array(channels, sizeof *scales);
    if (!scales)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    for (size_t m = 0; m < channels; m++) {
        const double own = tensor_number(w_scale, shape_count(&w_scale->shape) == 1 ? 0 : m);
        scales[m] = (float)((double)from.scale * own / (double)to.scale);
    }
    struct product_desc desc = {.weights_constant = weights,
                                .weights_input = 3,
                                .bias_constant = bias ? bias->known : NULL,
                                .scales = scales,
                                .scale_count = channels,
                                .src_zero = from.zero,
                                .dst_zero = to.zero};
    const enum status status = conv_product(compile, &desc, ret, err);
    free(scales);
    return status;
}

/* ---- QLinearMatMul, QGemm ---- */

/* Where the result's scale and zero point stand. */
static size_t result_at(const struct node *node)
{
    return node->op == OP_QGEMM ? 7 : 6;
}

bool qmatmul_takes(const struct node *node)
{
    const struct value *a = node_input(node, 0), *y = node_output(node, 0);
    const struct value *b = node_input(node, 3), *scale = node_input(node, 4);
    const struct value *zero = node_input(node, 5);
    const struct value *bias = node->op == OP_QGEMM ? node_input(node, 6) : NULL;
    struct params ignored;
    if ((node->op != OP_QGEMM && node->op != OP_QLINEAR_MATMUL) || !a || !y || a->known ||
        !is_8bit(a->dtype) || !is_8bit(y->dtype) || a->shape.rank < 2 ||
        y->shape.rank != a->shape.rank || !shape_count(&a->shape) || !shape_count(&y->shape) ||
        !b->known || b->known->dtype != DTYPE_I8 || b->known->shape.rank != 2 ||
        !pairs_fit(b->known, a->dtype) || !read_params(node, 1, a->dtype, &ignored) ||
        !read_params(node, result_at(node), y->dtype, &ignored) || !scale || !scale->known ||
        scale->known->dtype != DTYPE_F32)
        return false;
    for (size_t i = 0; zero && i < (zero->known ? shape_count(&zero->shape) : 1); i++)
        if (!zero->known || tensor_int(zero->known, i))
            return false;
    const size_t columns = (size_t)y->shape.dims[y->shape.rank - 1];
    const size_t scales = shape_count(&scale->known->shape);
    return (scales == 1 || (scales == columns && scale->known->shape.rank == 1)) &&
           (!bias || (bias->known && bias->known->dtype == DTYPE_I32 &&
                      bias->known->shape.rank == 1 && shape_count(&bias->shape) == columns)) &&
           (node->op != OP_QGEMM ||
            (node_float(node, "alpha", 1) == 1 && !node_int(node, "transA", 0)));
}

enum status qmatmul_describe(const struct node *node, struct product_desc *ret, float **ret_scales,
                             struct error *err)
{
    const struct value *a = node->inputs[0], *y = node->outputs[0];
    const struct value *bias = node->op == OP_QGEMM ? node_input(node, 6) : NULL;
    const struct tensor *w_scale = node->inputs[4]->known;
    const size_t columns = (size_t)y->shape.dims[y->shape.rank - 1];
    struct params from = {0}, to = {0};
    read_params(node, 1, a->dtype, &from);
    read_params(node, result_at(node), y->dtype, &to);
    float *scales = alloc_array(columns, sizeof *scales);
    if (!scales)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    for (size_t n = 0; n < columns; n++) {
        const double own = tensor_number(w_scale, shape_count(&w_scale->shape) == 1 ? 0 : n);
        scales[n] = (float)((double)from.scale * own / (double)to.scale);
    }
    *ret = (struct product_desc){.weights_constant = node->inputs[3]->known,
                                 .weights_input = 3,
                                 .bias_constant = bias ? bias->known : NULL,
                                 .scales = scales,
                                 .scale_count = columns,
                                 .src_zero = from.zero,
                                 .dst_zero = to.zero};
    *ret_scales = scales;
    return STATUS_OK;
}

/* ---- rows ---- */

enum row_kind { ROW_QUANTIZE, ROW_DEQUANTIZE, ROW_ADD, ROW_MAX_POOL, ROW_MEAN };

struct row_step {
    struct step step;
    const struct simd_kernels *simd;
    enum row_kind kind;
    uint32_t x, b, y;
    bool is_signed;
    struct params from, from_b, to;
    float a_ratio, b_ratio, fixed; /* Add */
    size_t count;                  /* elements, of the elementwise kinds */
    struct window window;          /* MaxPool */
    size_t images, channels, pixels;
    size_t thread_bytes; /* mean: the sums of an image */
    const unsigned char *x_data, *b_data;
    unsigned char *y_data;
    unsigned char *scratch;
};

enum { PIECE = 4096 };

static void run_pieces(void *context, size_t begin, size_t end)
{
    const struct row_step *s = context;
    const size_t first = begin * PIECE, last = end * PIECE < s->count ? end * PIECE : s->count;
    const size_t n = last - first;
    const float *wide = (const float *)(const void *)s->x_data;
    switch (s->kind) {
    case ROW_QUANTIZE:
        s->simd->quantize(wide + first, s->to.scale, s->to.zero, s->is_signed, s->y_data + first,
                          n);
        break;
    case ROW_DEQUANTIZE:
        s->simd->dequantize(s->x_data + first, s->is_signed, s->from.scale, s->from.zero,
                            (float *)(void *)s->y_data + first, n);
        break;
    default:
        s->simd->add_8bit(s->x_data + first, s->a_ratio, s->b_data + first, s->b_ratio, s->fixed,
                          s->is_signed, s->y_data + first, n);
        break;
    }
}

/* One row of pixels of a MaxPool's result. */
static void run_pool_rows(void *context, size_t begin, size_t end)
{
    enum { MOST_TAPS = 256 };
    const struct row_step *s = context;
    const struct window *w = &s->window;
    for (size_t row = begin; row < end; row++) {
        const size_t image = row / (size_t)w->out[0];
        const int64_t y0 = (int64_t)(row % (size_t)w->out[0]) * w->stride[0] - w->pad_begin[0];
        const unsigned char *x = s->x_data + image * s->pixels * s->channels;
        for (int64_t ox = 0; ox < w->out[1]; ox++) {
            const void *taps[MOST_TAPS];
            size_t count = 0;
            const int64_t x0 = ox * w->stride[1] - w->pad_begin[1];
            for (int64_t ky = 0; ky < w->kernel[0]; ky++)
                for (int64_t kx = 0; kx < w->kernel[1]; kx++) {
                    const int64_t iy = y0 + ky * w->dilation[0], ix = x0 + kx * w->dilation[1];
                    if (iy >= 0 && iy < w->in[0] && ix >= 0 && ix < w->in[1])
                        taps[count++] = x + (size_t)(iy * w->in[1] + ix) * s->channels;
                }
            unsigned char *y = s->y_data + (row * (size_t)w->out[1] + (size_t)ox) * s->channels;
            if (count)
                s->simd->pool_max_8bit(taps, count, s->is_signed, y, s->channels);
            else /* wholly in the padding: the lowest number */
                memset(y, s->is_signed ? 0x80 : 0, s->channels);
        }
    }
}

static void run_means(void *context, size_t begin, size_t end)
{
    const struct row_step *s = context;
    const float factor = s->from.scale / (s->to.scale * (float)s->pixels);
    const int low = s->is_signed ? -128 : 0;
    int32_t *sums = (int32_t *)(void *)(s->scratch + (size_t)forkjoin_member() * s->thread_bytes);
    for (size_t image = begin; image < end; image++) {
        s->simd->sum_rows_8bit(s->x_data + image * s->pixels * s->channels, s->pixels, s->is_signed,
                               sums, s->channels);
        for (size_t c = 0; c < s->channels; c++) {
            const int32_t sum = sums[c] - (int32_t)s->pixels * s->from.zero;
            const float real = rintf((float)sum * factor) + (float)s->to.zero;
            const float above = real > (float)low ? real : (float)low;
            const int stored = above < (float)(low + 255) ? (int)above : low + 255;
            s->y_data[image * s->channels + c] = (unsigned char)stored;
        }
    }
}

static enum status run_rows(struct step *base, struct program *program, struct error *err)
{
    struct row_step *s = (struct row_step *)base;
    const int threads = program->backend->options.threads;
    (void)err;
    s->x_data = program->data[s->x];
    s->b_data = program->data[s->b];
    s->y_data = program->data[s->y];
    s->scratch = program->scratch;
    if (s->kind == ROW_MAX_POOL)
        parallel_for(threads, s->images * (size_t)s->window.out[0],
                     (size_t)s->window.out[1] * s->channels / 4, run_pool_rows, s);
    else if (s->kind == ROW_MEAN)
        parallel_for(threads, s->images, s->pixels * s->channels / 16, run_means, s);
    else
        parallel_for(threads, (s->count + PIECE - 1) / PIECE, PIECE / 8, run_pieces, s);
    return STATUS_OK;
}

/* What the node is, and its parameters; false when it is none of these. */
static bool classify(const struct node *node, struct row_step *ret)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    if (!x || !y || !shape_count(&x->shape) || !shape_count(&y->shape))
        return false;
    const enum dtype dtype = is_8bit(y->dtype) ? y->dtype : x->dtype;
    const struct value *b = node_input(node, 3);
    if (!is_8bit(dtype))
        return false;
    ret->is_signed = dtype == DTYPE_I8;
    switch (node->op) {
    case OP_QUANTIZE_LINEAR:
        ret->kind = ROW_QUANTIZE;
        return x->dtype == DTYPE_F32 && !node_int(node, "precision", 0) &&
               read_params(node, 1, y->dtype, &ret->to);
    case OP_DEQUANTIZE_LINEAR:
        ret->kind = ROW_DEQUANTIZE;
        return y->dtype == DTYPE_F32 && read_params(node, 1, x->dtype, &ret->from);
    case OP_QLINEAR_ADD:
        ret->kind = ROW_ADD;
        return b && x->dtype == dtype && b->dtype == dtype && shape_equal(&x->shape, &y->shape) &&
               shape_equal(&b->shape, &y->shape) && read_params(node, 1, dtype, &ret->from) &&
               read_params(node, 4, dtype, &ret->from_b) && read_params(node, 6, dtype, &ret->to);
    case OP_MAX_POOL:
        ret->kind = ROW_MAX_POOL;
        return x->dtype == dtype && x->shape.rank == 4 && !node_output(node, 1);
    case OP_QLINEAR_GLOBAL_AVERAGE_POOL:
        ret->kind = ROW_MEAN;
        return x->dtype == dtype && !node_int(node, "channels_last", 0) &&
               read_params(node, 1, dtype, &ret->from) && read_params(node, 3, dtype, &ret->to);
    default:
        return false;
    }
}

bool qrows_take_channels_last(const struct node *node)
{
    struct row_step ignored;
    size_t count;
    const int64_t *kernel = node_ints(node, "kernel_shape", &count);
    if (node->op == OP_MAX_POOL && (count != 2 || kernel[0] > 16 || kernel[1] > 16))
        return false;
    return (node->op == OP_MAX_POOL || node->op == OP_QLINEAR_GLOBAL_AVERAGE_POOL) &&
           classify(node, &ignored);
}

enum status make_qrows(const struct compile *compile, struct step **ret, struct error *err)
{
    const struct node *node = compile->node;
    struct row_step proto = {.simd = simd()};
    if (!classify(node, &proto) ||
        ((proto.kind == ROW_MAX_POOL || proto.kind == ROW_MEAN) && !node->channels_last))
        return STATUS_OK;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    proto.x = x->index;
    proto.b = proto.kind == ROW_ADD ? node->inputs[3]->index : x->index;
    proto.y = y->index;
    proto.count = shape_count(&y->shape);
    proto.images = (size_t)x->shape.dims[0];
    proto.channels = (size_t)x->shape.dims[x->shape.rank - 1];
    proto.pixels = shape_count(&x->shape) / proto.images / proto.channels;
    if (proto.kind == ROW_ADD) {
        proto.a_ratio = proto.from.scale / proto.to.scale;
        proto.b_ratio = proto.from_b.scale / proto.to.scale;
        proto.fixed = (float)proto.to.zero - (proto.a_ratio * (float)proto.from.zero +
                                              proto.b_ratio * (float)proto.from_b.zero);
    }
    if (proto.kind == ROW_MAX_POOL) {
        size_t count;
        const int64_t *kernel = node_ints(node, "kernel_shape", &count);
        TRY(window_init(node, 2, x->shape.dims + 1, kernel, &proto.window, err));
    }
    struct row_step *step = step_create(compile, sizeof *step, run_rows);
    if (!step)
        return error_set(err, STATUS_NO_MEMORY, "out of memory while compiling");
    *ret = &step->step;
    const struct step base = step->step;
    *step = proto;
    step->step = base;
    step->step.kernel = step->simd->name;
    if (step->kind == ROW_MEAN) {
        step->thread_bytes = size_align(step->channels * sizeof(int32_t), TENSOR_ALIGN);
        step->step.scratch = step->thread_bytes * (size_t)compile->backend->options.threads;
    }
    step->step.bytes = shape_count(&x->shape) * dtype_size(x->dtype) +
                       shape_count(&y->shape) * dtype_size(y->dtype);
    return STATUS_OK;
}
