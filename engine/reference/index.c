/* Gather and scatter. Indices are looked at one by one while they are used: whatever is out of
 * range is an error that names it. */
#include "engine/reference/index.h"

#include <string.h>

#include "engine/base/size.h"
#include "engine/ops/resolve.h"
#include "engine/reference/convert.h"
#include "engine/reference/copy.h"
#include "engine/reference/elementwise.h"

static int64_t index_at(const struct tensor *indices, size_t i)
{
    return indices->dtype == DTYPE_I64 ? ((const int64_t *)indices->data)[i]
                                       : ((const int32_t *)indices->data)[i];
}

static int data_axis(const struct kernel_args *args, int64_t otherwise)
{
    int64_t axis = node_int(args->node, "axis", otherwise);
    return (int)(axis < 0 ? axis + args->in[0]->shape.rank : axis);
}

/* dst = src for one element of `item` bytes. */
static void copy_item(void *dst, const void *src, size_t item)
{
    switch (item) {
    case 1:
        memcpy(dst, src, 1);
        break;
    case 2:
        memcpy(dst, src, 2);
        break;
    case 4:
        memcpy(dst, src, 4);
        break;
    default:
        memcpy(dst, src, 8);
    }
}

KERNEL(kernel_gather)
{
    const struct tensor *data = args->in[0], *indices = args->in[1];
    int axis = data_axis(args, 0);
    int64_t extent = data->shape.dims[axis];
    TRY(resolve_indices(indices, extent, axis, err));
    if (!(*args->out[0])->bytes)
        return STATUS_OK;
    size_t item = dtype_size(data->dtype);
    size_t outer = resolve_extent(&data->shape, 0, axis), count = shape_count(&indices->shape);
    size_t bytes = resolve_extent(&data->shape, axis + 1, data->shape.rank) * item;
    char *to = (*args->out[0])->data;
    const char *from = data->data;
    for (size_t o = 0; o < outer; o++) {
        for (size_t i = 0; i < count; i++) {
            int64_t index = index_at(indices, i);
            const char *row = from + (size_t)(index < 0 ? index + extent : index) * bytes;
            if (bytes == item)
                copy_item(to, row, item);
            else
                memcpy(to, row, bytes);
            to += bytes;
        }
        from += (size_t)extent * bytes;
    }
    return STATUS_OK;
}

/* ---- one element at a time along an axis ---- */

/* Iterates over `shape`. Keeps the offset of the same coordinates, without that of `axis`, in an
 * array of shape `other`. Returns the step along `axis` in that array. */
static size_t elements_start(struct strided_iterator *it, const struct shape *shape,
                             const struct shape *other, int axis)
{
    size_t step = 1, along = 0;
    memset(it, 0, sizeof *it);
    it->rank = shape->rank;
    for (int i = other->rank; i-- > 0;) {
        it->extent[i] = (size_t)shape->dims[i];
        it->step[0][i] = i == axis ? 0 : step;
        along = i == axis ? step : along;
        step *= (size_t)other->dims[i];
    }
    return along;
}

KERNEL(kernel_gather_elements)
{
    const struct tensor *data = args->in[0], *indices = args->in[1];
    int axis = data_axis(args, 0);
    int64_t extent = data->shape.dims[axis];
    size_t count = shape_count(&indices->shape), item = dtype_size(data->dtype);
    struct strided_iterator it;
    TRY(resolve_indices(indices, extent, axis, err));
    size_t along = elements_start(&it, &indices->shape, &data->shape, axis);
    char *to = (*args->out[0])->data;
    for (size_t i = 0; i < count; i++) {
        int64_t index = index_at(indices, i);
        size_t position = it.offset[0] + (size_t)(index < 0 ? index + extent : index) * along;
        copy_item(to + i * item, (const char *)data->data + position * item, item);
        strided_next(&it, 1);
    }
    return STATUS_OK;
}

/* How updates combine with what is there; NULL in *ret: they replace it. */
static enum status scatter_row(const struct node *node, enum dtype dtype, binary_row *ret,
                               struct error *err)
{
    static const struct {
        const char *name;
        enum binary_op number, flag;
    } reductions[] = {{"add", BINARY_ADD, BINARY_OR},
                      {"mul", BINARY_MUL, BINARY_AND},
                      {"max", BINARY_MAX, BINARY_OR},
                      {"min", BINARY_MIN, BINARY_AND}};
    const char *reduction = node_string(node, "reduction", "none");
    *ret = NULL;
    if (!strcmp(reduction, "none"))
        return STATUS_OK;
    for (size_t i = 0; i < COUNT_OF(reductions); i++) {
        if (strcmp(reduction, reductions[i].name))
            continue;
        *ret =
            binary_row_find(dtype == DTYPE_BOOL ? reductions[i].flag : reductions[i].number, dtype);
        return STATUS_OK;
    }
    return error_set(err, STATUS_MODEL, "reduction '%s' is not one of none, add, mul, max, min",
                     reduction);
}

KERNEL(kernel_scatter_elements)
{
    const struct tensor *data = args->in[0], *indices = args->in[1], *updates = args->in[2];
    struct tensor *out = *args->out[0];
    int axis = data_axis(args, 0);
    int64_t extent = data->shape.dims[axis];
    size_t count = shape_count(&indices->shape), item = dtype_size(data->dtype);
    binary_row combine;
    struct strided_iterator it;
    TRY(scatter_row(args->node, data->dtype, &combine, err));
    TRY(resolve_indices(indices, extent, axis, err));
    copy_bytes(out->data, data->data, data->bytes);
    size_t along = elements_start(&it, &indices->shape, &data->shape, axis);
    for (size_t i = 0; i < count; i++) {
        int64_t index = index_at(indices, i);
        size_t position = it.offset[0] + (size_t)(index < 0 ? index + extent : index) * along;
        char *to = (char *)out->data + position * item;
        const char *from = (const char *)updates->data + i * item;
        if (combine)
            TRY(combine(to, true, from, true, to, 1));
        else
            copy_item(to, from, item);
        strided_next(&it, 1);
    }
    return STATUS_OK;
}

/* ---- index tuples ---- */

/* Tuples of `depth` indices into dimensions first … first + depth - 1 of `shape`; each addresses a
 * slice of `slice` elements. */
struct tuples {
    const struct tensor *indices;
    const struct shape *shape;
    int first, depth;
    size_t slice;
};

static void tuples_init(struct tuples *tuples, const struct tensor *data,
                        const struct tensor *indices, int first)
{
    tuples->indices = indices;
    tuples->shape = &data->shape;
    tuples->first = first;
    tuples->depth = (int)indices->shape.dims[indices->shape.rank - 1];
    tuples->slice = resolve_extent(&data->shape, first + tuples->depth, data->shape.rank);
}

/* The offset in elements that tuple t addresses, within its batch. */
static enum status tuple_offset(const struct tuples *tuples, size_t t, size_t *ret,
                                struct error *err)
{
    size_t position = 0;
    for (int k = 0; k < tuples->depth; k++) {
        int axis = tuples->first + k;
        int64_t extent = tuples->shape->dims[axis];
        int64_t index = index_at(tuples->indices, t * (size_t)tuples->depth + (size_t)k);
        if (index < -extent || index >= extent)
            return error_set(err, STATUS_INVALID,
                             "index %lld (part %d of tuple %zu) is out of range for axis %d of "
                             "extent %lld, expected %lld to %lld",
                             (long long)index, k, t, axis, (long long)extent, (long long)-extent,
                             (long long)extent - 1);
        position = position * (size_t)extent + (size_t)(index < 0 ? index + extent : index);
    }
    *ret = position * tuples->slice;
    return STATUS_OK;
}

KERNEL(kernel_gather_nd)
{
    const struct tensor *data = args->in[0], *indices = args->in[1];
    struct tensor *out = *args->out[0];
    int batch_dims = (int)node_int(args->node, "batch_dims", 0);
    struct tuples tuples;
    tuples_init(&tuples, data, indices, batch_dims);
    size_t count = resolve_extent(&indices->shape, 0, indices->shape.rank - 1);
    size_t batches = resolve_extent(&indices->shape, 0, batch_dims);
    size_t batch = resolve_extent(&data->shape, batch_dims, data->shape.rank);
    size_t bytes = tuples.slice * dtype_size(data->dtype);
    for (size_t t = 0; t < count; t++) {
        size_t offset = 0;
        TRY(tuple_offset(&tuples, t, &offset, err));
        offset += t / (count / batches) * batch;
        if (bytes)
            memcpy((char *)out->data + t * bytes, element(data->data, data->dtype, offset), bytes);
    }
    return STATUS_OK;
}

KERNEL(kernel_scatter_nd)
{
    const struct tensor *data = args->in[0], *indices = args->in[1], *updates = args->in[2];
    struct tensor *out = *args->out[0];
    size_t count = resolve_extent(&indices->shape, 0, indices->shape.rank - 1);
    struct tuples tuples;
    binary_row combine;
    tuples_init(&tuples, data, indices, 0);
    TRY(scatter_row(args->node, data->dtype, &combine, err));
    copy_bytes(out->data, data->data, data->bytes);
    size_t bytes = tuples.slice * dtype_size(data->dtype);
    for (size_t t = 0; t < count; t++) {
        size_t offset = 0;
        TRY(tuple_offset(&tuples, t, &offset, err));
        if (!bytes)
            continue;
        void *to = element_at(out->data, data->dtype, offset);
        const char *from = (const char *)updates->data + t * bytes;
        if (combine)
            TRY(combine(to, true, from, true, to, tuples.slice));
        else
            memcpy(to, from, bytes);
    }
    return STATUS_OK;
}
