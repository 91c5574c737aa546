/* Reductions, except ArgMax and ArgMin (sort.c). */
#include <math.h>
#include <string.h>

#include "engine/op/elementwise.h"
#include "engine/op/family.h"

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

/* ---- input rows and their outputs ---- */

struct reduce_cursor {
    struct strided_iterator it; /* loops over outer dimensions; offset[0]: the row's output */
    size_t row;                 /* innermost extent */
    bool row_reduced;
    size_t rows;
};

static void reduce_cursor_start(struct reduce_cursor *cursor, const struct shape *shape,
                                unsigned axes)
{
    struct strided_iterator *it = &cursor->it;
    bool reduced[TENSOR_MAX_RANK + 1];
    int kept = 0;
    memset(cursor, 0, sizeof *cursor);
    for (int i = 0; i < shape->rank; i++) {
        bool goes = axes & 1u << i;
        if (shape->dims[i] == 1)
            continue;
        if (kept && reduced[kept - 1] == goes) {
            it->extent[kept - 1] *= (size_t)shape->dims[i];
        } else {
            reduced[kept] = goes;
            it->extent[kept++] = (size_t)shape->dims[i];
        }
    }
    it->rank = kept ? kept - 1 : 0;
    cursor->row = kept ? it->extent[kept - 1] : 1;
    cursor->row_reduced = kept && reduced[kept - 1];
    size_t step = cursor->row_reduced ? 1 : cursor->row;
    cursor->rows = 1;
    for (int i = it->rank - 1; i >= 0; i--) {
        it->step[0][i] = reduced[i] ? 0 : step;
        step *= reduced[i] ? 1 : it->extent[i];
        cursor->rows *= it->extent[i];
    }
}

/* ---- sums, products ---- */

enum fold { FOLD_SUM, FOLD_PRODUCT, FOLD_MAX };
enum map { MAP_NONE, MAP_ABS, MAP_SQUARE, MAP_EXP };

enum reduce_finish { FINISH_NONE, FINISH_MEAN, FINISH_ROOT, FINISH_LOG };

/* How each operator maps, combines and finishes; integers stay integers if `is_whole`. */
static const struct reducer {
    enum map map;
    enum fold fold;
    enum reduce_finish finish;
    bool is_whole;
} reducers[OP_COUNT] = {
    [OP_REDUCE_SUM] = {MAP_NONE, FOLD_SUM, FINISH_NONE, true},
    [OP_REDUCE_MEAN] = {MAP_NONE, FOLD_SUM, FINISH_MEAN, false},
    [OP_REDUCE_PROD] = {MAP_NONE, FOLD_PRODUCT, FINISH_NONE, true},
    [OP_REDUCE_L1] = {MAP_ABS, FOLD_SUM, FINISH_NONE, true},
    [OP_REDUCE_L2] = {MAP_SQUARE, FOLD_SUM, FINISH_ROOT, false},
    [OP_REDUCE_LOG_SUM] = {MAP_NONE, FOLD_SUM, FINISH_LOG, false},
    [OP_REDUCE_LOG_SUM_EXP] = {MAP_EXP, FOLD_SUM, FINISH_LOG, false},
    [OP_REDUCE_SUM_SQUARE] = {MAP_SQUARE, FOLD_SUM, FINISH_NONE, true},
};

/* One pass over the input, with the accumulators `sum` or `whole`; the other is NULL. */
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

static double larger(double a, double b)
{
    return a > b || a != a ? a : b;
}

/* Four parallel sums: in a single sum, each addition would wait for the previous one. */
static double sum_row(const double *x, size_t n)
{
    double a = 0, b = 0, c = 0, d = 0;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        a += x[i];
        b += x[i + 1];
        c += x[i + 2];
        d += x[i + 3];
    }
    for (; i < n; i++)
        a += x[i];
    return (a + b) + (c + d);
}

static void fold_doubles(const struct pass *pass, size_t out, bool reduced, const double *x,
                         size_t n)
{
    double *to = pass->sum + out;
    if (reduced) {
        if (pass->fold == FOLD_SUM)
            *to += sum_row(x, n);
        for (size_t i = 0; i < n && pass->fold != FOLD_SUM; i++)
            *to = pass->fold == FOLD_PRODUCT ? *to * x[i] : larger(*to, x[i]);
        return;
    }
    switch (pass->fold) {
    case FOLD_SUM:
        for (size_t i = 0; i < n; i++)
            to[i] += x[i];
        break;
    case FOLD_PRODUCT:
        for (size_t i = 0; i < n; i++)
            to[i] *= x[i];
        break;
    case FOLD_MAX:
        for (size_t i = 0; i < n; i++)
            to[i] = larger(to[i], x[i]);
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
        *to = pass->fold == FOLD_SUM ? *to + value : *to * value;
    }
}

static void run_pass(const struct pass *pass, const struct tensor *x, unsigned axes)
{
    struct reduce_cursor cursor;
    reduce_cursor_start(&cursor, &x->shape, axes);
    bool is_signed = x->dtype != DTYPE_U64;
    for (size_t r = 0; x->bytes && r < cursor.rows; r++, strided_next(&cursor.it, 1)) {
        FOR_BLOCKS(done, n, cursor.row) {
            size_t out = cursor.row_reduced ? cursor.it.offset[0] : cursor.it.offset[0] + done;
            const void *from = element(x->data, x->dtype, r * cursor.row + done);
            double values[BLOCK];
            int64_t integers[BLOCK];
            if (pass->sum) {
                load_doubles(from, x->dtype, values, n);
                map_doubles(pass, out, cursor.row_reduced, values, n);
                fold_doubles(pass, out, cursor.row_reduced, values, n);
            } else {
                load_integers(from, x->dtype, integers, n);
                fold_integers(pass, out, cursor.row_reduced, integers, is_signed, n);
            }
        }
    }
}

/* Number of input elements per output element. */
static double group_size(const struct shape *shape, unsigned axes)
{
    double size = 1;
    for (int i = 0; i < shape->rank; i++)
        if (axes & 1u << i)
            size *= (double)shape->dims[i];
    return size;
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
    struct tensor *out = *args->out[0];
    struct reduction reduction;
    TRY(resolve_reduction(args->node, &reduction, err));
    size_t count = shape_count(&out->shape);
    bool shifted = reducer->map == MAP_EXP;
    union {
        double real;
        uint64_t whole;
    } *sum = kernel_scratch(args, count, sizeof *sum, err);
    double *shift = shifted ? kernel_scratch(args, count, sizeof *shift, err) : NULL;
    if (!sum || (shifted && !shift))
        return STATUS_NO_MEMORY;
    struct pass pass = {.fold = reducer->fold, .map = reducer->map, .shift = shift};
    if (shifted)
        find_shift(x, reduction.axes, shift, count);
    bool whole = !dtype_is_float(x->dtype) && reducer->is_whole;
    if (whole)
        pass.whole = &sum->whole;
    else
        pass.sum = &sum->real;
    for (size_t i = 0; i < count; i++) {
        if (whole)
            sum[i].whole = pass.fold == FOLD_PRODUCT;
        else
            sum[i].real = pass.fold == FOLD_PRODUCT;
    }
    run_pass(&pass, x, reduction.axes);
    if (whole) {
        store_integers((const int64_t *)(const void *)sum, out->dtype, out->data, count);
    } else {
        finish_sums(reducer->finish, group_size(&x->shape, reduction.axes), shift, &sum->real,
                    count);
        store_doubles(&sum->real, out->dtype, out->data, count);
    }
    return STATUS_OK;
}

/* ---- maxima, minima ---- */

/* The maximum or minimum of an empty set: the end of the dtype's range. */
static void identity(bool largest, enum dtype dtype, void *ret)
{
    double real = largest ? -INFINITY : INFINITY;
    store_doubles(&real, dtype, ret, 1); /* saturates for integers */
    if (dtype == DTYPE_BOOL)
        *(uint8_t *)ret = !largest;
}

/* Reduces n elements into *to: first block by block, then the block itself by halves. */
static enum status fold_row(binary_row row, const void *from, enum dtype dtype, size_t n, void *to)
{
    uint64_t block[BLOCK]; /* room for elements of any dtype */
    size_t length = n < BLOCK ? n : BLOCK;
    memcpy(block, from, length * dtype_size(dtype));
    for (size_t done = length; done < n; done += BLOCK) {
        size_t more = n - done < BLOCK ? n - done : BLOCK;
        TRY(row(block, true, element(from, dtype, done), true, block, more));
    }
    for (; length > 1; length -= length / 2)
        TRY(row(block, true, element(block, dtype, length - length / 2), true, block, length / 2));
    return row(to, true, block, true, to, 1);
}

KERNEL(kernel_extreme)
{
    const struct tensor *x = args->in[0];
    struct tensor *out = *args->out[0];
    bool largest = args->node->op == OP_REDUCE_MAX, flags = x->dtype == DTYPE_BOOL;
    struct reduction reduction;
    struct reduce_cursor cursor;
    uint64_t start;
    TRY(resolve_reduction(args->node, &reduction, err));
    binary_row row = binary_row_find(flags     ? (largest ? BINARY_OR : BINARY_AND)
                                     : largest ? BINARY_MAX
                                               : BINARY_MIN,
                                     x->dtype);
    identity(largest, x->dtype, &start);
    fill_row(out->data, &start, dtype_size(out->dtype), shape_count(&out->shape));
    reduce_cursor_start(&cursor, &x->shape, reduction.axes);
    for (size_t r = 0; x->bytes && r < cursor.rows; r++, strided_next(&cursor.it, 1)) {
        const void *from = element(x->data, x->dtype, r * cursor.row);
        void *to = element_at(out->data, x->dtype, cursor.it.offset[0]);
        if (cursor.row_reduced)
            TRY(fold_row(row, from, x->dtype, cursor.row, to));
        else
            TRY(row(to, true, from, true, to, cursor.row));
    }
    return STATUS_OK;
}

/* Older opsets have the attribute `axes`, which the importer turns into the operand. */
#define REDUCE(id, types, kernel)                                                                  \
    OP_ROW_OF(id, 13, 1, 2, "data:" #types " axes:integer#", OP_PLAIN,                             \
              "keepdims:int noop_with_empty_axes:int", reduce, BATCH(reduce_axis, NULL), kernel)

const struct op_info ops_reduce[] = {
    REDUCE(REDUCE_SUM, number, reduce),
    REDUCE(REDUCE_MEAN, number, reduce),
    REDUCE(REDUCE_MAX, any, extreme),
    REDUCE(REDUCE_MIN, any, extreme),
    REDUCE(REDUCE_PROD, number, reduce),
    REDUCE(REDUCE_L1, number, reduce),
    REDUCE(REDUCE_L2, number, reduce),
    REDUCE(REDUCE_LOG_SUM, number, reduce),
    REDUCE(REDUCE_LOG_SUM_EXP, number, reduce),
    REDUCE(REDUCE_SUM_SQUARE, number, reduce),
    {0},
};
