/* Builds random small image graphs from common operators and patterns. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/axes.h"
#include "tests/unit/random_build.h"

uint32_t random_next(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

uint32_t random_below(uint32_t *state, uint32_t n)
{
    return (random_next(state) >> 8) % n;
}

float random_unit(uint32_t *state)
{
    return (float)(random_next(state) >> 8) * 0x1p-23f - 1.0f;
}

struct value *constant(struct builder *b, struct shape shape, float scale, float offset)
{
    struct tensor *tensor;
    if (tensor_create(NULL, DTYPE_F32, &shape, &tensor, NULL) != STATUS_OK)
        return NULL;
    float *data = tensor->data;
    size_t count = shape_count(&shape);
    for (size_t i = 0; i < count; i++)
        data[i] = random_unit(&b->state) * scale + offset;
    struct value *value = graph_add_constant(b->graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

struct value *ints(struct builder *b, const int64_t *data, size_t count)
{
    struct tensor *tensor;
    struct shape shape = SHAPE((int64_t)count);
    if (tensor_create(NULL, DTYPE_I64, &shape, &tensor, NULL) != STATUS_OK)
        return NULL;
    memcpy(tensor->data, data, count * sizeof *data);
    struct value *value = graph_add_constant(b->graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

/* Appends a node and infers its first output, for batch 1. */
struct value *add(struct builder *b, enum op op, size_t count, struct value *const *inputs,
                  size_t outputs, struct node **ret)
{
    char name[32] = "n";
    struct node *node = graph_add_node(b->graph, op, name, count, outputs);
    if (!node) {
        b->failed = true;
        return NULL;
    }
    for (size_t i = 0; i < count; i++)
        node->inputs[i] = inputs[i];
    for (size_t o = 0; o < outputs; o++)
        node_set_output(node, o, graph_add_value(b->graph, "", DTYPE_NONE, NULL));
    *ret = node;
    return node->outputs[0];
}

struct value *finish(struct builder *b, struct node *node)
{
    struct error err;
    if (graph_infer_node(node, &err) != STATUS_OK) {
        b->graph->node_count--; /* not a valid choice here: forget it */
        return NULL;
    }
    return node->outputs[0];
}

struct value *pick(struct builder *b)
{
    /* the newer half more often, so that graphs are deep */
    size_t half = b->live_count / 2;
    if (random_below(&b->state, 3))
        return b->live[half + random_below(&b->state, (uint32_t)(b->live_count - half))];
    return b->live[random_below(&b->state, (uint32_t)b->live_count)];
}

void keep(struct builder *b, struct value *value)
{
    if (value && b->live_count < MOST_LIVE && value->shape.rank == 4)
        b->live[b->live_count++] = value;
}

struct value *unary(struct builder *b, enum op op, struct value *x)
{
    struct node *node;
    add(b, op, 1, &x, 1, &node);
    return b->failed ? NULL : finish(b, node);
}

struct value *binary(struct builder *b, enum op op, struct value *x, struct value *y)
{
    struct node *node;
    add(b, op, 2, (struct value *[]){x, y}, 1, &node);
    return b->failed ? NULL : finish(b, node);
}

static struct value *conv(struct builder *b, struct value *x)
{
    int64_t channels = x->shape.dims[1];
    int64_t kernel = 1 + 2 * random_below(&b->state, 2), out = 4 + 4 * random_below(&b->state, 4);
    int64_t group = 1;
    if (random_below(&b->state, 4) == 0)
        group = out = channels; /* depthwise */
    struct shape weights = SHAPE(out, channels / group, kernel, kernel);
    float scale = 1.5f / (float)(channels / group * kernel * kernel);
    bool bias = random_below(&b->state, 2);
    struct node *node;
    add(b, OP_CONV, bias ? 3 : 2,
        (struct value *[]){x, constant(b, weights, scale * 2, 0),
                           bias ? constant(b, SHAPE(out), 0.2f, 0) : NULL},
        1, &node);
    if (b->failed)
        return NULL;
    int64_t pad = random_below(&b->state, 2) ? kernel / 2 : 0;
    int64_t stride = 1 + (random_below(&b->state, 4) == 0);
    node_set_ints(b->graph, node, "pads", (int64_t[]){pad, pad, pad, pad + (stride > 1)}, 4);
    node_set_ints(b->graph, node, "strides", (int64_t[]){stride, stride}, 2);
    node_set_int(b->graph, node, "group", group);
    return finish(b, node);
}

static struct value *batch_norm(struct builder *b, struct value *x)
{
    struct shape c = SHAPE(x->shape.dims[1]);
    struct node *node;
    add(b, OP_BATCH_NORMALIZATION, 5,
        (struct value *[]){x, constant(b, c, 0.5f, 1), constant(b, c, 0.3f, 0),
                           constant(b, c, 0.3f, 0), constant(b, c, 0.4f, 1)},
        1, &node);
    return b->failed ? NULL : finish(b, node);
}

static struct value *pool(struct builder *b, struct value *x)
{
    struct node *node;
    bool max = random_below(&b->state, 2);
    add(b, max ? OP_MAX_POOL : OP_AVERAGE_POOL, 1, &x, 1, &node);
    if (b->failed)
        return NULL;
    int64_t kernel = 2 + random_below(&b->state, 2), stride = 1 + random_below(&b->state, 2);
    int64_t pad = random_below(&b->state, 2);
    node_set_ints(b->graph, node, "kernel_shape", (int64_t[]){kernel, kernel}, 2);
    node_set_ints(b->graph, node, "strides", (int64_t[]){stride, stride}, 2);
    node_set_ints(b->graph, node, "pads", (int64_t[]){pad, 0, pad, pad}, 4);
    node_set_int(b->graph, node, "ceil_mode", random_below(&b->state, 2));
    if (!max)
        node_set_int(b->graph, node, "count_include_pad", random_below(&b->state, 2));
    return finish(b, node);
}

static struct value *broadcasted(struct builder *b, struct value *x)
{
    static const enum op ops[] = {OP_ADD, OP_SUB, OP_MUL, OP_MAX, OP_MIN};
    int64_t c = x->shape.dims[1], h = x->shape.dims[2], w = x->shape.dims[3];
    struct shape shapes[] = {SHAPE(1), SHAPE(c, 1, 1),    SHAPE(1, c, 1, 1), SHAPE(h, w),
                             SHAPE(w), SHAPE(1, 1, h, 1), SHAPE_SCALAR};
    struct value *other =
        constant(b, shapes[random_below(&b->state, COUNT_OF(shapes))], 0.8f, 0.3f);
    enum op op = ops[random_below(&b->state, COUNT_OF(ops))];
    return random_below(&b->state, 2) ? binary(b, op, x, other) : binary(b, op, other, x);
}

/* Two values of the same shape, when there are: residual Add, gate, … */
static struct value *join(struct builder *b, struct value *x)
{
    static const enum op ops[] = {OP_ADD, OP_ADD, OP_MUL, OP_SUB, OP_MAX};
    for (size_t i = 0; i < b->live_count; i++) {
        struct value *y = b->live[(i + b->state % 7) % b->live_count];
        if (y != x && shape_equal(&x->shape, &y->shape))
            return binary(b, ops[random_below(&b->state, COUNT_OF(ops))], x, y);
    }
    return unary(b, OP_TANH, x);
}

static struct value *concat(struct builder *b, struct value *x)
{
    struct value *parts[3] = {x};
    size_t count = 1;
    for (size_t i = 0; i < b->live_count && count < 3; i++) {
        struct value *y = b->live[i];
        if (y->shape.dims[2] == x->shape.dims[2] && y->shape.dims[3] == x->shape.dims[3] &&
            random_below(&b->state, 2))
            parts[count++] = y;
    }
    struct node *node;
    add(b, OP_CONCAT, count, parts, 1, &node);
    if (b->failed)
        return NULL;
    node_set_int(b->graph, node, "axis", random_below(&b->state, 2) ? 1 : -3);
    return finish(b, node);
}

static struct value *squeeze_excite(struct builder *b, struct value *x)
{
    struct value *mean = unary(b, OP_GLOBAL_AVERAGE_POOL, x);
    struct value *gate = mean ? conv(b, mean) : NULL;
    if (!gate || gate->shape.dims[1] != x->shape.dims[1])
        return mean;
    gate = unary(b, random_below(&b->state, 2) ? OP_SIGMOID : OP_HARD_SIGMOID, gate);
    return gate ? binary(b, OP_MUL, x, gate) : NULL;
}

static struct value *silu(struct builder *b, struct value *x)
{
    struct value *gate = unary(b, random_below(&b->state, 2) ? OP_SIGMOID : OP_HARD_SIGMOID, x);
    return gate ? binary(b, OP_MUL, x, gate) : NULL;
}

static struct value *split(struct builder *b, struct value *x)
{
    if (x->shape.dims[1] % 2)
        return unary(b, OP_RELU, x);
    struct node *node;
    add(b, OP_SPLIT, 1, &x, 2, &node);
    if (b->failed)
        return NULL;
    node_set_int(b->graph, node, "axis", 1);
    node->opset = 13;
    if (finish(b, node))
        keep(b, node->outputs[1]);
    return node->outputs[0]->shape.rank == 4 ? node->outputs[0] : NULL;
}

static struct value *slice(struct builder *b, struct value *x)
{
    int64_t axis = 1 + random_below(&b->state, 3);
    int64_t dim = x->shape.dims[axis];
    struct node *node;
    add(b, OP_SLICE, 5,
        (struct value *[]){x, ints(b, (int64_t[]){dim > 2}, 1), ints(b, (int64_t[]){INT64_MAX}, 1),
                           ints(b, (int64_t[]){axis - 4}, 1), ints(b, (int64_t[]){1}, 1)},
        1, &node);
    return b->failed ? NULL : finish(b, node);
}

/* Channel shuffle, as ShuffleNet writes it. */
static struct value *shuffle(struct builder *b, struct value *x)
{
    int64_t c = x->shape.dims[1], h = x->shape.dims[2], w = x->shape.dims[3];
    if (c % 4)
        return unary(b, OP_RELU, x);
    int64_t split_shape[5] = {-1, 2, c / 2, h, w}, back[4] = {-1, c, h, w};
    struct node *node;
    struct value *y = binary(b, OP_RESHAPE, x, ints(b, split_shape, 5));
    if (!y)
        return NULL;
    add(b, OP_TRANSPOSE, 1, &y, 1, &node);
    if (b->failed)
        return NULL;
    node_set_ints(b->graph, node, "perm", (int64_t[]){0, 2, 1, 3, 4}, 5);
    y = finish(b, node);
    return y ? binary(b, OP_RESHAPE, y, ints(b, back, 4)) : NULL;
}

/* [N, C, H, W] → [N, H W, C], LayerNormalization or Softmax or MatMul there, and back. */
static struct value *tokens(struct builder *b, struct value *x)
{
    int64_t c = x->shape.dims[1], h = x->shape.dims[2], w = x->shape.dims[3];
    struct node *node;
    add(b, OP_TRANSPOSE, 1, &x, 1, &node);
    if (b->failed)
        return NULL;
    node_set_ints(b->graph, node, "perm", (int64_t[]){0, 2, 3, 1}, 4);
    struct value *y = finish(b, node);
    if (!y)
        return NULL;
    switch (random_below(&b->state, 3)) {
    case 0:
        add(b, OP_LAYER_NORMALIZATION, 3,
            (struct value *[]){y, constant(b, SHAPE(c), 0.5f, 1), constant(b, SHAPE(c), 0.2f, 0)},
            1, &node);
        if (b->failed)
            return NULL;
        node->opset = 17;
        y = finish(b, node);
        break;
    case 1:
        add(b, OP_SOFTMAX, 1, &y, 1, &node);
        if (b->failed)
            return NULL;
        node_set_int(b->graph, node, "axis", random_below(&b->state, 2) ? -1 : 1);
        node->opset = 13;
        y = finish(b, node);
        break;
    default:
        y = binary(b, OP_MATMUL, y, constant(b, SHAPE(c, c), 1.0f / (float)c, 0));
        y = y ? binary(b, OP_ADD, y, constant(b, SHAPE(c), 0.3f, 0)) : NULL;
        if (y && random_below(&b->state, 2))
            y = unary(b, OP_RELU, y);
    }
    if (!y)
        return NULL;
    (void)h;
    (void)w;
    add(b, OP_TRANSPOSE, 1, &y, 1, &node);
    if (b->failed)
        return NULL;
    node_set_ints(b->graph, node, "perm", (int64_t[]){0, 3, 1, 2}, 4);
    return finish(b, node);
}

static struct value *reduce(struct builder *b, struct value *x)
{
    struct node *node;
    static const enum op ops[] = {OP_REDUCE_MEAN, OP_REDUCE_MAX};
    add(b, ops[random_below(&b->state, 2)], 1, &x, 1, &node);
    if (b->failed)
        return NULL;
    int64_t axis = 1 + random_below(&b->state, 3);
    set_axes(b->graph, node, &axis, 1);
    return finish(b, node);
}

static struct value *pad(struct builder *b, struct value *x)
{
    struct node *node;
    int64_t pads[8] = {0, 0, 1, 0, 0, 0, 0, 1};
    add(b, OP_PAD, 2, (struct value *[]){x, ints(b, pads, 8)}, 1, &node);
    return b->failed ? NULL : finish(b, node);
}

static struct value *step(struct builder *b)
{
    static const enum op unaries[] = {OP_RELU, OP_SIGMOID,    OP_TANH, OP_HARD_SWISH,
                                      OP_ELU,  OP_LEAKY_RELU, OP_NEG,  OP_IDENTITY};
    struct value *x = pick(b);
    if (random_below(&b->state, 3) == 0)
        return rare_step(b, x);
    switch (random_below(&b->state, 20)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
        return conv(b, x);
    case 5:
        return batch_norm(b, x);
    case 6:
        return pool(b, x);
    case 7:
    case 8:
        return unary(b, unaries[random_below(&b->state, COUNT_OF(unaries))], x);
    case 9:
        return broadcasted(b, x);
    case 10:
    case 11:
        return join(b, x);
    case 12:
        return concat(b, x);
    case 13:
        return squeeze_excite(b, x);
    case 14:
        return silu(b, x);
    case 15:
        return split(b, x);
    case 16:
        return slice(b, x);
    case 17:
        return shuffle(b, x);
    case 18:
        return tokens(b, x);
    default:
        return random_below(&b->state, 2) ? reduce(b, x) : pad(b, x);
    }
}

/* Global pool, Flatten, Gemm, perhaps Softmax. */
static struct value *head(struct builder *b, struct value *x)
{
    struct node *node;
    struct value *y = unary(b, OP_GLOBAL_AVERAGE_POOL, x);
    y = y ? unary(b, OP_FLATTEN, y) : NULL;
    if (!y)
        return NULL;
    int64_t c = y->shape.dims[1];
    add(b, OP_GEMM, 3,
        (struct value *[]){y, constant(b, SHAPE(10, c), 1.0f, 0), constant(b, SHAPE(10), 0.2f, 0)},
        1, &node);
    if (b->failed)
        return NULL;
    node_set_int(b->graph, node, "transB", 1);
    return finish(b, node);
}

struct graph *random_graph(uint32_t seed, int64_t height, int64_t width)
{
    struct builder b = {.graph = graph_create(NULL), .state = seed * 2654435761u + 1};
    if (!b.graph)
        return NULL;
    b.graph->opset = 13;
    struct shape shape = SHAPE(1, 3, height, width);
    struct value *input = graph_add_value(b.graph, "image", DTYPE_F32, &shape);
    b.graph->inputs = arena_alloc(b.graph->arena, 1, sizeof(struct value *));
    b.graph->outputs = arena_alloc(b.graph->arena, RANDOM_GRAPH_OUTPUTS, sizeof(struct value *));
    if (!input || !b.graph->inputs || !b.graph->outputs)
        return NULL;
    b.graph->inputs[0] = input;
    b.graph->input_count = 1;
    b.live[b.live_count++] = input;
    int steps = 6 + (int)random_below(&b.state, 14);
    for (int i = 0; i < steps && !b.failed; i++)
        keep(&b, step(&b));
    struct value *logits = head(&b, b.live[b.live_count - 1]);
    if (logits)
        b.graph->outputs[b.graph->output_count++] = logits;
    /* values in the middle, perhaps read further down, perhaps in place */
    for (int i = 0; i < 2; i++) {
        struct value *map = b.live[random_below(&b.state, (uint32_t)b.live_count)];
        bool wanted = random_below(&b.state, 2) || !b.graph->output_count;
        if (wanted && map->producer && map->dtype == DTYPE_F32)
            b.graph->outputs[b.graph->output_count++] = map;
    }
    /* what was inferred for batch 1 is what the session must find out itself */
    for (size_t v = 0; v < b.graph->value_count; v++)
        if (!b.graph->values[v]->known)
            b.graph->values[v]->shape = SHAPE_NONE;
    input->shape = SHAPE(DIM_UNKNOWN, 3, height, width);
    return b.failed || !b.graph->output_count ? NULL : b.graph;
}
