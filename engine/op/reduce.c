/* Reductions, except ArgMax and ArgMin (sort.c). */
#include <math.h>

#include "engine/op/family.h"
#include "engine/op/gemm.h"
#include "engine/op/strided.h"

static enum status infer_reduce(struct node *node, struct error *err)
{
    struct reduction reduction;
    TRY(resolve_reduction(node, &reduction, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &reduction.out, err);
}

static int reduce_axis(const struct node *node, const int *axes)
{
    const int from = batch_of_first(node, axes);
    struct reduction reduction;
    if (from < 0 || !resolve_is_known(node) ||
        resolve_reduction(node, &reduction, NULL) != STATUS_OK || reduction.axes >> from & 1)
        return BATCH_MIXES;
    const unsigned before = reduction.axes & ((1u << from) - 1);
    return reduction.out.rank == node->inputs[0]->shape.rank ? from
                                                             : from - __builtin_popcount(before);
}

/* ---- folds ---- */

enum fold { FOLD_SUM, FOLD_PRODUCT, FOLD_MAX, FOLD_MIN };
enum map { MAP_NONE, MAP_ABS, MAP_SQUARE, MAP_EXP };

enum reduce_finish { FINISH_NONE, FINISH_MEAN, FINISH_ROOT, FINISH_LOG };

/* How each operator maps elements, combines the results and finishes the sums. If `is_whole`,
 * integers are computed as integers. */
static const struct reducer {
    enum map map;
    enum fold fold;
    enum reduce_finish finish;
    bool is_whole;
} reducers[OP_COUNT] = {
    [OP_REDUCE_SUM] = {MAP_NONE, FOLD_SUM, FINISH_NONE, true},
    [OP_REDUCE_MEAN] = {MAP_NONE, FOLD_SUM, FINISH_MEAN, false},
    [OP_REDUCE_MAX] = {MAP_NONE, FOLD_MAX, FINISH_NONE, true},
    [OP_REDUCE_MIN] = {MAP_NONE, FOLD_MIN, FINISH_NONE, true},
    [OP_REDUCE_PROD] = {MAP_NONE, FOLD_PRODUCT, FINISH_NONE, true},
    [OP_REDUCE_L1] = {MAP_ABS, FOLD_SUM, FINISH_NONE, true},
    [OP_REDUCE_L2] = {MAP_SQUARE, FOLD_SUM, FINISH_ROOT, false},
    [OP_REDUCE_LOG_SUM] = {MAP_NONE, FOLD_SUM, FINISH_LOG, false},
    [OP_REDUCE_LOG_SUM_EXP] = {MAP_EXP, FOLD_SUM, FINISH_LOG, false},
    [OP_REDUCE_SUM_SQUARE] = {MAP_SQUARE, FOLD_SUM, FINISH_NONE, true},
};

/* One pass over the input. The accumulators are `sum` or `whole`; the unused pointer is NULL. */
struct pass {
    enum fold fold;
    enum map map;
    double *sum;
    uint64_t *whole;
    const double *shift; /* MAP_EXP: subtracted before exp(), one per output element */
};

static void map_doubles(const struct pass *pass, size_t out, bool reduced, double *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        switch (pass->map) {
        case MAP_NONE:
            return;
        case MAP_ABS:
            x[i] = fabs(x[i]);
            break;
        case MAP_SQUARE:
            x[i] *= x[i];
            break;
        case MAP_EXP:
            x[i] = exp(x[i] - pass->shift[reduced ? out : out + i]);
        }
    }
}

/* Combines x[i] with to[i] for n numbers. In maxima and minima NaN wins. */
static void fold_doubles(enum fold fold, double *to, const double *x, size_t n)
{
    switch (fold) {
    case FOLD_SUM:
        VECTOR_LOOP for (size_t i = 0; i < n; i++) to[i] += x[i];
        break;
    case FOLD_PRODUCT:
        VECTOR_LOOP for (size_t i = 0; i < n; i++) to[i] *= x[i];
        break;
    case FOLD_MAX:
        VECTOR_LOOP for (size_t i = 0; i < n; i++) to[i] =
            to[i] > x[i] || to[i] != to[i] ? to[i] : x[i];
        break;
    case FOLD_MIN:
        VECTOR_LOOP for (size_t i = 0; i < n; i++) to[i] =
            to[i] < x[i] || to[i] != to[i] ? to[i] : x[i];
    }
}

static void fold_integers(const struct pass *pass, size_t out, bool reduced, const int64_t *x,
                          bool is_signed, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t value = (uint64_t)x[i];
        uint64_t *to = &pass->whole[reduced ? out : out + i];
        if (pass->map == MAP_ABS && is_signed && x[i] < 0)
            value = 0 - value;
        else if (pass->map == MAP_SQUARE)
            value *= value;
        const bool more = is_signed ? (int64_t)value > (int64_t)*to : value > *to;
        *to = pass->fold == FOLD_SUM             ? *to + value
              : pass->fold == FOLD_PRODUCT       ? *to * value
              : more == (pass->fold == FOLD_MAX) ? value
                                                 : *to;
    }
}

/* Folds x into the result, which has extent 1 along the reduced axes. The result broadcasts to x:
 * if the last axis is reduced, a row of x is folded into one element of the result, otherwise into
 * a row of the result. */
static void run_pass(const struct pass *pass, const struct tensor *x, unsigned axes)
{
    struct shape result = x->shape;
    const struct shape *const shapes[] = {&result};
    struct broadcast at;
    bool is_signed = x->dtype != DTYPE_U64;
    if (!x->bytes)
        return;
    for (int i = 0; i < result.rank; i++)
        result.dims[i] = axes & 1u << i ? 1 : result.dims[i];
    broadcast_start(&at, &x->shape, shapes, 1);
    do {
        const bool reduced = !at.moves[0];
        FOR_BLOCKS(done, n, at.row) {
            size_t out = at.rows.offset[0] + (reduced ? 0 : done);
            const void *from = element(x->data, x->dtype, at.done + done);
            double values[BLOCK];
            int64_t integers[BLOCK];
            if (pass->sum) {
                load_doubles(from, x->dtype, values, n);
                map_doubles(pass, out, reduced, values, n);
                size_t left = n;
                for (; reduced && left > 1;
                     left -= left / 2) /* combines the second half of the numbers with the first */
                    fold_doubles(pass->fold, values, values + left - left / 2, left / 2);
                fold_doubles(pass->fold, pass->sum + out, values, left);
            } else {
                load_integers(from, x->dtype, integers, n);
                fold_integers(pass, out, reduced, integers, is_signed, n);
            }
        }
    } while (broadcast_next(&at));
}

/* Sets the initial value of a fold, which does not change the result: for maxima and minima, the
 * end of the dtype's range. */
static void start_of(enum fold fold, enum dtype dtype, double *ret_real, int64_t *ret_whole)
{
    uint64_t end = 0; /* room for an element of any dtype */
    *ret_real = fold == FOLD_SUM       ? 0
                : fold == FOLD_PRODUCT ? 1
                : fold == FOLD_MAX     ? -INFINITY
                                       : INFINITY;
    store_doubles(ret_real, dtype, &end, 1); /* saturates for integers */
    load_integers(&end, dtype, ret_whole, 1);
    if (dtype == DTYPE_BOOL)
        *ret_whole = fold == FOLD_MIN;
}

/* Applies `finish` to the sums; `shift` may be NULL. */
static void finish_sums(enum reduce_finish finish, double divisor, const double *shift, double *sum,
                        size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (finish == FINISH_MEAN)
            sum[i] /= divisor;
        else if (finish == FINISH_ROOT)
            sum[i] = sqrt(sum[i]);
        else if (finish == FINISH_LOG)
            sum[i] = log(sum[i]) + (shift ? shift[i] : 0);
    }
}

/* log(sum(exp(x))) = m + log(sum(exp(x - m))) with m the maximum, or 0 if that is not finite. */
static void find_shift(const struct tensor *x, unsigned axes, double *shift, size_t count)
{
    struct pass pass = {.fold = FOLD_MAX, .sum = shift};
    for (size_t i = 0; i < count; i++)
        shift[i] = -INFINITY;
    run_pass(&pass, x, axes);
    for (size_t i = 0; i < count; i++)
        if (!isfinite(shift[i]))
            shift[i] = 0;
}

KERNEL(kernel_reduce)
{
    const struct reducer *reducer = &reducers[args->node->op];
    const struct tensor *x = args->in[0];
    const bool whole = !dtype_is_float(x->dtype) && reducer->is_whole;
    const size_t count = shape_count(&args->out[0]->shape);
    struct reduction reduction;
    double *shift = NULL, real_start;
    int64_t whole_start;
    void *sums;
    TRY(resolve_reduction(args->node, &reduction, err));
    TRY(result_open(args, 0, whole ? DTYPE_U64 : DTYPE_F64, &sums, err));
    if (reducer->map == MAP_EXP) {
        shift = kernel_scratch(args, count, sizeof *shift, err);
        TRY(allocated(shift));
        find_shift(x, reduction.axes, shift, count);
    }
    const struct pass pass = {.fold = reducer->fold,
                              .map = reducer->map,
                              .sum = whole ? NULL : sums,
                              .whole = whole ? sums : NULL,
                              .shift = shift};
    start_of(pass.fold, x->dtype, &real_start, &whole_start);
    for (size_t i = 0; i < count; i++)
        if (whole)
            pass.whole[i] = (uint64_t)whole_start;
        else
            pass.sum[i] = real_start;
    run_pass(&pass, x, reduction.axes);
    const size_t each = count ? shape_count(&x->shape) / count : 0;
    if (!whole)
        finish_sums(reducer->finish, (double)each, shift, pass.sum, count);
    return STATUS_OK;
}

/* Older opsets have the attribute `axes`, which the importer turns into the operand. */
#define REDUCE(id, types)                                                                          \
    OP_ROW(id, 13, 1, 2, "data:" #types " axes:integer#", OP_PLAIN,                                \
           "keepdims:int noop_with_empty_axes:int", reduce, BATCH(reduce_axis, NULL))

const struct op_info ops_reduce[] = {
    REDUCE(REDUCE_SUM, number),
    REDUCE(REDUCE_MEAN, number),
    REDUCE(REDUCE_MAX, any),
    REDUCE(REDUCE_MIN, any),
    REDUCE(REDUCE_PROD, number),
    REDUCE(REDUCE_L1, number),
    REDUCE(REDUCE_L2, number),
    REDUCE(REDUCE_LOG_SUM, number),
    REDUCE(REDUCE_LOG_SUM_EXP, number),
    REDUCE(REDUCE_SUM_SQUARE, number),
    {0},
};
