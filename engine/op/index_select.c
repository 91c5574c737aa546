/* OneHot, NonZero, Compress, CumSum. */
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/convert.h"
#include "engine/op/copy.h"
#include "engine/op/index.h"
#include "engine/op/resolve.h"

KERNEL(kernel_one_hot)
{
    const struct tensor *indices = args->in[0], *values = args->in[2];
    struct tensor *out = *args->out[0];
    int64_t axis = node_int(args->node, "axis", -1);
    if (axis < 0)
        axis += out->shape.rank;
    int64_t depth = out->shape.dims[axis];
    size_t item = dtype_size(values->dtype), count = shape_count(&indices->shape);
    size_t inner = resolve_extent(&out->shape, (int)axis + 1, out->shape.rank);
    const char *on = (const char *)values->data + item;
    fill_row(out->data, values->data, item, shape_count(&out->shape));
    for (size_t i = 0; i < count; i++) {
        int64_t index = tensor_int(indices, i);
        if (index < -depth || index >= depth)
            continue; /* all off, by the standard */
        size_t row = i / inner * (size_t)depth + (size_t)(index < 0 ? index + depth : index);
        memcpy((char *)out->data + (row * inner + i % inner) * item, on, item);
    }
    return STATUS_OK;
}

/* Which of n elements from `start` on are not zero. */
static void flags_row(const struct tensor *x, size_t start, uint8_t *ret, size_t n)
{
    convert_row(element(x->data, x->dtype, start), x->dtype, ret, DTYPE_BOOL, n);
}

KERNEL(kernel_non_zero)
{
    const struct tensor *x = args->in[0];
    size_t count = shape_count(&x->shape), found = 0;
    uint8_t flags[BLOCK];
    for (size_t done = 0; done < count; done += BLOCK) {
        size_t n = count - done < BLOCK ? count - done : BLOCK;
        flags_row(x, done, flags, n);
        for (size_t i = 0; i < n; i++)
            found += flags[i];
    }
    int rank = x->shape.rank ? x->shape.rank : 1; /* a scalar counts as a list of one */
    TRY(kernel_output(args, 0, DTYPE_I64, &SHAPE(rank, (int64_t)found), err));
    int64_t *to = (*args->out[0])->data, at[TENSOR_MAX_RANK] = {0};
    size_t column = 0;
    for (size_t done = 0; done < count; done += BLOCK) {
        size_t n = count - done < BLOCK ? count - done : BLOCK;
        flags_row(x, done, flags, n);
        for (size_t i = 0; i < n; i++) {
            for (int d = 0; flags[i] && d < rank; d++)
                to[(size_t)d * found + column] = at[d];
            column += flags[i];
            for (int d = x->shape.rank - 1; d >= 0; d--) {
                if (++at[d] < x->shape.dims[d])
                    break;
                at[d] = 0;
            }
        }
    }
    return STATUS_OK;
}

KERNEL(kernel_compress)
{
    const struct tensor *x = args->in[0], *condition = args->in[1];
    const uint8_t *flags = condition->data;
    bool flat = !node_attr(args->node, "axis");
    int64_t axis = node_int(args->node, "axis", 0);
    if (axis < 0)
        axis += x->shape.rank;
    size_t extent = flat ? shape_count(&x->shape) : (size_t)x->shape.dims[axis];
    size_t length = shape_count(&condition->shape), chosen = 0;
    for (size_t i = 0; i < length; i++) {
        if (flags[i] && i >= extent)
            return error_set(err, STATUS_INVALID,
                             "the condition chooses element %zu, but there are only %zu", i,
                             extent);
        chosen += flags[i] != 0;
    }
    struct shape shape = flat ? SHAPE((int64_t)chosen) : x->shape;
    if (!flat)
        shape.dims[axis] = (int64_t)chosen;
    TRY(kernel_output(args, 0, x->dtype, &shape, err));
    size_t outer = flat ? 1 : resolve_extent(&x->shape, 0, (int)axis);
    size_t bytes =
        dtype_size(x->dtype) * (flat ? 1 : resolve_extent(&x->shape, (int)axis + 1, x->shape.rank));
    char *to = (*args->out[0])->data;
    const char *from = x->data;
    for (size_t o = 0; o < outer && x->bytes; o++) {
        for (size_t i = 0; i < length; i++) {
            if (!flags[i])
                continue;
            memcpy(to, from + i * bytes, bytes);
            to += bytes;
        }
        from += extent * bytes;
    }
    return STATUS_OK;
}

/* ---- CumSum ---- */

/* Running sums of `inner` neighbouring columns, in double or (wrapping) in 64-bit integers. */
struct running {
    bool real, exclusive;
    size_t inner;
    double *sum;
    uint64_t *whole;
};

static void running_row(const struct running *running, const void *from, void *to, enum dtype dtype)
{
    for (size_t done = 0; done < running->inner; done += BLOCK) {
        size_t n = running->inner - done < BLOCK ? running->inner - done : BLOCK;
        double values[BLOCK], before[BLOCK];
        int64_t integers[BLOCK], whole_before[BLOCK];
        void *row = element_at(to, dtype, done);
        if (running->real) {
            double *sum = running->sum + done;
            load_doubles(element(from, dtype, done), dtype, values, n);
            for (size_t i = 0; i < n; i++) {
                before[i] = sum[i];
                sum[i] += values[i];
            }
            store_doubles(running->exclusive ? before : sum, dtype, row, n);
            continue;
        }
        uint64_t *sum = running->whole + done;
        load_integers(element(from, dtype, done), dtype, integers, n);
        for (size_t i = 0; i < n; i++) {
            whole_before[i] = (int64_t)sum[i];
            sum[i] += (uint64_t)integers[i];
            integers[i] = (int64_t)sum[i];
        }
        store_integers(running->exclusive ? whole_before : integers, dtype, row, n);
    }
}

KERNEL(kernel_cum_sum)
{
    const struct tensor *x = args->in[0];
    struct tensor *out = *args->out[0];
    int64_t axis = tensor_int(args->in[1], 0);
    TRY(infer_axis(&axis, x->shape.rank, err));
    bool reverse = node_int(args->node, "reverse", 0) != 0;
    size_t outer = resolve_extent(&x->shape, 0, (int)axis), extent = (size_t)x->shape.dims[axis];
    size_t inner = resolve_extent(&x->shape, (int)axis + 1, x->shape.rank);
    void *scratch = kernel_scratch(args, inner, sizeof(double), err);
    if (!scratch)
        return STATUS_NO_MEMORY;
    struct running running = {dtype_is_float(x->dtype), node_int(args->node, "exclusive", 0) != 0,
                              inner, scratch, scratch};
    for (size_t o = 0; o < outer && x->bytes; o++) {
        memset(scratch, 0, inner * sizeof(double));
        for (size_t k = 0; k < extent; k++) {
            size_t row = (o * extent + (reverse ? extent - 1 - k : k)) * inner;
            running_row(&running, element(x->data, x->dtype, row),
                        element_at(out->data, x->dtype, row), x->dtype);
        }
    }
    return STATUS_OK;
}
