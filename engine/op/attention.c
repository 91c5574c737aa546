/* Attention and StridedCopy. Passes make these operators, which use access maps. */
#include <math.h>
#include <string.h>

#include "engine/op/attention.h"
#include "engine/op/family.h"
#include "engine/op/nn.h"

static const char *const bias_names[ATTENTION_BIASES] = {"bias0", "bias1", "bias2"};

static enum status load_shape(const struct node *node, struct shape *ret, struct error *err)
{
    size_t count;
    const int64_t *dims = node_ints(node, "shape", &count);
    if (!dims || count > TENSOR_MAX_RANK)
        return error_set(err, STATUS_MODEL, "attribute 'shape' is missing");
    struct shape shape = {.rank = (int)count};
    memcpy(shape.dims, dims, count * sizeof *dims);
    for (size_t d = 0; d < count; d++)
        if (dims[d] < 1)
            return error_set(err, STATUS_MODEL, "attribute 'shape' is not positive");
    *ret = shape;
    return STATUS_OK;
}

/* Reads the map of an operand that has a->batch matrices of `rows` x `columns`. */
static enum status load_operand(const struct node *node, const char *name,
                                const struct shape *shape, const struct attention *a, int64_t rows,
                                int64_t columns, struct access_map *ret, struct error *err)
{
    TRY(access_map_load(node, name, 3, shape_count(shape), ret, err));
    if (access_map_extent(&ret->group[0]) != a->batch ||
        access_map_extent(&ret->group[1]) != rows || access_map_extent(&ret->group[2]) != columns)
        return error_set(err, STATUS_SHAPE, "operand '%s' does not fit the others", name);
    return STATUS_OK;
}

enum status attention_load(const struct node *node, struct attention *ret, struct shape *ret_shape,
                           struct error *err)
{
    size_t count, size;
    const int64_t *extents = node_ints(node, "extents", &count);
    struct attention a = {.scale = node_float(node, "scale", 1),
                          .nan_is_zero = node_int(node, "nan_is_zero", 0) != 0,
                          .bias_count = node->input_count - 3};
    struct shape shape;
    if (!extents || count != 5 || a.bias_count > ATTENTION_BIASES)
        return error_set(err, STATUS_MODEL, "attribute 'extents' is not five numbers");
    a.batch = extents[0];
    a.rows = extents[1];
    a.keys = extents[2];
    a.depth = extents[3];
    a.width = extents[4];
    TRY(load_shape(node, &shape, err));
    TRY(shape_check(&shape, node->inputs[0]->dtype, NULL, &size, err));
    const struct shape *q = &node->inputs[0]->shape, *k = &node->inputs[1]->shape;
    TRY(load_operand(node, "q", q, &a, a.rows, a.depth, &a.q, err));
    TRY(load_operand(node, "k", k, &a, a.keys, a.depth, &a.k, err));
    TRY(load_operand(node, "v", &node->inputs[2]->shape, &a, a.keys, a.width, &a.v, err));
    TRY(load_operand(node, "y", &shape, &a, a.rows, a.width, &a.y, err));
    for (size_t i = 0; i < a.bias_count; i++) {
        int64_t step;
        TRY(load_operand(node, bias_names[i], &node->inputs[3 + i]->shape, &a, a.rows, a.keys,
                         &a.bias[i], err));
        if (a.keys > 1 && (!access_map_is_even(&a.bias[i].group[2], &step) || step != 1))
            return error_set(err, STATUS_MODEL, "a bias's rows are not contiguous");
    }
    *ret = a;
    *ret_shape = shape;
    return STATUS_OK;
}

bool attention_store(struct graph *graph, struct node *node, const struct attention *a,
                     const struct shape *shape)
{
    const int64_t extents[5] = {a->batch, a->rows, a->keys, a->depth, a->width};
    bool ok =
        node_set_ints(graph, node, "extents", extents, 5) &&
        node_set_ints(graph, node, "shape", shape->dims, (size_t)shape->rank) &&
        access_map_store(graph, node, "q", &a->q) && access_map_store(graph, node, "k", &a->k) &&
        access_map_store(graph, node, "v", &a->v) && access_map_store(graph, node, "y", &a->y) &&
        node_set_int(graph, node, "nan_is_zero", a->nan_is_zero) &&
        node_set_float(graph, node, "scale", a->scale);
    for (size_t i = 0; ok && i < a->bias_count; i++)
        ok = access_map_store(graph, node, bias_names[i], &a->bias[i]);
    return ok;
}

static enum status infer_attention(struct node *node, struct error *err)
{
    struct attention attention;
    struct shape shape;
    TRY(attention_load(node, &attention, &shape, err));
    return infer_output(node, 0, node->inputs[0]->dtype, &shape, err);
}

static enum status infer_strided_copy(struct node *node, struct error *err)
{
    const struct value *x = node->inputs[0];
    struct shape shape;
    struct access_map map;
    size_t count;
    TRY(load_shape(node, &shape, err));
    TRY(shape_check(&shape, x->dtype, &count, NULL, err));
    TRY(access_map_load(node, "map", 1, shape_count(&x->shape), &map, err));
    if ((size_t)access_map_extent(&map.group[0]) != count)
        return error_set(err, STATUS_SHAPE,
                         "the access map has another number of elements than the result; this is a "
                         "bug in lensd");
    return infer_output(node, 0, x->dtype, &shape, err);
}

struct operand_of {
    const struct tensor *tensor;
    const struct access_map *map;
    int64_t base; /* where the current matrix starts, in elements */
};

static double number(const struct operand_of *o, int64_t row, int64_t column)
{
    double value;
    const int64_t at =
        o->base + access_map_at(&o->map->group[1], row) + access_map_at(&o->map->group[2], column);
    load_doubles(element(o->tensor->data, o->tensor->dtype, (size_t)at), o->tensor->dtype, &value,
                 1);
    return value;
}

static void enter_matrix(struct operand_of *o, int64_t matrix)
{
    o->base = o->map->offset + access_map_at(&o->map->group[0], matrix);
}

/* Sets s[key] = exp(score - greatest score) for each key, and returns their sum. */
static double score_row(const struct attention *a, const struct operand_of *q,
                        const struct operand_of *k, const struct operand_of *bias, int64_t row,
                        double *s)
{
    double greatest = -INFINITY, sum = 0;
    for (int64_t key = 0; key < a->keys; key++) {
        double dot = 0;
        for (int64_t d = 0; d < a->depth; d++)
            dot += number(q, row, d) * number(k, key, d);
        s[key] = dot * (double)a->scale;
        for (size_t b = 0; b < a->bias_count; b++)
            s[key] += number(&bias[b], row, key);
        greatest = s[key] > greatest ? s[key] : greatest;
    }
    for (int64_t key = 0; key < a->keys; key++) {
        s[key] = exp(s[key] - greatest);
        sum += s[key];
    }
    return sum;
}

static enum status attend(const struct attention *a, const struct kernel_args *args, double *scores,
                          struct error *err)
{
    struct operand_of q = {args->in[0], &a->q, 0}, k = {args->in[1], &a->k, 0};
    struct operand_of v = {args->in[2], &a->v, 0}, bias[ATTENTION_BIASES];
    const struct tensor *y = *args->out[0];
    for (size_t b = 0; b < a->bias_count; b++)
        bias[b] = (struct operand_of){args->in[3 + b], &a->bias[b], 0};
    for (int64_t matrix = 0; matrix < a->batch; matrix++) {
        const int64_t to = a->y.offset + access_map_at(&a->y.group[0], matrix);
        enter_matrix(&q, matrix);
        enter_matrix(&k, matrix);
        enter_matrix(&v, matrix);
        for (size_t b = 0; b < a->bias_count; b++)
            enter_matrix(&bias[b], matrix);
        for (int64_t row = 0; row < a->rows; row++) {
            TRY(kernel_goes_on(args, (size_t)(a->keys * (a->depth + a->width)), err));
            const double sum = score_row(a, &q, &k, bias, row, scores);
            for (int64_t d = 0; d < a->width; d++) {
                double result = 0;
                for (int64_t key = 0; key < a->keys; key++)
                    result += scores[key] * number(&v, key, d);
                result = a->nan_is_zero && isnan(sum) ? 0 : result / sum;
                const int64_t at =
                    to + access_map_at(&a->y.group[1], row) + access_map_at(&a->y.group[2], d);
                store_doubles(&result, y->dtype, element_at(y->data, y->dtype, (size_t)at), 1);
            }
        }
    }
    return STATUS_OK;
}

KERNEL(kernel_attention)
{
    struct attention attention;
    struct shape shape;
    TRY(attention_load(args->node, &attention, &shape, err));
    double *scores = kernel_scratch(args, (size_t)attention.keys, sizeof *scores, err);
    TRY(allocated(scores));
    return attend(&attention, args, scores, err);
}

KERNEL(kernel_strided_copy)
{
    const struct tensor *x = args->in[0];
    struct tensor *y = *args->out[0];
    const size_t size = dtype_size(x->dtype);
    struct access_map map;
    TRY(access_map_load(args->node, "map", 1, shape_count(&x->shape), &map, err));
    const int64_t count = access_map_extent(&map.group[0]);
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)y->data + (size_t)i * size,
               (const char *)x->data +
                   (size_t)(map.offset + access_map_at(&map.group[0], i)) * size,
               size);
    return STATUS_OK;
}

const struct op_info ops_attention[] = {
    OP_ROW(ATTENTION, 1, 3, 3 + ATTENTION_BIASES, "q:float k:= v:= ...bias:float", OP_PLAIN,
           "extents:ints shape:ints q:ints k:ints v:ints y:ints bias0:ints bias1:ints bias2:ints "
           "scale:float nan_is_zero:int",
           attention, &batch_mixes),
    OP_ROW(STRIDED_COPY, 1, 1, 1, NULL, OP_PLAIN, "shape:ints map:ints", strided_copy,
           &batch_mixes),
    {0},
};
