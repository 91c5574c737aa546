/* Attention and StridedCopy. Only passes make these operators, which read and write by access
 * maps. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/op/attention.h"
#include "engine/op/family.h"
#include "engine/op/nn.h"

static const char *const bias_names[ATTENTION_BIASES] = {"bias0", "bias1", "bias2"};

/* True if the map describes `batch` matrices of rows x columns. */
__attribute__((unused)) static bool is_map_of(const struct access_map *map, int64_t batch,
                                              int64_t rows, int64_t columns)
{
    return access_map_extent(&map->group[0]) == batch &&
           access_map_extent(&map->group[1]) == rows &&
           access_map_extent(&map->group[2]) == columns;
}

void attention_load(const struct node *node, struct attention *ret)
{
    size_t count;
    const int64_t *extents = node_ints(node, "extents", &count);
    struct value *const *in = node->inputs;
    struct attention a = {.batch = extents[0],
                          .rows = extents[1],
                          .keys = extents[2],
                          .depth = extents[3],
                          .width = extents[4],
                          .q = access_map_load(node, "q", 3, shape_count(&in[0]->shape)),
                          .k = access_map_load(node, "k", 3, shape_count(&in[1]->shape)),
                          .v = access_map_load(node, "v", 3, shape_count(&in[2]->shape)),
                          .y = access_map_load(node, "y", 3, shape_count(&node->outputs[0]->shape)),
                          .bias_count = node->input_count - 3,
                          .scale = node_float(node, "scale", 1),
                          .nan_is_zero = node_int(node, "nan_is_zero", 0) != 0};
    for (size_t i = 0; i < a.bias_count; i++) {
        a.bias[i] = access_map_load(node, bias_names[i], 3, shape_count(&in[3 + i]->shape));
        assert(is_map_of(&a.bias[i], a.batch, a.rows, a.keys));
    }
    assert(is_map_of(&a.q, a.batch, a.rows, a.depth) && is_map_of(&a.k, a.batch, a.keys, a.depth) &&
           is_map_of(&a.v, a.batch, a.keys, a.width) && is_map_of(&a.y, a.batch, a.rows, a.width));
    *ret = a;
}

bool attention_store(struct graph *graph, struct node *node, const struct attention *a)
{
    const int64_t extents[5] = {a->batch, a->rows, a->keys, a->depth, a->width};
    bool ok =
        node_set_ints(graph, node, "extents", extents, 5) &&
        access_map_store(graph, node, "q", &a->q) && access_map_store(graph, node, "k", &a->k) &&
        access_map_store(graph, node, "v", &a->v) && access_map_store(graph, node, "y", &a->y) &&
        node_set_int(graph, node, "nan_is_zero", a->nan_is_zero) &&
        node_set_float(graph, node, "scale", a->scale);
    for (size_t i = 0; ok && i < a->bias_count; i++)
        ok = access_map_store(graph, node, bias_names[i], &a->bias[i]);
    return ok;
}

/* Infers nothing: the pass that made the node has set the result's shape. */
static enum status infer_made(struct node *node, struct error *err)
{
    return infer_output(node, 0, node->inputs[0]->dtype, &node->outputs[0]->shape, err);
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

KERNEL(kernel_attention)
{
    struct attention attention;
    attention_load(args->node, &attention);
    const struct attention *a = &attention;
    struct operand_of q = {args->in[0], &a->q, 0}, k = {args->in[1], &a->k, 0};
    struct operand_of v = {args->in[2], &a->v, 0}, bias[ATTENTION_BIASES];
    double *scores = kernel_scratch(args, (size_t)a->keys, sizeof *scores, err);
    TRY(allocated(scores));
    const struct tensor *y = args->out[0];
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

KERNEL(kernel_strided_copy)
{
    const struct tensor *x = args->in[0];
    struct tensor *y = args->out[0];
    const size_t size = dtype_size(x->dtype);
    const struct access_map map = access_map_load(args->node, "map", 1, shape_count(&x->shape));
    const int64_t count = access_map_extent(&map.group[0]);
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)y->data + (size_t)i * size,
               (const char *)x->data +
                   (size_t)(map.offset + access_map_at(&map.group[0], i)) * size,
               size);
    return STATUS_OK;
}

const struct op_info ops_attention[] = {
    OP_ROW_OF(ATTENTION, 1, 3, 3 + ATTENTION_BIASES, "q:float k:= v:= ...bias:float", OP_PLAIN,
              "extents:ints q:ints k:ints v:ints y:ints bias0:ints bias1:ints bias2:ints "
              "scale:float nan_is_zero:int",
              made, &batch_mixes, attention),
    OP_ROW_OF(STRIDED_COPY, 1, 1, 1, NULL, OP_PLAIN, "map:ints", made, &batch_mixes, strided_copy),
    {0},
};
