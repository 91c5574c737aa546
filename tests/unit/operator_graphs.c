/* Builds a graph for each operator that a GPU has a kernel for and random graphs lack. */
#include "tests/unit/operator_graphs.h"

#include <string.h>

#include "tests/unit/axes.h"
#include "tests/unit/random_build.h"

/* ---- attributes ---- */

static bool add_attr(struct builder *b, struct node *node, const struct attr *attr)
{
    struct attr *attrs = arena_alloc(b->graph->arena, node->attr_count + 1, sizeof *attrs);
    if (!attrs)
        return false;
    if (node->attr_count)
        memcpy(attrs, node->attrs, node->attr_count * sizeof *attrs);
    attrs[node->attr_count++] = *attr;
    node->attrs = attrs;
    return true;
}

static bool set_text(struct builder *b, struct node *node, const char *name, const char *text)
{
    return add_attr(
        b, node,
        &(struct attr){.name = name, .kind = ATTR_STRING, .count = strlen(text), .s = text});
}

static struct node *start(struct builder *b, enum op op, size_t count, struct value *const *inputs,
                          size_t outputs)
{
    struct node *node = NULL;
    for (size_t i = 0; i < count; i++)
        b->failed = b->failed || (!inputs[i] && i == 0);
    if (!b->failed)
        add(b, op, count, inputs, outputs, &node);
    if (node)
        node->opset = b->graph->opset;
    return node;
}

static struct value *done(struct builder *b, struct node *node)
{
    return node && !b->failed ? finish(b, node) : NULL;
}

static struct value *cast(struct builder *b, struct value *x, enum dtype dtype)
{
    struct node *node = start(b, OP_CAST, 1, &x, 1);
    return node && node_set_int(b->graph, node, "to", dtype) ? done(b, node) : NULL;
}

/* Features to work on: a 1x1 convolution to 8 (or so many) channels, which is laid out NHWC. */
static struct value *features(struct builder *b, struct value *x, int64_t channels)
{
    struct node *node = start(
        b, OP_CONV, 2, (struct value *[]){x, constant(b, SHAPE(channels, 3, 1, 1), 0.6f, 0)}, 1);
    return done(b, node);
}

/* ---- Resize ---- */

static struct value *resized(struct builder *b, struct value *x, const char *mode,
                             const char *coordinate, float rows, float columns)
{
    struct value *scales = constant(b, SHAPE(4), 0, 1);
    if (!x || !scales)
        return NULL;
    ((float *)scales->known->data)[2] = rows;
    ((float *)scales->known->data)[3] = columns;
    struct node *node = start(b, OP_RESIZE, 3, (struct value *[]){x, NULL, scales}, 1);
    return node && set_text(b, node, "mode", mode) &&
                   set_text(b, node, "coordinate_transformation_mode", coordinate)
               ? done(b, node)
               : NULL;
}

static struct value *resize_nearest(struct builder *b, struct value *x)
{
    return resized(b, features(b, x, 8), "nearest", "asymmetric", 2, 3);
}
static struct value *resize_linear(struct builder *b, struct value *x)
{
    return resized(b, features(b, x, 8), "linear", "half_pixel", 1.5f, 2);
}
static struct value *resize_align(struct builder *b, struct value *x)
{
    return resized(b, features(b, x, 5), "linear", "align_corners", 2, 1.7f);
}
static struct value *resize_pytorch(struct builder *b, struct value *x)
{
    return resized(b, features(b, x, 5), "linear", "pytorch_half_pixel", 0.6f, 0.4f);
}
static struct value *resize_cubic(struct builder *b, struct value *x)
{
    return resized(b, features(b, x, 16), "cubic", "half_pixel", 1.3f, 0.7f);
}
static struct value *resize_antialias(struct builder *b, struct value *x)
{
    b->graph->opset = 18;
    struct value *y = features(b, x, 8), *scales = constant(b, SHAPE(4), 0, 1);
    ((float *)scales->known->data)[2] = 0.45f;
    ((float *)scales->known->data)[3] = 0.3f;
    struct node *node = start(b, OP_RESIZE, 3, (struct value *[]){y, NULL, scales}, 1);
    return node && set_text(b, node, "mode", "linear") &&
                   node_set_int(b->graph, node, "antialias", 1)
               ? done(b, node)
               : NULL;
}
/* ---- normalisation ---- */

static struct value *group_norm_of(struct builder *b, struct value *x, int64_t channels,
                                   int64_t groups)
{
    b->graph->opset = 21;
    struct value *y = features(b, x, channels);
    struct node *node = start(b, OP_GROUP_NORMALIZATION, 3,
                              (struct value *[]){y, constant(b, SHAPE(channels), 0.5f, 1),
                                                 constant(b, SHAPE(channels), 0.3f, 0)},
                              1);
    return node && node_set_int(b->graph, node, "num_groups", groups) ? done(b, node) : NULL;
}

static struct value *group_norm_wide(struct builder *b, struct value *x)
{
    return group_norm_of(b, x, 24, 3);
}
static struct value *group_norm_odd(struct builder *b, struct value *x)
{
    return group_norm_of(b, x, 35, 7);
}
static struct value *instance_norm_of(struct builder *b, struct value *x)
{
    struct node *node = start(b, OP_INSTANCE_NORMALIZATION, 3,
                              (struct value *[]){features(b, x, 40), constant(b, SHAPE(40), 1, 1),
                                                 constant(b, SHAPE(40), 0.3f, 0)},
                              1);
    return done(b, node);
}
/* ---- ConvTranspose ---- */

struct transposed {
    int64_t c, m, groups, kernel, stride, dilation, pad, more;
    const char *auto_pad;
};

static struct value *transposed(struct builder *b, struct value *x, const struct transposed *t)
{
    struct value *y = features(b, x, t->c);
    struct node *node =
        start(b, OP_CONV_TRANSPOSE, 3,
              (struct value *[]){
                  y, constant(b, SHAPE(t->c, t->m / t->groups, t->kernel, t->kernel), 0.4f, 0),
                  constant(b, SHAPE(t->m), 0.2f, 0)},
              1);
    if (!node)
        return NULL;
    node_set_int(b->graph, node, "group", t->groups);
    node_set_ints(b->graph, node, "strides", (int64_t[]){t->stride, t->stride}, 2);
    node_set_ints(b->graph, node, "dilations", (int64_t[]){t->dilation, t->dilation}, 2);
    if (t->more)
        node_set_ints(b->graph, node, "output_padding", (int64_t[]){t->more, t->more}, 2);
    if (t->auto_pad)
        set_text(b, node, "auto_pad", t->auto_pad);
    else
        node_set_ints(b->graph, node, "pads", (int64_t[]){t->pad, t->pad, t->pad, t->pad}, 4);
    y = done(b, node);
    return y ? unary(b, OP_RELU, y) : NULL;
}

static struct value *transposed_2x2(struct builder *b, struct value *x)
{
    return transposed(b, x, &(struct transposed){16, 8, 1, 2, 2, 1, 0, 0, NULL});
}
static struct value *transposed_4x4(struct builder *b, struct value *x)
{
    return transposed(b, x, &(struct transposed){8, 6, 1, 4, 2, 1, 1, 0, NULL});
}
static struct value *transposed_3x3(struct builder *b, struct value *x)
{
    return transposed(b, x, &(struct transposed){8, 16, 1, 3, 2, 1, 1, 1, NULL});
}
static struct value *transposed_5x5(struct builder *b, struct value *x)
{
    return transposed(b, x, &(struct transposed){6, 4, 2, 5, 3, 1, 2, 2, NULL});
}
static struct value *transposed_depthwise(struct builder *b, struct value *x)
{
    return transposed(b, x, &(struct transposed){8, 8, 8, 4, 2, 1, 1, 0, NULL});
}
static struct value *transposed_dilated(struct builder *b, struct value *x)
{
    return transposed(b, x, &(struct transposed){8, 8, 1, 3, 2, 2, 1, 0, NULL});
}
static struct value *transposed_same(struct builder *b, struct value *x)
{
    return transposed(b, x, &(struct transposed){5, 7, 1, 3, 2, 1, 0, 0, "SAME_UPPER"});
}
static struct value *transposed_cropped(struct builder *b, struct value *x)
{
    return transposed(b, x, &(struct transposed){8, 8, 1, 3, 2, 1, 3, 0, NULL});
}

/* ---- elementwise ---- */

static struct value *prelu_of(struct builder *b, struct value *x)
{
    return binary(b, OP_PRELU, features(b, x, 8), constant(b, SHAPE(8, 1, 1), 0.5f, 0.2f));
}

static struct value *unaries(struct builder *b, struct value *x)
{
    static const enum op ops[] = {OP_ABS,  OP_NEG,      OP_ERF,  OP_SOFTPLUS,
                                  OP_SELU, OP_SOFTSIGN, OP_MISH, OP_CELU};
    struct value *sum = x;
    b->graph->opset = 18;
    for (size_t i = 0; i < COUNT_OF(ops) && sum; i++) {
        struct node *node = start(b, ops[i], 1, &x, 1);
        struct value *y = done(b, node);
        sum = y ? binary(b, OP_ADD, sum, y) : NULL;
    }
    return sum;
}

static struct value *roots(struct builder *b, struct value *x)
{
    struct value *positive = binary(b, OP_ADD, x, constant(b, SHAPE_SCALAR, 0, 1.5f));
    static const enum op ops[] = {OP_SQRT, OP_RECIPROCAL, OP_EXP, OP_LOG, OP_SIN, OP_COS};
    struct value *sum = positive;
    for (size_t i = 0; i < COUNT_OF(ops) && sum; i++) {
        struct value *y = unary(b, ops[i], positive);
        sum = y ? binary(b, OP_ADD, sum, y) : NULL;
    }
    return sum ? binary(b, OP_POW, sum, constant(b, SHAPE_SCALAR, 0, 1.7f)) : NULL;
}

/* Numbers far enough from where they round that no arithmetic moves them. */
static struct value *rounded(struct builder *b, struct value *x)
{
    struct value *y = binary(b, OP_MUL, x, constant(b, SHAPE_SCALAR, 0, 50));
    struct value *floors = y ? unary(b, OP_FLOOR, y) : NULL;
    struct value *ceilings = y ? unary(b, OP_CEIL, y) : NULL;
    struct value *nearest = y ? unary(b, OP_ROUND, y) : NULL;
    struct value *sum = floors && ceilings ? binary(b, OP_ADD, floors, ceilings) : NULL;
    sum = sum && nearest ? binary(b, OP_ADD, sum, nearest) : NULL;
    struct value *sign = y ? unary(b, OP_SIGN, y) : NULL;
    return sum && sign ? binary(b, OP_MUL, sum, sign) : NULL;
}

/* Casts to integers, their arithmetic, comparisons, logic, Where, and back. */
static struct value *integers(struct builder *b, struct value *x)
{
    struct value *y = cast(b, binary(b, OP_MUL, x, constant(b, SHAPE_SCALAR, 0, 90)), DTYPE_I64);
    int64_t numbers[] = {7, 3, -5};
    struct value *seven = ints(b, &numbers[0], 1), *three = ints(b, &numbers[1], 1);
    struct value *less = ints(b, &numbers[2], 1);
    struct value *sum = y ? binary(b, OP_ADD, binary(b, OP_MUL, y, seven), three) : NULL;
    struct value *rest = sum ? binary(b, OP_MOD, sum, seven) : NULL;
    struct value *part = sum ? binary(b, OP_DIV, sum, less) : NULL;
    struct value *greater = y ? binary(b, OP_GREATER, y, three) : NULL;
    struct value *small = y ? binary(b, OP_LESS, y, ints(b, &numbers[0], 1)) : NULL;
    struct value *both = greater && small ? binary(b, OP_AND, greater, small) : NULL;
    struct value *neither = both ? unary(b, OP_NOT, both) : NULL;
    if (!neither || !rest || !part)
        return NULL;
    struct node *node = start(b, OP_WHERE, 3, (struct value *[]){neither, rest, part}, 1);
    struct value *z = done(b, node);
    z = z ? cast(b, cast(b, z, DTYPE_I32), DTYPE_U8) : NULL;
    return z ? cast(b, z, DTYPE_F32) : NULL;
}

static struct value *wide(struct builder *b, struct value *x)
{
    struct value *y = cast(b, x, DTYPE_F64);
    y = y ? unary(b, OP_EXP, y) : NULL;
    y = y ? binary(b, OP_MUL, y, y) : NULL;
    return y ? cast(b, y, DTYPE_F32) : NULL;
}

static struct value *several(struct builder *b, struct value *x)
{
    static const enum op ops[] = {OP_MAX, OP_MIN};
    struct value *y = x;
    for (size_t i = 0; i < COUNT_OF(ops) && y; i++) {
        struct value *const others[] = {constant(b, SHAPE(3, 1, 1), 0.5f, 0), x,
                                        constant(b, SHAPE(x->shape.dims[3]), 0.3f, 0)};
        for (size_t k = 0; k < COUNT_OF(others) && y; k++)
            y = binary(b, ops[i], y, others[k]);
    }
    return y;
}

/* ---- axes ---- */

static struct value *reduced(struct builder *b, enum op op, struct value *x, const int64_t *axes,
                             size_t count)
{
    struct node *node = start(b, op, 1, &x, 1);
    return node && set_axes(b->graph, node, axes, count) ? done(b, node) : NULL;
}

/* Each fold over axes that do not lie together, and its sum with the image. */
static struct value *folds(struct builder *b, struct value *x, const enum op *ops, size_t count)
{
    static const int64_t axes[][2] = {{1, 3}, {0, 2}, {2, 3}, {-1, 1}};
    struct value *sum = x;
    for (size_t i = 0; i < count && sum; i++) {
        const size_t which = i % COUNT_OF(axes) == 1 ? 0 : i % COUNT_OF(axes);
        struct value *y = reduced(b, ops[i], x, axes[which], 2);
        sum = y ? binary(b, OP_ADD, sum, y) : NULL;
    }
    return sum;
}

static struct value *reduce_plain(struct builder *b, struct value *x)
{
    static const enum op ops[] = {OP_REDUCE_MEAN, OP_REDUCE_MAX, OP_REDUCE_MIN, OP_REDUCE_MEAN};
    return folds(b, x, ops, COUNT_OF(ops));
}
static struct value *reduce_norms(struct builder *b, struct value *x)
{
    static const enum op ops[] = {OP_REDUCE_L1, OP_REDUCE_L2, OP_REDUCE_SUM_SQUARE};
    return folds(b, x, ops, COUNT_OF(ops));
}
static struct value *reduce_channels(struct builder *b, struct value *x)
{
    const int64_t channels = 1;
    struct value *y = features(b, x, 70);
    struct value *norm = y ? reduced(b, OP_REDUCE_L2, y, &channels, 1) : NULL;
    return norm ? binary(b, OP_DIV, y, norm) : NULL;
}

static struct value *softmax_of(struct builder *b, struct value *x, enum op op, int64_t axis,
                                int opset)
{
    b->graph->opset = opset;
    struct node *node = start(b, op, 1, &x, 1);
    return node && node_set_int(b->graph, node, "axis", axis) ? done(b, node) : NULL;
}

static struct value *softmax_rows(struct builder *b, struct value *x)
{
    return softmax_of(b, x, OP_SOFTMAX, 2, 13);
}
static struct value *log_softmax_channels(struct builder *b, struct value *x)
{
    return softmax_of(b, features(b, x, 90), OP_LOG_SOFTMAX, 1, 13);
}
static struct value *log_softmax_flat(struct builder *b, struct value *x)
{
    return softmax_of(b, x, OP_LOG_SOFTMAX, 1, 11);
}
static struct value *argmax_of(struct builder *b, struct value *x, enum op op, int64_t axis)
{
    struct node *node = start(b, op, 1, &x, 1);
    struct value *y = node && node_set_int(b->graph, node, "axis", axis) ? done(b, node) : NULL;
    y = y ? cast(b, y, DTYPE_F32) : NULL;
    return y ? binary(b, OP_ADD, x, y) : NULL;
}

static struct value *argmax_columns(struct builder *b, struct value *x)
{
    return argmax_of(b, x, OP_ARG_MAX, 3);
}
static struct value *argmin_channels(struct builder *b, struct value *x)
{
    return argmax_of(b, x, OP_ARG_MIN, 1);
}

/* The best pixels of each image by their scores, as detectors pick them: TopK over a line that is
 * longer than a block, and what its indices gather. */
static struct value *top_k(struct builder *b, struct value *x)
{
    const int64_t pixels = x->shape.dims[2] * x->shape.dims[3], k = pixels < 40 ? pixels / 2 : 20;
    struct value *lines = binary(b, OP_RESHAPE, x, ints(b, (int64_t[]){0, 3, -1}, 3));
    if (!lines)
        return NULL;
    struct node *node = start(b, OP_TOP_K, 2, (struct value *[]){lines, ints(b, &k, 1)}, 2);
    if (!node || !node_set_int(b->graph, node, "axis", 2) || !finish(b, node))
        return NULL;
    struct value *indices = node->outputs[1];
    node = start(b, OP_GATHER_ELEMENTS, 2, (struct value *[]){lines, indices}, 1);
    struct value *again = node && node_set_int(b->graph, node, "axis", 2) ? done(b, node) : NULL;
    struct value *sum = again ? binary(b, OP_ADD, again, cast(b, indices, DTYPE_F32)) : NULL;
    return sum ? binary(b, OP_RESHAPE, sum, ints(b, (int64_t[]){0, 3, -1, 1}, 4)) : NULL;
}

static struct value *top_k_least(struct builder *b, struct value *x)
{
    const int64_t k = 2;
    struct node *node = start(b, OP_TOP_K, 2, (struct value *[]){x, ints(b, &k, 1)}, 2);
    if (!node || !node_set_int(b->graph, node, "axis", 1) ||
        !node_set_int(b->graph, node, "largest", 0))
        return NULL;
    return done(b, node);
}

/* ---- picks ---- */

static struct value *pad_constant(struct builder *b, struct value *x)
{
    const int64_t pads[8] = {0, 0, 2, -1, 0, 1, 3, 4};
    return done(
        b, start(b, OP_PAD, 3,
                 (struct value *[]){x, ints(b, pads, 8), constant(b, SHAPE_SCALAR, 0, 0.7f)}, 1));
}

static struct value *tiled(struct builder *b, struct value *x)
{
    const int64_t repeats[4] = {1, 2, 3, 2};
    return binary(b, OP_TILE, x, ints(b, repeats, 4));
}

/* Indices that a run computes, of which it is known where they lie. */
static struct value *gather_rows(struct builder *b, struct value *x)
{
    struct node *node = start(b, OP_ARG_MAX, 1, &x, 1);
    struct value *best = node && node_set_int(b->graph, node, "axis", 3) &&
                                 node_set_int(b->graph, node, "keepdims", 0)
                             ? done(b, node)
                             : NULL;
    const int64_t two = 2;
    struct value *half = best ? binary(b, OP_DIV, best, ints(b, &two, 1)) : NULL;
    struct value *weights = constant(b, SHAPE(64, 5), 0.5f, 0);
    if (!half || !weights)
        return NULL;
    node = start(b, OP_GATHER, 2, (struct value *[]){weights, half}, 1);
    return done(b, node);
}

static struct value *scattered(struct builder *b, struct value *x)
{
    const int64_t places[] = {2, 0};
    struct value *list = ints(b, places, 2);
    const int64_t column = 1;
    struct value *y = binary(b, OP_RESHAPE, x, ints(b, (int64_t[]){3, -1}, 2));
    struct value *at = list ? binary(b, OP_UNSQUEEZE, list, ints(b, &column, 1)) : NULL;
    if (!y || !at)
        return NULL;
    struct value *updates = constant(b, SHAPE(2, y->shape.dims[1]), 0.5f, 0);
    struct node *node = start(b, OP_SCATTER_ND, 3, (struct value *[]){y, at, updates}, 1);
    return done(b, node);
}

static struct value *grid_sampled(struct builder *b, struct value *x)
{
    b->graph->opset = 20;
    struct value *grid = constant(b, SHAPE(1, 6, 7, 2), 1.1f, 0);
    struct node *node = start(b, OP_GRID_SAMPLE, 2, (struct value *[]){x, grid}, 1);
    return node && set_text(b, node, "mode", "linear") ? done(b, node) : NULL;
}

/* ---- the table ---- */

static const struct {
    const char *name;
    struct value *(*build)(struct builder *b, struct value *x);
    bool is_smooth, is_single; /* runs for one image only: it reshapes the batch away */
} table[] = {
    {"Resize nearest", resize_nearest, true, false},
    {"Resize linear", resize_linear, true, false},
    {"Resize align_corners", resize_align, true, false},
    {"Resize pytorch_half_pixel", resize_pytorch, true, false},
    {"Resize cubic", resize_cubic, true, false},
    {"Resize antialias", resize_antialias, true, false},
    {"GroupNormalization", group_norm_wide, true, false},
    {"GroupNormalization, odd", group_norm_odd, true, false},
    {"InstanceNormalization", instance_norm_of, true, false},
    {"ConvTranspose 2x2", transposed_2x2, true, false},
    {"ConvTranspose 4x4", transposed_4x4, true, false},
    {"ConvTranspose 3x3", transposed_3x3, true, false},
    {"ConvTranspose 5x5, groups", transposed_5x5, true, false},
    {"ConvTranspose depthwise", transposed_depthwise, true, false},
    {"ConvTranspose dilated", transposed_dilated, true, false},
    {"ConvTranspose SAME_UPPER", transposed_same, true, false},
    {"ConvTranspose cropped", transposed_cropped, true, false},
    {"PRelu", prelu_of, true, false},
    {"Abs, Neg, Erf, Softplus, Selu, Softsign, Mish, Celu", unaries, true, false},
    {"Sqrt, Reciprocal, Exp, Log, Sin, Cos, Pow", roots, true, false},
    {"Floor, Ceil, Round, Sign", rounded, false, false},
    {"integers", integers, false, false},
    {"float64", wide, true, false},
    {"Max, Min", several, true, false},
    {"ReduceMean, ReduceMax, ReduceMin", reduce_plain, true, false},
    {"ReduceL1, ReduceL2, ReduceSumSquare", reduce_norms, true, false},
    {"ReduceL2 of channels", reduce_channels, true, false},
    {"Softmax of rows", softmax_rows, true, false},
    {"LogSoftmax of channels", log_softmax_channels, true, false},
    {"LogSoftmax, flat", log_softmax_flat, true, false},
    {"ArgMax", argmax_columns, false, false},
    {"ArgMin", argmin_channels, false, false},
    {"TopK, GatherElements", top_k, false, false},
    {"TopK, least", top_k_least, true, false},
    {"Pad constant", pad_constant, true, false},
    {"Tile", tiled, true, false},
    {"Gather of what a run computes", gather_rows, false, false},
    {"ScatterND", scattered, true, true},
    {"GridSample", grid_sampled, true, true},
};

size_t operator_graph_count(void)
{
    return COUNT_OF(table);
}

const char *operator_graph_name(size_t i)
{
    return table[i].name;
}

bool operator_graph_is_smooth(size_t i)
{
    return table[i].is_smooth;
}

struct graph *operator_graph(size_t i, uint32_t seed, int64_t height, int64_t width)
{
    struct builder b = {.graph = graph_create(NULL), .state = seed * 2654435761u + 1};
    if (!b.graph)
        return NULL;
    b.graph->opset = 13;
    struct value *input = graph_add_value(b.graph, "image", DTYPE_F32, &SHAPE(1, 3, height, width));
    b.graph->inputs = arena_alloc(b.graph->arena, 1, sizeof(struct value *));
    b.graph->outputs = arena_alloc(b.graph->arena, 1, sizeof(struct value *));
    if (!input || !b.graph->inputs || !b.graph->outputs)
        return NULL;
    b.graph->inputs[0] = input;
    b.graph->input_count = 1;
    b.graph->outputs[0] = table[i].build(&b, input);
    b.graph->output_count = 1;
    if (b.failed || !b.graph->outputs[0]) {
        graph_free(b.graph);
        return NULL;
    }
    /* what was inferred for batch 1 is what the session must find out itself */
    for (size_t v = 0; v < b.graph->value_count; v++)
        if (!b.graph->values[v]->known)
            b.graph->values[v]->shape = SHAPE_NONE;
    input->shape = SHAPE(table[i].is_single ? 1 : DIM_UNKNOWN, 3, height, width);
    return b.graph;
}
