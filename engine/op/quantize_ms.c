/* Operators of com.microsoft on 8-bit tensors: Add, Mul, Concat, pools; and Lookup. Operators on a
 * single 8-bit number look up one of 256 results in a table. Source: ONNX Runtime's
 * ContribOperators.md.
 *
 * Easy to get wrong: results that lie halfway between two stored numbers are common here (scales
 * are round numbers), and ONNX Runtime, which defines these operators, rounds them by float32
 * arithmetic in a fixed order. Some operators add the zero point before rounding. The kernels in
 * this file round and add in ONNX Runtime's order. */
#include "engine/op/elementwise.h"
#include "engine/op/family.h"
#include "engine/op/quant.h"

static enum status infer_qlinear_binary(struct node *node, struct error *err)
{
    struct shape out;
    TRY(infer_broadcast(&node->inputs[0]->shape, &node->inputs[3]->shape, &out, err));
    return infer_output(node, 0, quantized_dtype(node, 7, node->inputs[0]->dtype), &out, err);
}

static enum status infer_qlinear_concat(struct node *node, struct error *err)
{
    struct shape out;
    if (node->input_count % 3 != 2)
        return error_set(err, STATUS_MODEL,
                         "%zu inputs, expected 2 (scale, zero point) plus 3 for each operand",
                         node->input_count);
    TRY(infer_joined(node, 2, 3, &out, err));
    return infer_output(node, 0, quantized_dtype(node, 1, node->inputs[2]->dtype), &out, err);
}

static enum status infer_lookup(struct node *node, struct error *err)
{
    TRY(operand_has_shape(node, 1, "table", &SHAPE(256), err));
    return infer_output(node, 0, node->inputs[1]->dtype, &node->inputs[0]->shape, err);
}

/* Scales and zero points are the same for all images. */
static int qlinear_concat_beside(const struct node *node, size_t i, int axis)
{
    return node->inputs[i]->shape.rank > 1 ? axis : BATCH_WHOLE;
}

/* Element i of an 8-bit tensor's data. */
static int64_t stored_at(const void *data, enum dtype dtype, size_t i)
{
    return dtype == DTYPE_I8 ? ((const int8_t *)data)[i] : ((const uint8_t *)data)[i];
}

static float real_of(const struct quant *quant, int64_t stored)
{
    return (float)(stored - quant->zero) * (float)quant->scale;
}

/* ---- binary ---- */

/* Add: c = a * a_ratio + b * b_ratio + fixed. Mul: c = (a - zero) * (b - zero) * product_ratio +
 * zero. */
KERNEL(kernel_qlinear_binary)
{
    const struct tensor *a = args->in[0], *b = args->in[3];
    struct tensor *c = args->out[0];
    const struct shape *shapes[] = {&a->shape, &b->shape};
    const bool adds = args->node->op == OP_QLINEAR_ADD;
    const struct quant of_a = quant_read(args, 1, a->dtype), of_b = quant_read(args, 4, b->dtype);
    const struct quant of_c = quant_read(args, 6, c->dtype);
    const float a_scale = (float)of_a.scale, b_scale = (float)of_b.scale;
    const float a_ratio = a_scale / (float)of_c.scale, b_ratio = b_scale / (float)of_c.scale;
    const float product_ratio = a_scale * b_scale / (float)of_c.scale;
    const float zeros = a_ratio * (float)of_a.zero + b_ratio * (float)of_b.zero;
    const float fixed = (float)of_c.zero - zeros;
    struct broadcast at;
    broadcast_start(&at, &c->shape, shapes, 2);
    do {
        for (size_t i = 0; i < at.row; i++) {
            const size_t *from = at.rows.offset;
            const int64_t x = stored_at(a->data, a->dtype, from[0] + (at.moves[0] ? i : 0));
            const int64_t y = stored_at(b->data, b->dtype, from[1] + (at.moves[1] ? i : 0));
            float value = adds ? fixed + (float)y * b_ratio
                               : (float)((x - of_a.zero) * (y - of_b.zero)) * product_ratio;
            value += adds ? (float)x * a_ratio : (float)of_c.zero;
            const int64_t stored = quant_round_shifted(&of_c, (double)value);
            store_integers(&stored, c->dtype, element_at(c->data, c->dtype, at.done + i), 1);
        }
    } while (broadcast_next(&at));
    return STATUS_OK;
}

/* ---- tables ---- */

/* Sets ret[b] for each byte b to the byte that stores, with the output's scale and zero point, the
 * number that b stores with the input's. */
static void fill_table(const struct quant *in, enum dtype in_dtype, const struct quant *out,
                       uint8_t *ret)
{
    const bool same = in->scale == out->scale && in->zero == out->zero && in->low == out->low;
    for (int byte = 0; byte < 256; byte++) {
        const float x = real_of(in, in_dtype == DTYPE_I8 ? (int8_t)byte : byte);
        const int64_t stored = quant_round(out, (double)(x / (float)out->scale));
        ret[byte] = (uint8_t)(same ? byte : stored);
    }
}

KERNEL(kernel_lookup)
{
    const uint8_t *table = args->in[1]->data, *x = args->in[0]->data;
    uint8_t *y = args->out[0]->data;
    const size_t count = shape_count(&args->in[0]->shape);
    for (size_t i = 0; i < count; i++)
        y[i] = table[x[i]];
    return STATUS_OK;
}

KERNEL(kernel_qlinear_concat)
{
    const struct node *node = args->node;
    struct tensor *y = args->out[0];
    struct quant out = quant_read(args, 0, y->dtype);
    const int64_t axis = node_axis(node, 0, y->shape.rank);
    const struct axis_layout whole = axis_layout_of(&y->shape, axis);
    size_t before = 0;
    for (size_t k = 2; k + 1 < node->input_count; k += 3) {
        const struct tensor *x = args->in[k];
        struct quant in = quant_read(args, k + 1, x->dtype);
        uint8_t table[256];
        fill_table(&in, x->dtype, &out, table);
        size_t own = (size_t)x->shape.dims[axis], run = own * whole.inner;
        for (size_t o = 0; o < whole.outer; o++)
            for (size_t i = 0; i < run; i++)
                ((uint8_t *)y->data)[(o * whole.extent + before) * whole.inner + i] =
                    table[((const uint8_t *)x->data)[o * run + i]];
        before += own;
    }
    return STATUS_OK;
}

/* ---- pools ---- */

/* Position in [N, C, plane] of element i of an array that is [N, plane, C] if `channels_last`. */
static size_t plane_index(size_t i, bool channels_last, size_t channels, size_t plane)
{
    if (!channels_last)
        return i;
    size_t rest = i % (channels * plane);
    return i - rest + rest % channels * plane + rest / channels;
}

KERNEL(kernel_qlinear_average_pool)
{
    const struct tensor *x = args->in[0];
    struct tensor *y = args->out[0];
    bool last = node_int(args->node, "channels_last", 0) != 0;
    bool count_include_pad = node_int(args->node, "count_include_pad", 0) != 0;
    struct quant in = quant_read(args, 1, x->dtype), out = quant_read(args, 3, y->dtype);
    struct window w;
    TRY(pool_window_init(args->node, &x->shape, last, &w, err));
    w = window_in_3d(&w);
    size_t channels = (size_t)x->shape.dims[last ? x->shape.rank - 1 : 1];
    size_t in_plane = window_volume(w.in), out_plane = window_volume(w.out);
    size_t in_count = shape_count(&x->shape), out_count = shape_count(&y->shape);
    double *src = kernel_scratch(args, in_count, sizeof *src, err), *values, padded;
    size_t *places;
    TRY(allocated(src));
    TRY(window_room(args, &w, &values, &places, err));
    for (size_t i = 0; i < in_count; i++)
        src[plane_index(i, last, channels, in_plane)] =
            (double)real_of(&in, stored_at(x->data, x->dtype, i));
    for (size_t i = 0; i < out_count; i++) {
        const size_t p = plane_index(i, last, channels, out_plane);
        const size_t count =
            window_read(&w, p % out_plane, src + p / out_plane * in_plane, values, places, &padded);
        const double taps = count_include_pad ? padded : (double)count;
        float sum = 0; /* in float32, in memory's order */
        for (size_t k = 0; k < count; k++)
            sum += (float)values[k];
        const float mean = sum / (float)(taps > 0 ? taps : 1);
        float shifted = mean / (float)out.scale + (float)out.zero;
        int64_t stored = quant_round_shifted(&out, (double)shifted);
        store_integers(&stored, y->dtype, element_at(y->data, y->dtype, i), 1);
    }
    return STATUS_OK;
}

KERNEL(kernel_qlinear_global_average_pool)
{
    const struct tensor *x = args->in[0];
    struct tensor *y = args->out[0];
    bool last = node_int(args->node, "channels_last", 0) != 0;
    struct quant in = quant_read(args, 1, x->dtype), out = quant_read(args, 3, y->dtype);
    size_t count = shape_count(&x->shape), planes = shape_count(&y->shape);
    size_t plane = planes ? count / planes : 1;
    size_t channels = (size_t)x->shape.dims[last ? x->shape.rank - 1 : 1];
    int64_t *sums = kernel_scratch(args, planes, sizeof *sums, err);
    TRY(allocated(sums));
    for (size_t i = 0; i < planes; i++)
        sums[i] = 0;
    for (size_t i = 0; i < count; i++)
        sums[plane_index(i, last, channels, plane) / plane] +=
            stored_at(x->data, x->dtype, i) - in.zero;
    float factor = (float)in.scale / ((float)out.scale * (float)plane);
    for (size_t i = 0; i < planes; i++) {
        int64_t stored = quant_round(&out, (double)((float)sums[i] * factor));
        store_integers(&stored, y->dtype, element_at(y->data, y->dtype, i), 1);
    }
    return STATUS_OK;
}

#define QUANTIZED_PAIR QUANTIZED_OPERAND(A, ) QUANTIZED_OPERAND(B, ) QUANTIZED_RESULT("!")

const struct op_info ops_quantize_ms[] = {
    OP_ROW(QLINEAR_ADD, 1, 2, 8, QUANTIZED_PAIR, OP_PLAIN, NULL, qlinear_binary,
           &batch_elementwise),
    OP_ROW(QLINEAR_MUL, 1, 2, 8, QUANTIZED_PAIR, OP_PLAIN, NULL, qlinear_binary,
           &batch_elementwise),
    OP_ROW(QLINEAR_CONCAT, 1, 5, OP_VARIADIC, QUANTIZED_RESULT("!") "..." QUANTIZED_OPERAND(X, ),
           OP_PLAIN, "axis:int", qlinear_concat, BATCH(batch_of_concat, qlinear_concat_beside)),
    {OP_QLINEAR_AVERAGE_POOL, 1, 0, 2, 5, 1, 1, QUANTIZED_OPERAND(X, ) QUANTIZED_RESULT("!"),
     OP_HEAVY, WINDOW_ATTRS " ceil_mode:int channels_last:int count_include_pad:int", infer_pool,
     &batch_by_sample, work_window, kernel_qlinear_average_pool},
    OP_ROW_OF(QLINEAR_GLOBAL_AVERAGE_POOL, 1, 2, 5,
              QUANTIZED_OPERAND(X, "[NCD*]") QUANTIZED_RESULT("!"), OP_PLAIN, "channels_last:int",
              global_pool, &batch_by_sample, qlinear_global_average_pool),
    OP_ROW(LOOKUP, 1, 2, 2, "x:8bit table:8bit", OP_UNARY, NULL, lookup, &batch_unary),
    {0},
};
