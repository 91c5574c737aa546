/* Elementwise operators, unary and broadcasting: records and inference. Cast, CastLike, Identity
 * and Dropout are here too.
 *
 * Types: each operator takes the types of its newest version at every opset; an older file that
 * uses a type its opset did not have yet still means one thing only. */
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/convert.h"
#include "engine/op/copy.h"
#include "engine/op/elementwise.h"
#include "engine/op/kernels.h"
#include "engine/op/ops.h"
#include "engine/op/resolve.h"

/* ---- unary ---- */

static enum status infer_like(struct node *node, unsigned dtypes, struct error *err)
{
    const struct value *x = node->inputs[0];
    TRY(operand_dtype(node, 0, "input", dtypes, err));
    return infer_output(node, 0, x->dtype, &x->shape, err);
}

static enum status infer_float(struct node *node, struct error *err)
{
    return infer_like(node, DTYPES_FLOAT, err);
}

static enum status infer_number(struct node *node, struct error *err)
{
    return infer_like(node, DTYPES_NUMBER, err);
}

static enum status infer_signed(struct node *node, struct error *err)
{
    return infer_like(node, DTYPES_FLOAT | DTYPES_SIGNED, err);
}

static enum status infer_f32(struct node *node, struct error *err)
{
    return infer_like(node, DTYPE_BIT(F32), err);
}

static enum status infer_keys(struct node *node, struct error *err)
{
    return infer_like(node, DTYPE_BIT(I64), err);
}

static enum status infer_identity(struct node *node, struct error *err)
{
    return infer_like(node, DTYPES_ANY, err);
}

static enum status infer_predicate(struct node *node, struct error *err)
{
    TRY(operand_dtype(node, 0, "input", DTYPES_FLOAT, err));
    return infer_output(node, 0, DTYPE_BOOL, &node->inputs[0]->shape, err);
}

static enum status infer_not(struct node *node, struct error *err)
{
    return infer_like(node, DTYPES_BOOL, err);
}

static enum status infer_gelu(struct node *node, struct error *err)
{
    const char *form = node_string(node, "approximate", "none");
    if (strcmp(form, "none") && strcmp(form, "tanh"))
        return error_set(err, STATUS_MODEL, "approximate '%s' is neither 'none' nor 'tanh'", form);
    return infer_float(node, err);
}

static enum status infer_clip(struct node *node, struct error *err)
{
    for (size_t i = 1; i < node->input_count; i++) {
        const char *name = i == 1 ? "min" : "max";
        const struct value *limit = node_input(node, i);
        if (limit && limit->dtype != DTYPE_F32) /* as older opsets' attributes are */
            TRY(operand_same_dtype(node, i, name, err));
        TRY(operand_single(node, i, name, err));
    }
    return infer_number(node, err);
}

enum dtype op_cast_target(const struct node *cast)
{
    const int64_t to = node_int(cast, "to", DTYPE_NONE);
    return to > 0 && to <= DTYPE_BF16 && dtype_size((enum dtype)to) ? (enum dtype)to : DTYPE_NONE;
}

static enum status infer_cast(struct node *node, struct error *err)
{
    TRY(operand_dtype(node, 0, "input", DTYPES_ANY, err));
    TRY(resolve_required(node, "to", err));
    const enum dtype to = op_cast_target(node);
    if (to == DTYPE_NONE)
        return error_set(err, STATUS_UNSUPPORTED,
                         "a cast to ONNX data type %lld; lensd has float, integer and bool tensors",
                         (long long)node_int(node, "to", DTYPE_NONE));
    return infer_output(node, 0, to, &node->inputs[0]->shape, err);
}

static enum status infer_cast_like(struct node *node, struct error *err)
{
    TRY(operand_dtype(node, 0, "input", DTYPES_ANY, err));
    TRY(operand_dtype(node, 1, "target_type", DTYPES_ANY, err));
    return infer_output(node, 0, node->inputs[1]->dtype, &node->inputs[0]->shape, err);
}

/* Identity at inference. From opset 12 a graph may ask for training mode, which changes nothing
 * where the ratio is 0. */
static enum status infer_dropout(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    TRY(operand_dtype(node, 0, "input", DTYPES_FLOAT, err));
    const struct value *ratio = node_input(node, 1), *training = node_input(node, 2);
    bool drops = !ratio || !ratio->known || shape_count(&ratio->known->shape) != 1 ||
                 tensor_number(ratio->known, 0) != 0;
    if (drops && training && training->known && shape_count(&training->known->shape) == 1 &&
        tensor_int(training->known, 0)) {
        (void)error_set(err, STATUS_UNSUPPORTED, "training_mode is true");
        return error_advise(err, "export the model in evaluation mode");
    }
    TRY(infer_output(node, 0, x->dtype, &x->shape, err));
    return infer_output(node, 1, DTYPE_BOOL, &x->shape, err);
}

/* ---- broadcasting ---- */

/* Two operands of one type. */
static enum status infer_two(struct node *node, unsigned dtypes, enum dtype dtype,
                             struct error *err)
{
    struct shape out;
    TRY(operand_dtype(node, 0, "input", dtypes, err));
    TRY(operand_same_dtype(node, 1, "B", err));
    TRY(infer_broadcast(&node->inputs[0]->shape, &node->inputs[1]->shape, &out, err));
    return infer_output(node, 0, dtype, &out, err);
}

static enum status infer_binary(struct node *node, struct error *err)
{
    return infer_two(node, DTYPES_NUMBER, node->inputs[0]->dtype, err);
}

static enum status infer_logical(struct node *node, struct error *err)
{
    return infer_two(node, DTYPES_BOOL, DTYPE_BOOL, err);
}

static enum status infer_comparison(struct node *node, struct error *err)
{
    const unsigned dtypes = node->op == OP_EQUAL ? DTYPES_ANY : DTYPES_NUMBER;
    return infer_two(node, dtypes, DTYPE_BOOL, err);
}

/* The exponent may have another type than the base. */
static enum status infer_pow(struct node *node, struct error *err)
{
    const struct value *a = node->inputs[0], *b = node->inputs[1];
    struct shape out;
    TRY(operand_dtype(node, 0, "input", DTYPES_NUMBER, err));
    TRY(operand_dtype(node, 1, "exponent", DTYPES_NUMBER, err));
    TRY(infer_broadcast(&a->shape, &b->shape, &out, err));
    return infer_output(node, 0, a->dtype, &out, err);
}

/* The slope broadcasts to the data, never the other way. */
static enum status infer_prelu(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    const struct shape slope = node->inputs[1]->shape;
    struct shape out;
    TRY(operand_dtype(node, 0, "input", DTYPES_NUMBER, err));
    TRY(operand_same_dtype(node, 1, "B", err));
    TRY(infer_broadcast(&x->shape, &slope, &out, err));
    if (!shape_equal(&out, &x->shape)) {
        char data[SHAPE_TEXT], text[SHAPE_TEXT];
        return error_set(err, STATUS_SHAPE,
                         "a slope of shape %s does not broadcast to the data, %s",
                         shape_text(&slope, text), shape_text(&x->shape, data));
    }
    return infer_output(node, 0, x->dtype, &out, err);
}

static enum status infer_variadic(struct node *node, struct error *err)
{
    struct shape out = node->inputs[0]->shape;
    const unsigned dtypes =
        node->op == OP_SUM || node->op == OP_MEAN ? DTYPES_FLOAT : DTYPES_NUMBER;
    TRY(operand_dtype(node, 0, "input", dtypes, err));
    for (size_t i = 1; i < node->input_count; i++) {
        TRY(operand_present(node, i, "data", err));
        TRY(operand_same_dtype(node, i, "data", err));
        TRY(infer_broadcast(&out, &node->inputs[i]->shape, &out, err));
    }
    return infer_output(node, 0, node->inputs[0]->dtype, &out, err);
}

static enum status infer_where(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[1], *y = node->inputs[2];
    struct shape out;
    TRY(operand_dtype(node, 0, "condition", DTYPES_BOOL, err));
    TRY(operand_dtype(node, 1, "X", DTYPES_ANY, err));
    if (x->dtype != y->dtype)
        return error_set(err, STATUS_MODEL, "the two choices are %s and %s, they must agree",
                         dtype_name(x->dtype), dtype_name(y->dtype));
    TRY(infer_broadcast(&node->inputs[0]->shape, &x->shape, &out, err));
    TRY(infer_broadcast(&out, &y->shape, &out, err));
    return infer_output(node, 0, x->dtype, &out, err);
}

/* ---- reference kernels ---- */

KERNEL(kernel_cast)
{
    const struct tensor *x = args->in[0];
    struct tensor *y = *args->out[0];
    if (x->bytes)
        convert_row(x->data, x->dtype, y->data, y->dtype, shape_count(&x->shape));
    return STATUS_OK;
}

/* Operators whose output is the input's bytes under another shape. The output may be a view. */
KERNEL(kernel_view)
{
    if (args->out[0] && (*args->out[0])->data != args->in[0]->data)
        copy_bytes((*args->out[0])->data, args->in[0]->data, args->in[0]->bytes);
    return STATUS_OK;
}

KERNEL(kernel_dropout)
{
    const struct tensor *ratio = kernel_input(args, 1);
    const struct tensor *training = kernel_input(args, 2);
    const bool drops = !ratio || shape_count(&ratio->shape) != 1 || tensor_number(ratio, 0) != 0;
    if (drops && training && shape_count(&training->shape) == 1 && tensor_int(training, 0)) {
        (void)error_set(err, STATUS_UNSUPPORTED, "training_mode is true");
        return error_advise(err, "export the model in evaluation mode");
    }
    if (args->node->output_count > 1 && args->out[1]) {
        struct tensor *mask = *args->out[1];
        double one = 1;
        uint64_t value;
        store_doubles(&one, mask->dtype, &value, 1);
        fill_row(mask->data, &value, dtype_size(mask->dtype), shape_count(&mask->shape));
    }
    return kernel_view(args, err);
}

/* ---- Pow ---- */

/* base^exponent modulo 2^64; a negative exponent leaves only what a fraction truncates to. */
static int64_t power(int64_t base, int64_t exponent)
{
    if (exponent < 0) {
        if (base == 0)
            return INT64_MAX; /* infinity, saturated */
        return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
    }
    uint64_t result = 1, square = (uint64_t)base;
    for (; exponent; exponent >>= 1, square *= square)
        if (exponent & 1)
            result *= square;
    return (int64_t)result;
}

struct pow_row {
    const struct tensor *base, *exponent;
    struct tensor *out;
    const struct broadcast *operands;
};

static size_t operand_at(const struct broadcast *operands, int operand, size_t done)
{
    return operands->rows.offset[operand] + (operands->moves[operand] ? done : 0);
}

static void pow_integers(const struct pow_row *row, size_t done, size_t n)
{
    int64_t x[BLOCK], y[BLOCK];
    const struct broadcast *operands = row->operands;
    size_t a = operand_at(operands, 0, done), b = operand_at(operands, 1, done);
    enum dtype from = row->base->dtype, to = row->exponent->dtype;
    load_integers(element(row->base->data, from, a), from, x, operands->moves[0] ? n : 1);
    load_integers(element(row->exponent->data, to, b), to, y, operands->moves[1] ? n : 1);
    int64_t z[BLOCK];
    for (size_t i = 0; i < n; i++)
        z[i] = power(x[operands->moves[0] ? i : 0], y[operands->moves[1] ? i : 0]);
    store_integers(z, from, element_at(row->out->data, from, operands->done + done), n);
}

static void pow_doubles(const struct pow_row *row, size_t done, size_t n)
{
    double x[BLOCK], y[BLOCK], z[BLOCK];
    const struct broadcast *operands = row->operands;
    size_t a = operand_at(operands, 0, done), b = operand_at(operands, 1, done);
    enum dtype from = row->base->dtype, to = row->exponent->dtype;
    load_doubles(element(row->base->data, from, a), from, x, operands->moves[0] ? n : 1);
    load_doubles(element(row->exponent->data, to, b), to, y, operands->moves[1] ? n : 1);
    for (size_t i = 0; i < n; i++)
        z[i] = pow(x[operands->moves[0] ? i : 0], y[operands->moves[1] ? i : 0]);
    store_doubles(z, from, element_at(row->out->data, from, operands->done + done), n);
}

/* float32 to a float32 power; the square is what layer normalisation is exported with. */
static void pow_floats(const struct pow_row *row)
{
    const struct broadcast *operands = row->operands;
    const float *x = (const float *)row->base->data + operands->rows.offset[0];
    const float *y = (const float *)row->exponent->data + operands->rows.offset[1];
    float *z = (float *)row->out->data + operands->done;
    if (operands->moves[0] && !operands->moves[1] && y[0] == 2) {
        for (size_t i = 0; i < operands->row; i++)
            z[i] = x[i] * x[i];
        return;
    }
    for (size_t i = 0; i < operands->row; i++)
        z[i] = powf(x[operands->moves[0] ? i : 0], y[operands->moves[1] ? i : 0]);
}

KERNEL(kernel_pow)
{
    const struct tensor *base = args->in[0], *exponent = args->in[1];
    struct tensor *out = *args->out[0];
    const struct shape *const shapes[] = {&base->shape, &exponent->shape};
    struct broadcast operands;
    struct pow_row row = {base, exponent, out, &operands};
    bool integers = !dtype_is_float(base->dtype) && !dtype_is_float(exponent->dtype);
    bool floats = base->dtype == DTYPE_F32 && exponent->dtype == DTYPE_F32;
    if (!broadcast_start(&operands, &out->shape, shapes, 2))
        return STATUS_OK;
    do {
        if (floats) {
            pow_floats(&row);
            continue;
        }
        for (size_t done = 0; done < operands.row; done += BLOCK) {
            size_t n = operands.row - done < BLOCK ? operands.row - done : BLOCK;
            if (integers)
                pow_integers(&row, done, n);
            else
                pow_doubles(&row, done, n);
        }
    } while (broadcast_next(&operands));
    return STATUS_OK;
}

/* ---- Where ---- */

#define DEFINE_CHOOSE(TYPE)                                                                        \
    static void choose_##TYPE(const uint8_t *condition, const void *x_data, bool x_moves,          \
                              const void *y_data, bool y_moves, void *dst_data, size_t n)          \
    {                                                                                              \
        const TYPE *x = x_data, *y = y_data;                                                       \
        TYPE *dst = dst_data;                                                                      \
        for (size_t i = 0; i < n; i++)                                                             \
            dst[i] = condition[i] ? x[x_moves ? i : 0] : y[y_moves ? i : 0];                       \
    }
EACH_ITEM_TYPE(DEFINE_CHOOSE)

static void choose(size_t item, const uint8_t *condition, const void *x, bool x_moves,
                   const void *y, bool y_moves, void *dst, size_t n)
{
    BY_ITEM_SIZE(item, choose, condition, x, x_moves, y, y_moves, dst, n);
}

KERNEL(kernel_where)
{
    const struct tensor *condition = args->in[0], *x = args->in[1], *y = args->in[2];
    struct tensor *out = *args->out[0];
    const struct shape *const shapes[] = {&condition->shape, &x->shape, &y->shape};
    size_t item = dtype_size(out->dtype);
    struct broadcast operands;
    if (!broadcast_start(&operands, &out->shape, shapes, 3))
        return STATUS_OK;
    do {
        const uint8_t *flags = (const uint8_t *)condition->data + operands.rows.offset[0];
        const void *from[] = {element(x->data, x->dtype, operands.rows.offset[1]),
                              element(y->data, y->dtype, operands.rows.offset[2])};
        void *to = element_at(out->data, out->dtype, operands.done);
        int chosen = *flags ? 0 : 1;
        if (operands.moves[0])
            choose(item, flags, from[0], operands.moves[1], from[1], operands.moves[2], to,
                   operands.row);
        else if (operands.moves[1 + chosen])
            memcpy(to, from[chosen], operands.row * item);
        else
            fill_row(to, from[chosen], item, operands.row);
    } while (broadcast_next(&operands));
    return STATUS_OK;
}

/* ---- the table ---- */

#define UNARY(id, first, attributes, infer)                                                        \
    {                                                                                              \
        OP_##id, first, 0, 1, 1, 1, 1, OP_UNARY, attributes, infer, &batch_elementwise,            \
            work_elements, kernel_unary                                                            \
    }
#define PREDICATE(id, first, attributes)                                                           \
    {                                                                                              \
        OP_##id, first, 0, 1, 1, 1, 1, OP_UNARY | OP_PREDICATE, attributes, infer_predicate,       \
            &batch_elementwise, work_elements, kernel_unary                                        \
    }
#define COMPARISON(id, first)                                                                      \
    {                                                                                              \
        OP_##id, first, 0, 2, 2, 1, 1, OP_BROADCAST | OP_PREDICATE, NULL, infer_comparison,        \
            &batch_elementwise, work_elements, kernel_binary                                       \
    }
#define BINARY(id, first, infer, kernel)                                                           \
    {                                                                                              \
        OP_##id, first, 0, 2, 2, 1, 1, OP_BROADCAST, NULL, infer, &batch_elementwise,              \
            work_elements, kernel                                                                  \
    }
#define VARIADIC(id)                                                                               \
    {                                                                                              \
        OP_##id, 1, 0, 1, OP_VARIADIC, 1, 1, OP_BROADCAST, NULL, infer_variadic,                   \
            &batch_elementwise, work_elements, kernel_variadic                                     \
    }

static const struct op_info table[] = {
    UNARY(ABS, 1, NULL, infer_number),
    UNARY(NEG, 1, NULL, infer_signed),
    UNARY(SIGN, 9, NULL, infer_number),
    UNARY(FLOOR, 1, NULL, infer_float),
    UNARY(CEIL, 1, NULL, infer_float),
    UNARY(ROUND, 11, NULL, infer_float),
    UNARY(SQRT, 1, NULL, infer_float),
    UNARY(RECIPROCAL, 1, NULL, infer_float),
    UNARY(EXP, 1, NULL, infer_float),
    UNARY(LOG, 1, NULL, infer_float),
    UNARY(SIN, 7, NULL, infer_float),
    UNARY(COS, 7, NULL, infer_float),
    UNARY(TANH, 1, NULL, infer_float),
    UNARY(ERF, 9, NULL, infer_number),
    UNARY(SIGMOID, 1, NULL, infer_float),
    UNARY(HARD_SIGMOID, 1, "alpha:float beta:float", infer_float),
    UNARY(HARD_SWISH, 14, NULL, infer_float),
    UNARY(RELU, 1, NULL, infer_signed),
    UNARY(LEAKY_RELU, 1, "alpha:float", infer_float),
    UNARY(THRESHOLDED_RELU, 1, "alpha:float", infer_float), /* experimental before 10 */
    UNARY(ELU, 1, "alpha:float", infer_float),
    UNARY(SELU, 1, "alpha:float gamma:float", infer_float),
    UNARY(CELU, 12, "alpha:float", infer_float),
    UNARY(SOFTPLUS, 1, NULL, infer_float),
    UNARY(SOFTSIGN, 1, NULL, infer_float),
    UNARY(MISH, 18, NULL, infer_float),
    UNARY(SWISH, 24, "alpha:float", infer_float),
    {OP_GELU, 20, 0, 1, 1, 1, 1, OP_UNARY, "approximate:string", infer_gelu, &batch_elementwise,
     work_elements, kernel_unary},
    UNARY(SHRINK, 9, "bias:float lambd:float", infer_number),
    {OP_NOT, 1, 0, 1, 1, 1, 1, OP_UNARY | OP_PREDICATE, NULL, infer_not, &batch_elementwise,
     work_elements, kernel_unary},
    UNARY(SILU, 1, "alpha:float", infer_float),
    {OP_DYNAMIC_ROUND, 1, 0, 1, 1, 1, 1, OP_UNARY, NULL, infer_f32, &batch_mixes, work_elements,
     kernel_dynamic_round},
    {OP_VALID_KEYS, 1, 0, 1, 1, 1, 1, OP_PLAIN, "keys:int", infer_keys, &batch_unary, work_elements,
     kernel_valid_keys},
    PREDICATE(IS_NAN, 9, NULL),
    PREDICATE(IS_INF, 10, "detect_negative:int detect_positive:int"),
    {OP_CLIP, 11, 0, 1, 3, 1, 1, OP_UNARY, NULL, infer_clip, &batch_elementwise, work_elements,
     kernel_clip},
    {OP_CAST, 6, 0, 1, 1, 1, 1, OP_UNARY, "to:int saturate:int round_mode:string", infer_cast,
     &batch_elementwise, work_elements, kernel_cast},
    {OP_CAST_LIKE, 15, 0, 2, 2, 1, 1, OP_PLAIN, "saturate:int round_mode:string", infer_cast_like,
     &batch_elementwise, work_elements, kernel_cast},
    {OP_IDENTITY, 1, 0, 1, 1, 1, 1, OP_UNARY | OP_VIEW | OP_MOVES | OP_KEEPS_NUMBERS, NULL,
     infer_identity, &batch_reshape, work_elements, kernel_view},
    {OP_DROPOUT, 12, 0, 1, 3, 1, 2, OP_VIEW, "seed:int", infer_dropout, &batch_unary, work_elements,
     kernel_dropout},
    BINARY(ADD, 7, infer_binary, kernel_binary),
    BINARY(SUB, 7, infer_binary, kernel_binary),
    BINARY(MUL, 7, infer_binary, kernel_binary),
    BINARY(DIV, 7, infer_binary, kernel_binary),
    BINARY(POW, 7, infer_pow, kernel_pow),
    {OP_MOD, 10, 0, 2, 2, 1, 1, OP_BROADCAST, "fmod:int", infer_binary, &batch_elementwise,
     work_elements, kernel_binary},
    BINARY(PRELU, 7, infer_prelu, kernel_binary),
    VARIADIC(MAX),
    VARIADIC(MIN),
    VARIADIC(SUM),
    VARIADIC(MEAN),
    BINARY(AND, 7, infer_logical, kernel_binary),
    BINARY(OR, 7, infer_logical, kernel_binary),
    BINARY(XOR, 7, infer_logical, kernel_binary),
    COMPARISON(EQUAL, 7),
    COMPARISON(GREATER, 7),
    COMPARISON(LESS, 7),
    COMPARISON(GREATER_OR_EQUAL, 12),
    COMPARISON(LESS_OR_EQUAL, 12),
    {OP_WHERE, 9, 0, 3, 3, 1, 1, OP_BROADCAST, NULL, infer_where, &batch_elementwise, work_elements,
     kernel_where},
};

const struct op_family ops_elementwise = {table, COUNT_OF(table)};
