/* Elementwise operators on numbers of any dtype, with numpy broadcasting; Add and Mul of
 * com.microsoft on 8-bit integers. */
#include "engine/cuda/lowering/lowering.h"

#include <math.h>

#include "engine/base/size.h"

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

enum kind {
    KIND_FLOAT = 1,  /* takes floats */
    KIND_WHOLE = 2,  /* takes integers and booleans */
    KIND_DOUBLE = 4, /* converts integers to float64 */
    KIND_SMOOTH = 8  /* rounding the operands to 16 bits changes the result only a little */
};

struct pointwise_entry {
    enum op op;
    int operands; /* without CastLike's target type and Clip's bounds */
    unsigned kinds;
    const char *alpha_name, *beta_name; /* names of attributes; NULL: none */
    double alpha, beta;
};

static const struct pointwise_entry table[] = {
    {OP_CAST, 1, KIND_FLOAT | KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_CAST_LIKE, 1, KIND_FLOAT | KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_ABS, 1, KIND_FLOAT | KIND_WHOLE | KIND_SMOOTH, NULL, NULL, 0, 0},
    {OP_NEG, 1, KIND_FLOAT | KIND_WHOLE | KIND_SMOOTH, NULL, NULL, 0, 0},
    {OP_SIGN, 1, KIND_FLOAT | KIND_WHOLE | KIND_SMOOTH, NULL, NULL, 0, 0},
    {OP_FLOOR, 1, KIND_FLOAT, NULL, NULL, 0, 0},
    {OP_CEIL, 1, KIND_FLOAT, NULL, NULL, 0, 0},
    {OP_ROUND, 1, KIND_FLOAT, NULL, NULL, 0, 0},
    {OP_SQRT, 1, KIND_FLOAT, NULL, NULL, 0, 0},
    {OP_RECIPROCAL, 1, KIND_FLOAT, NULL, NULL, 0, 0},
    {OP_EXP, 1, KIND_FLOAT, NULL, NULL, 0, 0},
    {OP_LOG, 1, KIND_FLOAT, NULL, NULL, 0, 0},
    {OP_SIN, 1, KIND_FLOAT, NULL, NULL, 0, 0},
    {OP_COS, 1, KIND_FLOAT, NULL, NULL, 0, 0},
    {OP_ERF, 1, KIND_FLOAT | KIND_DOUBLE | KIND_SMOOTH, NULL, NULL, 0, 0},
    {OP_SOFTPLUS, 1, KIND_FLOAT | KIND_SMOOTH, NULL, NULL, 0, 0},
    {OP_SOFTSIGN, 1, KIND_FLOAT | KIND_SMOOTH, NULL, NULL, 0, 0},
    {OP_SELU, 1, KIND_FLOAT | KIND_SMOOTH, "alpha", "gamma", 1.67326319217681884765625,
     1.05070102214813232421875},
    {OP_CELU, 1, KIND_FLOAT | KIND_SMOOTH, "alpha", NULL, 1, 0},
    {OP_MISH, 1, KIND_FLOAT | KIND_SMOOTH, NULL, NULL, 0, 0},
    {OP_SHRINK, 1, KIND_FLOAT | KIND_DOUBLE | KIND_SMOOTH, "lambd", "bias", 0.5, 0},
    {OP_THRESHOLDED_RELU, 1, KIND_FLOAT | KIND_SMOOTH, "alpha", NULL, 1, 0},
    {OP_RELU, 1, KIND_FLOAT | KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_CLIP, 1, KIND_FLOAT | KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_NOT, 1, KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_IS_NAN, 1, KIND_FLOAT | KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_IS_INF, 1, KIND_FLOAT | KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_ADD, 2, KIND_FLOAT | KIND_WHOLE | KIND_SMOOTH, NULL, NULL, 0, 0},
    {OP_SUB, 2, KIND_FLOAT | KIND_WHOLE | KIND_SMOOTH, NULL, NULL, 0, 0},
    {OP_MUL, 2, KIND_FLOAT | KIND_WHOLE | KIND_SMOOTH, NULL, NULL, 0, 0},
    {OP_DIV, 2, KIND_FLOAT | KIND_WHOLE | KIND_SMOOTH, NULL, NULL, 0, 0},
    {OP_MOD, 2, KIND_FLOAT | KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_PRELU, 2, KIND_FLOAT | KIND_WHOLE | KIND_SMOOTH, NULL, NULL, 0, 0},
    {OP_POW, 2, KIND_FLOAT | KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_MAX, 2, KIND_FLOAT | KIND_WHOLE | KIND_SMOOTH, NULL, NULL, 0, 0},
    {OP_MIN, 2, KIND_FLOAT | KIND_WHOLE | KIND_SMOOTH, NULL, NULL, 0, 0},
    {OP_AND, 2, KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_OR, 2, KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_XOR, 2, KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_EQUAL, 2, KIND_FLOAT | KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_GREATER, 2, KIND_FLOAT | KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_LESS, 2, KIND_FLOAT | KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_GREATER_OR_EQUAL, 2, KIND_FLOAT | KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_LESS_OR_EQUAL, 2, KIND_FLOAT | KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_WHERE, 3, KIND_FLOAT | KIND_WHOLE, NULL, NULL, 0, 0},
    {OP_QLINEAR_ADD, 2, 0, NULL, NULL, 0, 0},
    {OP_QLINEAR_MUL, 2, 0, NULL, NULL, 0, 0},
};

/* An activation of floats is the epilogue of Identity. */
static const struct pointwise_entry activation = {
    .op = OP_IDENTITY, .operands = 1, .kinds = KIND_FLOAT | KIND_SMOOTH};

static const struct pointwise_entry *entry_of(const struct node *node)
{
    const struct value *x = node_input(node, 0);
    struct epilogue ignored;
    if (x && is_computed(x->dtype) && optimize_activation(node, &ignored))
        return &activation;
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (table[i].op == node->op)
            return &table[i];
    return NULL;
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

/* Finds the type to compute in. Returns false if there is none. */
static bool pointwise_domain_of(const struct node *node, const struct pointwise_entry *entry,
                                enum cuda_domain *ret)
{
    bool narrow = true, whole = true, is_unsigned = false;
    *ret = CUDA_IN_FLOAT;
    if (is_quantized(node))
        return true;
    for (int i = node->op == OP_WHERE ? 1 : 0; i < entry->operands; i++) {
        const enum dtype dtype = node->inputs[i]->dtype;
        narrow = narrow && is_computed(dtype);
        whole = whole && !dtype_is_float(dtype);
        is_unsigned = is_unsigned || dtype == DTYPE_U64;
    }
    const bool moves = node->op == OP_WHERE || ((node->op == OP_CAST || node->op == OP_CAST_LIKE) &&
                                                !dtype_is_float(node->outputs[0]->dtype));
    if (is_unsigned && !(whole && moves)) /* uint64 can exceed int64 */
        return false;
    *ret = narrow                                   ? CUDA_IN_FLOAT
           : whole && !(entry->kinds & KIND_DOUBLE) ? CUDA_IN_WHOLE
                                                    : CUDA_IN_DOUBLE;
    return *ret == CUDA_IN_WHOLE ? entry->kinds & KIND_WHOLE : (entry->kinds & KIND_FLOAT) != 0;
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

/* Sets attributes that are not in the table. */
static void adjust_number(const struct node *node, struct cuda_pointwise *n)
{
    if (node->op == OP_IS_INF) {
        n->alpha = node_int(node, "detect_positive", 1) != 0;
        n->beta = node_int(node, "detect_negative", 1) != 0;
    }
    if (node->op == OP_MOD)
        n->alpha = node_int(node, "fmod", 0) != 0;
}

/* Describes a node's launch without addresses; returns false if no kernel supports the node. */
static bool pointwise_classify(const struct node *node, struct cuda_pointwise *n)
{
    const struct pointwise_entry *entry = entry_of(node);
    const struct value *y = node_output(node, 0);
    struct epilogue epilogue = node->epilogue; /* optimize_activation() may replace it */
    if (!entry || !y || (epilogue.activation && (node->op != OP_ADD || !is_computed(y->dtype))) ||
        epilogue.residual || y->shape.rank < 0 || shape_count(&y->shape) == 0)
        return false;
    bool is_constant = true;
    for (int i = 0; i < entry->operands; i++) {
        const struct value *x = node_input(node, input_of(node, i));
        if (!x || x->shape.rank < 0)
            return false;
        is_constant = is_constant && x->known;
    }
    enum cuda_domain domain;
    if (is_constant || !pointwise_domain_of(node, entry, &domain))
        return false;
    if (entry == &activation)
        (void)optimize_activation(node, &epilogue);
    *n = (struct cuda_pointwise){.op = entry->op,
                                 .domain = domain,
                                 .operands = entry->operands,
                                 .activation = (int)epilogue.activation,
                                 .activation_alpha = epilogue.alpha,
                                 .activation_beta = epilogue.beta};
    n->alpha =
        entry->alpha_name ? (double)node_float(node, entry->alpha_name, (float)entry->alpha) : 0;
    n->beta = entry->beta_name ? (double)node_float(node, entry->beta_name, (float)entry->beta) : 0;
    adjust_number(node, n);
    if ((node->op == OP_DIV || node->op == OP_MOD) && domain == CUDA_IN_WHOLE &&
        !divides_safely(node))
        return false;
    return is_quantized(node) ? read_quantized(node, n) : entry->op != OP_CLIP || clip_of(node, n);
}

KERNEL_CLAIM(pointwise_claim)
{
    struct cuda_pointwise ignored;
    if (!pointwise_classify(node, &ignored))
        return false;
    if (entry_of(node)->kinds & KIND_SMOOTH)
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
