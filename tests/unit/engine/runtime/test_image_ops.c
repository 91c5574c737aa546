/* Operators on images beside convolutions and pools, each behind a convolution, so that what it
 * reads is channels-last: every instruction set, thread counts and bfloat16 against the
 * interpreter, and no step that is run by a reference kernel. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/cpu.h"
#include "engine/base/size.h"
#include "engine/cpu/cpu.h"
#include "engine/op/interpret.h"
#include "engine/runtime/session.h"
#include "tests/unit/axes.h"
#include "tests/unit/engine/cpu/simd_variants.h"
#include "tests/unit/random_graph.h"

struct build {
    struct graph *graph;
    uint32_t state;
    int64_t channels, height, width; /* of the image the operator reads */
};

static struct value *add_constant(struct build *b, enum dtype dtype, struct shape shape,
                                  const void *data)
{
    struct error err = {0};
    struct tensor *tensor;
    cr_assert_eq(tensor_create(NULL, dtype, &shape, &tensor, &err), STATUS_OK);
    if (data)
        memcpy(tensor->data, data, tensor->bytes);
    for (size_t i = 0; !data && i < shape_count(&shape); i++)
        ((float *)tensor->data)[i] = random_unit(&b->state);
    struct value *value = graph_add_constant(b->graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

static struct value *noise(struct build *b, struct shape shape)
{
    return add_constant(b, DTYPE_F32, shape, NULL);
}

#define COUNT_ARGS(...) (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#define INTS(b, ...)                                                                               \
    add_constant(b, DTYPE_I64, SHAPE(COUNT_ARGS(__VA_ARGS__)), (int64_t[]){__VA_ARGS__})

static struct node *add_node(struct build *b, enum op op, int opset, size_t count,
                             struct value *const *inputs)
{
    struct node *node = graph_add_node(b->graph, op, "", count, 1);
    node->opset = opset;
    memcpy(node->inputs, inputs, count * sizeof *inputs);
    node_set_output(node, 0, graph_add_value(b->graph, "", DTYPE_NONE, NULL));
    return node;
}

static void set_text(struct build *b, struct node *node, const char *name, const char *text)
{
    cr_assert(node_set_int(b->graph, node, name, 0));
    struct attr *attrs = arena_alloc(b->graph->arena, node->attr_count, sizeof *attrs);
    memcpy(attrs, node->attrs, node->attr_count * sizeof *attrs);
    for (size_t i = 0; i < node->attr_count; i++)
        if (!strcmp(attrs[i].name, name))
            attrs[i] =
                (struct attr){.name = name, .kind = ATTR_STRING, .count = strlen(text), .s = text};
    node->attrs = attrs;
}

/* What follows the convolution; returns the result. */
typedef struct value *(*make_fn)(struct build *b, struct value *x, const void *parameters);

static struct graph *make_graph(struct build *b, make_fn make, const void *parameters)
{
    struct shape shape = SHAPE(DIM_UNKNOWN, 3, b->height, b->width);
    b->graph = graph_create(NULL);
    struct value *image = graph_add_value(b->graph, "image", DTYPE_F32, &shape);
    struct value *y = add_node(b, OP_CONV, 13, 3,
                               (struct value *[]){image, noise(b, SHAPE(b->channels, 3, 1, 1)),
                                                  noise(b, SHAPE(b->channels))})
                          ->outputs[0];
    y = make(b, y, parameters);
    struct value **ends = arena_alloc(b->graph->arena, 2, sizeof *ends);
    ends[0] = image;
    ends[1] = y;
    b->graph->opset = 13;
    b->graph->inputs = ends;
    b->graph->input_count = 1;
    b->graph->outputs = ends + 1;
    b->graph->output_count = 1;
    return b->graph;
}

static void check_session(const char *name, const struct graph *graph, const void *images,
                          const struct tensor *expected, int batch, int threads,
                          enum precision precision)
{
    struct error err = {0};
    struct session *session;
    const struct session_options options = {.precision = precision,
                                            .threads = threads,
                                            .max_batch = batch,
                                            .image_layout = IMAGE_AS_DECLARED};
    const struct tensor *output;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s: %s", name,
                 err.message);
    cr_assert_eq(session_run(session, batch, &images, &output, &err), STATUS_OK);
    const float *e = expected->data, *g = output->data;
    const size_t count = output->bytes / sizeof *g;
    float largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = fmaxf(largest, fabsf(e[i]));
    for (size_t i = 0; i < count; i++)
        cr_assert(fabsf(e[i] - g[i]) <= (precision == PRECISION_BF16 ? 3e-2f : 1e-5f) * largest,
                  "%s, %s, %s, batch %d, element %zu: %g, not %g", name, simd()->name,
                  precision_name(precision), batch, i, (double)g[i], (double)e[i]);
    struct session_step *steps;
    size_t step_count;
    cr_assert_eq(session_profile(session, batch, 1, &steps, &step_count, &err), STATUS_OK);
    for (size_t i = 0; i < step_count; i++)
        cr_assert(strcmp(steps[i].kernel, "reference") != 0, "%s: '%s' is run by its reference",
                  name, steps[i].name);
    free(steps);
    session_free(session);
}

static void check(const char *name, struct build b, make_fn make, const void *parameters)
{
    enum { BATCH = 2 };
    struct error err = {0};
    b.state = 3;
    struct graph *graph = make_graph(&b, make, parameters), *reference;
    struct shape shape = SHAPE(BATCH, 3, b.height, b.width);
    struct tensor *input, *expected;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &input, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++)
        ((float *)input->data)[i] = random_unit(&b.state);
    cr_assert_eq(graph_clone(graph, &reference, &err), STATUS_OK);
    cr_assert_eq(interpret(reference, &input, &expected, NULL, NULL, &err), STATUS_OK, "%s: %s",
                 name, err.message);
    const struct simd_kernels *variants[SIMD_VARIANTS];
    const size_t variant_count = simd_variants(variants);
    for (size_t v = 0; v < variant_count; v++) {
        simd_use(variants[v]);
        check_session(name, graph, input->data, expected, v == 1 ? 1 : BATCH, 1 + (int)v,
                      PRECISION_FP32);
    }
    simd_use(NULL);
    if (device_cpu_has_bf16())
        check_session(name, graph, input->data, expected, BATCH, 2, PRECISION_BF16);
    tensor_unref(expected);
    tensor_unref(input);
    graph_free(reference);
    graph_free(graph);
}

/* ---- Resize ---- */

struct resize {
    const char *name, *mode, *coordinates, *nearest;
    float scale_y, scale_x; /* 0: from sizes */
    int64_t height, width;
    bool antialias, exclude_outside;
};

static struct value *make_resize_node(struct build *b, struct value *x, const void *parameters)
{
    const struct resize *r = parameters;
    const float scales[4] = {1, 1, r->scale_y, r->scale_x};
    struct value *inputs[4] = {x};
    if (r->scale_y > 0)
        inputs[2] = add_constant(b, DTYPE_F32, SHAPE(4), scales);
    else
        inputs[3] = INTS(b, 2, b->channels, r->height, r->width);
    struct node *node = add_node(b, OP_RESIZE, 18, r->scale_y > 0 ? 3 : 4, inputs);
    set_text(b, node, "mode", r->mode);
    set_text(b, node, "coordinate_transformation_mode", r->coordinates);
    if (r->nearest)
        set_text(b, node, "nearest_mode", r->nearest);
    cr_assert(node_set_int(b->graph, node, "antialias", r->antialias));
    cr_assert(node_set_int(b->graph, node, "exclude_outside", r->exclude_outside));
    return node->outputs[0];
}

Test(image_ops, resize)
{
    static const struct resize cases[] = {
        {"nearest twice", "nearest", "asymmetric", "floor", 2, 2, 0, 0, false, false},
        {"nearest, odd factors", "nearest", "half_pixel", "round_prefer_ceil", 1.7f, 0.6f, 0, 0,
         false, false},
        {"bilinear", "linear", "half_pixel", NULL, 2.5f, 3, 0, 0, false, false},
        {"bilinear, corners", "linear", "align_corners", NULL, 3, 1.5f, 0, 0, false, false},
        {"bilinear down", "linear", "pytorch_half_pixel", NULL, 0.5f, 0.3f, 0, 0, false, false},
        {"bilinear down, antialias", "linear", "half_pixel", NULL, 0.4f, 0.5f, 0, 0, true, false},
        {"bicubic", "cubic", "half_pixel", NULL, 2, 1.3f, 0, 0, false, false},
        {"bicubic without what is outside", "cubic", "half_pixel", NULL, 1.5f, 2, 0, 0, false,
         true},
        {"rows alone", "linear", "half_pixel", NULL, 2, 1, 0, 0, false, false},
    };
    const struct build images[] = {{.channels = 21, .height = 7, .width = 9},
                                   {.channels = 64, .height = 6, .width = 5},
                                   {.channels = 3, .height = 11, .width = 4}};
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        check(cases[i].name, images[i % 3], make_resize_node, &cases[i]);
}

/* Sizes are those of a batch of two. */
Test(image_ops, resize_to_sizes)
{
    static const struct resize to = {"to sizes", "linear", "half_pixel", NULL,  0,
                                     0,          13,       21,           false, false};
    struct build b = {.channels = 20, .height = 5, .width = 8};
    struct error err = {0};
    b.state = 3;
    struct graph *graph = make_graph(&b, make_resize_node, &to), *reference;
    struct tensor *input, *expected;
    struct shape shape = SHAPE(2, 3, b.height, b.width);
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &input, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++)
        ((float *)input->data)[i] = random_unit(&b.state);
    graph->inputs[0]->shape.dims[0] = 2;
    cr_assert_eq(graph_clone(graph, &reference, &err), STATUS_OK);
    cr_assert_eq(interpret(reference, &input, &expected, NULL, NULL, &err), STATUS_OK);
    check_session(to.name, graph, input->data, expected, 1, 2, PRECISION_FP32);
    tensor_unref(expected);
    tensor_unref(input);
    graph_free(reference);
    graph_free(graph);
}

/* ---- ConvTranspose ---- */

struct transpose {
    int64_t kernel[2], stride[2], pads[4], extra[2], dilation[2], group, out;
    bool bias;
    enum op activation;
};

static struct value *make_transpose_node(struct build *b, struct value *x, const void *parameters)
{
    const struct transpose *t = parameters;
    struct value *inputs[3] = {
        x, noise(b, SHAPE(b->channels, t->out / t->group, t->kernel[0], t->kernel[1])),
        noise(b, SHAPE(t->out))};
    struct node *node = add_node(b, OP_CONV_TRANSPOSE, 13, t->bias ? 3 : 2, inputs);
    cr_assert(node_set_ints(b->graph, node, "strides", t->stride, 2) &&
              node_set_ints(b->graph, node, "pads", t->pads, 4) &&
              node_set_ints(b->graph, node, "output_padding", t->extra, 2) &&
              node_set_ints(b->graph, node, "dilations", t->dilation, 2) &&
              node_set_int(b->graph, node, "group", t->group));
    if (t->activation == OP_NONE)
        return node->outputs[0];
    return add_node(b, t->activation, t->activation == OP_GELU ? 20 : 14, 1, node->outputs)
        ->outputs[0];
}

Test(image_ops, conv_transpose)
{
    static const struct transpose cases[] = {
        {{2, 2}, {2, 2}, {0}, {0}, {1, 1}, 1, 24, true, OP_RELU},
        {{4, 4}, {2, 2}, {1, 1, 1, 1}, {0}, {1, 1}, 1, 16, true, OP_NONE},
        {{3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}, {1, 1}, 1, 20, false, OP_SIGMOID},
        {{3, 5}, {1, 3}, {1, 0, 2, 1}, {0, 2}, {1, 1}, 1, 7, true, OP_NONE},
        {{3, 3}, {2, 1}, {0}, {0}, {2, 1}, 1, 9, true, OP_HARD_SWISH},
        {{3, 2}, {2, 2}, {0}, {1, 0}, {1, 2}, 4, 8, true, OP_GELU},
        {{3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}, {1, 1}, 12, 12, true, OP_NONE},
        {{1, 1}, {2, 3}, {0}, {1, 2}, {1, 1}, 1, 5, true, OP_NONE},
        {{16, 16}, {8, 8}, {4, 4, 4, 4}, {0}, {1, 1}, 1, 3, false, OP_NONE},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char name[32];
        snprintf(name, sizeof name, "ConvTranspose %zu", i);
        check(name, (struct build){.channels = 12, .height = 5, .width = 6}, make_transpose_node,
              &cases[i]);
    }
}

/* ---- the others ---- */

static struct value *make_prelu(struct build *b, struct value *x, const void *parameters)
{
    const bool *each = parameters;
    struct value *slope = noise(b, *each ? SHAPE(b->channels, 1, 1) : SHAPE(1));
    return add_node(b, OP_PRELU, 16, 2, (struct value *[]){x, slope})->outputs[0];
}

static struct value *make_instance(struct build *b, struct value *x, const void *parameters)
{
    (void)parameters;
    struct value *inputs[3] = {x, noise(b, SHAPE(b->channels)), noise(b, SHAPE(b->channels))};
    return add_node(b, OP_INSTANCE_NORMALIZATION, 13, 3, inputs)->outputs[0];
}

static struct value *make_group(struct build *b, struct value *x, const void *parameters)
{
    const int64_t *groups = parameters; /* and the opset */
    struct value *inputs[3] = {x, noise(b, SHAPE(b->channels)), noise(b, SHAPE(b->channels))};
    struct node *node = add_node(b, OP_GROUP_NORMALIZATION, (int)groups[1], 3, inputs);
    cr_assert(node_set_int(b->graph, node, "num_groups", groups[0]));
    return node->outputs[0];
}

/* As PyTorch exports it. */
static struct value *make_group_of_nodes(struct build *b, struct value *x, const void *parameters)
{
    const int64_t *groups = parameters;
    float ones[64], zeros[64] = {0};
    for (size_t i = 0; i < 64; i++)
        ones[i] = 1;
    struct value *y =
        add_node(b, OP_RESHAPE, 13, 2, (struct value *[]){x, INTS(b, 0, groups[0], -1)})
            ->outputs[0];
    y = add_node(b, OP_INSTANCE_NORMALIZATION, 13, 3,
                 (struct value *[]){y, add_constant(b, DTYPE_F32, SHAPE(groups[0]), ones),
                                    add_constant(b, DTYPE_F32, SHAPE(groups[0]), zeros)})
            ->outputs[0];
    y = add_node(b, OP_RESHAPE, 13, 2,
                 (struct value *[]){y, INTS(b, 0, b->channels, b->height, b->width)})
            ->outputs[0];
    y = add_node(b, OP_MUL, 13, 2, (struct value *[]){y, noise(b, SHAPE(b->channels, 1, 1))})
            ->outputs[0];
    return add_node(b, OP_ADD, 13, 2, (struct value *[]){y, noise(b, SHAPE(b->channels, 1, 1))})
        ->outputs[0];
}

static struct value *make_lrn(struct build *b, struct value *x, const void *parameters)
{
    const float *beta = parameters; /* and alpha, the size */
    struct node *node = add_node(b, OP_LRN, 13, 1, &x);
    cr_assert(node_set_int(b->graph, node, "size", (int64_t)beta[2]) &&
              node_set_float(b->graph, node, "beta", beta[0]) &&
              node_set_float(b->graph, node, "alpha", beta[1]));
    return node->outputs[0];
}

struct blocks {
    enum op op;
    int64_t size;
    const char *mode;
};

static struct value *make_blocks(struct build *b, struct value *x, const void *parameters)
{
    const struct blocks *blocks = parameters;
    struct node *node = add_node(b, blocks->op, 13, 1, &x);
    cr_assert(node_set_int(b->graph, node, "blocksize", blocks->size));
    if (blocks->mode)
        set_text(b, node, "mode", blocks->mode);
    return node->outputs[0];
}

static struct value *make_mean(struct build *b, struct value *x, const void *parameters)
{
    static const int64_t axes[2] = {2, -1};
    (void)parameters;
    struct node *node = add_node(b, OP_REDUCE_MEAN, 13, 1, &x);
    cr_assert(set_axes(b->graph, node, axes, 2));
    return node->outputs[0];
}

/* Rows of features, as LeViT normalises them. */
static struct value *make_rows(struct build *b, struct value *x, const void *parameters)
{
    (void)parameters;
    struct value *y =
        add_node(b, OP_RESHAPE, 13, 2, (struct value *[]){x, INTS(b, -1, b->width)})->outputs[0];
    float variance[64];
    for (size_t i = 0; i < 64; i++)
        variance[i] = 0.5f + (float)i / 64;
    const struct shape shape = SHAPE(b->width);
    y = add_node(b, OP_BATCH_NORMALIZATION, 15, 5,
                 (struct value *[]){y, noise(b, shape), noise(b, shape), noise(b, shape),
                                    add_constant(b, DTYPE_F32, shape, variance)})
            ->outputs[0];
    return add_node(b, OP_RESHAPE, 13, 2,
                    (struct value *[]){y, INTS(b, -1, b->channels, b->height, b->width)})
        ->outputs[0];
}

Test(image_ops, normalisations)
{
    static const int64_t groups[][2] = {{4, 21}, {1, 21}, {6, 21}, {24, 21}};
    static const float lrn[][3] = {{0.75f, 1e-2f, 5}, {0.5f, 0.1f, 4}, {1, 0.3f, 1}};
    const struct build b = {.channels = 24, .height = 9, .width = 7};
    const struct build wide = {.channels = 40, .height = 33, .width = 30};
    check("InstanceNormalization", b, make_instance, NULL);
    check("InstanceNormalization of a larger image", wide, make_instance, NULL);
    for (size_t i = 0; i < COUNT_OF(groups); i++)
        check("GroupNormalization", b, make_group, groups[i]);
    check("GroupNormalization in several nodes", b, make_group_of_nodes, groups[0]);
    check("one group in several nodes", wide, make_group_of_nodes, groups[1]);
    for (size_t i = 0; i < COUNT_OF(lrn); i++)
        check("LRN", b, make_lrn, lrn[i]);
    check("BatchNormalization of rows", b, make_rows, NULL);
}

Test(image_ops, moves_and_activations)
{
    static const bool each[2] = {false, true};
    static const struct blocks blocks[] = {{OP_DEPTH_TO_SPACE, 2, "DCR"},
                                           {OP_DEPTH_TO_SPACE, 2, "CRD"},
                                           {OP_SPACE_TO_DEPTH, 3, NULL},
                                           {OP_SPACE_TO_DEPTH, 3, "CRD"}};
    const struct build b = {.channels = 24, .height = 9, .width = 6};
    for (size_t i = 0; i < COUNT_OF(each); i++)
        check("PRelu", b, make_prelu, &each[i]);
    for (size_t i = 0; i < COUNT_OF(blocks); i++)
        check(blocks[i].op == OP_DEPTH_TO_SPACE ? "DepthToSpace" : "SpaceToDepth", b, make_blocks,
              &blocks[i]);
    check("mean", b, make_mean, NULL);
}
