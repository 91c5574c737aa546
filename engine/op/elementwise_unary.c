/* Operators with one operand. For floats there is a row function per operator for float32 and
 * float64 (tgmath.h selects expf or exp). 16-bit floats are computed in float32, integers in int64,
 * a block at a time; computed_in() has the exceptions. */
#include "engine/op/family.h"

#include <tgmath.h>

struct parameters {
    double alpha, beta;
};

typedef void (*unary_row)(const void *src, void *dst, size_t n,
                          const struct parameters *parameters);

/* EXPRESSION computes an element from x, alpha and beta of type T. */
#define ROW(NAME, T, EXPRESSION)                                                                   \
    static void NAME(const void *src_data, void *dst_data, size_t n,                               \
                     const struct parameters *parameters)                                          \
    {                                                                                              \
        const T *src = src_data;                                                                   \
        T *dst = dst_data;                                                                         \
        const T alpha = (T)parameters->alpha, beta = (T)parameters->beta;                          \
        (void)alpha, (void)beta;                                                                   \
        VECTOR_LOOP for (size_t i = 0; i < n; i++)                                                 \
        {                                                                                          \
            const T x = src[i];                                                                    \
            dst[i] = EXPRESSION;                                                                   \
        }                                                                                          \
    }

/* ln(1 + e^x) without overflow. */
#define SOFTPLUS(x) ((x) > 0 ? (x) + log1p(exp(-(x))) : log1p(exp(x)))
#define UNIT(x)     ((x) < 0 ? 0 : (x) > 1 ? 1 : (x))
#define SQRT_HALF   0.70710678118654752440
#define SQRT_2_PI   0.79788456080286535588 /* sqrt(2 / pi) */

#define ROWS(D, T)                                                                                 \
    ROW(abs_##D, T, fabs(x))                                                                       \
    ROW(neg_##D, T, -x)                                                                            \
    ROW(sign_##D, T, x > 0 ? 1 : x < 0 ? -1 : x)                                                   \
    ROW(floor_##D, T, floor(x))                                                                    \
    ROW(ceil_##D, T, ceil(x))                                                                      \
    ROW(round_##D, T, nearbyint(x))                                                                \
    ROW(sqrt_##D, T, sqrt(x))                                                                      \
    ROW(reciprocal_##D, T, 1 / x)                                                                  \
    ROW(exp_##D, T, exp(x))                                                                        \
    ROW(log_##D, T, log(x))                                                                        \
    ROW(sin_##D, T, sin(x))                                                                        \
    ROW(cos_##D, T, cos(x))                                                                        \
    ROW(tanh_##D, T, tanh(x))                                                                      \
    ROW(erf_##D, T, erf(x))                                                                        \
    ROW(sigmoid_##D, T, 1 / (1 + exp(-x)))                                                         \
    ROW(hard_sigmoid_##D, T, UNIT(alpha *x + beta))                                                \
    ROW(hard_swish_##D, T, x *UNIT(x / 6 + (T)0.5))                                                \
    ROW(relu_##D, T, x < 0 ? 0 : x)                                                                \
    ROW(leaky_relu_##D, T, x < 0 ? alpha * x : x)                                                  \
    ROW(thresholded_relu_##D, T, x > alpha ? x : 0)                                                \
    ROW(elu_##D, T, x < 0 ? alpha * expm1(x) : x)                                                  \
    ROW(selu_##D, T, x > 0 ? beta * x : beta * alpha * expm1(x))                                   \
    ROW(celu_##D, T, x < 0 ? alpha * expm1(x / alpha) : x)                                         \
    ROW(softplus_##D, T, SOFTPLUS(x))                                                              \
    ROW(softsign_##D, T, x / (1 + fabs(x)))                                                        \
    ROW(mish_##D, T, x *tanh(SOFTPLUS(x)))                                                         \
    ROW(swish_##D, T, x / (1 + exp(-alpha * x)))                                                   \
    ROW(gelu_##D, T, (T)0.5 * x * (1 + erf(x * (T)SQRT_HALF)))                                     \
    ROW(gelu_tanh_##D, T, (T)0.5 * x * (1 + tanh((T)SQRT_2_PI * (x + (T)0.044715 * x * x * x))))   \
    ROW(shrink_##D, T, x<-alpha ? x + beta : x> alpha ? x - beta : 0)

ROWS(F32, float)
ROWS(F64, double)
ROW(is_not, uint8_t, !x)
ROW(is_nan, double, x != x)
ROW(is_inf, double, (x == INFINITY && alpha) || (x == -INFINITY && beta))

struct unary_rows {
    unary_row single, wide;
    const char *alpha_name, *beta_name; /* attributes; NULL: none */
    struct parameters defaults;
    enum activation activation; /* equivalent epilogue activation; ACTIVATION_NONE: none */
};

/* X(operator, name of its row functions, opset, types, attributes, names of alpha and beta, their
 * defaults, equivalent activation). */
/* clang-format off */
#define ALPHA "alpha:float", "alpha", NULL
#define NOTHING NULL, NULL, NULL, 0, 0
#define UNARIES(X)                                                                                 \
    X(ABS, abs, 1, number, NOTHING, NONE)                                                          \
    X(NEG, neg, 1, signed, NOTHING, NONE)                                                          \
    X(SIGN, sign, 9, number, NOTHING, NONE)                                                        \
    X(FLOOR, floor, 1, float, NOTHING, NONE)                                                       \
    X(CEIL, ceil, 1, float, NOTHING, NONE)                                                         \
    X(ROUND, round, 11, float, NOTHING, NONE)                                                      \
    X(SQRT, sqrt, 1, float, NOTHING, NONE)                                                         \
    X(RECIPROCAL, reciprocal, 1, float, NOTHING, NONE)                                             \
    X(EXP, exp, 1, float, NOTHING, NONE)                                                           \
    X(LOG, log, 1, float, NOTHING, NONE)                                                           \
    X(SIN, sin, 7, float, NOTHING, NONE)                                                           \
    X(COS, cos, 7, float, NOTHING, NONE)                                                           \
    X(TANH, tanh, 1, float, NOTHING, TANH)                                                         \
    X(ERF, erf, 9, number, NOTHING, NONE)                                                          \
    X(SIGMOID, sigmoid, 1, float, NOTHING, SIGMOID)                                                \
    X(HARD_SIGMOID, hard_sigmoid, 1, float, "alpha:float beta:float", "alpha", "beta", 0.2f, 0.5,  \
      HARD_SIGMOID)                                                                                \
    X(HARD_SWISH, hard_swish, 14, float, NULL, NULL, NULL, 1.0f / 6, 0.5, HARD_SWISH)              \
    X(RELU, relu, 1, signed, NOTHING, RELU)                                                        \
    X(LEAKY_RELU, leaky_relu, 1, float, ALPHA, 0.01f, 0, LEAKY_RELU)                               \
    X(THRESHOLDED_RELU, thresholded_relu, 1, float, ALPHA, 1, 0, NONE) /* experimental before 10 */\
    X(ELU, elu, 1, float, ALPHA, 1, 0, ELU)                                                        \
    X(SELU, selu, 1, float, "alpha:float gamma:float", "alpha", "gamma",                           \
      1.67326319217681884765625, 1.05070102214813232421875, NONE)                                  \
    X(CELU, celu, 12, float, ALPHA, 1, 0, NONE)                                                    \
    X(SOFTPLUS, softplus, 1, float, NOTHING, NONE)                                                 \
    X(SOFTSIGN, softsign, 1, float, NOTHING, NONE)                                                 \
    X(MISH, mish, 18, float, NOTHING, NONE)                                                        \
    X(SWISH, swish, 24, float, ALPHA, 1, 0, NONE)                                                  \
    X(SILU, swish, 1, float, ALPHA, 1, 0, SILU)                                                    \
    X(GELU, gelu, 20, float, "approximate:string", NULL, NULL, 0, 0, GELU)                          \
    X(SHRINK, shrink, 9, number, "bias:float lambd:float", "lambd", "bias", 0.5, 0, NONE)
/* clang-format on */

#define UNARY_ROWS(id, name, ...) UNARY_ROWS_(id, name, __VA_ARGS__)
#define UNARY_ROWS_(id, name, since, types, attrs, alpha_name, beta_name, alpha, beta, activation) \
    [OP_##id] = {name##_F32, name##_F64,    alpha_name,                                            \
                 beta_name,  {alpha, beta}, ACTIVATION_##activation},
static const struct unary_rows unaries[OP_COUNT] = {
    UNARIES(UNARY_ROWS)[OP_NOT] = {.single = is_not}, [OP_IS_NAN] = {.wide = is_nan},
    [OP_IS_INF] = {.wide = is_inf}};

static const struct unary_rows gelu_tanh = {gelu_tanh_F32, gelu_tanh_F64, NULL,
                                            NULL,          {0, 0},        ACTIVATION_GELU_TANH};

/* Returns the dtype in which an operator computes. Silu in float32 would be less precise than
 * passes assume; Erf and Shrink have no form for integers. */
static enum dtype computed_in(enum op op, enum dtype dtype)
{
    if (op == OP_NOT)
        return DTYPE_BOOL;
    if (op == OP_SILU || op == OP_IS_NAN || op == OP_IS_INF || dtype == DTYPE_F64 ||
        (!dtype_is_float(dtype) && (op == OP_ERF || op == OP_SHRINK)))
        return DTYPE_F64;
    return dtype_is_float(dtype) ? DTYPE_F32 : DTYPE_I64;
}

/* Computes Abs, Neg, Sign or Relu of an integer; results that do not fit wrap. */
static int64_t whole(enum op op, int64_t x)
{
    switch (op) {
    case OP_NEG:
        return (int64_t)(0 - (uint64_t)x);
    case OP_ABS:
        return x < 0 ? (int64_t)(0 - (uint64_t)x) : x;
    case OP_SIGN:
        return (x > 0) - (x < 0);
    default: /* Relu */
        return x < 0 ? 0 : x;
    }
}

static void unary_integers(enum op op, bool is_unsigned, const int64_t *x, int64_t *y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        /* a uint64 above INT64_MAX would read as negative */
        bool huge = is_unsigned && x[i] < 0;
        y[i] = !huge ? whole(op, x[i]) : op == OP_SIGN ? 1 : x[i];
    }
}

static struct unary_rows rows_of(const struct node *node, struct parameters *ret)
{
    struct unary_rows unary = unaries[node->op];
    if (node->op == OP_GELU && node_word(node, "approximate", "none tanh") == 1)
        unary = gelu_tanh;
    *ret = unary.defaults;
    if (unary.alpha_name)
        ret->alpha = node_float(node, unary.alpha_name, (float)ret->alpha);
    if (unary.beta_name)
        ret->beta = node_float(node, unary.beta_name, (float)ret->beta);
    if (node->op == OP_IS_INF)
        *ret = (struct parameters){node_int(node, "detect_positive", 1) != 0,
                                   node_int(node, "detect_negative", 1) != 0};
    return unary;
}

void op_parameters(const struct node *node, double *ret_alpha, double *ret_beta)
{
    struct parameters parameters;
    (void)rows_of(node, &parameters);
    *ret_alpha = parameters.alpha;
    *ret_beta = parameters.beta;
}

bool op_activation(const struct node *node, struct epilogue *ret)
{
    struct parameters parameters;
    const enum activation activation = rows_of(node, &parameters).activation;
    if (activation != ACTIVATION_NONE)
        *ret = (struct epilogue){.activation = activation,
                                 .alpha = (float)parameters.alpha,
                                 .beta = (float)parameters.beta};
    return activation != ACTIVATION_NONE;
}

KERNEL(kernel_unary)
{
    const struct node *node = args->node;
    const struct tensor *x = args->in[0];
    struct tensor *y = args->out[0];
    struct parameters parameters;
    const struct unary_rows unary = rows_of(node, &parameters);
    const enum dtype working = computed_in(node->op, x->dtype);
    const bool is_native = x->dtype == working && y->dtype == working;
    const size_t count = shape_count(&x->shape), most = is_native ? count : BLOCK;
    for (size_t done = 0, n; done < count; done += n) {
        union {
            float single[BLOCK];
            double wide[BLOCK];
            int64_t whole[BLOCK];
        } block;
        const void *from = element(x->data, x->dtype, done), *in = is_native ? from : &block;
        void *to = element_at(y->data, y->dtype, done), *out = is_native ? to : &block;
        n = count - done < most ? count - done : most;
        if (!is_native)
            convert_row(from, x->dtype, &block, working, n);
        if (working == DTYPE_I64)
            unary_integers(node->op, x->dtype == DTYPE_U64, in, out, n);
        else
            (working == DTYPE_F64 ? unary.wide : unary.single)(in, out, n, &parameters);
        if (!is_native)
            convert_row(&block, working, to, y->dtype, n);
    }
    return STATUS_OK;
}

static enum status infer_predicate(struct node *node, struct error *err)
{
    return infer_output(node, 0, DTYPE_BOOL, &node->inputs[0]->shape, err);
}

static enum status infer_unary(struct node *node, struct error *err)
{
    if (node->op == OP_GELU)
        TRY(infer_word(node, "approximate", "none tanh", err));
    return infer_like(node, err);
}

#define UNARY(id, since, types, traits, attrs, infer)                                              \
    OP_ROW_OF(id, since, 1, 1, "X:" #types, OP_UNARY | traits, attrs, infer, &batch_elementwise,   \
              unary)
#define UNARY_RECORD(id, name, ...)                 UNARY_RECORD_(id, __VA_ARGS__)
#define UNARY_RECORD_(id, since, types, attrs, ...) UNARY(id, since, types, OP_UNARY, attrs, unary),

const struct op_info ops_unary[] = {
    UNARIES(UNARY_RECORD) /* operators without row functions: */
    UNARY(NOT, 1, bool, OP_PREDICATE, NULL, like),
    UNARY(IS_NAN, 9, float, OP_PREDICATE, NULL, predicate),
    UNARY(IS_INF, 10, float, OP_PREDICATE, "detect_negative:int detect_positive:int", predicate),
    {0},
};
