/* Operators that every type of number has: each operator, type and way to broadcast, and each Cast,
 * beside arithmetic that is written out here. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "tests/unit/engine/op/one_node.h"

enum { VALUES = 11 };

static const enum dtype dtypes[] = {DTYPE_U8,  DTYPE_I8,  DTYPE_U16, DTYPE_I16,
                                    DTYPE_U32, DTYPE_I32, DTYPE_U64, DTYPE_I64,
                                    DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16};

static bool is_signed(enum dtype dtype)
{
    return dtype == DTYPE_I8 || dtype == DTYPE_I16 || dtype == DTYPE_I32 || dtype == DTYPE_I64;
}

/* Elements as one of two exact types: an integer of any type fits in 128 bits. */
struct number {
    __int128 whole;
    double real;
};

static struct number number_at(const void *data, enum dtype dtype, size_t i)
{
    struct number n = {0};
    const size_t size = dtype_size(dtype);
    const unsigned char *at = (const unsigned char *)data + i * size;
    uint64_t bits = 0;
    memcpy(&bits, at, size);
    if (dtype == DTYPE_F16)
        n.real = (double)half_to_float((uint16_t)bits);
    else if (dtype == DTYPE_BF16)
        n.real = (double)bfloat16_to_float((uint16_t)bits);
    else if (dtype == DTYPE_F32)
        n.real = (double)*(const float *)(const void *)at;
    else if (dtype == DTYPE_F64)
        n.real = *(const double *)(const void *)at;
    else if (is_signed(dtype) && bits >> (8 * size - 1))
        n.whole = (__int128)bits - ((__int128)1 << (8 * size));
    else
        n.whole = bits;
    if (!dtype_is_float(dtype))
        n.real = (double)n.whole;
    return n;
}

/* Integers wrap, floats round once. */
static void put(void *data, enum dtype dtype, size_t i, struct number n)
{
    const size_t size = dtype_size(dtype);
    unsigned char *at = (unsigned char *)data + i * size;
    const float single = (float)n.real;
    uint16_t half = dtype == DTYPE_F16 ? float_to_half(single) : float_to_bfloat16(single);
    const uint64_t bits = (uint64_t)n.whole;
    const void *from = dtype == DTYPE_F64                   ? (const void *)&n.real
                       : dtype == DTYPE_F32                 ? (const void *)&single
                       : size == 2 && dtype_is_float(dtype) ? (const void *)&half
                                                            : (const void *)&bits;
    memcpy(at, from, size);
}

/* Numbers that differ in sign and size, the lowest and the highest. */
static void fill(void *data, enum dtype dtype, bool divides)
{
    static const int small[VALUES] = {5, 0, -3, 100, -1, 7, -128, 2, 1};
    for (size_t i = 0; i < VALUES; i++) {
        struct number n = {.whole = small[i], .real = small[i] / 2.0};
        const unsigned bits = 8 * (unsigned)dtype_size(dtype);
        if (!dtype_is_float(dtype) && i >= VALUES - 2)
            n.whole = is_signed(dtype) ? (__int128)1 << (bits - 1) : -1;
        if (!dtype_is_float(dtype) && i == VALUES - 1)
            n.whole -= 1;
        if (divides && small[i] == 0 && i < VALUES - 2)
            n = (struct number){.whole = 3, .real = 3};
        put(data, dtype, i, n);
    }
}

enum work {
    ADD,
    SUB,
    MUL,
    DIV,
    MOD,
    FMOD,
    MAX,
    MIN,
    PRELU,
    EQUAL,
    GREATER,
    LESS,
    NO_LESS,
    NO_MORE
};

static const enum op ops[] = {OP_ADD,
                              OP_SUB,
                              OP_MUL,
                              OP_DIV,
                              OP_MOD,
                              OP_MOD,
                              OP_MAX,
                              OP_MIN,
                              OP_PRELU,
                              OP_EQUAL,
                              OP_GREATER,
                              OP_LESS,
                              OP_GREATER_OR_EQUAL,
                              OP_LESS_OR_EQUAL};

static __int128 floored(__int128 x, __int128 y)
{
    const __int128 rest = x % y;
    return rest && (rest < 0) != (y < 0) ? rest + y : rest;
}

static struct number of_integers(enum work work, __int128 x, __int128 y)
{
    __int128 z = 0;
    switch (work) {
    case ADD:
        z = x + y;
        break;
    case SUB:
        z = x - y;
        break;
    case MUL: /* of two uint64 numbers, too */
        z = (__int128)((unsigned __int128)x * (unsigned __int128)y);
        break;
    case DIV:
        z = x / y;
        break;
    case MOD:
        z = floored(x, y);
        break;
    case FMOD:
        z = x % y;
        break;
    case MAX:
        z = x > y ? x : y;
        break;
    case MIN:
        z = x < y ? x : y;
        break;
    case PRELU:
        z = x < 0 ? x * y : x;
        break;
    case EQUAL:
        z = x == y;
        break;
    case GREATER:
        z = x > y;
        break;
    case LESS:
        z = x < y;
        break;
    case NO_LESS:
        z = x >= y;
        break;
    case NO_MORE:
        z = x <= y;
        break;
    }
    return (struct number){.whole = z};
}

static struct number of_reals(enum work work, double x, double y)
{
    double z = 0;
    switch (work) {
    case ADD:
        z = x + y;
        break;
    case SUB:
        z = x - y;
        break;
    case MUL:
        z = x * y;
        break;
    case DIV:
        z = x / y;
        break;
    case MOD: /* of multiples of 1/2 */
        z = x - floor(x / y) * y;
        z = z == 0 ? copysign(0, y) : z;
        break;
    case FMOD:
        z = x - trunc(x / y) * y;
        z = z == 0 ? copysign(0, x) : z;
        break;
    case MAX:
        z = fmax(x, y);
        break;
    case MIN:
        z = fmin(x, y);
        break;
    case PRELU:
        z = x < 0 ? x * y : x;
        break;
    default:
        return of_integers(work, (__int128)(x * 2), (__int128)(y * 2));
    }
    return (struct number){.real = z};
}

static void expect_two(enum work work, enum dtype dtype, size_t a_count, size_t b_count)
{
    const bool divides = work == DIV || work == MOD || work == FMOD, predicate = work >= EQUAL;
    const size_t count = a_count > b_count ? a_count : b_count;
    const enum dtype to = predicate ? DTYPE_BOOL : dtype;
    _Alignas(16) unsigned char a[VALUES * 8], b[VALUES * 8], expected[VALUES * 8];
    struct one_node one;
    fill(a, dtype, false);
    fill(b, dtype, divides);
    if (b_count > 1) { /* other pairs than those of equal numbers */
        unsigned char first[8];
        const size_t size = dtype_size(dtype);
        memcpy(first, b, size);
        memmove(b, b + size, (VALUES - 1) * size);
        memcpy(b + (VALUES - 1) * size, first, size);
    }
    for (size_t i = 0; i < count; i++) {
        const struct number x = number_at(a, dtype, a_count > 1 ? i : 0);
        const struct number y = number_at(b, dtype, b_count > 1 ? i : 0);
        const struct number z = dtype_is_float(dtype) ? of_reals(work, x.real, y.real)
                                                      : of_integers(work, x.whole, y.whole);
        if (predicate)
            expected[i] = z.whole != 0;
        else
            put(expected, dtype, i, z);
    }
    one_start(&one, ops[work], 17, 2, 1);
    one_input(&one, 0, dtype, SHAPE((int64_t)a_count), a);
    one_input(&one, 1, dtype, SHAPE((int64_t)b_count), b);
    if (work == FMOD || (work == MOD && !dtype_is_float(dtype)))
        one_int(&one, "fmod", work == FMOD);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s: %s", dtype_name(dtype), one.err.message);
    one_equals(&one, 0, to, SHAPE((int64_t)count), expected);
    one_end(&one);
}

Test(ops_dtypes, two_operands_of_every_type)
{
    for (size_t d = 0; d < COUNT_OF(dtypes); d++)
        for (int work = 0; work < (int)COUNT_OF(ops); work++) {
            expect_two((enum work)work, dtypes[d], VALUES, VALUES);
            expect_two((enum work)work, dtypes[d], VALUES, 1);
            if (work != PRELU) /* its slope broadcasts to the data, not the other way round */
                expect_two((enum work)work, dtypes[d], 1, VALUES);
            expect_two((enum work)work, dtypes[d], 1, 1);
        }
}

/* ---- Cast ---- */

static struct number cast_of(struct number n, enum dtype from, enum dtype to)
{
    const unsigned bits = 8 * (unsigned)dtype_size(to);
    if (to == DTYPE_BOOL)
        return (struct number){.whole = dtype_is_float(from) ? n.real != 0 : n.whole != 0};
    if (!dtype_is_float(from) || dtype_is_float(to))
        return n;
    /* truncated and saturated */
    const __int128 low = is_signed(to) ? -((__int128)1 << (bits - 1)) : 0;
    const __int128 high = ((__int128)1 << (is_signed(to) ? bits - 1 : bits)) - 1;
    const __int128 whole = n.real != n.real     ? 0
                           : n.real >= 0x1p100  ? high
                           : n.real <= -0x1p100 ? low
                                                : (__int128)n.real;
    return (struct number){.whole = whole < low ? low : whole > high ? high : whole};
}

/* Numbers of which some fit in no integer, and some in no float of 16 bits exactly. */
static void fill_for_cast(void *data, enum dtype dtype)
{
    static const double reals[VALUES] = {0,   -0.75,   1.5,      127.9,     -129, 65536,
                                         3e9, -9.3e18, INFINITY, -INFINITY, NAN};
    fill(data, dtype, false);
    for (size_t i = 0; dtype_is_float(dtype) && i < VALUES; i++)
        put(data, dtype, i, (struct number){.real = reals[i]});
}

static void expect_cast(enum dtype from, enum dtype to)
{
    _Alignas(16) unsigned char x[VALUES * 8] = {0}, expected[VALUES * 8];
    struct one_node one;
    if (from == DTYPE_BOOL)
        x[3] = 1;
    else
        fill_for_cast(x, from);
    for (size_t i = 0; i < VALUES; i++)
        put(expected, to, i, cast_of(number_at(x, from, i), from, to));
    one_start(&one, OP_CAST, 13, 1, 1);
    one_input(&one, 0, from, SHAPE(VALUES), x);
    one_int(&one, "to", to);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    if (!dtype_is_float(to)) {
        one_equals(&one, 0, to, SHAPE(VALUES), expected);
    } else {
        for (size_t i = 0; i < VALUES; i++) { /* any NaN, and integers that round twice */
            const double is = number_at(one.out[0]->data, to, i).real;
            const double wanted = number_at(expected, to, i).real;
            cr_assert(is == wanted || (isnan(is) && isnan(wanted)), "%s to %s: %zu is %g, not %g",
                      dtype_name(from), dtype_name(to), i, is, wanted);
        }
    }
    one_end(&one);
}

Test(ops_dtypes, casts_between_all_types)
{
    for (size_t from = 0; from <= COUNT_OF(dtypes); from++)
        for (size_t to = 0; to <= COUNT_OF(dtypes); to++)
            expect_cast(from < COUNT_OF(dtypes) ? dtypes[from] : DTYPE_BOOL,
                        to < COUNT_OF(dtypes) ? dtypes[to] : DTYPE_BOOL);
}
