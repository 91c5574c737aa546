/* TopK, Unique, ArgMax, ArgMin. Elements of every dtype become 64-bit keys with the same order. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/heap.h"
#include "engine/op/family.h"

static enum status infer_top_k(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0], *count = node_input(node, 1);
    struct shape out = x->shape;
    int64_t axis, k;
    TRY(infer_attribute_axis(node, -1, &axis, err));
    if (!count->known) {
        infer_unknown(node, 0, x->dtype);
        return infer_unknown(node, 1, DTYPE_I64);
    }
    k = tensor_int(count->known, 0);
    if (k < 0 || k > out.dims[axis])
        return error_set(err, STATUS_SHAPE,
                         "k is %lld; it must be 0 to %lld, the size of axis %lld", (long long)k,
                         (long long)out.dims[axis], (long long)axis);
    out.dims[axis] = k;
    TRY(infer_output(node, 0, x->dtype, &out, err));
    return infer_output(node, 1, DTYPE_I64, &out, err);
}

static enum status infer_unique(struct node *node, struct error *err)
{
    int64_t axis;
    if (node_attr(node, "axis"))
        TRY(infer_attribute_axis(node, 0, &axis, err));
    infer_unknown(node, 0, node->inputs[0]->dtype);
    for (size_t i = 1; i < 4; i++)
        infer_unknown(node, i, DTYPE_I64);
    return STATUS_OK;
}

static enum status infer_arg(struct node *node, struct error *err)
{
    const struct shape *shape = &node->inputs[0]->shape;
    int64_t axis;
    TRY(infer_attribute_axis(node, 0, &axis, err));
    struct shape out = {0};
    for (int i = 0; i < shape->rank; i++)
        if (i != axis)
            out.dims[out.rank++] = shape->dims[i];
        else if (node_int(node, "keepdims", 1))
            out.dims[out.rank++] = 1;
    if (shape->dims[axis] == 0 && shape_count(&out) != 0)
        return error_set(err, STATUS_SHAPE,
                         "axis %lld is empty: it has no largest or smallest element",
                         (long long)axis);
    return infer_output(node, 0, DTYPE_I64, &out, err);
}

/* ArgMax and ArgMin drop their axis if keepdims is 0. */
static int arg_axis(const struct node *node, const int *axes)
{
    const int from = batch_of_first(node, axes);
    const int64_t axis = node_axis(node, 0, node->inputs[0]->shape.rank);
    if (from < 0 || from == axis)
        return BATCH_MIXES;
    return from > axis && !node_int(node, "keepdims", 1) ? from - 1 : from;
}

static const struct batch_rule arg_rule = {arg_axis, NULL};

/* ---- keys ---- */

/* Maps a double to an integer with the same order: NaN comes last. */
static uint64_t float_key(double x)
{
    uint64_t bits;
    x += 0.0; /* -0 becomes 0 */
    memcpy(&bits, &x, sizeof bits);
    if (x != x)
        return UINT64_MAX;
    return bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

/* Writes keys with the order of the elements; -0 equals 0, NaN is above all and equals itself. */
static void order_keys(const void *src, enum dtype dtype, uint64_t *dst, size_t n)
{
    FOR_BLOCKS(done, count, n) {
        const void *from = element(src, dtype, done);
        if (dtype_is_float(dtype)) {
            double values[BLOCK];
            load_doubles(from, dtype, values, count);
            for (size_t i = 0; i < count; i++)
                dst[done + i] = float_key(values[i]);
            continue;
        }
        int64_t values[BLOCK];
        uint64_t flip = dtype == DTYPE_U64 ? 0 : (uint64_t)1 << 63;
        load_integers(from, dtype, values, count);
        for (size_t i = 0; i < count; i++)
            dst[done + i] = (uint64_t)values[i] ^ flip;
    }
}

/* ---- TopK ---- */

struct sort_key {
    uint64_t key;
    int64_t index;
};

/* Sorts by the greater key, then the earlier position. */
static int compare_keys(const void *left, const void *right)
{
    const struct sort_key *a = left, *b = right;
    if (a->key != b->key)
        return a->key > b->key ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* Writes the k largest of n keys to chosen[k], the largest first; of equal keys, those at earlier
 * positions. `heap` has room for k keys. */
static void choose_first(const uint64_t *keys, size_t n, uint64_t *heap, struct sort_key *chosen,
                         size_t k)
{
    size_t kept = 0, ties = 0, count = 0;
    for (size_t i = 0; i < n; i++) {
        if (kept == k && keys[i] <= heap[0])
            continue;
        if (kept == k)
            (void)heap_pop(heap, &kept);
        heap_push(heap, &kept, keys[i]);
    }
    for (size_t i = 0; i < k; i++)
        ties += heap[i] == heap[0]; /* the least key that is chosen */
    for (size_t i = 0; count < k; i++)
        if (keys[i] > heap[0] || (keys[i] == heap[0] && ties && ties--))
            chosen[count++] = (struct sort_key){keys[i], (int64_t)i};
    qsort(chosen, k, sizeof *chosen, compare_keys);
}

/* One line of elements along the axis. */
struct sort_line {
    const struct tensor *x;
    size_t start, step, count; /* in elements */
    bool largest;
};

static void line_keys(const struct sort_line *line, uint64_t *keys)
{
    if (line->step == 1)
        order_keys(element(line->x->data, line->x->dtype, line->start), line->x->dtype, keys,
                   line->count);
    else
        for (size_t i = 0; i < line->count; i++)
            order_keys(element(line->x->data, line->x->dtype, line->start + i * line->step),
                       line->x->dtype, &keys[i], 1);
    for (size_t i = 0; i < line->count && !line->largest; i++)
        keys[i] = ~keys[i];
}

static void line_write(const struct kernel_args *args, const struct sort_line *line,
                       const struct sort_key *chosen, size_t k, size_t start)
{
    size_t item = dtype_size(line->x->dtype);
    struct tensor *values = kernel_result(args, 0), *indices = kernel_result(args, 1);
    for (size_t i = 0; i < k; i++) {
        size_t to = start + i * line->step;
        size_t from = line->start + (size_t)chosen[i].index * line->step;
        if (values)
            memcpy((char *)values->data + to * item, (const char *)line->x->data + from * item,
                   item);
        if (indices)
            ((int64_t *)indices->data)[to] = chosen[i].index;
    }
}

KERNEL(kernel_top_k)
{
    const struct tensor *x = args->in[0];
    const struct axis_layout layout =
        axis_layout_of(&x->shape, node_axis(args->node, -1, x->shape.rank));
    const size_t k = (size_t)tensor_int(args->in[1], 0); /* inference has checked the number */
    const size_t count = layout.extent, inner = layout.inner;
    uint64_t *keys = kernel_scratch(args, count, sizeof *keys, err);
    uint64_t *heap = kernel_scratch(args, k, sizeof *heap, err);
    struct sort_key *chosen = kernel_scratch(args, k, sizeof *chosen, err);
    if (!keys || !heap || !chosen)
        return STATUS_NO_MEMORY;
    struct sort_line line = {x, 0, inner, count, node_int(args->node, "largest", 1) != 0};
    for (size_t c = 0; k && c < layout.outer * inner; c++) {
        TRY(kernel_goes_on(args, count, err));
        line.start = axis_line(&layout, c);
        line_keys(&line, keys);
        choose_first(keys, count, heap, chosen, k);
        line_write(args, &line, chosen, k, c / inner * k * inner + c % inner);
    }
    return STATUS_OK;
}

/* ---- Unique ---- */

/* `count` slices of `width` keys each; without the attribute axis, a slice is one element. */
struct slices {
    uint64_t *keys;
    size_t count, width;
};

static int compare_slices(const struct slices *slices, size_t a, size_t b)
{
    const uint64_t *x = slices->keys + a * slices->width, *y = slices->keys + b * slices->width;
    for (size_t i = 0; i < slices->width; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

static int compare_positions(const void *left, const void *right, void *context)
{
    size_t a = *(const size_t *)left, b = *(const size_t *)right;
    int order = compare_slices(context, a, b);
    return order ? order : a < b ? -1 : a > b;
}

/* Copies to slice s the keys of x with coordinate s on the axis, in the order of memory. */
static void slices_read(const struct tensor *x, size_t outer, size_t inner, struct slices *slices)
{
    if (outer == 1) {
        order_keys(x->data, x->dtype, slices->keys, slices->count * slices->width);
        return;
    }
    for (size_t o = 0; o < outer && inner; o++)
        for (size_t s = 0; s < slices->count; s++)
            order_keys(element(x->data, x->dtype, (o * slices->count + s) * inner), x->dtype,
                       slices->keys + s * slices->width + o * inner, inner);
}

/* A group of equal slices: a run of `order`, which sorts slices by contents, then position. */
struct group {
    size_t first; /* the first slice */
    size_t start, end;
};

static int compare_firsts(const void *left, const void *right)
{
    size_t a = ((const struct group *)left)->first, b = ((const struct group *)right)->first;
    return a < b ? -1 : a > b;
}

/* Sorts the slices, and finds their groups in the order of the output. Returns their number. */
static size_t groups_find(const struct slices *slices, bool sorted, size_t *order,
                          struct group *groups)
{
    size_t count = 0;
    for (size_t i = 0; i < slices->count; i++)
        order[i] = i;
    if (slices->count)
        qsort_r(order, slices->count, sizeof *order, compare_positions, (void *)(uintptr_t)slices);
    for (size_t i = 0; i < slices->count; i++) {
        if (i == 0 || compare_slices(slices, order[i - 1], order[i]))
            groups[count++] = (struct group){.first = order[i], .start = i};
        groups[count - 1].end = i + 1;
    }
    if (!sorted && count)
        qsort(groups, count, sizeof *groups, compare_firsts);
    return count;
}

/* Creates output i, a list; *ret is NULL if the output is not wanted. */
static enum status output_list(const struct kernel_args *args, size_t i, size_t count,
                               int64_t **ret, struct error *err)
{
    *ret = NULL;
    if (!node_output(args->node, i))
        return STATUS_OK;
    TRY(kernel_output(args, i, DTYPE_I64, &SHAPE((int64_t)count), err));
    *ret = args->out[i]->data;
    return STATUS_OK;
}

static enum status unique_lists(const struct kernel_args *args, const struct group *groups,
                                size_t group_count, const size_t *order, size_t count,
                                struct error *err)
{
    int64_t *firsts, *inverse, *counts;
    TRY(output_list(args, 1, group_count, &firsts, err));
    TRY(output_list(args, 2, count, &inverse, err));
    TRY(output_list(args, 3, group_count, &counts, err));
    for (size_t g = 0; g < group_count; g++) {
        if (firsts)
            firsts[g] = (int64_t)groups[g].first;
        if (counts)
            counts[g] = (int64_t)(groups[g].end - groups[g].start);
        for (size_t i = groups[g].start; inverse && i < groups[g].end; i++)
            inverse[order[i]] = (int64_t)g;
    }
    return STATUS_OK;
}

KERNEL(kernel_unique)
{
    const struct tensor *x = args->in[0];
    bool flat = !node_attr(args->node, "axis"), sorted = node_int(args->node, "sorted", 1) != 0;
    const int64_t axis = node_axis(args->node, 0, x->shape.rank);
    struct shape shape = x->shape;
    const struct axis_layout layout =
        flat ? (struct axis_layout){1, shape_count(&shape), 1} : axis_layout_of(&shape, axis);
    const size_t outer = layout.outer, inner = layout.inner, count = layout.extent;
    struct slices slices = {.count = count, .width = outer * inner};
    slices.keys = kernel_scratch(args, shape_count(&x->shape), sizeof *slices.keys, err);
    size_t *order = kernel_scratch(args, count, sizeof *order, err);
    struct group *groups = kernel_scratch(args, count, sizeof *groups, err);
    if (!slices.keys || !order || !groups)
        return STATUS_NO_MEMORY;
    slices_read(x, outer, inner, &slices);
    const size_t group_count = groups_find(&slices, sorted, order, groups);
    shape = flat ? SHAPE((int64_t)group_count) : shape;
    if (!flat)
        shape.dims[axis] = (int64_t)group_count;
    if (args->node->outputs[0])
        TRY(kernel_output(args, 0, x->dtype, &shape, err));
    size_t bytes = inner * dtype_size(x->dtype);
    for (size_t o = 0; args->out[0] && bytes && o < outer; o++)
        for (size_t g = 0; g < group_count; g++)
            memcpy((char *)args->out[0]->data + (o * group_count + g) * bytes,
                   (const char *)x->data + (o * count + groups[g].first) * bytes, bytes);
    return unique_lists(args, groups, group_count, order, count, err);
}

/* ---- ArgMax, ArgMin ---- */

/* The best element has the largest key. NaN is better than any number, also for ArgMin. */
KERNEL(kernel_arg)
{
    const struct tensor *x = args->in[0];
    const bool largest = args->node->op == OP_ARG_MAX, is_real = dtype_is_float(x->dtype);
    const bool last = node_int(args->node, "select_last_index", 0) != 0;
    int64_t *to = args->out[0]->data;
    const struct axis_layout layout =
        axis_layout_of(&x->shape, node_axis(args->node, 0, x->shape.rank));
    const size_t inner = layout.inner, all = layout.extent * inner;
    uint64_t keys[BLOCK], *best = kernel_scratch(args, inner, sizeof *best, err);
    TRY(allocated(best));
    for (size_t o = 0; o < layout.outer; o++, to += inner) {
        size_t k = 0, line = 0; /* of the element: its index along the axis, and its line */
        memset(best, 0, inner * sizeof *best);
        memset(to, 0, inner * sizeof *to);
        FOR_BLOCKS(done, n, all) {
            order_keys(element(x->data, x->dtype, o * all + done), x->dtype, keys, n);
            for (size_t i = 0; i < n; i++) {
                const uint64_t key =
                    largest || (is_real && keys[i] == UINT64_MAX) ? keys[i] : ~keys[i];
                if (key > best[line] || (last && key == best[line])) {
                    best[line] = key;
                    to[line] = (int64_t)k;
                }
                if (++line == inner) {
                    line = 0;
                    k++;
                }
            }
        }
    }
    return STATUS_OK;
}

const struct op_info ops_sort[] = {
    {OP_TOP_K, 10, 0, 2, 2, 2, 2, "X:number K:index[1]", OP_PLAIN,
     "axis:int largest:int sorted:int", infer_top_k, &batch_beside_last, work_elements,
     kernel_top_k},
    {OP_UNIQUE, 11, 0, 1, 1, 1, 4, NULL, OP_DATA_SHAPE, "axis:int sorted:int", infer_unique,
     &batch_mixes, work_elements, kernel_unique},
    OP_ROW(ARG_MAX, 1, 1, 1, "data:number", OP_PLAIN, "axis:int keepdims:int select_last_index:int",
           arg, &arg_rule),
    OP_ROW(ARG_MIN, 1, 1, 1, "data:number", OP_PLAIN, "axis:int keepdims:int select_last_index:int",
           arg, &arg_rule),
    {0},
};
