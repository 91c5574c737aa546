/* Operators of com.microsoft on 8-bit tensors: elementwise ones, Concat, Where, Softmax, pools.
 * What depends on one stored number alone is a table of 256. Sources: ONNX Runtime's
 * ContribOperators.md. */
#include <stdlib.h>

#include "engine/cpu/ref/convert.h"
#include "engine/cpu/ref/copy.h"
#include "engine/cpu/ref/elementwise.h"
#include "engine/cpu/ref/quant.h"

/* Element i of an 8-bit tensor's data. */
static int64_t stored_at(const void *data, enum dtype dtype, size_t i)
{
    return dtype == DTYPE_I8 ? ((const int8_t *)data)[i] : ((const uint8_t *)data)[i];
}

static double real_of(const struct quant *quant, int64_t stored)
{
    return (double)(stored - quant->zero) * quant->scale;
}

/* ---- binary ---- */

KERNEL(kernel_qlinear_binary)
{
    const struct tensor *a = args->in[0], *b = args->in[3];
    struct tensor *c = *args->out[0];
    const struct shape *shapes[] = {&a->shape, &b->shape};
    struct quant left = quant_read(args, 1, a->dtype), right = quant_read(args, 4, b->dtype);
    struct quant out = quant_read(args, 6, c->dtype);
    bool adds = args->node->op == OP_QLINEAR_ADD;
    struct broadcast walk;
    (void)err;
    if (!broadcast_start(&walk, &c->shape, shapes, 2))
        return STATUS_OK;
    do {
        for (size_t i = 0; i < walk.row; i++) {
            double x = real_of(
                &left, stored_at(a->data, a->dtype, walk.offset[0] + (walk.moves[0] ? i : 0)));
            double y = real_of(
                &right, stored_at(b->data, b->dtype, walk.offset[1] + (walk.moves[1] ? i : 0)));
            int64_t stored = quant_round(&out, (adds ? x + y : x * y) / out.scale);
            store_integers(&stored, c->dtype, element_at(c->data, c->dtype, walk.done + i), 1);
        }
    } while (broadcast_next(&walk));
    return STATUS_OK;
}

/* ---- tables ---- */

enum function { FUNCTION_NONE, FUNCTION_SIGMOID, FUNCTION_LEAKY_RELU };

/* ret[stored byte] = the byte of function(real) in the output's terms. */
static void fill_table(const struct quant *in, enum dtype in_dtype, const struct quant *out,
                       enum function function, double alpha, uint8_t *ret)
{
    for (int byte = 0; byte < 256; byte++) {
        int64_t stored = in_dtype == DTYPE_I8 ? (int8_t)byte : byte;
        double x = real_of(in, stored);
        if (function == FUNCTION_SIGMOID)
            x = 1 / (1 + exp(-x));
        else if (function == FUNCTION_LEAKY_RELU)
            x = x < 0 ? alpha * x : x;
        ret[byte] = (uint8_t)quant_round(out, x / out->scale);
    }
}

/* The same number in the same terms, bit for bit. */
static bool same_terms(const struct quant *in, const struct quant *out)
{
    return in->scale == out->scale && in->zero == out->zero && in->low == out->low;
}

static void fill_requantize_table(const struct quant *in, enum dtype dtype, const struct quant *out,
                                  uint8_t *ret)
{
    if (!same_terms(in, out)) {
        fill_table(in, dtype, out, FUNCTION_NONE, 0, ret);
        return;
    }
    for (int byte = 0; byte < 256; byte++)
        ret[byte] = (uint8_t)byte;
}

KERNEL(kernel_qlinear_unary)
{
    const struct tensor *x = args->in[0];
    struct tensor *y = *args->out[0];
    struct quant in = quant_read(args, 1, x->dtype), out = quant_read(args, 3, y->dtype);
    bool sigmoid = args->node->op == OP_QLINEAR_SIGMOID;
    uint8_t table[256];
    size_t count = shape_count(&x->shape);
    (void)err;
    fill_table(&in, x->dtype, &out, sigmoid ? FUNCTION_SIGMOID : FUNCTION_LEAKY_RELU,
               node_float(args->node, "alpha", 0.01f), table);
    for (size_t i = 0; i < count; i++)
        ((uint8_t *)y->data)[i] = table[((const uint8_t *)x->data)[i]];
    return STATUS_OK;
}

KERNEL(kernel_qlinear_concat)
{
    const struct node *node = args->node;
    struct tensor *y = *args->out[0];
    struct quant out = quant_read(args, 0, y->dtype);
    int64_t axis = node_int(node, "axis", 0);
    TRY(infer_axis(&axis, y->shape.rank, err));
    size_t outer = 1, inner = 1, before = 0, extent = (size_t)y->shape.dims[axis];
    for (int i = 0; i < y->shape.rank; i++)
        *(i < axis ? &outer : &inner) *= i == axis ? 1 : (size_t)y->shape.dims[i];
    for (size_t k = 2; k + 1 < node->input_count; k += 3) {
        const struct tensor *x = args->in[k];
        struct quant in = quant_read(args, k + 1, x->dtype);
        uint8_t table[256];
        fill_requantize_table(&in, x->dtype, &out, table);
        size_t own = (size_t)x->shape.dims[axis], run = own * inner;
        for (size_t o = 0; o < outer; o++)
            for (size_t i = 0; i < run; i++)
                ((uint8_t *)y->data)[(o * extent + before) * inner + i] =
                    table[((const uint8_t *)x->data)[o * run + i]];
        before += own;
    }
    return STATUS_OK;
}

KERNEL(kernel_qlinear_where)
{
    const struct tensor *condition = args->in[0], *x = args->in[1], *y = args->in[4];
    struct tensor *z = *args->out[0];
    const struct shape *shapes[] = {&condition->shape, &x->shape, &y->shape};
    struct quant out = quant_read(args, 7, z->dtype);
    struct quant x_terms = quant_read(args, 2, x->dtype), y_terms = quant_read(args, 5, y->dtype);
    uint8_t x_table[256], y_table[256], *dst = z->data;
    struct broadcast walk;
    (void)err;
    fill_requantize_table(&x_terms, x->dtype, &out, x_table);
    fill_requantize_table(&y_terms, y->dtype, &out, y_table);
    if (!broadcast_start(&walk, &z->shape, shapes, 3))
        return STATUS_OK;
    do {
        for (size_t i = 0; i < walk.row; i++) {
            size_t at[3];
            for (int k = 0; k < 3; k++)
                at[k] = walk.offset[k] + (walk.moves[k] ? i : 0);
            dst[walk.done + i] = ((const uint8_t *)condition->data)[at[0]]
                                     ? x_table[((const uint8_t *)x->data)[at[1]]]
                                     : y_table[((const uint8_t *)y->data)[at[2]]];
        }
    } while (broadcast_next(&walk));
    return STATUS_OK;
}

/* ---- Softmax ---- */

KERNEL(kernel_qlinear_softmax)
{
    const struct tensor *x = args->in[0];
    struct tensor *y = *args->out[0];
    struct quant in = quant_read(args, 1, x->dtype), out = quant_read(args, 3, y->dtype);
    int64_t axis = node_int(args->node, "axis", -1);
    TRY(infer_axis(&axis, x->shape.rank, err));
    struct softmax_layout layout =
        softmax_layout_of(&x->shape, axis, node_int(args->node, "opset", 13) < 13);
    double *column = kernel_scratch(args, layout.extent, sizeof *column, err);
    if (!column)
        return STATUS_NO_MEMORY;
    for (size_t c = 0; c < layout.outer * layout.inner; c++) {
        size_t first = c / layout.inner * layout.extent * layout.inner + c % layout.inner;
        for (size_t i = 0; i < layout.extent; i++)
            column[i] = real_of(&in, stored_at(x->data, x->dtype, first + i * layout.inner));
        softmax_column(column, column, layout.extent);
        for (size_t i = 0; i < layout.extent; i++) {
            int64_t stored = quant_round(&out, column[i] / out.scale);
            store_integers(&stored, y->dtype,
                           element_at(y->data, y->dtype, first + i * layout.inner), 1);
        }
    }
    free(column);
    return STATUS_OK;
}

/* ---- pools ---- */

/* Planes of floats less the zero point, [N * C, spatial …], of x in either layout. */
static void read_planes(const struct tensor *x, int64_t zero, bool channels_last, size_t channels,
                        size_t plane, float *dst)
{
    size_t count = shape_count(&x->shape);
    for (size_t i = 0; i < count; i++) {
        size_t n = i / (channels * plane), rest = i % (channels * plane);
        size_t c = channels_last ? rest % channels : rest / plane;
        size_t at = channels_last ? rest / channels : rest % plane;
        dst[(n * channels + c) * plane + at] = (float)(stored_at(x->data, x->dtype, i) - zero);
    }
}

/* Means of the planes, in the input's terms, to the output. */
static void write_planes(const float *src, double factor, const struct quant *out,
                         bool channels_last, size_t channels, size_t plane, struct tensor *y)
{
    size_t count = shape_count(&y->shape);
    for (size_t i = 0; i < count; i++) {
        size_t n = i / (channels * plane), rest = i % (channels * plane);
        size_t c = channels_last ? rest % channels : rest / plane;
        size_t at = channels_last ? rest / channels : rest % plane;
        int64_t stored =
            quant_round(out, (double)src[(n * channels + c) * plane + at] * factor / out->scale);
        store_integers(&stored, y->dtype, element_at(y->data, y->dtype, i), 1);
    }
}

static enum status run_average(const struct kernel_args *args, const struct window *window,
                               bool count_include_pad, struct error *err)
{
    const struct tensor *x = args->in[0];
    struct tensor *y = *args->out[0];
    bool last = node_int(args->node, "channels_last", 0) != 0;
    struct quant in = quant_read(args, 1, x->dtype), out = quant_read(args, 3, y->dtype);
    size_t channels = (size_t)x->shape.dims[last ? x->shape.rank - 1 : 1];
    size_t planes = (size_t)x->shape.dims[0] * channels, in_plane = 1, out_plane = 1;
    for (int i = 0; i < window->spatial; i++) {
        in_plane *= (size_t)window->in[i];
        out_plane *= (size_t)window->out[i];
    }
    float *src = kernel_scratch(args, shape_count(&x->shape), sizeof *src, err);
    float *dst = src ? kernel_scratch(args, shape_count(&y->shape), sizeof *dst, err) : NULL;
    if (dst && shape_count(&y->shape)) {
        read_planes(x, in.zero, last, channels, in_plane, src);
        average_pool(src, dst, planes, window, count_include_pad);
        write_planes(dst, in.scale, &out, last, channels, out_plane, y);
    }
    free(src);
    free(dst);
    return dst ? STATUS_OK : STATUS_NO_MEMORY;
}

KERNEL(kernel_qlinear_average_pool)
{
    bool last = node_int(args->node, "channels_last", 0) != 0;
    struct window window;
    TRY(pool_window_init(args->node, &args->in[0]->shape, last, &window, err));
    return run_average(args, &window, node_int(args->node, "count_include_pad", 0) != 0, err);
}

KERNEL(kernel_qlinear_global_average_pool)
{
    const struct shape *x = &args->in[0]->shape;
    int first = node_int(args->node, "channels_last", 0) ? 1 : 2;
    /* All spatial dimensions as one. */
    struct window window = {.spatial = 1, .stride = {1}, .dilation = {1}, .out = {1}};
    window.in[0] = 1;
    for (int i = 0; i < x->rank - 2; i++)
        window.in[0] *= x->dims[first + i];
    window.kernel[0] = window.in[0];
    return run_average(args, &window, false, err);
}
