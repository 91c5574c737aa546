/* Helpers of all inference functions: axes, broadcasting, setting an output, reading a list of
 * integers. */
#include "engine/op/families.h"

#include <string.h>

#include "engine/base/size.h"

enum status infer_axis(int64_t *axis, int rank, struct error *err)
{
    if (*axis < -(int64_t)rank || *axis >= rank) {
        if (rank == 0)
            return error_set(err, STATUS_SHAPE, "axis %lld of a scalar, which has no axes",
                             (long long)*axis);
        return error_set(err, STATUS_SHAPE, "axis %lld is out of range, expected %d to %d",
                         (long long)*axis, -rank, rank - 1);
    }
    if (*axis < 0)
        *axis += rank;
    return STATUS_OK;
}

enum status infer_broadcast(const struct shape *a, const struct shape *b, struct shape *ret,
                            struct error *err)
{
    struct shape out = {.rank = a->rank > b->rank ? a->rank : b->rank};
    for (int i = 1; i <= out.rank; i++) {
        int64_t x = i <= a->rank ? a->dims[a->rank - i] : 1;
        int64_t y = i <= b->rank ? b->dims[b->rank - i] : 1;
        if (x != y && x != 1 && y != 1) {
            char left[SHAPE_TEXT], right[SHAPE_TEXT];
            return error_set(err, STATUS_SHAPE,
                             "shapes %s and %s cannot be broadcast together (%lld against %lld, "
                             "dimension %d from the end)",
                             shape_text(a, left), shape_text(b, right), (long long)x, (long long)y,
                             i);
        }
        out.dims[out.rank - i] = x == 1 ? y : x;
    }
    *ret = out;
    return STATUS_OK;
}

enum status infer_output(struct node *node, size_t i, enum dtype dtype, const struct shape *shape,
                         struct error *err)
{
    struct value *value = node_output(node, i);
    TRY(shape_check(shape, dtype, NULL, NULL, err));
    if (value) {
        value->dtype = dtype;
        value->shape = *shape;
    }
    return STATUS_OK;
}

enum status infer_unknown(struct node *node, size_t i, enum dtype dtype)
{
    struct value *value = node_output(node, i);
    if (value) {
        value->dtype = dtype;
        value->shape = SHAPE_NONE;
    }
    return STATUS_OK;
}

enum status infer_ints(const struct node *node, size_t i, int64_t *ret, size_t max,
                       size_t *ret_count, bool *ret_known, struct error *err)
{
    const struct value *value = node_input(node, i);
    *ret_count = 0;
    *ret_known = true;
    if (!value)
        return STATUS_OK;
    char text[SHAPE_TEXT];
    if (dtype_is_float(value->dtype) || value->dtype == DTYPE_BOOL || value->dtype == DTYPE_NONE ||
        value->shape.rank > 1)
        return error_set(err, STATUS_SHAPE,
                         "input %zu is a %s tensor of shape %s, expected a list of integers", i,
                         dtype_name(value->dtype), shape_text(&value->shape, text));
    size_t count = shape_count(&value->shape);
    if (count > max)
        return error_set(err, STATUS_SHAPE, "input %zu holds %zu numbers, expected at most %zu", i,
                         count, max);
    *ret_known = value->known != NULL;
    if (!value->known)
        return STATUS_OK;
    for (size_t k = 0; k < count; k++)
        ret[k] = tensor_int(value->known, k);
    *ret_count = count;
    return STATUS_OK;
}
