/* Reductions, except ArgMax and ArgMin (sort.c). */
#include <math.h>

#include "engine/op/elementwise.h"
#include "engine/op/family.h"
#include "engine/op/gemm.h"

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

enum map { MAP_NONE, MAP_ABS, MAP_SQUARE, MAP_EXP };
enum reduce_finish { FINISH_NONE, FINISH_MEAN, FINISH_ROOT, FINISH_LOG };

/* How each operator maps elements, combines the results and finishes the sums. If `is_whole`,
 * integers are computed as integers. */
static const struct reducer {
    enum map map;
    enum binary_op fold;
    enum reduce_finish finish;
    bool is_whole;
} reducers[OP_COUNT] = {
    [OP_REDUCE_SUM] = {MAP_NONE, BINARY_ADD, FINISH_NONE, true},
    [OP_REDUCE_MEAN] = {MAP_NONE, BINARY_ADD, FINISH_MEAN, false},
    [OP_REDUCE_MAX] = {MAP_NONE, BINARY_MAX, FINISH_NONE, true},
    [OP_REDUCE_MIN] = {MAP_NONE, BINARY_MIN, FINISH_NONE, true},
    [OP_REDUCE_PROD] = {MAP_NONE, BINARY_MUL, FINISH_NONE, true},
    [OP_REDUCE_L1] = {MAP_ABS, BINARY_ADD, FINISH_NONE, true},
    [OP_REDUCE_L2] = {MAP_SQUARE, BINARY_ADD, FINISH_ROOT, false},
    [OP_REDUCE_LOG_SUM] = {MAP_NONE, BINARY_ADD, FINISH_LOG, false},
    [OP_REDUCE_LOG_SUM_EXP] = {MAP_EXP, BINARY_ADD, FINISH_LOG, false},
    [OP_REDUCE_SUM_SQUARE] = {MAP_SQUARE, BINARY_ADD, FINISH_NONE, true},
};

/* One pass over the input. */
struct pass {
    enum binary_op fold;
    enum map map;
    enum dtype working;  /* of the accumulators: float64, int64 or uint64 */
    void *sums;          /* the accumulators, one per output element */
    const double *shift; /* MAP_EXP: subtracted before exp(), one per output element */
};

union numbers {
    double real[BLOCK];
    int64_t whole[BLOCK];
};

/* Maps n numbers. If `reduced`, all of them belong to accumulator `out`, otherwise each belongs to
 * one of the accumulators from `out` on. */
static void map_numbers(const struct pass *pass, size_t out, bool reduced, union numbers *x,
                        size_t n)
{
    const bool is_real = pass->working == DTYPE_F64;
    for (size_t i = 0; i < n && pass->map != MAP_NONE; i++)
        if (pass->map == MAP_EXP)
            x->real[i] = exp(x->real[i] - pass->shift[reduced ? out : out + i]);
        else if (is_real)
            x->real[i] = pass->map == MAP_ABS ? fabs(x->real[i]) : x->real[i] * x->real[i];
        else if (pass->map == MAP_SQUARE)
            x->whole[i] = (int64_t)((uint64_t)x->whole[i] * (uint64_t)x->whole[i]);
        else if (pass->working == DTYPE_I64 && x->whole[i] < 0)
            x->whole[i] = (int64_t)(0 - (uint64_t)x->whole[i]);
}

/* Folds x into the result, which has extent 1 along the reduced axes. The result broadcasts to x:
 * if the last axis is reduced, a row of x is folded into one element of the result, otherwise into
 * a row of the result. In maxima and minima NaN wins. */
static void run_pass(const struct pass *pass, const struct tensor *x, unsigned axes)
{
    struct shape result = x->shape;
    const struct shape *const shapes[] = {&result};
    struct broadcast at;
    if (!x->bytes)
        return;
    for (int i = 0; i < result.rank; i++)
        result.dims[i] = axes & 1u << i ? 1 : result.dims[i];
    broadcast_start(&at, &x->shape, shapes, 1);
    do {
        const bool reduced = !at.moves[0];
        FOR_BLOCKS(done, n, at.row) {
            const size_t out = at.rows.offset[0] + (reduced ? 0 : done);
            void *sums = element_at(pass->sums, pass->working, out);
            union numbers block;
            size_t left = n;
            convert_row(element(x->data, x->dtype, at.done + done), x->dtype, &block, pass->working,
                        n);
            map_numbers(pass, out, reduced, &block, n);
            /* combines the second half of the numbers with the first; the operators cannot fail */
            for (; reduced && left > 1; left -= left / 2)
                (void)binary_apply(pass->fold, pass->working, &block, true,
                                   block.real + left - left / 2, true, &block, left / 2);
            (void)binary_apply(pass->fold, pass->working, sums, true, &block, true, sums, left);
        }
    } while (broadcast_next(&at));
}

/* Sets `count` accumulators to the initial value of a fold, which does not change the result: for
 * maxima and minima, the end of the dtype's range. */
static void start_sums(const struct pass *pass, enum dtype dtype, size_t count)
{
    const enum binary_op fold = pass->fold;
    const double start = fold == BINARY_ADD                                        ? 0
                         : fold == BINARY_MUL                                      ? 1
                         : fold == BINARY_MIN                                      ? INFINITY
                         : dtype == DTYPE_BOOL /* false; -inf would become true */ ? 0
                                                                                   : -INFINITY;
    uint64_t end, first;                   /* room for an element of any dtype */
    store_doubles(&start, dtype, &end, 1); /* saturates for integers */
    convert_row(&end, dtype, &first, pass->working, 1);
    fill_row(pass->sums, &first, sizeof first, count);
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

/* log(sum(exp(x))) = m + log(sum(exp(x - m))) with m the maximum, or 0 if it is not finite. */
static void find_shift(const struct tensor *x, unsigned axes, double *shift, size_t count)
{
    const struct pass pass = {.fold = BINARY_MAX, .working = DTYPE_F64, .sums = shift};
    start_sums(&pass, DTYPE_F64, count);
    run_pass(&pass, x, axes);
    for (size_t i = 0; i < count; i++)
        if (!isfinite(shift[i]))
            shift[i] = 0;
}

KERNEL(kernel_reduce)
{
    const struct reducer *reducer = &reducers[args->node->op];
    const struct tensor *x = args->in[0];
    const bool is_real = dtype_is_float(x->dtype) || !reducer->is_whole;
    const size_t count = shape_count(&args->out[0]->shape);
    struct pass pass = {.fold = reducer->fold,
                        .map = reducer->map,
                        .working = is_real                 ? DTYPE_F64
                                   : x->dtype == DTYPE_U64 ? DTYPE_U64
                                                           : DTYPE_I64};
    struct reduction reduction;
    double *shift = NULL;
    TRY(resolve_reduction(args->node, &reduction, err));
    TRY(result_open(args, 0, pass.working, &pass.sums, err));
    if (reducer->map == MAP_EXP) {
        pass.shift = shift = kernel_scratch(args, count, sizeof *shift, err);
        TRY(allocated(shift));
        find_shift(x, reduction.axes, shift, count);
    }
    start_sums(&pass, x->dtype, count);
    run_pass(&pass, x, reduction.axes);
    const size_t each = count ? shape_count(&x->shape) / count : 0;
    if (is_real)
        finish_sums(reducer->finish, (double)each, shift, pass.sums, count);
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
