/* Quantization: ONNX's own operators, and those of com.microsoft that quantized models use.
 *
 * A zero point of another 8-bit type than its tensor is accepted (the model zoo's
 * resnet50-v1-12-qdq has int8 data with uint8 zero points); its value counts. */
#include "engine/base/size.h"
#include "engine/op/convert.h"
#include "engine/op/geometry.h"
#include "engine/op/kernels.h"
#include "engine/op/operands.h"
#include "engine/op/ops.h"
#include "engine/op/quant.h"

/* The dtype of a quantized output: its zero point's, or `otherwise`. */
static enum dtype quantized_dtype(const struct node *node, size_t zero_point, enum dtype otherwise)
{
    const struct value *value = node_input(node, zero_point);
    return value ? value->dtype : otherwise;
}

/* Operands first (one 8-bit tensor), first + 1 (its scale), first + 2 (its zero point), the latter
 * two one number each. */
static enum status check_triple(const struct node *node, size_t first, const char *name,
                                struct error *err)
{
    TRY(operand_present(node, first, name, err));
    TRY(operand_present(node, first + 1, "a scale", err));
    TRY(operand_dtype(node, first, name, DTYPES_8BIT, err));
    TRY(operand_dtype(node, first + 1, "a scale", DTYPES_FLOAT, err));
    TRY(operand_dtype(node, first + 2, "a zero point", DTYPES_8BIT, err));
    TRY(operand_single(node, first + 1, "a scale", err));
    return operand_single(node, first + 2, "a zero point", err);
}

/* Scale and zero point of a quantized output. */
static enum status check_output_params(const struct node *node, size_t scale, struct error *err)
{
    TRY(operand_present(node, scale, "the output's scale", err));
    TRY(operand_dtype(node, scale, "the output's scale", DTYPES_FLOAT, err));
    TRY(operand_single(node, scale, "the output's scale", err));
    TRY(operand_dtype(node, scale + 1, "the output's zero point", DTYPES_8BIT, err));
    return operand_single(node, scale + 1, "the output's zero point", err);
}

/* ---- QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear ---- */

static enum status check_scale(const struct node *node, struct error *err)
{
    const struct value *scale = node->inputs[1], *zero = node_input(node, 2);
    struct quant_layout layout;
    TRY(operand_dtype(node, 1, "the scale", DTYPES_FLOAT, err));
    TRY(quant_layout_init(node, &node->inputs[0]->shape, &scale->shape, &layout, err));
    if (!zero || shape_count(&zero->shape) == 1 || shape_equal(&zero->shape, &scale->shape))
        return STATUS_OK;
    char left[SHAPE_TEXT], right[SHAPE_TEXT];
    return error_set(err, STATUS_SHAPE, "the zero point has shape %s but the scale %s",
                     shape_text(&zero->shape, left), shape_text(&scale->shape, right));
}

static enum status check_output_dtype(int64_t number, unsigned allowed, struct error *err)
{
    if (number > 0 && number <= DTYPE_BF16 && allowed >> number & 1)
        return STATUS_OK;
    return error_set(err, STATUS_UNSUPPORTED,
                     "output_dtype is %lld, which lensd does not have here", (long long)number);
}

static enum status infer_quantize(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0], *zero = node_input(node, 2);
    int64_t wanted = node_int(node, "output_dtype", 0), precision = node_int(node, "precision", 0);
    TRY(operand_dtype(node, 0, "x", DTYPES_FLOAT | DTYPE_BIT(I32), err));
    TRY(operand_dtype(node, 2, "y_zero_point", DTYPES_QUANTIZED, err));
    TRY(check_scale(node, err));
    if (wanted)
        TRY(check_output_dtype(wanted, DTYPES_QUANTIZED, err));
    if (wanted && zero && (enum dtype)wanted != zero->dtype)
        return error_set(err, STATUS_MODEL, "output_dtype is %s but y_zero_point %s",
                         dtype_name((enum dtype)wanted), dtype_name(zero->dtype));
    if (precision)
        TRY(check_output_dtype(precision, DTYPES_FLOAT, err));
    enum dtype dtype = zero ? zero->dtype : wanted ? (enum dtype)wanted : DTYPE_U8;
    return infer_output(node, 0, dtype, &x->shape, err);
}

static enum status infer_dequantize(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    int64_t wanted = node_int(node, "output_dtype", 0);
    TRY(operand_dtype(node, 0, "x", DTYPES_QUANTIZED | DTYPE_BIT(I32), err));
    TRY(operand_dtype(node, 2, "x_zero_point", DTYPES_QUANTIZED | DTYPE_BIT(I32), err));
    TRY(check_scale(node, err));
    if (wanted)
        TRY(check_output_dtype(wanted, DTYPES_FLOAT, err));
    return infer_output(node, 0, wanted ? (enum dtype)wanted : node->inputs[1]->dtype, &x->shape,
                        err);
}

static enum status infer_dynamic_quantize(struct node *node, struct error *err)
{
    TRY(operand_dtype(node, 0, "x", DTYPE_BIT(F32), err));
    TRY(infer_output(node, 0, DTYPE_U8, &node->inputs[0]->shape, err));
    TRY(infer_output(node, 1, DTYPE_F32, &SHAPE_SCALAR, err));
    return infer_output(node, 2, DTYPE_U8, &SHAPE_SCALAR, err);
}

/* ---- convolutions and matrix products ---- */

/* The output of a product: stored as operands `scale` and `scale + 1` say, or float32 without
 * them. */
static enum status infer_product(struct node *node, size_t scale, const struct shape *shape,
                                 struct error *err)
{
    if (!node_input(node, scale))
        return infer_output(node, 0, DTYPE_F32, shape, err);
    TRY(check_output_params(node, scale, err));
    return infer_output(node, 0, quantized_dtype(node, scale + 1, node->inputs[0]->dtype), shape,
                        err);
}

/* One number, or one for each output channel. */
static enum status check_per_channel(const struct node *node, size_t i, const char *name,
                                     size_t channels, struct error *err)
{
    const struct value *value = node_input(node, i);
    if (!value || shape_count(&value->shape) == 1)
        return STATUS_OK;
    return operand_vector(node, i, name, (int64_t)channels, err);
}

static enum status infer_qlinear_conv(struct node *node, struct error *err)
{
    struct conv_shape conv;
    TRY(check_triple(node, 0, "x", err));
    TRY(operand_dtype(node, 3, "w", DTYPES_8BIT, err));
    TRY(operand_dtype(node, 4, "w_scale", DTYPES_FLOAT, err));
    TRY(operand_dtype(node, 5, "w_zero_point", DTYPES_8BIT, err));
    TRY(operand_dtype(node, 8, "B", DTYPE_BIT(I32), err));
    TRY(conv_shape_init(node, &node->inputs[0]->shape, &node->inputs[3]->shape, &conv, err));
    TRY(check_per_channel(node, 4, "w_scale", conv.out_channels, err));
    TRY(check_per_channel(node, 5, "w_zero_point", conv.out_channels, err));
    TRY(operand_vector(node, 8, "B", (int64_t)conv.out_channels, err));
    return infer_product(node, 6, &conv.out, err);
}

static enum status infer_conv_integer(struct node *node, struct error *err)
{
    struct conv_shape conv;
    TRY(operand_dtype(node, 0, "x", DTYPES_8BIT, err));
    TRY(operand_dtype(node, 1, "w", DTYPES_8BIT, err));
    TRY(operand_dtype(node, 2, "x_zero_point", DTYPES_8BIT, err));
    TRY(operand_dtype(node, 3, "w_zero_point", DTYPES_8BIT, err));
    TRY(conv_shape_init(node, &node->inputs[0]->shape, &node->inputs[1]->shape, &conv, err));
    TRY(operand_single(node, 2, "x_zero_point", err));
    TRY(check_per_channel(node, 3, "w_zero_point", conv.out_channels, err));
    return infer_output(node, 0, DTYPE_I32, &conv.out, err);
}

static enum status check_matmul_param(const struct node *node, size_t operand, size_t param,
                                      const char *name, bool rows, struct error *err)
{
    const struct value *value = node_input(node, param);
    struct matmul_param layout;
    if (!value)
        return STATUS_OK;
    return matmul_param_init(&node->inputs[operand]->shape, &value->shape, rows, name, &layout,
                             err);
}

static enum status infer_qlinear_matmul(struct node *node, struct error *err)
{
    struct matmul_shape matmul;
    TRY(operand_dtype(node, 0, "a", DTYPES_8BIT, err));
    TRY(operand_dtype(node, 1, "a_scale", DTYPES_FLOAT, err));
    TRY(operand_dtype(node, 2, "a_zero_point", DTYPES_8BIT, err));
    TRY(operand_dtype(node, 3, "b", DTYPES_8BIT, err));
    TRY(operand_dtype(node, 4, "b_scale", DTYPES_FLOAT, err));
    TRY(operand_dtype(node, 5, "b_zero_point", DTYPES_8BIT, err));
    TRY(matmul_shape_init(&node->inputs[0]->shape, &node->inputs[3]->shape, &matmul, err));
    TRY(check_matmul_param(node, 0, 1, "a_scale", true, err));
    TRY(check_matmul_param(node, 0, 2, "a_zero_point", true, err));
    TRY(check_matmul_param(node, 3, 4, "b_scale", false, err));
    TRY(check_matmul_param(node, 3, 5, "b_zero_point", false, err));
    return infer_product(node, 6, &matmul.out, err);
}

static enum status infer_matmul_integer(struct node *node, struct error *err)
{
    struct matmul_shape matmul;
    TRY(operand_dtype(node, 0, "A", DTYPES_8BIT, err));
    TRY(operand_dtype(node, 1, "B", DTYPES_8BIT, err));
    TRY(operand_dtype(node, 2, "a_zero_point", DTYPES_8BIT, err));
    TRY(operand_dtype(node, 3, "b_zero_point", DTYPES_8BIT, err));
    TRY(matmul_shape_init(&node->inputs[0]->shape, &node->inputs[1]->shape, &matmul, err));
    TRY(check_matmul_param(node, 0, 2, "a_zero_point", true, err));
    TRY(check_matmul_param(node, 1, 3, "b_zero_point", false, err));
    return infer_output(node, 0, DTYPE_I32, &matmul.out, err);
}

static enum status infer_matmul_nbits(struct node *node, struct error *err)
{
    struct nbits_shape shape;
    struct matmul_shape matmul;
    TRY(operand_dtype(node, 0, "A", DTYPES_FLOAT, err));
    TRY(operand_dtype(node, 1, "B", DTYPE_BIT(U8), err));
    TRY(operand_dtype(node, 2, "scales", DTYPES_FLOAT, err));
    TRY(operand_dtype(node, 3, "zero_points", DTYPE_BIT(U8) | DTYPES_FLOAT, err));
    TRY(operand_dtype(node, 5, "bias", DTYPES_FLOAT, err));
    TRY(nbits_shape_init(node, &shape, err));
    TRY(matmul_shape_init(&node->inputs[0]->shape, &SHAPE((int64_t)shape.k, (int64_t)shape.n),
                          &matmul, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &matmul.out, err);
}

static enum status infer_qgemm(struct node *node, struct error *err)
{
    struct gemm_shape gemm;
    TRY(check_triple(node, 0, "A", err));
    TRY(operand_dtype(node, 3, "B", DTYPES_8BIT, err));
    TRY(operand_dtype(node, 4, "b_scale", DTYPES_FLOAT, err));
    TRY(operand_dtype(node, 5, "b_zero_point", DTYPES_8BIT, err));
    TRY(operand_dtype(node, 6, "C", DTYPE_BIT(I32), err));
    TRY(gemm_shape_init(node, &node->inputs[0]->shape, &node->inputs[3]->shape, &gemm, err));
    TRY(check_per_channel(node, 4, "b_scale", gemm.n, err));
    TRY(check_per_channel(node, 5, "b_zero_point", gemm.n, err));
    struct shape out = SHAPE((int64_t)gemm.m, (int64_t)gemm.n);
    TRY(operand_broadcasts(node, 6, "C", &out, err));
    return infer_product(node, 7, &out, err);
}

/* ---- com.microsoft, elementwise and pools ---- */

static enum status infer_qlinear_binary(struct node *node, struct error *err)
{
    struct shape out;
    TRY(check_triple(node, 0, "A", err));
    TRY(check_triple(node, 3, "B", err));
    TRY(check_output_params(node, 6, err));
    TRY(infer_broadcast(&node->inputs[0]->shape, &node->inputs[3]->shape, &out, err));
    return infer_output(node, 0, quantized_dtype(node, 7, node->inputs[0]->dtype), &out, err);
}

static enum status infer_qlinear_unary(struct node *node, struct error *err)
{
    TRY(check_triple(node, 0, "X", err));
    TRY(check_output_params(node, 3, err));
    return infer_output(node, 0, quantized_dtype(node, 4, node->inputs[0]->dtype),
                        &node->inputs[0]->shape, err);
}

static enum status infer_qlinear_softmax(struct node *node, struct error *err)
{
    int64_t axis = node_int(node, "axis", -1);
    TRY(infer_axis(&axis, node->inputs[0]->shape.rank, err));
    return infer_qlinear_unary(node, err);
}

static enum status infer_qlinear_where(struct node *node, struct error *err)
{
    struct shape out;
    TRY(operand_dtype(node, 0, "condition", DTYPE_BIT(BOOL), err));
    TRY(check_triple(node, 1, "X", err));
    TRY(check_triple(node, 4, "Y", err));
    TRY(check_output_params(node, 7, err));
    TRY(infer_broadcast(&node->inputs[1]->shape, &node->inputs[4]->shape, &out, err));
    TRY(infer_broadcast(&node->inputs[0]->shape, &out, &out, err));
    return infer_output(node, 0, quantized_dtype(node, 8, node->inputs[1]->dtype), &out, err);
}

static enum status infer_qlinear_concat(struct node *node, struct error *err)
{
    int64_t axis = node_int(node, "axis", INT64_MIN);
    TRY(check_output_params(node, 0, err));
    if (node->input_count % 3 != 2)
        return error_set(err, STATUS_MODEL,
                         "%zu inputs, expected the output's scale and zero "
                         "point, then triples",
                         node->input_count);
    TRY(check_triple(node, 2, "an operand", err));
    struct shape out = node->inputs[2]->shape;
    TRY(infer_axis(&axis, out.rank, err));
    for (size_t i = 5; i < node->input_count; i += 3) {
        TRY(check_triple(node, i, "an operand", err));
        struct shape shape = node->inputs[i]->shape;
        int64_t extent = shape.rank == out.rank ? shape.dims[axis] : 0, sum;
        if (shape.rank == out.rank)
            shape.dims[axis] = out.dims[axis];
        if (!shape_equal(&shape, &out) || __builtin_add_overflow(out.dims[axis], extent, &sum)) {
            char left[SHAPE_TEXT], right[SHAPE_TEXT];
            return error_set(err, STATUS_SHAPE, "shapes %s and %s cannot be joined along axis %lld",
                             shape_text(&out, left), shape_text(&node->inputs[i]->shape, right),
                             (long long)axis);
        }
        out.dims[axis] = sum;
    }
    return infer_output(node, 0, quantized_dtype(node, 1, node->inputs[2]->dtype), &out, err);
}

static enum status infer_qlinear_average_pool(struct node *node, struct error *err)
{
    bool last = node_int(node, "channels_last", 0) != 0;
    struct window window;
    TRY(check_triple(node, 0, "X", err));
    TRY(check_output_params(node, 3, err));
    TRY(pool_window_init(node, &node->inputs[0]->shape, last, &window, err));
    struct shape out = node->inputs[0]->shape;
    for (int i = 0; i < window.spatial; i++)
        out.dims[(last ? 1 : 2) + i] = window.out[i];
    return infer_output(node, 0, quantized_dtype(node, 4, node->inputs[0]->dtype), &out, err);
}

static enum status infer_qlinear_global_average_pool(struct node *node, struct error *err)
{
    bool last = node_int(node, "channels_last", 0) != 0;
    TRY(check_triple(node, 0, "X", err));
    TRY(check_output_params(node, 3, err));
    TRY(operand_rank(node, 0, "X", 3, TENSOR_MAX_RANK, err));
    struct shape out = node->inputs[0]->shape;
    for (int i = 2; i < out.rank; i++) {
        int64_t *extent = &out.dims[last ? i - 1 : i];
        if (*extent < 1)
            return error_set(err, STATUS_SHAPE, "a spatial dimension of the input is empty");
        *extent = 1;
    }
    return infer_output(node, 0, quantized_dtype(node, 4, node->inputs[0]->dtype), &out, err);
}

/* ---- made by passes ---- */

static enum status infer_lookup(struct node *node, struct error *err)
{
    TRY(operand_dtype(node, 0, "x", DTYPES_8BIT, err));
    TRY(operand_dtype(node, 1, "table", DTYPES_8BIT, err));
    TRY(operand_vector(node, 1, "table", 256, err));
    return infer_output(node, 0, node->inputs[1]->dtype, &node->inputs[0]->shape, err);
}

/* ---- batches ---- */

static int quantize_beside(const struct node *node, size_t i, int axis)
{
    const int rank = node->inputs[i]->shape.rank;
    return rank > 1 ? axis : rank == 1 && batch_attribute_axis(node, 1) == axis ? 0 : BATCH_WHOLE;
}

static const struct batch_rule quantize_rule = {batch_of_first, quantize_beside};

static int qlinear_matmul_axis(const struct node *node, const int *axes)
{
    return batch_of_matmul(node, axes, 3);
}

static const struct batch_rule qlinear_matmul_rule = {qlinear_matmul_axis, batch_beside_matmul};

static int qgemm_axis(const struct node *node, const int *axes)
{
    return batch_of_first(node, axes) == (node_int(node, "transA", 0) ? 1 : 0) ? 0 : BATCH_MIXES;
}

static int qgemm_beside(const struct node *node, size_t i, int axis)
{
    return i == 6 ? batch_aligned(node, i, axis) : BATCH_OTHER;
}

static const struct batch_rule qgemm_rule = {qgemm_axis, qgemm_beside};

/* Scales have no axis. */
static int qlinear_concat_beside(const struct node *node, size_t i, int axis)
{
    return node->inputs[i]->shape.rank > 1 ? axis : BATCH_WHOLE;
}

static const struct batch_rule qlinear_concat_rule = {batch_of_concat, qlinear_concat_beside};

/* ---- reference kernels ---- */

/* ---- element by element, with the scale each belongs to ---- */

struct block_cursor {
    const struct quant_layout *layout;
    size_t o, i, n;
    size_t at; /* of the scale */
};

static void cursor_next(struct block_cursor *c)
{
    const struct quant_layout *layout = c->layout;
    c->at += layout->inner_step;
    if (++c->n < layout->inner)
        return;
    c->n = 0;
    if (++c->i == layout->extent) {
        c->i = 0;
        c->o++;
    }
    c->at = c->o * layout->outer_step + c->i / layout->block * layout->block_step;
}

struct params {
    const double *scale;
    int64_t *zeros; /* as many as scales; NULL: all 0 */
};

static enum status params_open(const struct kernel_args *args, struct params *ret,
                               struct error *err)
{
    const struct tensor *scale = args->in[1];
    const struct tensor *zero = kernel_input(args, 2);
    size_t count = shape_count(&scale->shape);
    TRY(operands_open(args, 1, 1, &ret->scale, err));
    if (!zero)
        return STATUS_OK;
    ret->zeros = kernel_scratch(args, count, sizeof *ret->zeros, err);
    if (!ret->zeros)
        return STATUS_NO_MEMORY;
    if (shape_count(&zero->shape) == count)
        load_integers(zero->data, zero->dtype, ret->zeros, count);
    else
        for (size_t i = 0; i < count; i++)
            ret->zeros[i] = tensor_int(zero, 0);
    return STATUS_OK;
}

/* x / scale, rounded to the type that the operator divides in. */
static double divide(double x, double scale, enum dtype precision)
{
    switch (precision) {
    case DTYPE_F64:
        return x / scale;
    case DTYPE_F16:
        return half_to_float(float_to_half(half_to_float(float_to_half((float)x)) /
                                           half_to_float(float_to_half((float)scale))));
    case DTYPE_BF16:
        return bfloat16_to_float(
            float_to_bfloat16(bfloat16_to_float(float_to_bfloat16((float)x)) /
                              bfloat16_to_float(float_to_bfloat16((float)scale))));
    default:
        return (double)((float)x / (float)scale);
    }
}

/* ---- 8 bits and float32, one scale for `n` neighbours: what exporters write ---- */

/* Reaches past every sum of an 8-bit value and zero point; adding and taking away ROUND rounds
 * half to even, in the vector instructions that every x86-64 has. */
#define BEYOND 1024.0f
#define ROUND  12582912.0f

#define QUANTIZE_RUN(name, type, low, high)                                                        \
    static void name(const float *src, type *dst, size_t n, float scale, float zero)               \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            float q = src[i] / scale;                                                              \
            q = q > -BEYOND ? q : -BEYOND; /* also NaN */                                          \
            q = q < BEYOND ? q : BEYOND;                                                           \
            q = (q + ROUND) - ROUND + zero;                                                        \
            q = q > (low) ? q : (low);                                                             \
            q = q < (high) ? q : (high);                                                           \
            dst[i] = (type)(int)q;                                                                 \
        }                                                                                          \
    }
QUANTIZE_RUN(quantize_run_i8, int8_t, -128.0f, 127.0f)
QUANTIZE_RUN(quantize_run_u8, uint8_t, 0.0f, 255.0f)

#define DEQUANTIZE_RUN(name, type)                                                                 \
    static void name(const type *src, float *dst, size_t n, float scale, int zero)                 \
    {                                                                                              \
        for (size_t i = 0; i < n; i++)                                                             \
            dst[i] = (float)((int)src[i] - zero) * scale;                                          \
    }
DEQUANTIZE_RUN(dequantize_run_i8, int8_t)
DEQUANTIZE_RUN(dequantize_run_u8, uint8_t)

static bool is_byte(enum dtype dtype)
{
    return dtype == DTYPE_I8 || dtype == DTYPE_U8;
}

/* Neighbours share a scale, and the zero point is a byte too (it may be of any integer type). */
static bool has_runs(const struct kernel_args *args, const struct quant_layout *layout)
{
    const struct tensor *zero = kernel_input(args, 2);
    return !layout->inner_step && (!zero || is_byte(zero->dtype));
}

/* Calls one of the four above for every run that shares a scale. */
static void convert_runs(const struct quant_layout *layout, const struct params *params,
                         const struct tensor *x, struct tensor *y)
{
    size_t n = layout->inner, at = 0;
    for (size_t run = 0; run < layout->outer * layout->extent; run++, at += n) {
        size_t outer = run / layout->extent, i = run % layout->extent;
        size_t param = outer * layout->outer_step + i / layout->block * layout->block_step;
        float scale = (float)params->scale[param];
        int zero = params->zeros ? (int)params->zeros[param] : 0;
        if (x->dtype == DTYPE_I8)
            dequantize_run_i8((const int8_t *)x->data + at, (float *)y->data + at, n, scale, zero);
        else if (x->dtype == DTYPE_U8)
            dequantize_run_u8((const uint8_t *)x->data + at, (float *)y->data + at, n, scale, zero);
        else if (y->dtype == DTYPE_I8)
            quantize_run_i8((const float *)x->data + at, (int8_t *)y->data + at, n, scale,
                            (float)zero);
        else
            quantize_run_u8((const float *)x->data + at, (uint8_t *)y->data + at, n, scale,
                            (float)zero);
    }
}

KERNEL(kernel_quantize)
{
    const struct tensor *x = args->in[0], *scale = args->in[1];
    struct tensor *y = *args->out[0];
    int64_t precision = node_int(args->node, "precision", 0);
    enum dtype divides_in = precision ? (enum dtype)precision : scale->dtype;
    struct quant_layout layout;
    struct params params = {0};
    struct quant quant = {0};
    TRY(quant_layout_init(args->node, &x->shape, &scale->shape, &layout, err));
    quant_range(y->dtype, &quant.low, &quant.high);
    TRY(params_open(args, &params, err));
    size_t count = shape_count(&x->shape);
    if (has_runs(args, &layout) && x->dtype == DTYPE_F32 && divides_in == DTYPE_F32 &&
        is_byte(y->dtype)) {
        convert_runs(&layout, &params, x, y);
        return STATUS_OK;
    }
    struct block_cursor cursor = {.layout = &layout};
    for (size_t at = 0; at < count; at += BLOCK) {
        double values[BLOCK];
        int64_t stored[BLOCK];
        size_t n = count - at < BLOCK ? count - at : BLOCK;
        load_doubles(element(x->data, x->dtype, at), x->dtype, values, n);
        for (size_t i = 0; i < n; i++, cursor_next(&cursor)) {
            double s = params.scale[cursor.at];
            quant.zero = params.zeros ? params.zeros[cursor.at] : 0;
            stored[i] = quant_round(&quant, divide(values[i], s, divides_in));
        }
        store_integers(stored, y->dtype, element_at(y->data, y->dtype, at), n);
    }
    return STATUS_OK;
}

KERNEL(kernel_dequantize)
{
    const struct tensor *x = args->in[0], *scale = args->in[1];
    struct tensor *y = *args->out[0];
    struct quant_layout layout;
    struct params params = {0};
    TRY(quant_layout_init(args->node, &x->shape, &scale->shape, &layout, err));
    TRY(params_open(args, &params, err));
    size_t count = shape_count(&x->shape);
    if (has_runs(args, &layout) && is_byte(x->dtype) && y->dtype == DTYPE_F32) {
        convert_runs(&layout, &params, x, y);
        return STATUS_OK;
    }
    struct block_cursor cursor = {.layout = &layout};
    for (size_t at = 0; at < count; at += BLOCK) {
        int64_t stored[BLOCK];
        double values[BLOCK];
        size_t n = count - at < BLOCK ? count - at : BLOCK;
        load_integers(element(x->data, x->dtype, at), x->dtype, stored, n);
        for (size_t i = 0; i < n; i++, cursor_next(&cursor)) {
            double s = params.scale[cursor.at];
            int64_t difference = stored[i] - (params.zeros ? params.zeros[cursor.at] : 0);
            values[i] = y->dtype == DTYPE_F64 ? (double)difference * s
                                              : (double)((float)difference * (float)s);
        }
        store_doubles(values, y->dtype, element_at(y->data, y->dtype, at), n);
    }
    return STATUS_OK;
}

/* ---- DynamicQuantizeLinear ---- */

/* The scale for all of x, and the zero point; the range includes 0. */
static struct quant dynamic_terms(const struct tensor *x)
{
    const float *src = x->data;
    float min = 0, max = 0;
    for (size_t i = 0; i < shape_count(&x->shape); i++) {
        min = src[i] < min ? src[i] : min;
        max = src[i] > max ? src[i] : max;
    }
    const float scale = max == min ? 1 : (max - min) / 255;
    struct quant quant = {.low = 0, .high = 255, .scale = (double)scale};
    quant.zero = quant_round(&quant, (double)(-min / scale));
    return quant;
}

KERNEL(kernel_dynamic_round)
{
    const struct tensor *x = args->in[0];
    const float *src = x->data;
    float *y = (*args->out[0])->data;
    const struct quant quant = dynamic_terms(x);
    const float scale = (float)quant.scale;
    for (size_t i = 0; i < shape_count(&x->shape); i++)
        y[i] = (float)(quant_round(&quant, (double)(src[i] / scale)) - quant.zero) * scale;
    return STATUS_OK;
}

KERNEL(kernel_dynamic_quantize)
{
    const struct tensor *x = args->in[0];
    const float *src = x->data;
    const size_t count = shape_count(&x->shape);
    const struct quant quant = dynamic_terms(x);
    const float scale = (float)quant.scale;
    struct tensor *y = kernel_result(args, 0), *y_scale = kernel_result(args, 1);
    struct tensor *zero = kernel_result(args, 2);
    for (size_t i = 0; i < count && y; i++)
        ((uint8_t *)y->data)[i] = (uint8_t)quant_round(&quant, src[i] / scale);
    if (y_scale)
        *(float *)y_scale->data = scale;
    if (zero)
        *(uint8_t *)zero->data = (uint8_t)quant.zero;
    return STATUS_OK;
}

/* ---- table ---- */

/* min_inputs stops before the first zero point that may be left out; the inference functions check
 * the operands behind it. */

#define WINDOW_ATTRS "auto_pad:string dilations:ints kernel_shape:ints pads:ints strides:ints"

static const struct op_info entries[] = {
    {OP_QUANTIZE_LINEAR, 10, 0, 2, 3, 1, 1, OP_PLAIN,
     "axis:int saturate:int block_size:int output_dtype:int precision:int", infer_quantize,
     &quantize_rule, work_elements, kernel_quantize},
    {OP_DEQUANTIZE_LINEAR, 10, 0, 2, 3, 1, 1, OP_PLAIN, "axis:int block_size:int output_dtype:int",
     infer_dequantize, &quantize_rule, work_elements, kernel_dequantize},
    {OP_DYNAMIC_QUANTIZE_LINEAR, 11, 0, 1, 1, 1, 3, OP_PLAIN, NULL, infer_dynamic_quantize,
     &batch_mixes, work_elements, kernel_dynamic_quantize},
    {OP_QLINEAR_CONV, 10, 0, 6, 9, 1, 1, OP_HEAVY, WINDOW_ATTRS " group:int", infer_qlinear_conv,
     &batch_by_sample, work_qlinear_conv, kernel_qlinear_conv},
    {OP_CONV_INTEGER, 10, 0, 2, 4, 1, 1, OP_HEAVY, WINDOW_ATTRS " group:int", infer_conv_integer,
     &batch_by_sample, work_conv, kernel_conv_integer},
    {OP_QLINEAR_MATMUL, 10, 0, 6, 8, 1, 1, OP_HEAVY, NULL, infer_qlinear_matmul,
     &qlinear_matmul_rule, work_qlinear_product, kernel_qlinear_matmul},
    {OP_MATMUL_INTEGER, 10, 0, 2, 4, 1, 1, OP_HEAVY, NULL, infer_matmul_integer, &batch_matmul,
     work_product, kernel_matmul_integer},
    {OP_QGEMM, 1, 0, 6, 9, 1, 1, OP_HEAVY, "alpha:float transA:int transB:int", infer_qgemm,
     &qgemm_rule, work_qlinear_product, kernel_qgemm},
    {OP_MATMUL_NBITS, 1, 0, 3, 6, 1, 1, OP_HEAVY,
     "K:int N:int bits:int block_size:int accuracy_level:int weight_prepacked:int",
     infer_matmul_nbits, &batch_beside_last, work_matmul_nbits, kernel_matmul_nbits},
    {OP_QLINEAR_ADD, 1, 0, 2, 8, 1, 1, OP_PLAIN, NULL, infer_qlinear_binary, &batch_elementwise,
     work_elements, kernel_qlinear_binary},
    {OP_QLINEAR_MUL, 1, 0, 2, 8, 1, 1, OP_PLAIN, NULL, infer_qlinear_binary, &batch_elementwise,
     work_elements, kernel_qlinear_binary},
    {OP_QLINEAR_CONCAT, 1, 0, 5, OP_VARIADIC, 1, 1, OP_PLAIN, "axis:int", infer_qlinear_concat,
     &qlinear_concat_rule, work_elements, kernel_qlinear_concat},
    {OP_QLINEAR_SIGMOID, 1, 0, 2, 5, 1, 1, OP_PROBABILITIES, NULL, infer_qlinear_unary,
     &batch_elementwise, work_elements, kernel_qlinear_unary},
    {OP_QLINEAR_LEAKY_RELU, 1, 0, 2, 5, 1, 1, OP_PLAIN, "alpha:float", infer_qlinear_unary,
     &batch_elementwise, work_elements, kernel_qlinear_unary},
    {OP_QLINEAR_SOFTMAX, 1, 0, 2, 5, 1, 1, OP_PROBABILITIES, "axis:int opset:int",
     infer_qlinear_softmax, &batch_before_last, work_elements, kernel_qlinear_softmax},
    {OP_QLINEAR_WHERE, 1, 0, 8, 9, 1, 1, OP_PLAIN, NULL, infer_qlinear_where, &batch_elementwise,
     work_elements, kernel_qlinear_where},
    {OP_QLINEAR_AVERAGE_POOL, 1, 0, 2, 5, 1, 1, OP_HEAVY,
     WINDOW_ATTRS " ceil_mode:int channels_last:int count_include_pad:int",
     infer_qlinear_average_pool, &batch_by_sample, work_window, kernel_qlinear_average_pool},
    {OP_QLINEAR_GLOBAL_AVERAGE_POOL, 1, 0, 2, 5, 1, 1, OP_PLAIN, "channels_last:int",
     infer_qlinear_global_average_pool, &batch_by_sample, work_elements,
     kernel_qlinear_global_average_pool},
    {OP_LOOKUP, 1, 0, 2, 2, 1, 1, OP_UNARY, NULL, infer_lookup, &batch_unary, work_elements,
     kernel_lookup},
};

const struct op_family ops_quantize = {entries, COUNT_OF(entries)};
