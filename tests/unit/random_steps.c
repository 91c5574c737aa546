/* Steps of random graphs: operators that networks use now and then, and patterns that exporters
 * write in several nodes, right or nearly so (a pass must not take them for what they are not). */
#include <math.h>
#include <string.h>

#include "tests/unit/axes.h"
#include "tests/unit/random_build.h"

static bool coin(struct builder *b)
{
    return random_below(&b->state, 2);
}

static int64_t between(struct builder *b, int64_t low, int64_t high)
{
    return low + random_below(&b->state, (uint32_t)(high - low + 1));
}

static struct value *scalar(struct builder *b, float value)
{
    static const struct shape shapes[] = {SHAPE_SCALAR, {1, {1}}, {4, {1, 1, 1, 1}}};
    return constant(b, shapes[random_below(&b->state, COUNT_OF(shapes))], 0, value);
}

static bool set_float(struct builder *b, struct node *node, const char *name, float value)
{
    struct attr *attr = arena_alloc(b->graph->arena, 1, sizeof *attr);
    if (!attr)
        return false;
    *attr = (struct attr){.name = name, .kind = ATTR_FLOAT, .f = value};
    node->attrs = attr;
    node->attr_count = 1;
    return true;
}

static bool set_string(struct builder *b, struct node *node, const char *name, const char *value)
{
    struct attr *attrs = arena_alloc(b->graph->arena, node->attr_count + 1, sizeof *attrs);
    if (!attrs)
        return false;
    if (node->attr_count)
        memcpy(attrs, node->attrs, node->attr_count * sizeof *attrs);
    attrs[node->attr_count] =
        (struct attr){.name = name, .kind = ATTR_STRING, .count = strlen(value), .s = value};
    node->attrs = attrs;
    node->attr_count++;
    return true;
}

static struct value *transpose(struct builder *b, struct value *x, const int64_t *perm, size_t rank)
{
    struct node *node;
    add(b, OP_TRANSPOSE, 1, &x, 1, &node);
    if (b->failed || !node_set_ints(b->graph, node, "perm", perm, rank))
        return NULL;
    return finish(b, node);
}

static struct value *reshape(struct builder *b, struct value *x, const int64_t *to, size_t rank)
{
    return binary(b, OP_RESHAPE, x, ints(b, to, rank));
}

static struct value *prelu(struct builder *b, struct value *x)
{
    struct shape shapes[] = {SHAPE(x->shape.dims[1], 1, 1), SHAPE(1), SHAPE(x->shape.dims[3])};
    return binary(b, OP_PRELU, x, constant(b, shapes[random_below(&b->state, 3)], 0.5f, 0.2f));
}

/* Continuous where the condition changes, so that rounding cannot tip it over. */
static struct value *where(struct builder *b, struct value *x)
{
    struct value *condition = binary(b, OP_GREATER, x, scalar(b, 0));
    struct value *scaled = binary(b, OP_MUL, x, scalar(b, 0.3f));
    struct node *node;
    if (!condition || !scaled)
        return NULL;
    add(b, OP_WHERE, 3, (struct value *[]){condition, x, scaled}, 1, &node);
    return b->failed ? NULL : finish(b, node);
}

static struct value *clip(struct builder *b, struct value *x)
{
    struct node *node;
    bool low = coin(b);
    add(b, OP_CLIP, 3,
        (struct value *[]){x, low ? constant(b, SHAPE_SCALAR, 0, -0.4f) : NULL,
                           coin(b) ? constant(b, SHAPE_SCALAR, 0, 0.6f) : NULL},
        1, &node);
    return b->failed ? NULL : finish(b, node);
}

static struct value *conv_transpose(struct builder *b, struct value *x)
{
    int64_t c = x->shape.dims[1], out = between(b, 1, 5);
    if (x->shape.dims[2] > 16)
        return NULL;
    struct node *node;
    add(b, OP_CONV_TRANSPOSE, 3,
        (struct value *[]){x, constant(b, SHAPE(c, out, 2, 2), 1.0f / (float)c, 0),
                           constant(b, SHAPE(out), 0.2f, 0)},
        1, &node);
    if (b->failed)
        return NULL;
    node_set_ints(b->graph, node, "strides", (int64_t[]){2, 1}, 2);
    return finish(b, node);
}

static struct value *resize(struct builder *b, struct value *x)
{
    struct node *node;
    if (x->shape.dims[2] > 16)
        return NULL;
    add(b, OP_RESIZE, 3, (struct value *[]){x, NULL, constant(b, SHAPE(4), 0, 1)}, 1, &node);
    if (b->failed)
        return NULL;
    float *scales = node->inputs[2]->known->data;
    scales[2] = 2;
    scales[3] = coin(b) ? 1.5f : 2;
    if (coin(b))
        set_string(b, node, "mode", "linear");
    return finish(b, node);
}

static struct value *instance_norm(struct builder *b, struct value *x)
{
    struct shape c = SHAPE(x->shape.dims[1]);
    struct node *node;
    add(b, OP_INSTANCE_NORMALIZATION, 3,
        (struct value *[]){x, constant(b, c, 0.5f, 1), constant(b, c, 0.3f, 0)}, 1, &node);
    return b->failed || !set_float(b, node, "epsilon", 0.1f) ? NULL : finish(b, node);
}

/* GroupNormalization as PyTorch exports it: two groups through InstanceNormalization. */
static struct value *group_norm(struct builder *b, struct value *x)
{
    int64_t c = x->shape.dims[1], h = x->shape.dims[2], w = x->shape.dims[3];
    if (c % 2)
        return NULL;
    struct value *y = reshape(b, x, (int64_t[]){0, 2, -1}, 3);
    struct node *node;
    add(b, OP_INSTANCE_NORMALIZATION, 3,
        (struct value *[]){y, constant(b, SHAPE(2), 0, 1), constant(b, SHAPE(2), 0, 0)}, 1, &node);
    y = b->failed || !y || !set_float(b, node, "epsilon", 0.1f) ? NULL : finish(b, node);
    y = y ? reshape(b, y, (int64_t[]){-1, c, h, w}, 4) : NULL;
    y = y ? binary(b, OP_MUL, y, constant(b, SHAPE(c, 1, 1), 0.5f, 1)) : NULL;
    return y ? binary(b, OP_ADD, y, constant(b, SHAPE(c, 1, 1), 0.3f, 0)) : NULL;
}

static struct value *with_int(struct builder *b, enum op op, struct value *x, const char *name,
                              int64_t value)
{
    struct node *node;
    add(b, op, 1, &x, 1, &node);
    return b->failed || !node_set_int(b->graph, node, name, value) ? NULL : finish(b, node);
}

static struct value *blocks(struct builder *b, struct value *x)
{
    if (x->shape.dims[1] % 4 == 0)
        return with_int(b, OP_DEPTH_TO_SPACE, x, "blocksize", 2);
    return x->shape.dims[2] % 2 || x->shape.dims[3] % 2
               ? with_int(b, OP_LRN, x, "size", 3)
               : with_int(b, OP_SPACE_TO_DEPTH, x, "blocksize", 2);
}

static struct value *gather(struct builder *b, struct value *x)
{
    int64_t c = x->shape.dims[1], picked[4] = {c - 1, 0, c / 2, -1};
    struct node *node;
    add(b, OP_GATHER, 2, (struct value *[]){x, ints(b, picked, 4)}, 1, &node);
    return b->failed || !node_set_int(b->graph, node, "axis", 1) ? NULL : finish(b, node);
}

/* [N, C, H, W] → [N, C, 1, H, W], a Conv or pool of rank 5, and back. */
static struct value *through_rank_5(struct builder *b, struct value *x)
{
    int64_t c = x->shape.dims[1], axis = coin(b) ? 2 : -3;
    struct value *y = binary(b, OP_UNSQUEEZE, x, ints(b, &axis, 1));
    struct node *node;
    if (!y)
        return NULL;
    add(b, OP_CONV, 2, (struct value *[]){y, constant(b, SHAPE(c, 1, 1, 3, 2), 0.3f, 0)}, 1, &node);
    if (b->failed)
        return NULL;
    node_set_int(b->graph, node, "group", c);
    node_set_ints(b->graph, node, "pads", (int64_t[]){0, 1, 0, 0, 1, 1}, 6);
    y = finish(b, node);
    y = y ? unary(b, coin(b) ? OP_RELU : OP_NEG, y) : NULL;
    y = y && coin(b) ? binary(b, OP_ADD, y, constant(b, SHAPE(c, 1, 1, 1), 0.5f, 0)) : y;
    int64_t back = 2;
    return y ? binary(b, OP_SQUEEZE, y, ints(b, &back, 1)) : NULL;
}

/* [N, C, H, W] → [N, C, H W], Conv of rank 3, and back. */
static struct value *through_rank_3(struct builder *b, struct value *x)
{
    int64_t c = x->shape.dims[1], h = x->shape.dims[2], w = x->shape.dims[3];
    struct value *y = reshape(b, x, (int64_t[]){0, 0, -1}, 3);
    struct node *node;
    if (!y)
        return NULL;
    add(b, OP_CONV, 2, (struct value *[]){y, constant(b, SHAPE(4, c, 3), 1.0f / (float)c, 0)}, 1,
        &node);
    if (b->failed)
        return NULL;
    node_set_ints(b->graph, node, "pads", (int64_t[]){2, 2}, 2);
    node_set_ints(b->graph, node, "dilations", (int64_t[]){2}, 1);
    y = finish(b, node);
    y = y && coin(b) ? binary(b, OP_MAX, y, constant(b, SHAPE(h * w), 0.2f, 0)) : y;
    if (y && coin(b))
        y = with_int(b, OP_SOFTMAX, y, "axis", coin(b) ? 1 : -1);
    return y ? reshape(b, y, (int64_t[]){-1, 4, h, w}, 4) : NULL;
}

static struct value *expand(struct builder *b, struct value *x)
{
    int64_t shape[4] = {1, 1, x->shape.dims[2], x->shape.dims[3]};
    struct value *mean = unary(b, OP_GLOBAL_MAX_POOL, x);
    return mean ? binary(b, OP_EXPAND, mean, ints(b, shape, 4)) : NULL;
}

static struct value *power(struct builder *b, struct value *x)
{
    struct value *y = unary(b, OP_TANH, x);
    return y ? binary(b, OP_POW, y, scalar(b, (float)between(b, 2, 3))) : NULL;
}

static struct value *either_way(struct builder *b, enum op op, struct value *x, struct value *y)
{
    return coin(b) ? binary(b, op, x, y) : binary(b, op, y, x);
}

/* x / 2 (1 + erf(x / √2)) in one of its groupings; sometimes with a constant that is none. */
static struct value *gelu(struct builder *b, struct value *x)
{
    float half = random_below(&b->state, 4) ? 0.5f : 0.6f;
    struct value *y = coin(b) ? binary(b, OP_DIV, x, scalar(b, sqrtf(2)))
                              : either_way(b, OP_MUL, x, scalar(b, sqrtf(0.5f)));
    y = y ? unary(b, OP_ERF, y) : NULL;
    y = y ? either_way(b, OP_ADD, y, scalar(b, 1)) : NULL;
    if (!y)
        return NULL;
    if (coin(b)) {
        struct value *halved = either_way(b, OP_MUL, x, scalar(b, half));
        return halved ? either_way(b, OP_MUL, halved, y) : NULL;
    }
    y = either_way(b, OP_MUL, x, y);
    return y ? either_way(b, OP_MUL, y, scalar(b, half)) : NULL;
}

/* x * clip(x + 3, 0, 6) / 6 in one of its groupings, or with a constant that is none. */
static struct value *hard_swish(struct builder *b, struct value *x)
{
    struct value *y = either_way(b, OP_ADD, x, scalar(b, random_below(&b->state, 4) ? 3 : 2.5f));
    struct node *node;
    if (!y)
        return NULL;
    add(b, OP_CLIP, 3,
        (struct value *[]){y, constant(b, SHAPE_SCALAR, 0, 0), constant(b, SHAPE_SCALAR, 0, 6)}, 1,
        &node);
    y = b->failed ? NULL : finish(b, node);
    if (!y)
        return NULL;
    if (coin(b)) {
        y = coin(b) ? binary(b, OP_DIV, y, scalar(b, 6))
                    : either_way(b, OP_MUL, y, scalar(b, 1.0f / 6));
        return y ? either_way(b, OP_MUL, x, y) : NULL;
    }
    y = either_way(b, OP_MUL, x, y);
    return y ? binary(b, OP_DIV, y, scalar(b, 6)) : NULL;
}

static struct value *mean_of(struct builder *b, struct value *x, int64_t axis)
{
    struct node *node;
    add(b, OP_REDUCE_MEAN, 1, &x, 1, &node);
    return b->failed || !set_axes(b->graph, node, &axis, 1) ? NULL : finish(b, node);
}

/* LayerNormalization in primitives over the last dimension, or, the same nodes, over channels. */
static struct value *layer_norm(struct builder *b, struct value *x)
{
    bool tokens = coin(b);
    int64_t axis = tokens || coin(b) ? -1 : 1;
    if (tokens)
        x = transpose(b, x, (int64_t[]){0, 2, 3, 1}, 4);
    struct value *mean = x ? mean_of(b, x, axis) : NULL;
    struct value *d = mean ? binary(b, OP_SUB, x, mean) : NULL;
    struct value *v = !d        ? NULL
                      : coin(b) ? binary(b, OP_POW, d, scalar(b, 2))
                                : binary(b, OP_MUL, d, d);
    v = v ? mean_of(b, v, axis) : NULL;
    v = v ? either_way(b, OP_ADD, v, scalar(b, 0.1f)) : NULL;
    v = v ? unary(b, OP_SQRT, v) : NULL;
    struct value *y = v ? binary(b, OP_DIV, d, v) : NULL;
    if (!y)
        return NULL;
    struct shape last = SHAPE(y->shape.dims[3]);
    y = either_way(b, OP_MUL, y, constant(b, last, 0.5f, 1));
    if (y && coin(b))
        y = either_way(b, OP_ADD, y, constant(b, last, 0.2f, 0));
    return y && tokens ? transpose(b, y, (int64_t[]){0, 3, 1, 2}, 4) : y;
}

static struct value *odd_conv(struct builder *b, struct value *x)
{
    static const char *const pads[] = {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"};
    int64_t c = x->shape.dims[1], group = c % 2 ? 1 : 2;
    int64_t kh = between(b, 1, 4), kw = between(b, 1, 4), out = group * between(b, 1, 5);
    struct node *node;
    add(b, OP_CONV, 3,
        (struct value *[]){x, constant(b, SHAPE(out, c / group, kh, kw), 1.0f / (float)(c * kh), 0),
                           coin(b) ? constant(b, SHAPE(out), 0.2f, 0) : NULL},
        1, &node);
    if (b->failed)
        return NULL;
    const char *auto_pad = pads[random_below(&b->state, 4)];
    bool dilated = !strcmp(auto_pad, "NOTSET") || !strcmp(auto_pad, "VALID");
    node_set_int(b->graph, node, "group", group);
    node_set_ints(b->graph, node, "strides", (int64_t[]){between(b, 1, 3), between(b, 1, 2)}, 2);
    if (dilated)
        node_set_ints(b->graph, node, "dilations", (int64_t[]){between(b, 1, 3), between(b, 1, 2)},
                      2);
    if (!strcmp(auto_pad, "NOTSET"))
        node_set_ints(
            b->graph, node, "pads",
            (int64_t[]){between(b, 0, 5), between(b, 0, 5), between(b, 0, 5), between(b, 0, 5)}, 4);
    else
        set_string(b, node, "auto_pad", auto_pad);
    return finish(b, node);
}

static struct value *odd_pool(struct builder *b, struct value *x)
{
    static const char *const pads[] = {"SAME_UPPER", "SAME_LOWER", "VALID"};
    struct node *node;
    bool max = coin(b);
    add(b, max ? OP_MAX_POOL : OP_AVERAGE_POOL, 1, &x, 1, &node);
    if (b->failed)
        return NULL;
    node_set_ints(b->graph, node, "kernel_shape", (int64_t[]){between(b, 1, 4), between(b, 1, 4)},
                  2);
    node_set_ints(b->graph, node, "strides", (int64_t[]){between(b, 1, 3), between(b, 1, 3)}, 2);
    if (max && coin(b))
        node_set_ints(b->graph, node, "dilations", (int64_t[]){between(b, 1, 2), 2}, 2);
    else
        set_string(b, node, "auto_pad", pads[random_below(&b->state, 3)]);
    node_set_int(b->graph, node, "ceil_mode", coin(b));
    return finish(b, node);
}

/* Attention over pixels: softmax(x xᵀ) x, with all of the batch dimensions in place. */
static struct value *attention(struct builder *b, struct value *x)
{
    int64_t c = x->shape.dims[1], h = x->shape.dims[2], w = x->shape.dims[3];
    struct value *rows = reshape(b, x, (int64_t[]){0, 1, c, -1}, 4);
    struct value *columns = rows ? transpose(b, rows, (int64_t[]){0, 1, 3, 2}, 4) : NULL;
    struct value *y = columns ? binary(b, OP_MATMUL, rows, columns) : NULL;
    y = y ? binary(b, OP_MUL, y, scalar(b, 0.05f)) : NULL;
    y = y && coin(b) ? binary(b, OP_ADD, y, constant(b, SHAPE(c), 0.3f, 0)) : y;
    y = y ? with_int(b, OP_SOFTMAX, y, "axis", -1) : NULL;
    y = y ? binary(b, OP_MATMUL, y, rows) : NULL;
    y = y && coin(b) ? binary(b, OP_ADD, y, rows) : y;
    return y ? reshape(b, y, (int64_t[]){-1, c, h, w}, 4) : NULL;
}

/* Products with constants that are no plain fully connected layer. */
static struct value *odd_matmul(struct builder *b, struct value *x)
{
    int64_t c = x->shape.dims[1], w = x->shape.dims[3], out = between(b, 1, 6);
    struct shape shapes[] = {SHAPE(w, out), SHAPE(1, w, out), SHAPE(c, w, out), SHAPE(1, c, w, out),
                             SHAPE(1, 1, w, out)};
    struct value *y = binary(b, OP_MATMUL, x,
                             constant(b, shapes[random_below(&b->state, 5)], 1.0f / (float)w, 0));
    if (y && coin(b))
        y = either_way(b, OP_ADD, y, constant(b, coin(b) ? SHAPE(out) : SHAPE(1, 1, out), 0.4f, 0));
    return y && coin(b) ? unary(b, OP_SIGMOID, y) : y;
}

/* Of the graph's input, whose numbers are exact on either side: a rounding cannot tip over. */
static struct value *quantized(struct builder *b)
{
    struct tensor *zero;
    struct shape one = SHAPE_SCALAR;
    struct node *node;
    struct value *scale = constant(b, one, 0, 0.02f), *x = b->live[0];
    if (tensor_create(NULL, DTYPE_U8, &one, &zero, NULL) != STATUS_OK)
        return NULL;
    ((uint8_t *)zero->data)[0] = 120;
    struct value *point = graph_add_constant(b->graph, "", zero);
    tensor_unref(zero);
    add(b, OP_QUANTIZE_LINEAR, 3, (struct value *[]){x, scale, point}, 1, &node);
    struct value *y = b->failed ? NULL : finish(b, node);
    if (!y)
        return NULL;
    add(b, OP_DEQUANTIZE_LINEAR, 3, (struct value *[]){y, scale, point}, 1, &node);
    return b->failed ? NULL : finish(b, node);
}

/* One value read by many, views of it among them. */
static struct value *shared(struct builder *b, struct value *x)
{
    int64_t c = x->shape.dims[1], h = x->shape.dims[2], w = x->shape.dims[3];
    struct value *flat = reshape(b, x, (int64_t[]){0, c, h * w}, 3);
    struct value *y = flat ? unary(b, coin(b) ? OP_RELU : OP_TANH, flat) : NULL;
    struct value *again = y ? reshape(b, y, (int64_t[]){0, c, h, w}, 4) : NULL;
    struct value *sum = again ? either_way(b, OP_SUB, again, x) : NULL;
    if (sum && coin(b))
        sum = unary(b, OP_SIGMOID, sum);
    return sum ? either_way(b, OP_ADD, sum, coin(b) ? again : x) : NULL;
}

static struct value *softmax(struct builder *b, struct value *x)
{
    struct node *node;
    add(b, coin(b) ? OP_SOFTMAX : OP_LOG_SOFTMAX, 1, &x, 1, &node);
    if (b->failed)
        return NULL;
    node->opset = coin(b) ? 13 : 11;
    node_set_int(b->graph, node, "axis", between(b, 1, 3));
    return finish(b, node);
}

static struct value *several(struct builder *b, struct value *x)
{
    static const enum op ops[] = {OP_ADD, OP_MAX, OP_MIN, OP_SUB};
    int64_t c = x->shape.dims[1], w = x->shape.dims[3];
    const enum op op = ops[random_below(&b->state, 4)];
    struct value *y = binary(b, op, constant(b, SHAPE(c, 1, 1), 0.5f, 0), x);
    return y ? binary(b, op, y, constant(b, SHAPE(1, 1, w), 0.5f, 0)) : NULL;
}

static struct value *padded_conv(struct builder *b, struct value *x)
{
    int64_t c = x->shape.dims[1], pads[8] = {0, 0, 1, 2, 0, 0, 0, coin(b)};
    struct value *y = binary(b, OP_PAD, x, ints(b, pads, 8));
    struct node *node;
    if (!y)
        return NULL;
    add(b, OP_CONV, 2, (struct value *[]){y, constant(b, SHAPE(4, c, 3, 3), 0.3f / (float)c, 0)}, 1,
        &node);
    if (b->failed)
        return NULL;
    if (coin(b))
        node_set_ints(b->graph, node, "pads", (int64_t[]){0, 1, 1, 0}, 4);
    return finish(b, node);
}

/* What looks like a per-channel scale behind a Conv, and is one or is none. */
static struct value *scaled_conv(struct builder *b, struct value *x)
{
    static const enum op ops[] = {OP_MUL, OP_DIV, OP_SUB, OP_ADD};
    int64_t c = x->shape.dims[1];
    struct node *node;
    add(b, OP_CONV, 2,
        (struct value *[]){x, constant(b, SHAPE(x->shape.dims[3], c, 1, 1), 1.0f / (float)c, 0)}, 1,
        &node);
    struct value *y = b->failed ? NULL : finish(b, node);
    if (!y)
        return NULL;
    int64_t m = y->shape.dims[1];
    struct shape shapes[] = {SHAPE(m),          SHAPE(m, 1, 1), SHAPE(1, m, 1, 1),
                             SHAPE(1, 1, 1, m), SHAPE(1),       SHAPE_SCALAR};
    struct value *factor = constant(b, shapes[random_below(&b->state, COUNT_OF(shapes))], 0.3f, 1);
    enum op op = ops[random_below(&b->state, 4)];
    /* what is divided by must stay away from 0 */
    return op == OP_DIV ? binary(b, op, y, factor) : either_way(b, op, y, factor);
}

struct value *rare_step(struct builder *b, struct value *x)
{
    static struct value *(*const steps[])(struct builder *, struct value *) = {
        prelu,      where,    clip,     conv_transpose, resize,         instance_norm,
        group_norm, blocks,   gather,   through_rank_5, through_rank_3, expand,
        power,      gelu,     gelu,     hard_swish,     hard_swish,     layer_norm,
        layer_norm, odd_conv, odd_conv, odd_pool,       attention,      odd_matmul,
        shared,     softmax,  several,  padded_conv,    scaled_conv,
    };
    uint32_t choice = random_below(&b->state, COUNT_OF(steps) + 1);
    return choice < COUNT_OF(steps) ? steps[choice](b, x) : quantized(b);
}
