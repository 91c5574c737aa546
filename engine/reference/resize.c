/* Resize and Upsample: separable, one pass along each axis that changes. A table says, for every
 * output position, which input positions count and how much; positions outside are clamped to the
 * edge, or left out (exclude_outside). Interpolation is done in double; integers are rounded to
 * nearest even and saturate. */
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/reference/convert.h"
#include "engine/reference/copy.h"
#include "engine/reference/nn.h"

struct table {
    size_t taps;    /* for each output position */
    size_t *index;  /* [out, taps] */
    double *weight; /* [out, taps] */
    bool *outside;  /* [out], tf_crop_and_resize: the extrapolation value */
};

static enum status table_fill(const struct kernel_args *args, const struct resize_plan *plan,
                              const struct resize_axis *axis, struct table *ret, struct error *err)
{
    size_t taps = resize_tap_count(plan, axis), out = (size_t)axis->out, room;
    if (!size_mul(out, taps, &room))
        return error_set(err, STATUS_NO_MEMORY, "the resize is too large");
    *ret = (struct table){.taps = taps,
                          .index = kernel_scratch(args, room, sizeof *ret->index, err),
                          .weight = kernel_scratch(args, room, sizeof *ret->weight, err),
                          .outside = kernel_scratch(args, out, sizeof *ret->outside, err)};
    if (!ret->index || !ret->weight || !ret->outside)
        return STATUS_NO_MEMORY;
    for (size_t i = 0; i < out; i++) {
        TRY(kernel_goes_on(args, taps, err));
        ret->outside[i] =
            resize_taps(plan, axis, (int64_t)i, ret->index + i * taps, ret->weight + i * taps);
    }
    return STATUS_OK;
}

/* ---- passes ---- */

/* An array seen as [outer, extent, inner] from the axis of the pass. */
struct stage {
    const char *data;
    size_t item; /* bytes of an element */
    int64_t dims[TENSOR_MAX_RANK];
    int rank;
};

static size_t stage_product(const struct stage *stage, int begin, int end)
{
    size_t count = 1;
    for (int i = begin; i < end; i++)
        count *= (size_t)stage->dims[i];
    return count;
}

/* A weight of 0 keeps infinities and NaN out of a result that lies exactly beside them. */
static void weigh_row(double *dst, const double *src, const size_t *index, const double *weight,
                      size_t taps, size_t inner)
{
    for (size_t i = 0; i < inner; i++)
        dst[i] = 0;
    for (size_t k = 0; k < taps; k++) {
        const double *row = src + index[k] * inner;
        double w = weight[k];
        if (w != 0)
            for (size_t i = 0; i < inner; i++)
                dst[i] += w * row[i];
    }
}

/* The same for a whole row of the last axis, where every output is one element. */
static void weigh_elements(double *dst, const double *src, const struct table *table, size_t out)
{
    const size_t *index = table->index;
    const double *weight = table->weight;
    for (size_t i = 0; i < out; i++, index += table->taps, weight += table->taps) {
        double sum = 0;
        for (size_t k = 0; k < table->taps; k++)
            sum += weight[k] != 0 ? weight[k] * src[index[k]] : 0;
        dst[i] = sum;
    }
}

static enum status pass(const struct kernel_args *args, const struct stage *from, char *dst,
                        const struct table *table, int axis, size_t out, bool nearest,
                        struct error *err)
{
    size_t outer = stage_product(from, 0, axis), in = (size_t)from->dims[axis];
    size_t inner = stage_product(from, axis + 1, from->rank), row = inner * from->item;
    for (size_t o = 0; o < outer; o++) {
        const char *src = from->data + o * in * row;
        TRY(kernel_goes_on(args, out * table->taps * inner, err));
        if (inner == 1 && !nearest) {
            weigh_elements((double *)dst, (const double *)src, table, out);
            dst += out * row;
            continue;
        }
        for (size_t i = 0; i < out; i++, dst += row) {
            const size_t *index = table->index + i * table->taps;
            if (nearest)
                memcpy(dst, src + index[0] * row, row);
            else
                weigh_row((double *)dst, (const double *)src, index,
                          table->weight + i * table->taps, table->taps, inner);
        }
    }
    return STATUS_OK;
}

/* Runs the pass along one axis; *stage becomes its result. */
static enum status advance(const struct kernel_args *args, const struct resize_plan *plan,
                           struct table *table, int axis, struct stage *stage, struct error *err)
{
    const struct resize_axis *a = &plan->axis[axis];
    struct stage next = *stage;
    struct shape shape = {.rank = stage->rank};
    size_t count;
    next.dims[axis] = a->out;
    memcpy(shape.dims, next.dims, sizeof shape.dims);
    TRY(shape_check(&shape, DTYPE_F64, &count, NULL, err));
    if (a->out)
        TRY(table_fill(args, plan, a, table, err));
    char *data = kernel_scratch(args, count, stage->item, err);
    if (!data)
        return STATUS_NO_MEMORY;
    if (count)
        TRY(pass(args, stage, data, table, axis, (size_t)a->out, plan->mode == RESIZE_NEAREST,
                 err));
    next.data = data;
    *stage = next;
    return STATUS_OK;
}

/* ---- result ---- */

static void store_result(const struct stage *stage, struct tensor *y, bool nearest)
{
    size_t count = shape_count(&y->shape);
    double values[BLOCK];
    if (nearest) {
        copy_bytes(y->data, stage->data, y->bytes);
        return;
    }
    bool rounds = !dtype_is_float(y->dtype);
    for (size_t i = 0; i < count; i += BLOCK) {
        size_t n = count - i < BLOCK ? count - i : BLOCK;
        const double *src = (const double *)stage->data + i;
        for (size_t k = 0; k < n; k++)
            values[k] = rounds ? rint(src[k]) : src[k];
        store_doubles(values, y->dtype, element_at(y->data, y->dtype, i), n);
    }
}

/* Positions outside the crop along any axis get the extrapolation value. */
static void extrapolate(const struct resize_plan *plan, const struct table *tables,
                        struct tensor *y)
{
    size_t at[TENSOR_MAX_RANK] = {0}, count = shape_count(&y->shape);
    for (size_t i = 0; i < count; i++) {
        bool outside = false;
        for (int a = 0; a < plan->rank; a++)
            outside = outside || (tables[a].outside && tables[a].outside[at[a]]);
        if (outside)
            store_floats(&plan->extrapolation, y->dtype, element_at(y->data, y->dtype, i), 1);
        for (int a = plan->rank - 1; a >= 0 && ++at[a] == (size_t)y->shape.dims[a]; a--)
            at[a] = 0;
    }
}

static enum status resize_by_plan(const struct kernel_args *args, const struct resize_plan *plan,
                                  struct tensor *y, struct error *err)
{
    const struct tensor *x = args->in[0];
    bool nearest = plan->mode == RESIZE_NEAREST;
    struct table tables[TENSOR_MAX_RANK] = {0};
    struct stage stage = {.data = x->data, .item = dtype_size(x->dtype), .rank = x->shape.rank};
    memcpy(stage.dims, x->shape.dims, sizeof stage.dims);
    if (!nearest) {
        const void *data;
        TRY(operand_open(args, 0, ARITHMETIC_F64, &data, err));
        stage.data = data;
        stage.item = sizeof(double);
    }
    for (int i = 0; i < plan->rank; i++)
        if (plan->axis[i].resized)
            TRY(advance(args, plan, &tables[i], i, &stage, err));
    store_result(&stage, y, nearest);
    if (plan->coordinate == RESIZE_TF_CROP_AND_RESIZE)
        extrapolate(plan, tables, y);
    return STATUS_OK;
}

KERNEL(kernel_resize)
{
    const struct node *node = args->node;
    const struct tensor *operands[3] = {0}; /* roi, scales, sizes */
    struct resize_plan plan;
    for (size_t i = 1; i < node->input_count && i < 4; i++)
        operands[i - 1] = args->in[i];
    TRY(resize_plan_from(node, &args->in[0]->shape, operands[0], operands[1], operands[2], &plan,
                         err));
    struct shape out = {.rank = plan.rank};
    for (int i = 0; i < plan.rank; i++)
        out.dims[i] = plan.axis[i].out;
    if (!*args->out[0])
        TRY(kernel_output(args, 0, args->in[0]->dtype, &out, err));
    struct tensor *y = *args->out[0];
    if (!shape_equal(&y->shape, &out)) {
        char left[SHAPE_TEXT], right[SHAPE_TEXT];
        return error_set(err, STATUS_SHAPE, "the output is %s, but was planned as %s",
                         shape_text(&out, left), shape_text(&y->shape, right));
    }
    return resize_by_plan(args, &plan, y, err);
}
