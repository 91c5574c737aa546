/* Elementwise operators on numbers of any dtype, with numpy broadcasting; Add and Mul of
 * com.microsoft on 8-bit integers. */
#include "engine/cuda/lowering/lowering.h"

#include <math.h>

#include "engine/base/size.h"
#include "engine/op/ops.h"

struct pointwise_step {
    struct cuda_step step;
    struct cuda_pointwise numbers;
    struct cuda_operand operands[CUDA_OPERANDS];
};

CUDA_RUN(pointwise_run)
{
    struct pointwise_step *s = (struct pointwise_step *)base;
    const void *operands[CUDA_OPERANDS] = {0};
    for (int o = 0; o < s->numbers.operands; o++)
        operands[o] = cuda_operand_at(program, &s->operands[o]);
    cuda_compute_pointwise(program->backend->stream, operands, program->data[base->y], &s->numbers);
    return cuda_launched(base, program, err);
}

/* ---- operators ---- */

/* Rounding the operands of these operators to 16 bits changes the result only a little. */
static const enum op smooth[] = {
    OP_ABS,  OP_NEG,  OP_SIGN,  OP_ERF,    OP_SOFTPLUS, OP_SOFTSIGN,
    OP_SELU, OP_CELU, OP_MISH,  OP_SHRINK, OP_ADD,      OP_SUB,
    OP_MUL,  OP_DIV,  OP_PRELU, OP_MAX,    OP_MIN,      OP_THRESHOLDED_RELU};

static const enum op others[] = {
    OP_CAST,          OP_CAST_LIKE,  OP_FLOOR,       OP_CEIL,       OP_ROUND,
    OP_SQRT,          OP_RECIPROCAL, OP_EXP,         OP_LOG,        OP_SIN,
    OP_COS,           OP_RELU,       OP_CLIP,        OP_NOT,        OP_IS_NAN,
    OP_IS_INF,        OP_MOD,        OP_POW,         OP_AND,        OP_OR,
    OP_XOR,           OP_EQUAL,      OP_GREATER,     OP_LESS,       OP_GREATER_OR_EQUAL,
    OP_LESS_OR_EQUAL, OP_WHERE,      OP_QLINEAR_ADD, OP_QLINEAR_MUL};

static bool is_among(const enum op *ops, size_t count, enum op op)
{
    for (size_t i = 0; i < count; i++)
        if (ops[i] == op)
            return true;
    return false;
}

/* True for an activation of floats, which is the epilogue of Identity. */
static bool is_activation(const struct node *node, struct epilogue *ret)
{
    const struct value *x = node_input(node, 0);
    return x && is_computed(x->dtype) && optimize_activation(node, ret);
}

static bool is_quantized(const struct node *node)
{
    return node->op == OP_QLINEAR_ADD || node->op == OP_QLINEAR_MUL;
}

/* Returns the index of operand i among the node's inputs. */
static size_t input_of(const struct node *node, int i)
{
    return is_quantized(node) ? 3 * (size_t)i
                              : (size_t)i; /* a scale and a zero point follow an operand */
}

/* Reads scales and zero points of QLinearAdd or QLinearMul. */
static bool read_quantized(const struct node *node, struct cuda_pointwise *n)
{
    const enum dtype dtype = node->outputs[0]->dtype;
    struct scale_zero a, b, y;
    if (node->inputs[0]->dtype != dtype || node->inputs[3]->dtype != dtype ||
        !scale_zero_of(node, 1, dtype, &a) || !scale_zero_of(node, 4, dtype, &b) ||
        !scale_zero_of(node, 6, dtype, &y))
        return false;
    n->ratios[0] = a.scale * b.scale / y.scale;
    n->fixed = (float)y.zero;
    n->zeros[0] = a.zero;
    n->zeros[1] = b.zero;
    if (node->op == OP_QLINEAR_ADD)
        quantized_sum_factors(&a, &b, &y, &n->ratios[0], &n->ratios[1], &n->fixed);
    return true;
}

/* Returns the number of operands, without CastLike's target type and Clip's bounds. */
static int operand_count(const struct node *node)
{
    return node->op == OP_WHERE ? 3 : op_has(node->op, OP_BROADCAST) || is_quantized(node) ? 2 : 1;
}

/* Finds the type to compute in. Returns false if there is none. */
static bool pointwise_domain_of(const struct node *node, enum cuda_domain *ret)
{
    bool narrow = true, whole = true, is_unsigned = false;
    *ret = CUDA_IN_FLOAT;
    if (is_quantized(node))
        return true;
    for (int i = node->op == OP_WHERE ? 1 : 0; i < operand_count(node); i++) {
        const enum dtype dtype = node->inputs[i]->dtype;
        narrow = narrow && is_computed(dtype);
        whole = whole && !dtype_is_float(dtype);
        is_unsigned = is_unsigned || dtype == DTYPE_U64;
    }
    const bool moves = node->op == OP_WHERE || ((node->op == OP_CAST || node->op == OP_CAST_LIKE) &&
                                                !dtype_is_float(node->outputs[0]->dtype));
    const bool needs_double = node->op == OP_ERF || node->op == OP_SHRINK; /* of integers */
    *ret = narrow ? CUDA_IN_FLOAT : whole && !needs_double ? CUDA_IN_WHOLE : CUDA_IN_DOUBLE;
    return !is_unsigned || (whole && moves); /* uint64 can exceed int64 */
}

/* True if integer divisors are known not to be zero. Otherwise the host checks them. */
static bool divides_safely(const struct node *node)
{
    const struct value *divisor = node->inputs[1];
    struct bounds bounds;
    if (divisor->known) {
        for (size_t i = 0; i < shape_count(&divisor->known->shape); i++)
            if (tensor_int(divisor->known, i) == 0)
                return false;
        return true;
    }
    return value_bounds(divisor, &bounds) && (bounds.low > 0 || bounds.high < 0);
}

/* Reads Clip's bounds. Returns false if a run computes them. */
static bool clip_of(const struct node *node, struct cuda_pointwise *n)
{
    n->alpha = -INFINITY;
    n->beta = INFINITY;
    n->lowest = INT64_MIN;
    n->highest = INT64_MAX;
    for (size_t i = 1; i < 3; i++) {
        const struct value *bound = node_input(node, i);
        if (!bound)
            continue;
        if (!bound->known || shape_count(&bound->known->shape) != 1)
            return false;
        if (n->domain == CUDA_IN_WHOLE)
            *(i == 1 ? &n->lowest : &n->highest) = tensor_int(bound->known, 0);
        else
            *(i == 1 ? &n->alpha : &n->beta) = tensor_number(bound->known, 0);
    }
    return true;
}

/* Describes a node's launch without addresses; returns false if no kernel supports the node. */
static bool pointwise_classify(const struct node *node, struct cuda_pointwise *n)
{
    const struct value *y = node_output(node, 0);
    struct epilogue epilogue = node->epilogue;
    bool is_constant = true;
    if (!y || (epilogue.activation && (node->op != OP_ADD || !is_computed(y->dtype))) ||
        epilogue.residual || y->shape.rank < 0 || shape_count(&y->shape) == 0)
        return false;
    *n = (struct cuda_pointwise){.op = node->op, .operands = operand_count(node)};
    if (is_activation(node, &epilogue))
        n->op = OP_IDENTITY;
    else if (!is_among(smooth, COUNT_OF(smooth), node->op) &&
             !is_among(others, COUNT_OF(others), node->op))
        return false;
    for (int i = 0; i < n->operands; i++) {
        const struct value *x = node_input(node, input_of(node, i));
        if (!x || x->shape.rank < 0)
            return false;
        is_constant = is_constant && x->known;
    }
    if (is_constant || !pointwise_domain_of(node, &n->domain))
        return false;
    n->activation = (int)epilogue.activation;
    n->activation_alpha = epilogue.alpha;
    n->activation_beta = epilogue.beta;
    op_parameters(node, &n->alpha, &n->beta);
    if (n->op == OP_MOD)
        n->alpha = node_int(node, "fmod", 0) != 0;
    if ((n->op == OP_DIV || n->op == OP_MOD) && n->domain == CUDA_IN_WHOLE && !divides_safely(node))
        return false;
    return is_quantized(node) ? read_quantized(node, n) : n->op != OP_CLIP || clip_of(node, n);
}

KERNEL_CLAIM(pointwise_claim)
{
    struct cuda_pointwise n;
    if (!pointwise_classify(node, &n))
        return false;
    if (n.op == OP_IDENTITY || is_among(smooth, COUNT_OF(smooth), n.op))
        ret->narrow = NARROW_SAME;
    ret->in_place = claim_in_place(node, 0, input_of(node, 1));
    return true;
}

/* ---- the lowering ---- */

CUDA_CREATE(lower_pointwise)
{
    const struct node *node = compile->node;
    const struct value *y = node->outputs[0];
    struct pointwise_step proto = {0};
    struct cuda_pointwise *numbers = &proto.numbers;
    const struct shape *shapes[CUDA_OPERANDS];
    (void)pointwise_classify(node, numbers);
    numbers->y_dtype = (int)y->dtype;
    for (int o = 0; o < numbers->operands; o++) {
        const struct value *x = node->inputs[input_of(node, o)];
        shapes[o] = &x->shape;
        numbers->dtypes[o] = (int)x->dtype;
        TRY(cuda_operand_of(compile, x, x->dtype, &proto.operands[o], err));
    }
    numbers->map = cuda_map_broadcast(&y->shape, shapes, numbers->operands);
    struct pointwise_step *s =
        cuda_step_create(compile, &proto, sizeof *s, pointwise_run, ret, err);
    TRY(allocated(s));
    s->step.kernel = "pointwise";
    for (size_t i = 1; i < node->input_count; i++)
        s->step.bytes += node->inputs[i] ? value_bytes(node->inputs[i]) : 0;
    return STATUS_OK;
}

const struct cuda_kernel cuda_kernel_pointwise = {{"pointwise", {OP_NONE}, pointwise_claim},
                                                  lower_pointwise};
