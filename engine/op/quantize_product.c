/* Quantized convolutions and matrix products. Zero points are subtracted from the operands in
 * int32, and the differences multiplied in int32 (overflow wraps, as the specification allows). The
 * sums are scaled and, if the result is quantized, rounded half to even and saturated. */

#include "engine/op/family.h"
#include "engine/op/quant.h"

/* Infers the output: quantized by operands `scale` and `scale + 1`, or float32 without them. */
static enum status infer_product(struct node *node, size_t scale, const struct shape *shape,
                                 struct error *err)
{
    if (!node_input(node, scale))
        return infer_output(node, 0, DTYPE_F32, shape, err);
    return infer_output(node, 0, quantized_dtype(node, scale + 1, node->inputs[0]->dtype), shape,
                        err);
}

/* Checks that operand i has one number, or one per output channel. */
static enum status check_per_channel(const struct node *node, size_t i, const char *name,
                                     size_t channels, struct error *err)
{
    const struct value *value = node_input(node, i);
    if (!value || shape_count(&value->shape) == 1)
        return STATUS_OK;
    return operand_has_shape(node, i, name, &SHAPE((int64_t)channels), err);
}

static enum status infer_qlinear_conv(struct node *node, struct error *err)
{
    struct conv_shape conv;
    TRY(conv_shape_init(node, &node->inputs[0]->shape, &node->inputs[3]->shape, &conv, err));
    TRY(check_per_channel(node, 4, "w_scale", conv.out_channels, err));
    TRY(check_per_channel(node, 5, "w_zero_point", conv.out_channels, err));
    TRY(operand_has_shape(node, 8, "B", &SHAPE((int64_t)conv.out_channels), err));
    return infer_product(node, 6, &conv.out, err);
}

static enum status infer_conv_integer(struct node *node, struct error *err)
{
    struct conv_shape conv;
    TRY(conv_shape_init(node, &node->inputs[0]->shape, &node->inputs[1]->shape, &conv, err));
    TRY(check_per_channel(node, 3, "w_zero_point", conv.out_channels, err));
    return infer_output(node, 0, DTYPE_I32, &conv.out, err);
}

/* Checks operand `param`, a scale or zero point of operand `operand`, and sets *ret to its layout.
 */
static enum status param_layout(const struct node *node, size_t operand, size_t param,
                                const char *name, bool rows, struct matmul_param *ret,
                                struct error *err)
{
    const struct value *value = node_input(node, param);
    *ret = (struct matmul_param){0};
    if (!value)
        return STATUS_OK;
    return matmul_param_init(&node->inputs[operand]->shape, &value->shape, rows, name, ret, err);
}

static enum status infer_qlinear_matmul(struct node *node, struct error *err)
{
    struct matmul_shape matmul;
    struct matmul_param ignored;
    TRY(matmul_shape_init(&node->inputs[0]->shape, &node->inputs[3]->shape, &matmul, err));
    TRY(param_layout(node, 0, 1, "a_scale", true, &ignored, err));
    TRY(param_layout(node, 0, 2, "a_zero_point", true, &ignored, err));
    TRY(param_layout(node, 3, 4, "b_scale", false, &ignored, err));
    TRY(param_layout(node, 3, 5, "b_zero_point", false, &ignored, err));
    return infer_product(node, 6, &matmul.out, err);
}

static enum status infer_matmul_integer(struct node *node, struct error *err)
{
    struct matmul_shape matmul;
    struct matmul_param ignored;
    TRY(matmul_shape_init(&node->inputs[0]->shape, &node->inputs[1]->shape, &matmul, err));
    TRY(param_layout(node, 0, 2, "a_zero_point", true, &ignored, err));
    TRY(param_layout(node, 1, 3, "b_zero_point", false, &ignored, err));
    return infer_output(node, 0, DTYPE_I32, &matmul.out, err);
}

static enum status infer_matmul_nbits(struct node *node, struct error *err)
{
    struct nbits_shape shape;
    struct matmul_shape matmul;
    TRY(nbits_shape_init(node, &shape, err));
    TRY(matmul_shape_init(&node->inputs[0]->shape, &SHAPE((int64_t)shape.k, (int64_t)shape.n),
                          &matmul, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &matmul.out, err);
}

static enum status infer_qgemm(struct node *node, struct error *err)
{
    struct gemm_shape gemm;
    TRY(gemm_shape_init(node, &node->inputs[0]->shape, &node->inputs[3]->shape, &gemm, err));
    TRY(check_per_channel(node, 4, "b_scale", gemm.n, err));
    TRY(check_per_channel(node, 5, "b_zero_point", gemm.n, err));
    struct shape out = SHAPE((int64_t)gemm.m, (int64_t)gemm.n);
    TRY(operand_broadcasts(node, 6, "C", &out, err));
    return infer_product(node, 7, &out, err);
}

/* Maps elements of an operand to zero points. Every `inner` elements are a line with one zero
 * point, number (line % lines). Each matrix of `matrix` elements has `step` zero points of its own,
 * or all share them if `step` is 0. If `inner` is 0, all elements share one zero point. */
struct zero_layout {
    size_t inner, lines, matrix, step;
};

/* Makes an int32 copy of operand i minus its zero points, operand `zero`. */
static enum status widen_operand(const struct kernel_args *args, size_t i, size_t zero,
                                 struct zero_layout layout, int32_t **ret, struct error *err)
{
    const struct tensor *src = args->in[i], *zeros = kernel_input(args, zero);
    const size_t count = shape_count(&src->shape);
    int32_t *dst = *ret = kernel_scratch(args, count, sizeof *dst, err);
    TRY(allocated(dst));
    convert_row(src->data, src->dtype, dst, DTYPE_I32, count);
    if (!layout.inner || (zeros && shape_count(&zeros->shape) == 1)) /* one zero point */
        layout = (struct zero_layout){count, 1, count, 0};
    for (size_t at = 0; zeros && at < count; at += layout.inner) {
        const size_t line = at / layout.inner % layout.lines;
        const int32_t point = (int32_t)tensor_int(zeros, at / layout.matrix * layout.step + line);
        for (size_t k = at; k < at + layout.inner; k++)
            dst[k] -= point;
    }
    return STATUS_OK;
}

/* dst = sums * factor, as float32 or stored with `quant`; n elements from element `at` of y on. The
 * product is rounded to float32 before it is rounded to an integer, as in ONNX Runtime: values that
 * float32 cannot distinguish from a tie are ties. */
static void finish_sums(const int32_t *sums, size_t n, float factor, const struct quant *quant,
                        struct tensor *y, size_t at)
{
    int64_t stored[BLOCK];
    if (y->dtype == DTYPE_F32) {
        for (size_t i = 0; i < n; i++)
            ((float *)y->data)[at + i] = (float)sums[i] * factor;
        return;
    }
    factor /= (float)quant->scale;
    FOR_BLOCKS(i, count, n) {
        for (size_t k = 0; k < count; k++)
            stored[k] = quant_round(quant, (double)((float)sums[i + k] * factor));
        store_integers(stored, y->dtype, element_at(y->data, y->dtype, at + i), count);
    }
}

/* Returns number i of a tensor, or its only number. */
static float number_at(const struct tensor *tensor, size_t i)
{
    return (float)tensor_number(tensor, shape_count(&tensor->shape) == 1 ? 0 : i);
}

/* ---- convolutions ---- */

/* Widens x and w, and computes the int32 convolution. w_index is the operand with the weights;
 * x_zero and w_zero are the operands with the zero points. */
static enum status convolve(const struct kernel_args *args, const struct conv_shape *conv,
                            size_t w_index, size_t x_zero, size_t w_zero, const int32_t *bias,
                            int32_t *dst, struct error *err)
{
    int32_t *x = NULL, *w = NULL;
    const size_t weights = shape_count(&args->in[w_index]->shape);
    const struct zero_layout by_channel = {weights / conv->out_channels, conv->out_channels,
                                           weights, 0};
    TRY(widen_operand(args, 0, x_zero, (struct zero_layout){0}, &x, err));
    TRY(widen_operand(args, w_index, w_zero, by_channel, &w, err));
    return conv_forward(args, conv, ARITHMETIC_U32, x, w, bias, dst, err);
}

KERNEL(kernel_conv_integer)
{
    struct conv_shape conv;
    TRY(conv_shape_init(args->node, &args->in[0]->shape, &args->in[1]->shape, &conv, err));
    return convolve(args, &conv, 1, 2, 3, NULL, (*args->out[0])->data, err);
}

KERNEL(kernel_qlinear_conv)
{
    const struct tensor *bias = kernel_input(args, 8);
    struct tensor *y = *args->out[0];
    struct conv_shape conv;
    TRY(conv_shape_init(args->node, &args->in[0]->shape, &args->in[3]->shape, &conv, err));
    int32_t *sums = kernel_scratch(args, shape_count(&y->shape), sizeof *sums, err);
    TRY(allocated(sums));
    TRY(convolve(args, &conv, 3, 2, 5, bias ? bias->data : NULL, sums, err));
    struct quant quant = quant_read(args, 6, y->dtype);
    size_t positions = 1, planes = conv.batch * conv.out_channels;
    for (int i = 0; i < conv.window.spatial; i++)
        positions *= (size_t)conv.window.out[i];
    for (size_t i = 0; i < planes; i++) {
        float factor = number_at(args->in[1], 0) * number_at(args->in[4], i % conv.out_channels);
        finish_sums(sums + i * positions, positions, factor, &quant, y, i * positions);
    }
    return STATUS_OK;
}

/* ---- matrix products ---- */

/* Returns the parameter of row or column `line` of a matrix; `otherwise` if `param` is omitted. */
static double param_at(const struct tensor *param, struct matmul_param layout, size_t matrix,
                       size_t line, double otherwise)
{
    return param ? tensor_number(param, matrix * layout.matrix_step + line * layout.line_step)
                 : otherwise;
}

/* y = a * b in int32; a and b are operands `left` and `right`, y is initially zero. */
static enum status multiply(const struct kernel_args *args, const struct matmul_shape *shape,
                            size_t left, size_t left_zero, size_t right, size_t right_zero,
                            int32_t *y, struct error *err)
{
    int32_t *a = NULL, *b = NULL;
    struct matmul_param rows, columns;
    const size_t k = shape->k;
    TRY(param_layout(args->node, left, left_zero, "a_zero_point", true, &rows, err));
    TRY(param_layout(args->node, right, right_zero, "b_zero_point", false, &columns, err));
    const struct zero_layout by_row = {k, shape->m, shape->m * k, rows.matrix_step};
    const struct zero_layout by_column = {1, shape->n, k * shape->n, columns.matrix_step};
    TRY(widen_operand(args, left, left_zero, by_row, &a, err));
    TRY(widen_operand(args, right, right_zero, by_column, &b, err));
    return multiply_batches(args, shape, ARITHMETIC_U32, a, b, y, err);
}

KERNEL(kernel_matmul_integer)
{
    struct tensor *y = *args->out[0];
    struct matmul_shape shape;
    TRY(matmul_shape_init(&args->in[0]->shape, &args->in[1]->shape, &shape, err));
    zero_bytes(y->data, y->bytes);
    return multiply(args, &shape, 0, 2, 1, 3, y->data, err);
}

KERNEL(kernel_qlinear_matmul)
{
    const struct tensor *a_scale = args->in[1], *b_scale = args->in[4];
    const struct tensor *bias = kernel_input(args, QUANTIZED_BIAS);
    struct tensor *y = *args->out[0];
    struct matmul_shape shape;
    struct matmul_param a_layout, b_layout;
    size_t count = shape_count(&y->shape);
    TRY(matmul_shape_init(&args->in[0]->shape, &args->in[3]->shape, &shape, err));
    TRY(param_layout(args->node, 0, 1, "a_scale", true, &a_layout, err));
    TRY(param_layout(args->node, 3, 4, "b_scale", false, &b_layout, err));
    int32_t *sums = kernel_scratch(args, count, sizeof *sums, err);
    TRY(allocated(sums));
    zero_bytes(sums, count * sizeof *sums);
    TRY(multiply(args, &shape, 0, 2, 3, 5, sums, err));
    struct quant quant = quant_read(args, 6, y->dtype);
    struct strided_iterator matrix = batch_iterator(&shape);
    for (size_t done = 0; done < count; strided_next(&matrix, 2)) {
        for (size_t row = 0; row < shape.m; row++) {
            float left = (float)param_at(a_scale, a_layout, matrix.offset[0], row, 1);
            for (size_t column = 0; column < shape.n; column++, done++) {
                float right = (float)param_at(b_scale, b_layout, matrix.offset[1], column, 1);
                if (bias)
                    sums[done] = (int32_t)((uint32_t)sums[done] +
                                           (uint32_t)((const int32_t *)bias->data)[column]);
                finish_sums(sums + done, 1, left * right, &quant, y, done);
            }
        }
    }
    return STATUS_OK;
}

/* ---- com.microsoft MatMulNBits ---- */

KERNEL(kernel_matmul_nbits)
{
    const struct tensor *bias = kernel_input(args, 5);
    const size_t count = shape_count(&(*args->out[0])->shape);
    struct nbits_shape shape;
    struct matmul_shape matmul;
    const void *left;
    void *dst;
    TRY(nbits_shape_init(args->node, &shape, err));
    TRY(matmul_shape_init(&args->in[0]->shape, &SHAPE((int64_t)shape.k, (int64_t)shape.n), &matmul,
                          err));
    float *weights = kernel_scratch(args, shape.n * shape.k, sizeof *weights, err);
    TRY(allocated(weights));
    nbits_widen(&shape, args->in[1], args->in[2], kernel_input(args, 3), weights);
    TRY(operand_open(args, 0, ARITHMETIC_F32, &left, err));
    TRY(result_open(args, 0, ARITHMETIC_F32, &dst, err));
    zero_bytes(dst, count * sizeof(float));
    TRY(multiply_batches(args, &matmul, ARITHMETIC_F32, left, weights, dst, err));
    for (size_t i = 0; bias && i < count; i++)
        ((float *)dst)[i] += (float)tensor_number(bias, i % shape.n);
    return STATUS_OK;
}

/* ---- com.microsoft QGemm ---- */

static void finish_qgemm(const struct kernel_args *args, const struct gemm_shape *gemm,
                         const int32_t *sums, struct tensor *y)
{
    float alpha = node_float(args->node, "alpha", 1);
    struct quant quant = quant_read(args, 7, y->dtype);
    for (size_t i = 0; i < gemm->m * gemm->n; i++) {
        float factor = alpha * number_at(args->in[1], 0) * number_at(args->in[4], i % gemm->n);
        finish_sums(sums + i, 1, factor, &quant, y, i);
    }
}

KERNEL(kernel_qgemm)
{
    const struct tensor *c = kernel_input(args, 6);
    struct gemm_shape gemm;
    int32_t *a = NULL, *b = NULL;
    TRY(gemm_shape_init(args->node, &args->in[0]->shape, &args->in[3]->shape, &gemm, err));
    int32_t *sums = kernel_scratch(args, gemm.m * gemm.n, sizeof *sums, err);
    TRY(allocated(sums));
    const struct zero_layout by_column = {gemm.trans_b ? gemm.k : 1, gemm.n, gemm.k * gemm.n, 0};
    TRY(widen_operand(args, 0, 2, (struct zero_layout){0}, &a, err));
    TRY(widen_operand(args, 3, 5, by_column, &b, err));
    if (c)
        copy_broadcast(sums, &(*args->out[0])->shape, c->data, &c->shape, sizeof *sums);
    else
        zero_bytes(sums, gemm.m * gemm.n * sizeof *sums);
    TRY(gemm_product(args, &gemm, ARITHMETIC_U32, a, b, sums, err));
    finish_qgemm(args, &gemm, sums, *args->out[0]);
    return STATUS_OK;
}

const struct op_info ops_quantize_product[] = {
    {OP_QLINEAR_CONV, 10, 0, 6, 9, 1, 1,
     QUANTIZED_OPERAND(x, ) "w:8bit w_scale:float w_zero_point:8bit " QUANTIZED_RESULT() "B:int32",
     OP_HEAVY, WINDOW_ATTRS " group:int", infer_qlinear_conv, &batch_by_sample, work_conv,
     kernel_qlinear_conv},
    {OP_CONV_INTEGER, 10, 0, 2, 4, 1, 1, "x:8bit w:8bit x_zero_point:8bit[1] w_zero_point:8bit",
     OP_HEAVY, WINDOW_ATTRS " group:int", infer_conv_integer, &batch_by_sample, work_conv,
     kernel_conv_integer},
    {OP_QLINEAR_MATMUL, 10, 0, 6, 8, 1, 1,
     "a:8bit a_scale:float a_zero_point:8bit b:8bit b_scale:float "
     "b_zero_point:8bit " QUANTIZED_RESULT(),
     OP_HEAVY, NULL, infer_qlinear_matmul, &batch_matmul, work_product, kernel_qlinear_matmul},
    {OP_MATMUL_INTEGER, 10, 0, 2, 4, 1, 1, "A:8bit B:8bit a_zero_point:8bit b_zero_point:8bit",
     OP_HEAVY, NULL, infer_matmul_integer, &batch_matmul, work_product, kernel_matmul_integer},
    {OP_QGEMM, 1, 0, 6, 9, 1, 1,
     QUANTIZED_OPERAND(A, ) "B:8bit b_scale:float b_zero_point:8bit C:int32 " QUANTIZED_RESULT(),
     OP_HEAVY, "alpha:float transA:int transB:int", infer_qgemm, &batch_gemm, work_product,
     kernel_qgemm},
    {OP_MATMUL_NBITS, 1, 0, 3, 6, 1, 1,
     "A:float B:uint8 scales:float zero_points:uint8|float g_idx bias:float", OP_HEAVY,
     "K:int N:int bits:int block_size:int accuracy_level:int weight_prepacked:int",
     infer_matmul_nbits, &batch_beside_last, work_matmul_nbits, kernel_matmul_nbits},
    {0},
};
