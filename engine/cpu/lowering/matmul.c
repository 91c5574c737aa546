/* Gemm and MatMul through oneDNN's matmul. */
#include "engine/cpu/lowering/product.h"

#include <stdlib.h>
#include <string.h>

/* One operand of a product: rank dims, innermost two possibly transposed. */
struct matmul_operand {
    int rank;
    dnnl_dims_t dims, strides;
};

static void row_major(struct matmul_operand *operand)
{
    int64_t stride = 1;
    for (int a = operand->rank - 1; a >= 0; a--) {
        operand->strides[a] = stride;
        stride *= operand->dims[a];
    }
}

static void transpose(struct matmul_operand *operand)
{
    int a = operand->rank - 2, b = operand->rank - 1;
    int64_t dim = operand->dims[a], stride = operand->strides[a];
    operand->dims[a] = operand->dims[b];
    operand->strides[a] = operand->strides[b];
    operand->dims[b] = dim;
    operand->strides[b] = stride;
}

static struct matmul_operand operand_of(const struct shape *shape)
{
    struct matmul_operand operand = {.rank = shape->rank};
    for (int a = 0; a < shape->rank; a++)
        operand.dims[a] = shape->dims[a];
    row_major(&operand);
    return operand;
}

/* [a, b, c] as [a * b, c]. */
static struct matmul_operand flattened(const struct shape *shape)
{
    struct matmul_operand operand = {.rank = 2};
    int last = shape->rank - 1;
    operand.dims[1] = shape->dims[last];
    operand.dims[0] = 1;
    for (int a = 0; a < last; a++)
        operand.dims[0] *= shape->dims[a];
    row_major(&operand);
    return operand;
}

static enum status describe(const struct matmul_operand *operand, enum dtype dtype,
                            dnnl_memory_desc_t *ret, struct error *err)
{
    return dnnl_check(dnnl_memory_desc_init_by_strides(ret, operand->rank, operand->dims,
                                                       dnnl_type(dtype), operand->strides),
                      "matrix layout", err);
}

/* Gemm: y = A' B' + C with alpha = beta = 1 and C a vector over the columns, which is what a fully
 * connected layer is; anything else is left to the reference kernel. */
static bool gemm_fits(const struct node *node)
{
    const struct value *bias = node_bias(node);
    int64_t columns = node->outputs[0]->shape.dims[1];
    if (node_float(node, "alpha", 1) != 1 || (bias && node_float(node, "beta", 1) != 1))
        return false;
    return !bias || (is_f32_constant(bias) && shape_count(&bias->known->shape) == (size_t)columns &&
                     bias->known->shape.rank >= 1 &&
                     bias->known->shape.dims[bias->known->shape.rank - 1] == columns);
}

static bool float_product(const struct node *node)
{
    const struct value *a = node->inputs[0], *b = node->inputs[1], *y = node->outputs[0];
    bool a_ok = a->dtype == DTYPE_F32 || a->dtype == DTYPE_BF16;
    bool b_ok = b->known ? b->known->dtype == DTYPE_F32 : b->dtype == a->dtype;
    return a_ok && b_ok && (y->dtype == DTYPE_F32 || y->dtype == DTYPE_BF16) &&
           shape_count(&a->shape) && shape_count(&b->shape) && a->shape.rank >= 2 &&
           b->shape.rank >= 2 && !a->known;
}

bool matmul_takes(const struct node *node)
{
    if (node->op != OP_GEMM && node->op != OP_MATMUL)
        return false;
    const struct shape *a = &node->inputs[0]->shape, *b = &node->inputs[1]->shape;
    return float_product(node) && (node->op != OP_GEMM || gemm_fits(node)) &&
           (b->rank == 2 || b->rank == a->rank);
}

/* src x weights as one primitive. Of `desc` constants, weights_input and what 8-bit integers need
 * are set. */
static enum status matmul_product(const struct compile *compile, struct product_desc *desc,
                                  const struct matmul_operand *src,
                                  const struct matmul_operand *weights,
                                  const struct matmul_operand *dst, struct step **ret,
                                  struct error *err)
{
    const struct node *node = compile->node;
    const struct value *a = node->inputs[0], *b = node->inputs[desc->weights_input];
    const struct value *y = node->outputs[0];
    dnnl_memory_desc_t any;
    dnnl_matmul_desc_t matmul;
    TRY(describe(src, a->dtype, &desc->src, err));
    TRY(describe(dst, y->dtype, &desc->dst, err));
    TRY(describe(weights, b->known ? b->known->dtype : b->dtype, &desc->weights, err));
    TRY(dnnl_check(dnnl_memory_desc_init_by_tag(&any, weights->rank, weights->dims,
                                                desc->scales ? dnnl_s8 : dnnl_type(a->dtype),
                                                dnnl_format_tag_any),
                   "matrix layout", err));
    if (desc->bias_constant) {
        struct matmul_operand row = {.rank = dst->rank};
        for (int i = 0; i < dst->rank; i++)
            row.dims[i] = i == dst->rank - 1 ? dst->dims[i] : 1;
        row_major(&row);
        TRY(describe(&row, desc->bias_constant->dtype, &desc->bias, err));
    }
    TRY(dnnl_check(dnnl_matmul_desc_init(&matmul, &desc->src, b->known ? &any : &desc->weights,
                                         desc->bias_constant ? &desc->bias : NULL, &desc->dst),
                   node->name, err));
    struct product_desc whole = *desc; /* what it points to lives as long as this call */
    whole.op_desc = &matmul;
    TRY(product_create(compile, &whole, ret, err));
    if (*ret)
        (*ret)->flops = 2 * (double)shape_count(&y->shape) * (double)src->dims[src->rank - 1];
    return STATUS_OK;
}

enum status lower_matmul(const struct compile *compile, struct step **ret, struct error *err)
{
    const struct node *node = compile->node;
    if (!matmul_takes(node))
        return STATUS_OK;
    const struct shape *a = &node->inputs[0]->shape, *b = &node->inputs[1]->shape;
    const struct shape *y = &node->outputs[0]->shape;
    const struct value *bias = node_bias(node);
    struct product_desc desc = {.weights_constant = node->inputs[1]->known,
                                .weights_input = 1,
                                .bias_constant = bias ? bias->known : NULL};
    /* batched: equal ranks, batch dimensions equal or 1 */
    const bool batched = b->rank != 2;
    struct matmul_operand src = batched ? operand_of(a) : flattened(a), weights = operand_of(b);
    const struct matmul_operand dst = batched ? operand_of(y) : flattened(y);
    if (node->op == OP_GEMM && node_int(node, "transA", 0))
        transpose(&src);
    if (node->op == OP_GEMM && node_int(node, "transB", 0))
        transpose(&weights);
    return matmul_product(compile, &desc, &src, &weights, &dst, ret, err);
}

/* A QLinearMatMul or QGemm with constant symmetric weights: activations times weights [k, n] (QGemm
 * may have them transposed), one scale an output column, int32 bias. */
enum status lower_qmatmul(const struct compile *compile, struct step **ret, struct error *err)
{
    const struct node *node = compile->node;
    struct product_desc desc;
    float *scales;
    if (!qmatmul_takes(node))
        return STATUS_OK;
    TRY(qmatmul_describe(node, &desc, &scales, err));
    const struct matmul_operand src = flattened(&node->inputs[0]->shape);
    const struct matmul_operand dst = flattened(&node->outputs[0]->shape);
    struct matmul_operand weights = operand_of(&node->inputs[3]->known->shape);
    if (node->op == OP_QGEMM && node_int(node, "transB", 0))
        transpose(&weights);
    const enum status status = matmul_product(compile, &desc, &src, &weights, &dst, ret, err);
    free(scales);
    return status;
}
