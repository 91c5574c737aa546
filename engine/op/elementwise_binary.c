/* Operators with two operands, and Clip. The macros below define a row function per operator and
 * dtype. Each has a loop for two rows, for a row and one element, and for one element and a row, so
 * that the compiler can vectorise every broadcasting pattern. */
#include "engine/op/elementwise.h"

#include <math.h>
#include <string.h>

#include "engine/op/family.h"
#include "engine/op/gemm.h"

/* EXPRESSION computes an element from x and y of type T. */
#define ROW(NAME, T, R, EXPRESSION)                                                                \
    static enum status NAME(const void *a_data, bool a_moves, const void *b_data, bool b_moves,    \
                            void *dst_data, size_t n)                                              \
    {                                                                                              \
        const T *a = a_data, *b = b_data;                                                          \
        R *dst = dst_data;                                                                         \
        enum status status = STATUS_OK;                                                            \
        if (a_moves && b_moves) {                                                                  \
            VECTOR_LOOP for (size_t i = 0; i < n; i++)                                             \
            {                                                                                      \
                const T x = a[i], y = b[i];                                                        \
                dst[i] = (R)(EXPRESSION);                                                          \
            }                                                                                      \
        } else if (a_moves) {                                                                      \
            const T y = b[0];                                                                      \
            VECTOR_LOOP for (size_t i = 0; i < n; i++)                                             \
            {                                                                                      \
                const T x = a[i];                                                                  \
                dst[i] = (R)(EXPRESSION);                                                          \
            }                                                                                      \
        } else {                                                                                   \
            const T x = a[0];                                                                      \
            VECTOR_LOOP for (size_t i = 0; i < n; i++)                                             \
            {                                                                                      \
                const T y = b[b_moves ? i : 0];                                                    \
                dst[i] = (R)(EXPRESSION);                                                          \
            }                                                                                      \
        }                                                                                          \
        return status;                                                                             \
    }

/* Division by zero: the rest of the row is computed, and the status reports the error. */
#define NONZERO(y, result) ((y) == 0 ? (status = STATUS_INVALID, 0) : (result))

#define COMMON_ROWS(D, T)                                                                          \
    ROW(equal_##D, T, uint8_t, x == y)                                                             \
    ROW(greater_##D, T, uint8_t, x > y)                                                            \
    ROW(less_##D, T, uint8_t, x < y)                                                               \
    ROW(greater_or_equal_##D, T, uint8_t, x >= y)                                                  \
    ROW(less_or_equal_##D, T, uint8_t, x <= y)

#define INTEGER_ROWS(D, T, W)                                                                      \
    COMMON_ROWS(D, T)                                                                              \
    ROW(add_##D, T, T, (W)x + (W)y)                                                                \
    ROW(sub_##D, T, T, (W)x - (W)y)                                                                \
    ROW(mul_##D, T, T, (W)(x) * (W)(y))                                                            \
    ROW(max_##D, T, T, x > y ? x : y)                                                              \
    ROW(min_##D, T, T, x < y ? x : y)

/* -1 is treated separately: the most negative number divided by -1 does not fit, and wraps. */
#define SIGNED_ROWS(D, T, W)                                                                       \
    INTEGER_ROWS(D, T, W)                                                                          \
    ROW(prelu_##D, T, T, x < 0 ? (W)(x) * (W)(y) : (W)x)                                           \
    ROW(div_##D, T, T, NONZERO(y, y == -1 ? (T)(0 - (W)x) : (T)(x / y)))                           \
    ROW(fmod_##D, T, T, NONZERO(y, y == -1 ? (T)0 : (T)(x % y)))                                   \
    ROW(mod_##D, T, T,                                                                             \
        NONZERO(y, y == -1 ? (T)0 : (T)(x % y + (x % y && (x % y < 0) != (y < 0) ? y : 0))))

#define UNSIGNED_ROWS(D, T, W)                                                                     \
    INTEGER_ROWS(D, T, W)                                                                          \
    ROW(prelu_##D, T, T, ((void)y, x))                                                             \
    ROW(div_##D, T, T, NONZERO(y, x / y))                                                          \
    ROW(fmod_##D, T, T, NONZERO(y, x % y))                                                         \
    ROW(mod_##D, T, T, NONZERO(y, x % y))

#define FLOAT_ROWS(D, T)                                                                           \
    COMMON_ROWS(D, T)                                                                              \
    ROW(add_##D, T, T, x + y)                                                                      \
    ROW(sub_##D, T, T, x - y)                                                                      \
    ROW(mul_##D, T, T, (x) * (y))                                                                  \
    ROW(div_##D, T, T, x / y)                                                                      \
    ROW(fmod_##D, T, T, fmod((double)x, (double)y))                                                \
    ROW(mod_##D, T, T, floor_mod((double)x, (double)y))                                            \
    ROW(max_##D, T, T, x > y || x != x ? x : y)                                                    \
    ROW(min_##D, T, T, x < y || x != x ? x : y)                                                    \
    ROW(prelu_##D, T, T, x < 0 ? x * y : x)

/* Mod-28: the remainder has the divisor's sign, even if the remainder is zero. */
static double floor_mod(double x, double y)
{
    double remainder = fmod(x, y);
    if (remainder == 0)
        return copysign(0, y);
    return (remainder < 0) != (y < 0) ? remainder + y : remainder;
}

SIGNED_TYPES(SIGNED_ROWS)
UNSIGNED_TYPES(UNSIGNED_ROWS)
FLOAT_ROWS(F32, float)
FLOAT_ROWS(F64, double)
ROW(and_BOOL, uint8_t, uint8_t, x &&y)
ROW(or_BOOL, uint8_t, uint8_t, x || y)
ROW(xor_BOOL, uint8_t, uint8_t, !x != !y)
ROW(equal_BOOL, uint8_t, uint8_t, !x == !y)

/* base^exponent modulo 2^64. A negative exponent gives a fraction, which is truncated. */
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

/* Squares are frequent in exported layer normalizations. */
ROW(pow_F32, float, float, y == 2 ? x * x : powf(x, y))
ROW(pow_F64, double, double, pow(x, y))
ROW(pow_I64, int64_t, int64_t, power(x, y))

/* ---- rows ---- */

typedef enum status (*binary_row)(const void *a, bool a_moves, const void *b, bool b_moves,
                                  void *dst, size_t n);

#define NUMBER_ENTRIES(NAME, name)                                                                 \
    [BINARY_##NAME] = {                                                                            \
        [DTYPE_F32] = name##_F32, [DTYPE_F64] = name##_F64, [DTYPE_U8] = name##_U8,                \
        [DTYPE_I8] = name##_I8,   [DTYPE_U16] = name##_U16, [DTYPE_I16] = name##_I16,              \
        [DTYPE_U32] = name##_U32, [DTYPE_I32] = name##_I32, [DTYPE_U64] = name##_U64,              \
        [DTYPE_I64] = name##_I64,                                                                  \
    },
#define FLAG_ENTRIES(NAME, name) [BINARY_##NAME][DTYPE_BOOL] = name##_BOOL,

static const binary_row rows[BINARY_COUNT][DTYPE_BF16 + 1] = {
    BINARY_NUMBERS(NUMBER_ENTRIES) NUMBER_ENTRIES(FMOD, fmod) BINARY_FLAGS(FLAG_ENTRIES)
        BINARY_COMPARISONS(NUMBER_ENTRIES) FLAG_ENTRIES(EQUAL, equal)[BINARY_POW] = {
            [DTYPE_F32] = pow_F32, [DTYPE_F64] = pow_F64, [DTYPE_I64] = pow_I64}};

static bool is_predicate(enum binary_op op)
{
    return op >= BINARY_AND; /* the enum ends with AND … LESS_OR_EQUAL */
}

/* Computes 16-bit floats in float32, a block at a time. */
static void half_blocks(enum binary_op op, enum dtype dtype, const void *a, bool a_moves,
                        const void *b, bool b_moves, void *dst, size_t n)
{
    const binary_row row = rows[op][DTYPE_F32];
    float x[BLOCK], y[BLOCK], z[BLOCK];
    if (!a_moves)
        load_floats(a, dtype, x, 1);
    if (!b_moves)
        load_floats(b, dtype, y, 1);
    FOR_BLOCKS(done, count, n) {
        if (a_moves)
            load_floats(element(a, dtype, done), dtype, x, count);
        if (b_moves)
            load_floats(element(b, dtype, done), dtype, y, count);
        row(x, a_moves, y, b_moves, is_predicate(op) ? (uint8_t *)dst + done : (void *)z, count);
        if (!is_predicate(op))
            store_floats(z, dtype, element_at(dst, dtype, done), count);
    }
}

enum status binary_apply(enum binary_op op, enum dtype dtype, const void *a, bool a_moves,
                         const void *b, bool b_moves, void *dst, size_t n)
{
    if (dtype != DTYPE_F16 && dtype != DTYPE_BF16)
        return rows[op][dtype](a, a_moves, b, b_moves, dst, n);
    half_blocks(op, dtype, a, a_moves, b, b_moves, dst, n);
    return STATUS_OK;
}

/* ---- kernels ---- */

#define BY_OP(NAME, name) [OP_##NAME] = BINARY_##NAME,
static const enum binary_op by_op[OP_COUNT] = {BINARY_NUMBERS(BY_OP) BINARY_FLAGS(BY_OP)
                                                   BINARY_COMPARISONS(BY_OP)};

static enum binary_op binary_of(const struct node *node)
{
    return node->op == OP_MOD && node_int(node, "fmod", 0) ? BINARY_FMOD : by_op[node->op];
}

/* Applies `op` to inputs 0 and 1, whose elements of `dtype` are at a and b. */
static enum status broadcast_rows(const struct kernel_args *args, enum binary_op op,
                                  enum dtype dtype, const char *a, const char *b, char *to)
{
    const struct shape *const shapes[] = {&args->in[0]->shape, &args->in[1]->shape};
    const size_t item = dtype_size(dtype), to_item = is_predicate(op) ? 1 : item;
    struct broadcast at;
    broadcast_start(&at, &args->out[0]->shape, shapes, 2);
    do
        TRY(binary_apply(op, dtype, a + at.rows.offset[0] * item, at.moves[0],
                         b + at.rows.offset[1] * item, at.moves[1], to + at.done * to_item,
                         at.row));
    while (broadcast_next(&at));
    return STATUS_OK;
}

KERNEL(kernel_binary)
{
    const struct tensor *a = args->in[0], *b = args->in[1];
    const enum status status =
        broadcast_rows(args, binary_of(args->node), a->dtype, a->data, b->data, args->out[0]->data);
    return status == STATUS_OK ? status : error_set(err, status, "an integer is divided by zero");
}

/* Integers are computed in 64 bits, float32 in float32, and everything else in double. */
KERNEL(kernel_pow)
{
    const enum dtype base = args->in[0]->dtype, exponent = args->in[1]->dtype;
    const enum dtype working = base == DTYPE_F32 && exponent == DTYPE_F32         ? DTYPE_F32
                               : dtype_is_float(base) || dtype_is_float(exponent) ? DTYPE_F64
                                                                                  : DTYPE_I64;
    const void *x, *y;
    void *z;
    TRY(operand_open(args, 0, working, &x, err));
    TRY(operand_open(args, 1, working, &y, err));
    TRY(result_open(args, 0, working, &z, err));
    return broadcast_rows(args, BINARY_POW, working, x, y, z);
}

/* ---- Clip ---- */

/* Writes the limit in input i as one element of `dtype`. Returns false if input i is omitted. */
static bool clip_bound(const struct kernel_args *args, size_t i, enum dtype dtype, void *ret)
{
    const struct tensor *limit = kernel_input(args, i);
    if (limit && limit->dtype == dtype)
        memcpy(ret, limit->data, dtype_size(dtype));
    else if (limit)
        store_floats(limit->data, dtype, ret, 1);
    return limit != NULL;
}

/* y = min(max(x, low), high). If low > high, every result is high. */
KERNEL(kernel_clip)
{
    const struct tensor *x = args->in[0];
    struct tensor *y = args->out[0];
    size_t count = shape_count(&x->shape);
    uint64_t low, high; /* room for an element of any dtype */
    bool has_low = clip_bound(args, 1, x->dtype, &low),
         has_high = clip_bound(args, 2, x->dtype, &high);
    for (size_t done = 0; done < count; done += 16 * BLOCK) {
        size_t n = count - done < 16 * BLOCK ? count - done : 16 * BLOCK;
        const void *from = element(x->data, x->dtype, done);
        void *to = element_at(y->data, x->dtype, done);
        /* Max and Min cannot fail */
        if (has_low)
            (void)binary_apply(BINARY_MAX, x->dtype, from, true, &low, false, to, n);
        if (has_high)
            (void)binary_apply(BINARY_MIN, x->dtype, has_low ? to : from, true, &high, false, to,
                               n);
        if (!has_low && !has_high)
            memcpy(to, from, n * dtype_size(x->dtype));
    }
    return STATUS_OK;
}

static enum status infer_comparison(struct node *node, struct error *err)
{
    return infer_broadcasts(node, DTYPE_BOOL, err);
}

/* The slope must broadcast to the data, not vice versa. */
static enum status infer_prelu(struct node *node, struct error *err)
{
    TRY(operand_broadcasts(node, 1, "slope", &node->inputs[0]->shape, err));
    return infer_like(node, err);
}

/* Records of operators with two operands that broadcast. */
#define BINARY(id, first, types, infer)                                                            \
    OP_ROW_OF(id, first, 2, 2, "A:" #types " B:=", OP_BROADCAST, NULL, infer, &batch_elementwise,  \
              binary)
#define COMPARISON(id, first, types)                                                               \
    OP_ROW_OF(id, first, 2, 2, "A:" #types " B:=", OP_BROADCAST | OP_PREDICATE, NULL, comparison,  \
              &batch_elementwise, binary)

const struct op_info ops_binary[] = {
    BINARY(ADD, 7, number, binary),
    BINARY(SUB, 7, number, binary),
    BINARY(MUL, 7, number, binary),
    BINARY(DIV, 7, number, binary),
    OP_ROW(MOD, 10, 2, 2, "A:number B:=", OP_BROADCAST, "fmod:int", binary, &batch_elementwise),
    BINARY(PRELU, 7, number, prelu),
    BINARY(MAX, 1, number, binary),
    BINARY(MIN, 1, number, binary),
    OP_ROW_OF(POW, 7, 2, 2, "X:number Y:number", OP_BROADCAST, NULL, binary, &batch_elementwise,
              pow),
    BINARY(AND, 7, bool, binary),
    BINARY(OR, 7, bool, binary),
    BINARY(XOR, 7, bool, binary),
    COMPARISON(EQUAL, 7, any),
    COMPARISON(GREATER, 7, number),
    COMPARISON(LESS, 7, number),
    COMPARISON(GREATER_OR_EQUAL, 12, number),
    COMPARISON(LESS_OR_EQUAL, 12, number),
    /* limits that were attributes in older opsets are float32 */
    OP_ROW_OF(CLIP, 11, 1, 3, "input:number min:=|float32[1] max:=|float32[1]", OP_UNARY, NULL,
              like, &batch_elementwise, clip),
    {0},
};
