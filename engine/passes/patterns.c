/* Patterns of primitives from exporters, matched from their last node upwards. */
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/geometry.h"
#include "engine/op/resolve.h"
#include "engine/passes/passes.h"

/* Returns the node that makes operand i of `node`, if its operator is `op`; otherwise NULL. */
static struct node *made_by(const struct node *node, size_t i, enum op op)
{
    const struct value *value = node_input(node, i);
    return value && value->producer && value->producer->op == op ? value->producer : NULL;
}

static bool near(float a, float b)
{
    return fabsf(a - b) <= 1e-4f * fabsf(b);
}

static bool scalar_is(const struct value *value, float expected)
{
    float v;
    return edit_scalar(value, &v) && near(v, expected);
}

/* Returns the operand of a two-operand node that is not operand i. */
static struct value *other(const struct node *node, size_t i)
{
    return node->inputs[1 - i];
}

/* Returns the operand x if `node` computes x op `number` or (not with Div) `number` op x, where the
 * number is a constant; otherwise NULL. */
static struct value *with_number(const struct node *node, enum op op, float number)
{
    for (size_t i = op == OP_DIV; node && node->op == op && i < 2; i++)
        if (scalar_is(node->inputs[i], number))
            return other(node, i);
    return NULL;
}

/* Returns x if `node` is x * factor or x / (1 / factor), otherwise NULL. */
static struct value *times(const struct node *node, float factor)
{
    struct value *x = with_number(node, OP_DIV, 1 / factor);
    return x ? x : with_number(node, OP_MUL, factor);
}

/* Returns x if `value` is Clip(x + 3, 0, 6), otherwise NULL. */
static struct value *relu6_of_plus_3(const struct value *value)
{
    const struct node *clip = value ? value->producer : NULL;
    float low, high;
    if (!clip || clip->op != OP_CLIP || !edit_clip_limits(clip, &low, &high) || low != 0 ||
        high != 6)
        return NULL;
    return with_number(clip->inputs[0]->producer, OP_ADD, 3);
}

static bool match_hard(struct edit *edit, struct node *node)
{
    struct value *v = times(node, 1.0f / 6);
    if (!v)
        return false;
    struct value *x = relu6_of_plus_3(v);
    if (x)
        return edit_become(edit, node, OP_HARD_SIGMOID, 6, &x, 1) &&
               ((node_set_float(edit->graph, node, "alpha", 1.0f / 6) &&
                 node_set_float(edit->graph, node, "beta", 0.5f)) ||
                edit_no_memory(edit));
    const struct node *mul = v->producer;
    for (size_t i = 0; mul && mul->op == OP_MUL && i < 2; i++) {
        if (relu6_of_plus_3(mul->inputs[i]) != other(mul, i))
            continue;
        x = other(mul, i);
        return edit_become(edit, node, OP_HARD_SWISH, 14, &x, 1);
    }
    return false;
}

/* Matches x * sigmoid(x) and x * hard_sigmoid(x). */
static bool match_gate(struct edit *edit, struct node *node)
{
    for (size_t i = 0; node->op == OP_MUL && i < 2; i++) {
        struct value *x = other(node, i);
        const struct node *gate = made_by(node, i, OP_SIGMOID);
        if (gate && gate->inputs[0] == x)
            return edit_become(edit, node, OP_SILU, 1, &x, 1);
        gate = made_by(node, i, OP_HARD_SIGMOID);
        if (gate && gate->inputs[0] == x && near(node_float(gate, "alpha", 0.2f), 1.0f / 6) &&
            near(node_float(gate, "beta", 0.5f), 0.5f))
            return edit_become(edit, node, OP_HARD_SWISH, 14, &x, 1);
    }
    return false;
}

/* Returns x if `value` is 1 + erf(x / sqrt 2), otherwise NULL. */
static struct value *one_plus_erf(const struct value *value)
{
    const struct value *y = with_number(value->producer, OP_ADD, 1);
    const struct node *erf = y ? y->producer : NULL;
    return erf && erf->op == OP_ERF ? times(erf->inputs[0]->producer, sqrtf(0.5f)) : NULL;
}

/* Matches GELU: the product of x, 1 + erf(x / sqrt 2) and 0.5, in any grouping. */
static bool match_gelu(struct edit *edit, struct node *node)
{
    if (node->op != OP_MUL)
        return false;
    struct value *factors[3];
    for (size_t i = 0; i < 2; i++) {
        const struct node *inner = made_by(node, i, OP_MUL);
        if (!inner)
            continue;
        factors[0] = other(node, i);
        factors[1] = inner->inputs[0];
        factors[2] = inner->inputs[1];
        for (size_t a = 0; a < 3; a++) {
            struct value *x = one_plus_erf(factors[a]);
            struct value *b = factors[(a + 1) % 3], *c = factors[(a + 2) % 3];
            if (x && ((b == x && scalar_is(c, 0.5f)) || (c == x && scalar_is(b, 0.5f))))
                return edit_become(edit, node, OP_GELU, 20, &x, 1);
        }
    }
    return false;
}

/* True if `node` is a mean over only the last axis with keepdims. */
static bool is_last_axis_mean(const struct node *node)
{
    const int rank = node && node->input_count ? node->inputs[0]->shape.rank : 0;
    return rank > 0 && edit_is_mean(node, 1u << (rank - 1));
}

/* Matches a mean over all spatial axes with keepdims: GlobalAveragePool. */
static bool match_spatial_mean(struct edit *edit, struct node *node)
{
    struct value *x = node_input(node, 0);
    return x && x->shape.rank == 4 && edit_is_mean(node, SPATIAL_AXES) && !x->known &&
           x->dtype == DTYPE_F32 && shape_count(&x->shape) &&
           edit_become(edit, node, OP_GLOBAL_AVERAGE_POOL, 1, &x, 1);
}

/* True for a float32 constant with one number per channel of an image, by numpy's broadcasting. */
static bool is_channel_vector(const struct value *value, const struct shape *image)
{
    if (!is_f32_constant(value) || value->shape.rank > image->rank ||
        value->shape.rank < image->rank - 1)
        return false;
    const int channel = value->shape.rank - (image->rank - 1);
    return value->shape.dims[channel] == image->dims[1] &&
           shape_count(&value->shape) == (size_t)image->dims[1];
}

/* Returns the constant's numbers as a vector. */
static struct value *as_vector(struct edit *edit, const struct value *from)
{
    return edit_constant(edit, DTYPE_F32, &SHAPE((int64_t)shape_count(&from->known->shape)),
                         from->known->data);
}

/* Matches PyTorch's export of GroupNormalization, at its last node: Reshape of [N, C, …] to [N,
 * groups, rest], InstanceNormalization with scale 1 and bias 0, Reshape back, Mul and Add per
 * channel. */
static bool match_group_norm(struct edit *edit, struct node *add)
{
    if (add->op != OP_ADD)
        return false;
    const size_t i = made_by(add, 0, OP_MUL) ? 0 : 1;
    const struct node *mul = made_by(add, i, OP_MUL);
    const size_t k = mul && made_by(mul, 0, OP_RESHAPE) ? 0 : 1;
    const struct node *back = mul ? made_by(mul, k, OP_RESHAPE) : NULL;
    const struct node *norm = back ? made_by(back, 0, OP_INSTANCE_NORMALIZATION) : NULL;
    const struct node *there = norm ? made_by(norm, 0, OP_RESHAPE) : NULL;
    if (!there || !edit_is_all(norm->inputs[1], 1) || !edit_is_all(norm->inputs[2], 0))
        return false;
    struct value *x = there->inputs[0];
    const struct shape *image = &x->shape, *parts = &there->outputs[0]->shape;
    if (image->rank < 3 || image->rank > 5 || parts->rank != 3 || x->known ||
        parts->dims[0] != image->dims[0] || parts->dims[1] < 1 ||
        !shape_equal(image, &add->outputs[0]->shape) ||
        !shape_equal(image, &back->outputs[0]->shape) || image->dims[1] % parts->dims[1] ||
        !is_channel_vector(other(mul, k), image) || !is_channel_vector(other(add, i), image))
        return false;
    const float epsilon = node_float(norm, "epsilon", 1e-5f);
    struct value *scale = as_vector(edit, other(mul, k)), *bias = as_vector(edit, other(add, i));
    struct value *inputs[3] = {x, scale, bias};
    return scale && bias && edit_become(edit, add, OP_GROUP_NORMALIZATION, 21, inputs, 3) &&
           ((node_set_int(edit->graph, add, "num_groups", parts->dims[1]) &&
             node_set_float(edit->graph, add, "epsilon", epsilon)) ||
            edit_no_memory(edit));
}

/* True for a float32 constant vector over the last dimension of `like`. */
static bool is_last_vector(const struct value *value, const struct shape *like)
{
    return like->rank > 0 && is_f32_vector(value, like->dims[like->rank - 1]);
}

/* Matches LayerNormalization before opset 17, at the Mul:
 *   d = x - mean(x);  y = d / sqrt(mean(d ^ 2) + epsilon) * scale */
static bool match_layer_norm(struct edit *edit, struct node *node)
{
    if (node->op != OP_MUL)
        return false;
    size_t i = made_by(node, 0, OP_DIV) ? 0 : 1;
    const struct node *div = made_by(node, i, OP_DIV);
    if (!div)
        return false;
    struct value *scale = other(node, i);
    const struct node *sub = made_by(div, 0, OP_SUB), *root = made_by(div, 1, OP_SQRT);
    const struct node *plus = root ? made_by(root, 0, OP_ADD) : NULL;
    if (!sub || !plus || !is_last_axis_mean(sub->inputs[1]->producer) ||
        sub->inputs[1]->producer->inputs[0] != sub->inputs[0] ||
        !is_last_vector(scale, &sub->inputs[0]->shape))
        return false;
    size_t m = made_by(plus, 0, OP_REDUCE_MEAN) ? 0 : 1;
    const struct node *variance = made_by(plus, m, OP_REDUCE_MEAN);
    float epsilon;
    if (!variance || !is_last_axis_mean(variance) || !edit_scalar(other(plus, m), &epsilon))
        return false;
    const struct node *square = variance->inputs[0]->producer;
    if (!square || square->inputs[0] != sub->outputs[0] ||
        !((square->op == OP_POW && scalar_is(square->inputs[1], 2)) ||
          (square->op == OP_MUL && square->inputs[1] == square->inputs[0])))
        return false;
    struct value *inputs[2] = {sub->inputs[0], scale};
    return edit_become(edit, node, OP_LAYER_NORMALIZATION, 17, inputs, 2) &&
           ((node_set_int(edit->graph, node, "axis", -1) &&
             node_set_float(edit->graph, node, "epsilon", epsilon)) ||
            edit_no_memory(edit));
}

/* Matches LayerNormalization + a constant vector, which becomes the bias. */
static bool match_layer_norm_bias(struct edit *edit, struct node *add)
{
    if (add->op != OP_ADD)
        return false;
    size_t i = made_by(add, 0, OP_LAYER_NORMALIZATION) ? 0 : 1;
    const struct node *norm = made_by(add, i, OP_LAYER_NORMALIZATION);
    if (!norm || norm->input_count != 2 || !edit_single_reader(edit, norm->outputs[0]))
        return false;
    const struct shape *shape = &norm->inputs[0]->shape;
    int64_t axis = node_int(norm, "axis", -1);
    struct value *inputs[3] = {norm->inputs[0], norm->inputs[1], other(add, i)};
    if ((axis != -1 && axis != shape->rank - 1) || !is_last_vector(inputs[2], shape) ||
        !edit_become(edit, add, OP_LAYER_NORMALIZATION, norm->opset, inputs, 3))
        return false;
    add->attrs = norm->attrs;
    add->attr_count = norm->attr_count;
    return true;
}

/* Turns a BatchNormalization with constant statistics into a ScaleShift, y = x * scale + shift per
 * channel. ScaleShift needs channels-last images, now or after the layout pass. */
static bool match_batch_norm(struct edit *edit, struct node *node)
{
    const struct value *x = node_input(node, 0);
    const struct shape *shape = x ? &x->shape : NULL;
    if (node->op != OP_BATCH_NORMALIZATION || !x || x->known || shape->rank < 2 ||
        shape->rank > 5 || !shape_count(shape) || !fold_is_affine_norm(node, shape->dims[1]))
        return false;
    struct value *scale = edit_constant(edit, DTYPE_F32, &SHAPE(shape->dims[1]), NULL);
    struct value *shift = edit_constant(edit, DTYPE_F32, &SHAPE(shape->dims[1]), NULL);
    if (!scale || !shift)
        return false;
    fold_affine_norm(node, scale->known->data, shift->known->data);
    struct value *inputs[3] = {node->inputs[0], scale, shift};
    node->channels_last = node->inputs[0]->shape.rank == 2;
    return edit_become(edit, node, OP_SCALE_SHIFT, 1, inputs, 3);
}

static bool read_padding(const struct node *pad, struct padding *ret)
{
    return resolve_is_known(pad) && resolve_padding(pad, ret, NULL) == STATUS_OK;
}

/* Folds a Pad with zeros before a Conv into the Conv's pads. */
static bool match_padded_conv(struct edit *edit, struct node *conv)
{
    const struct node *pad = conv->op == OP_CONV ? made_by(conv, 0, OP_PAD) : NULL;
    struct padding padding;
    if (!pad || !edit_single_reader(edit, pad->outputs[0]) || !read_padding(pad, &padding) ||
        padding.mode != PAD_CONSTANT)
        return false;
    int spatial = pad->inputs[0]->shape.rank - 2;
    size_t conv_count;
    int64_t joined[2 * TENSOR_MAX_RANK] = {0};
    float value = 0;
    if (strcmp(node_string(conv, "auto_pad", "NOTSET"), "NOTSET") != 0 || spatial < 1 ||
        (node_input(pad, 2) && (!edit_scalar(node_input(pad, 2), &value) || value != 0)))
        return false;
    const int64_t *own = node_ints(conv, "pads", &conv_count);
    if (own && conv_count != 2 * (size_t)spatial)
        return false;
    for (int a = 0; a < spatial + 2; a++)
        if (a < 2 ? padding.begin[a] || padding.end[a] : padding.begin[a] < 0 || padding.end[a] < 0)
            return false;
    for (int a = 0; a < spatial; a++) {
        joined[a] = padding.begin[2 + a] + (own ? own[a] : 0);
        joined[spatial + a] = padding.end[2 + a] + (own ? own[spatial + a] : 0);
    }
    if (!node_set_ints(edit->graph, conv, "pads", joined, 2 * (size_t)spatial))
        return edit_no_memory(edit);
    conv->inputs[0] = pad->inputs[0];
    return true;
}

/* True for an average pool whose windows all lie within the image, so that each result is a mean of
 * equally many pixels. */
static bool is_inner_mean(const struct node *pool, struct window *ret)
{
    const struct shape *x = &pool->inputs[0]->shape;
    if (pool->op == OP_GLOBAL_AVERAGE_POOL) {
        *ret = (struct window){.spatial = x->rank - 2};
        for (int a = 0; a < ret->spatial; a++) {
            ret->in[a] = x->dims[2 + a];
            ret->out[a] = 1;
        }
        return true;
    }
    if (pool->op != OP_AVERAGE_POOL || pool_window_init(pool, x, false, ret, NULL) != STATUS_OK)
        return false;
    bool inside = true;
    for (int a = 0; a < ret->spatial; a++)
        inside = inside && !ret->pad_begin[a] && !ret->pad_end[a] &&
                 (ret->out[a] - 1) * ret->stride[a] + (ret->kernel[a] - 1) * ret->dilation[a] <
                     ret->in[a];
    return inside;
}

static bool is_pointwise(const struct node *conv)
{
    struct conv_shape shape;
    if (conv->op != OP_CONV || !conv->inputs[1]->known || node_input(conv, 3) ||
        conv_shape_init(conv, &conv->inputs[0]->shape, &conv->inputs[1]->shape, &shape, NULL) !=
            STATUS_OK)
        return false;
    bool pointwise = true;
    for (int a = 0; a < shape.window.spatial; a++)
        pointwise = pointwise && shape.window.kernel[a] == 1 && shape.window.stride[a] == 1 &&
                    !shape.window.pad_begin[a] && !shape.window.pad_end[a];
    return pointwise;
}

/* Swaps a pointwise convolution and the average pool after it, if the pool leaves at most half of
 * the pixels (DenseNet's transitions): the mean of the convolution's results is the convolution of
 * the means. */
static bool match_pooled_conv(struct edit *edit, struct node *pool)
{
    enum { MOST_WIDER = 4 }; /* the maximum of input channels per output channel */
    struct value *between = node_input(pool, 0), *y = node_output(pool, 0);
    struct node *conv = between ? between->producer : NULL;
    struct window window;
    if (!conv || !is_inner_mean(pool, &window) || !is_pointwise(conv) ||
        !edit_single_reader(edit, between) || conv->inputs[0]->known)
        return false;
    struct value *x = conv->inputs[0];
    double before = 1, after = 1;
    for (int a = 0; a < window.spatial; a++) {
        before *= (double)window.in[a];
        after *= (double)window.out[a];
    }
    if (after * 2 > before || x->shape.dims[1] > MOST_WIDER * between->shape.dims[1])
        return false;
    const struct node first = *conv, second = *pool;
    *conv = second;
    conv->inputs[0] = x;
    conv->outputs = first.outputs;
    conv->output_count = first.output_count;
    *pool = first;
    pool->inputs[0] = between;
    pool->outputs = second.outputs;
    pool->output_count = second.output_count;
    between->shape = y->shape;
    between->shape.dims[1] = x->shape.dims[1];
    return true;
}

/* Removes a Pad that adds nothing (exporters write one before every AveragePool). */
static bool match_empty_pad(struct graph *graph, struct node *pad)
{
    const struct value *x = node_input(pad, 0);
    struct padding padding;
    if (pad->op != OP_PAD || !read_padding(pad, &padding) || x->known ||
        !shape_equal(&x->shape, &padding.out) || edit_is_output(graph, pad->outputs[0]))
        return false;
    for (int a = 0; a < x->shape.rank; a++)
        if (padding.begin[a])
            return false;
    edit_replace(graph, pad->outputs[0], node_input(pad, 0));
    pad->op = OP_NONE;
    return true;
}

bool pass_patterns(struct edit *edit, size_t *n)
{
    struct node *node = edit->graph->nodes[*n];
    if (!node->output_count || !node->outputs[0] || node->outputs[0]->dtype != DTYPE_F32)
        return false;
    return match_batch_norm(edit, node) || match_group_norm(edit, node) ||
           match_spatial_mean(edit, node) || match_hard(edit, node) || match_gate(edit, node) ||
           match_gelu(edit, node) || match_layer_norm(edit, node) ||
           match_layer_norm_bias(edit, node) || match_padded_conv(edit, node) ||
           match_empty_pad(edit->graph, node) || match_pooled_conv(edit, node);
}
