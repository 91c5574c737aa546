/* Quantized convolutions and matrix products. Zero points are subtracted from the operands in
 * int32, and the differences multiplied in int32 (overflow wraps, as the specification allows). The
 * sums are scaled. A quantized result is then rounded half to even and saturated. */
#include "engine/op/family.h"
#include "engine/op/quant.h"

/* Positions of operands; x is operand 0. */
struct operand_places {
    size_t w, x_zero, w_zero;
    size_t x_scale, w_scale, y_scale, bias; /* SIZE_MAX: the operator has no such operand */
};

static struct operand_places operands_of(enum op op)
{
    if (op == OP_CONV_INTEGER || op == OP_MATMUL_INTEGER)
        return (struct operand_places){1, 2, 3, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX};
    return op == OP_QGEMM ? (struct operand_places){3, 2, 5, 1, 4, 7, 6}
                          : (struct operand_places){3, 2, 5, 1, 4, 6, QUANTIZED_BIAS};
}

/* Infers the output: int32 sums, or quantized by operands `scale` and `scale + 1`, or float32
 * without these operands. */
static enum status infer_product(struct node *node, size_t scale, const struct shape *shape,
                                 struct error *err)
{
    if (scale == SIZE_MAX || !node_input(node, scale))
        return infer_output(node, 0, scale == SIZE_MAX ? DTYPE_I32 : DTYPE_F32, shape, err);
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

static enum status infer_quantized_conv(struct node *node, struct error *err)
{
    const struct operand_places of = operands_of(node->op);
    struct conv_shape conv;
    TRY(conv_shape_init(node, &node->inputs[0]->shape, &node->inputs[of.w]->shape, &conv, err));
    TRY(check_per_channel(node, of.w_scale, "w_scale", conv.out_channels, err));
    TRY(check_per_channel(node, of.w_zero, "w_zero_point", conv.out_channels, err));
    TRY(operand_has_shape(node, of.bias, "B", &SHAPE((int64_t)conv.out_channels), err));
    return infer_product(node, of.y_scale, &conv.out, err);
}

/* Checks that operand `param`, a scale or zero point of operand `operand`, has one number, or one
 * for each row of the left or column of the right operand. */
static enum status check_lines(const struct node *node, size_t operand, size_t param,
                               const char *name, bool rows, struct error *err)
{
    const struct value *value = node_input(node, param);
    if (!value || shape_count(&value->shape) == 1)
        return STATUS_OK;
    const struct shape *whole = &node->inputs[operand]->shape, *own = &value->shape;
    /* [..., m, k] on the left, [..., k, n] on the right; a vector is [k]. */
    const int rank = whole->rank, line = rows ? rank - 2 : rank - 1, shared = 2 * rank - 3 - line;
    if (rank >= 2 && own->rank == 1 && own->dims[0] == whole->dims[line])
        return STATUS_OK;
    bool same = rank >= 2 && own->rank == rank && own->dims[line] == whole->dims[line] &&
                own->dims[shared] == 1;
    bool ones = same;
    for (int i = 0; own->rank == rank && i < rank - 2; i++) {
        same = same && own->dims[i] == whole->dims[i];
        ones = ones && own->dims[i] == 1;
    }
    if (same || ones)
        return STATUS_OK;
    return error_set(err, STATUS_SHAPE,
                     "%s has shape %s, expected one number or one for each %s of an operand of "
                     "shape %s",
                     name, SHAPE_STRING(own), rows ? "row" : "column", SHAPE_STRING(whole));
}

static enum status infer_quantized_matmul(struct node *node, struct error *err)
{
    const struct operand_places of = operands_of(node->op);
    struct matmul_shape matmul;
    TRY(matmul_shape_init(&node->inputs[0]->shape, &node->inputs[of.w]->shape, &matmul, err));
    TRY(check_lines(node, 0, of.x_scale, "a_scale", true, err));
    TRY(check_lines(node, 0, of.x_zero, "a_zero_point", true, err));
    TRY(check_lines(node, of.w, of.w_scale, "b_scale", false, err));
    TRY(check_lines(node, of.w, of.w_zero, "b_zero_point", false, err));
    return infer_product(node, of.y_scale, &matmul.out, err);
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

/* ---- kernels ---- */

/* Returns the shape in which a scale or zero point (may be NULL) broadcasts to its tensor: a vector
 * belongs to the dimension before the last `after` dimensions. */
static struct shape spread(const struct tensor *param, int after)
{
    struct shape shape = param ? param->shape : SHAPE_SCALAR;
    if (shape_count(&shape) == 1)
        return SHAPE_SCALAR;
    for (int i = 0; i < after && param->shape.rank == 1; i++)
        shape.dims[shape.rank++] = 1;
    return shape;
}

/* Makes an int32 copy of operand i minus its zero points, operand `zero`. */
static enum status widen_operand(const struct kernel_args *args, size_t i, size_t zero, int after,
                                 int32_t **ret, struct error *err)
{
    const struct tensor *src = args->in[i], *zeros = kernel_input(args, zero);
    const size_t count = shape_count(&src->shape);
    const struct shape shape = spread(zeros, after), *const shapes[] = {&shape};
    struct broadcast at;
    int32_t *dst = *ret = kernel_scratch(args, count, sizeof *dst, err), point = 0;
    TRY(allocated(dst));
    convert_row(src->data, src->dtype, dst, DTYPE_I32, count);
    if (!zeros || !count)
        return STATUS_OK;
    broadcast_start(&at, &src->shape, shapes, 1);
    do {
        for (size_t k = 0; k < at.row; k++) {
            if (k == 0 || at.moves[0])
                point = (int32_t)tensor_int(zeros, at.rows.offset[0] + k);
            dst[at.done + k] -= point;
        }
    } while (broadcast_next(&at));
    return STATUS_OK;
}

/* Sets y, whose shape is seen as `full`, to the sums times alpha and the scales of x and w: as
 * float32, or stored with the result's scale. A product is rounded to float32 before it is rounded
 * to an integer, as in ONNX Runtime: values that float32 cannot distinguish from a tie are ties. */
static void finish_sums(const struct kernel_args *args, const struct operand_places *of,
                        const int32_t *sums, const struct shape *full, int x_after, int w_after)
{
    const struct tensor *x = args->in[of->x_scale], *w = args->in[of->w_scale];
    const struct shape of_x = spread(x, x_after), of_w = spread(w, w_after);
    const struct shape *const shapes[] = {&of_x, &of_w};
    struct tensor *y = args->out[0];
    const struct quant quant = quant_read(args, of->y_scale, y->dtype);
    const float alpha = node_float(args->node, "alpha", 1); /* of QGemm */
    float factor = 0;
    struct broadcast at;
    broadcast_start(&at, full, shapes, 2);
    do {
        for (size_t i = 0; i < at.row; i++) {
            const size_t to = at.done + i, *const from = at.rows.offset;
            if (i == 0 || at.moves[0] || at.moves[1])
                factor = alpha * (float)tensor_number(x, from[0] + (at.moves[0] ? i : 0)) *
                         (float)tensor_number(w, from[1] + (at.moves[1] ? i : 0));
            if (y->dtype == DTYPE_F32) {
                ((float *)y->data)[to] = (float)sums[to] * factor;
                continue;
            }
            const float divided = (float)sums[to] * (factor / (float)quant.scale);
            const int64_t stored = quant_round(&quant, (double)divided);
            store_integers(&stored, y->dtype, element_at(y->data, y->dtype, to), 1);
        }
    } while (broadcast_next(&at));
}

/* sums = x * w + bias, all int32. *full becomes the result's shape [..., m, n]. */
static enum status multiply_matrices(const struct kernel_args *args,
                                     const struct operand_places *of, struct shape *full,
                                     int32_t *sums, struct error *err)
{
    const struct shape *x = &args->in[0]->shape, *w = &args->in[of->w]->shape;
    const struct tensor *bias = kernel_input(args, of->bias);
    const bool is_gemm = args->node->op == OP_QGEMM;
    struct gemm_shape gemm = {0};
    struct matmul_shape matmul;
    int32_t *left, *right;
    if (is_gemm) {
        TRY(gemm_shape_init(args->node, x, w, &gemm, err));
    } else {
        TRY(matmul_shape_init(x, w, &matmul, err));
        full->rank = matmul.batch_rank;
        full->dims[full->rank++] = (int64_t)matmul.m;
        full->dims[full->rank++] = (int64_t)matmul.n;
    }
    TRY(widen_operand(args, 0, of->x_zero, 1, &left, err));
    TRY(widen_operand(args, of->w, of->w_zero, gemm.trans_b, &right, err));
    if (bias)
        copy_broadcast(sums, full, bias->data, &bias->shape, sizeof *sums);
    else
        zero_bytes(sums, shape_count(full) * sizeof *sums);
    return is_gemm ? gemm_product(args, &gemm, DTYPE_U32, left, right, sums, err)
                   : multiply_batches(args, &matmul, DTYPE_U32, left, right, sums, err);
}

static enum status convolve(const struct kernel_args *args, const struct operand_places *of,
                            int32_t *sums, struct error *err)
{
    const struct shape *x = &args->in[0]->shape, *w = &args->in[of->w]->shape;
    const struct tensor *bias = kernel_input(args, of->bias);
    struct conv_shape conv;
    int32_t *left, *right;
    TRY(conv_shape_init(args->node, x, w, &conv, err));
    TRY(widen_operand(args, 0, of->x_zero, 0, &left, err));
    TRY(widen_operand(args, of->w, of->w_zero, w->rank - 1, &right, err));
    return conv_forward(args, &conv, DTYPE_U32, left, right, bias ? bias->data : NULL, sums, err);
}

KERNEL(kernel_quantized_product)
{
    const enum op op = args->node->op;
    const struct operand_places of = operands_of(op);
    const bool is_conv = op == OP_QLINEAR_CONV || op == OP_CONV_INTEGER;
    /* ConvInteger and MatMulInteger return the sums. */
    const bool are_result = of.y_scale == SIZE_MAX;
    struct tensor *y = args->out[0];
    struct shape full = y->shape;
    int32_t *sums =
        are_result ? y->data : kernel_scratch(args, shape_count(&full), sizeof *sums, err);
    TRY(allocated(sums));
    TRY(is_conv ? convolve(args, &of, sums, err) : multiply_matrices(args, &of, &full, sums, err));
    if (!are_result)
        finish_sums(args, &of, sums, &full, is_conv ? 0 : 1, is_conv ? full.rank - 2 : 0);
    return STATUS_OK;
}

/* ---- com.microsoft MatMulNBits ---- */

KERNEL(kernel_matmul_nbits)
{
    const struct tensor *bias = kernel_input(args, 5);
    const size_t count = shape_count(&args->out[0]->shape);
    struct nbits_shape shape;
    struct matmul_shape matmul;
    const float *left;
    float *dst;
    TRY(nbits_shape_init(args->node, &shape, err));
    TRY(matmul_shape_init(&args->in[0]->shape, &SHAPE((int64_t)shape.k, (int64_t)shape.n), &matmul,
                          err));
    float *weights = kernel_scratch(args, shape.n * shape.k, sizeof *weights, err);
    TRY(allocated(weights));
    nbits_widen(&shape, args->in[1], args->in[2], kernel_input(args, 3), weights);
    TRY(operand_open(args, 0, DTYPE_F32, &left, err));
    TRY(result_open(args, 0, DTYPE_F32, &dst, err));
    zero_bytes(dst, count * sizeof(float));
    TRY(multiply_batches(args, &matmul, DTYPE_F32, left, weights, dst, err));
    for (size_t i = 0; bias && i < count; i++)
        dst[i] += (float)tensor_number(bias, i % shape.n);
    return STATUS_OK;
}

const struct op_info ops_quantize_product[] = {
    {OP_QLINEAR_CONV, 10, 0, 6, 9, 1, 1,
     QUANTIZED_OPERAND(x, ) "w:8bit w_scale:float w_zero_point:8bit " QUANTIZED_RESULT() "B:int32",
     OP_HEAVY, WINDOW_ATTRS " group:int", infer_quantized_conv, &batch_by_sample, work_conv,
     kernel_quantized_product},
    {OP_CONV_INTEGER, 10, 0, 2, 4, 1, 1, "x:8bit w:8bit x_zero_point:8bit[1] w_zero_point:8bit",
     OP_HEAVY, WINDOW_ATTRS " group:int", infer_quantized_conv, &batch_by_sample, work_conv,
     kernel_quantized_product},
    {OP_QLINEAR_MATMUL, 10, 0, 6, 8, 1, 1,
     "a:8bit a_scale:float a_zero_point:8bit b:8bit b_scale:float "
     "b_zero_point:8bit " QUANTIZED_RESULT(),
     OP_HEAVY, NULL, infer_quantized_matmul, &batch_matmul, work_product, kernel_quantized_product},
    {OP_MATMUL_INTEGER, 10, 0, 2, 4, 1, 1, "A:8bit B:8bit a_zero_point:8bit b_zero_point:8bit",
     OP_HEAVY, NULL, infer_quantized_matmul, &batch_matmul, work_product, kernel_quantized_product},
    {OP_QGEMM, 1, 0, 6, 9, 1, 1,
     QUANTIZED_OPERAND(A, ) "B:8bit b_scale:float b_zero_point:8bit C:int32 " QUANTIZED_RESULT(),
     OP_HEAVY, "alpha:float transA:int transB:int", infer_qgemm, &batch_gemm, work_product,
     kernel_quantized_product},
    {OP_MATMUL_NBITS, 1, 0, 3, 6, 1, 1,
     "A:float B:uint8 scales:float zero_points:uint8|float g_idx bias:float", OP_HEAVY,
     "K:int N:int bits:int block_size:int accuracy_level:int weight_prepacked:int",
     infer_matmul_nbits, &batch_beside_last, work_matmul_nbits, kernel_matmul_nbits},
    {0},
};
