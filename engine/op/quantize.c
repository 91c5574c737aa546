/* QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear; and DynamicRound, made by passes.
 *
 * A zero point with another 8-bit type than its tensor is accepted (the model zoo's
 * resnet50-v1-12-qdq has int8 data with uint8 zero points); only its value matters. */
#include "engine/op/family.h"
#include "engine/op/quant.h"

/* ---- for all quantized operators: ranges, scales and zero points ---- */

void quant_range(enum dtype dtype, int64_t *ret_low, int64_t *ret_high)
{
    switch (dtype) {
#define RANGE_CASE(name, type, wide)                                                               \
    case DTYPE_##name:                                                                             \
        *ret_low = (type)-1 < 0 ? -(INT64_C(1) << (8 * sizeof(type) - 1)) : 0;                     \
        *ret_high = (INT64_C(1) << (8 * sizeof(type) - ((type)-1 < 0))) - 1;                       \
        return;
        RANGE_CASE(I8, int8_t, )
        RANGE_CASE(U8, uint8_t, )
        RANGE_CASE(I16, int16_t, )
        RANGE_CASE(U16, uint16_t, )
#undef RANGE_CASE
    default:
        *ret_low = INT32_MIN;
        *ret_high = INT32_MAX;
    }
}

struct quant quant_read(const struct kernel_args *args, size_t scale, enum dtype dtype)
{
    const struct tensor *s = kernel_input(args, scale), *z = kernel_input(args, scale + 1);
    struct quant quant = {.scale = s ? tensor_number(s, 0) : 1, .zero = z ? tensor_int(z, 0) : 0};
    quant_range(dtype, &quant.low, &quant.high);
    return quant;
}

enum dtype quantized_dtype(const struct node *node, size_t zero_point, enum dtype otherwise)
{
    const struct value *value = node_input(node, zero_point);
    return value ? value->dtype : otherwise;
}

/* ---- QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear ---- */

/* Which scale an element of x has, if x is seen as [outer, extent, inner]. The scale of element
 * [o, i, n] is scale[o * outer_step + (i / block) * block_step + n * inner_step]. */
struct quant_layout {
    size_t outer, extent, inner;
    size_t block, outer_step, block_step, inner_step;
};

static enum status misfit(const struct shape *x, const struct shape *scale, int64_t axis,
                          int64_t block, struct error *err)
{
    return error_set(err, STATUS_SHAPE,
                     "the scale has shape %s, which does not fit an input of shape %s at axis %lld "
                     "(block_size %lld)",
                     SHAPE_STRING(scale), SHAPE_STRING(x), (long long)axis, (long long)block);
}

/* Finds the layout of `scale`: one number, a vector along an axis, or one number per block. For
 * opsets 10 to 28. */
static enum status quant_layout_init(const struct node *node, const struct shape *x,
                                     const struct shape *scale, struct quant_layout *ret,
                                     struct error *err)
{
    int64_t axis = node_int(node, "axis", 1), block = node_int(node, "block_size", 0);
    bool blocked = block != 0 && scale->rank == x->rank && x->rank > 0;
    if (!blocked && shape_count(scale) == 1) {
        *ret = (struct quant_layout){.outer = 1, .extent = 1, .inner = shape_count(x), .block = 1};
        return STATUS_OK;
    }
    if (node->opset < 13)
        return error_set(err, STATUS_UNSUPPORTED, "a scale per channel needs opset 13 or later");
    /* a vector has no axis 1, the default: use axis 0 */
    if (x->rank == 1 && axis == 1)
        axis = 0;
    TRY(infer_axis(&axis, x->rank, err));
    int a = (int)axis;
    struct quant_layout layout = {.outer = resolve_extent(x, 0, a),
                                  .extent = (size_t)x->dims[a],
                                  .inner = resolve_extent(x, a + 1, x->rank),
                                  .block = 1};
    if (!blocked) {
        if (scale->rank != 1 || scale->dims[0] != x->dims[a])
            return misfit(x, scale, axis, block, err);
        layout.block_step = 1;
        *ret = layout;
        return STATUS_OK;
    }
    if (block < 0)
        return error_set(err, STATUS_MODEL, "block_size is %lld, expected at least 1",
                         (long long)block);
    for (int i = 0; i < x->rank; i++) {
        int64_t blocks = x->dims[i] / block + (x->dims[i] % block != 0);
        if (scale->dims[i] != (i == a ? blocks : x->dims[i]))
            return misfit(x, scale, axis, block, err);
    }
    layout.block = (size_t)block;
    layout.inner_step = 1;
    layout.block_step = layout.inner;
    layout.outer_step = layout.inner * (size_t)scale->dims[a];
    *ret = layout;
    return STATUS_OK;
}

static enum status check_scale(const struct node *node, struct error *err)
{
    const struct value *scale = node->inputs[1], *zero = node_input(node, 2);
    struct quant_layout layout;
    TRY(quant_layout_init(node, &node->inputs[0]->shape, &scale->shape, &layout, err));
    if (!zero || shape_count(&zero->shape) == 1 || shape_equal(&zero->shape, &scale->shape))
        return STATUS_OK;
    return error_set(err, STATUS_SHAPE, "the zero point has shape %s, but the scale has shape %s",
                     SHAPE_STRING(&zero->shape), SHAPE_STRING(&scale->shape));
}

static enum status check_output_dtype(int64_t number, unsigned allowed, struct error *err)
{
    if (number > 0 && number <= DTYPE_BF16 && allowed >> number & 1)
        return STATUS_OK;
    return error_set(err, STATUS_UNSUPPORTED,
                     "output_dtype is %lld, which lensd does not support here", (long long)number);
}

static enum status infer_quantize(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0], *zero = node_input(node, 2);
    int64_t wanted = node_int(node, "output_dtype", 0), precision = node_int(node, "precision", 0);
    TRY(check_scale(node, err));
    if (wanted)
        TRY(check_output_dtype(wanted, DTYPES_QUANTIZED, err));
    if (wanted && zero && (enum dtype)wanted != zero->dtype)
        return error_set(err, STATUS_MODEL, "output_dtype is %s, but y_zero_point is %s",
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
    /* The importer reads constants of 8-bit floats as float32. */
    const unsigned stored = DTYPES_QUANTIZED | DTYPE_BIT(I32) | (x->known ? DTYPE_BIT(F32) : 0);
    TRY(operand_dtype(node, 0, "x", stored, err));
    TRY(operand_dtype(node, 2, "x_zero_point", stored, err));
    if (x->dtype == DTYPE_F32)
        TRY(operand_same_dtype(node, 2, "x_zero_point", 0, err));
    TRY(check_scale(node, err));
    if (wanted)
        TRY(check_output_dtype(wanted, DTYPES_FLOAT, err));
    return infer_output(node, 0, wanted ? (enum dtype)wanted : node->inputs[1]->dtype, &x->shape,
                        err);
}

static enum status infer_dynamic_quantize(struct node *node, struct error *err)
{
    TRY(infer_output(node, 0, DTYPE_U8, &node->inputs[0]->shape, err));
    TRY(infer_output(node, 1, DTYPE_F32, &SHAPE_SCALAR, err));
    return infer_output(node, 2, DTYPE_U8, &SHAPE_SCALAR, err);
}

static int quantize_beside(const struct node *node, size_t i, int axis)
{
    const int rank = node->inputs[i]->shape.rank;
    return rank > 1                                                               ? axis
           : rank == 1 && node_axis(node, 1, node->inputs[0]->shape.rank) == axis ? 0
                                                                                  : BATCH_WHOLE;
}

static const struct batch_rule quantize_rule = {batch_of_first, quantize_beside};

/* ---- element by element, each with its scale ---- */

struct block_cursor {
    const struct quant_layout *layout;
    size_t o, i, n; /* the element's place in [outer, extent, inner] */
    size_t at;      /* position of the element's scale */
};

/* Moves the cursor past elements that share a scale, at most `most`, and returns their number. */
static size_t cursor_pass(struct block_cursor *c, size_t most)
{
    const struct quant_layout *layout = c->layout;
    const size_t left = layout->inner_step ? 1 : layout->inner - c->n;
    const size_t passed = left < most ? left : most;
    c->at += layout->inner_step;
    c->n += passed;
    if (c->n < layout->inner)
        return passed;
    c->n = 0;
    if (++c->i == layout->extent) {
        c->i = 0;
        c->o++;
    }
    c->at = c->o * layout->outer_step + c->i / layout->block * layout->block_step;
    return passed;
}

struct params {
    const double *scale;
    double *zeros; /* as many as there are scales; NULL: all zero points are 0 */
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
    TRY(allocated(ret->zeros));
    for (size_t i = 0; i < count; i++)
        ret->zeros[i] = tensor_number(zero, shape_count(&zero->shape) == count ? i : 0);
    return STATUS_OK;
}

static float rounded(double x, enum dtype dtype)
{
    const float single = (float)x;
    return dtype == DTYPE_F16    ? half_to_float(float_to_half(single))
           : dtype == DTYPE_BF16 ? bfloat16_to_float(float_to_bfloat16(single))
                                 : single;
}

/* x / scale, computed in the operator's precision. */
static double divide(double x, double scale, enum dtype precision)
{
    if (precision == DTYPE_F64)
        return x / scale;
    return (double)rounded((double)(rounded(x, precision) / rounded(scale, precision)), precision);
}

/* QuantizeLinear and DequantizeLinear. */
KERNEL(kernel_quantize)
{
    const struct tensor *x = args->in[0], *scale = args->in[1];
    struct tensor *y = args->out[0];
    const bool quantizes = args->node->op == OP_QUANTIZE_LINEAR;
    int64_t precision = node_int(args->node, "precision", 0);
    enum dtype divides_in = precision ? (enum dtype)precision : scale->dtype;
    struct quant_layout layout;
    struct params params = {0};
    struct quant quant = {0};
    TRY(quant_layout_init(args->node, &x->shape, &scale->shape, &layout, err));
    if (quantizes)
        quant_range(y->dtype, &quant.low, &quant.high);
    TRY(params_open(args, &params, err));
    size_t count = shape_count(&x->shape);
    struct block_cursor cursor = {.layout = &layout};
    FOR_BLOCKS(at, n, count) {
        double values[BLOCK]; /* exact: stored numbers have at most 32 bits */
        load_doubles(element(x->data, x->dtype, at), x->dtype, values, n);
        for (size_t i = 0, end; i < n; i = end) {
            const double s = params.scale[cursor.at];
            const double zero = params.zeros ? params.zeros[cursor.at] : 0;
            quant.zero = (int64_t)zero;
            end = i + cursor_pass(&cursor, n - i);
            for (size_t k = i; k < end; k++)
                values[k] =
                    quantizes ? (double)quant_round(&quant, divide(values[k], s, divides_in))
                    : y->dtype == DTYPE_F64 ? (values[k] - zero) * s
                                            : (double)((float)(values[k] - zero) * (float)s);
        }
        store_doubles(values, y->dtype, element_at(y->data, y->dtype, at), n);
    }
    return STATUS_OK;
}

/* ---- DynamicQuantizeLinear ---- */

/* Returns scale and zero point of x for the range of its numbers, widened to include 0. */
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
    float *y = args->out[0]->data;
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

const struct op_info ops_quantize[] = {
    OP_ROW(QUANTIZE_LINEAR, 10, 2, 3, "x:float|int32 y_scale:float y_zero_point:quantized",
           OP_PLAIN, "axis:int saturate:int block_size:int output_dtype:int precision:int",
           quantize, &quantize_rule),
    OP_ROW_OF(DEQUANTIZE_LINEAR, 10, 2, 3, "x x_scale:float", OP_PLAIN,
              "axis:int block_size:int output_dtype:int", dequantize, &quantize_rule, quantize),
    {OP_DYNAMIC_QUANTIZE_LINEAR, 11, 0, 1, 1, 1, 3, "x:float32", OP_PLAIN, NULL,
     infer_dynamic_quantize, &batch_mixes, work_elements, kernel_dynamic_quantize},
    OP_ROW_OF(DYNAMIC_ROUND, 1, 1, 1, "x:float32", OP_UNARY, NULL, like, &batch_mixes,
              dynamic_round),
    {0},
};
