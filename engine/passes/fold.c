/* Constant folding, specialisation for concrete shapes, and the rewrites of weights that need no
 * shapes. Folding runs the reference kernels through the interpreter, so that a folded value and a
 * computed one cannot disagree. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/ops/ops.h"
#include "engine/passes/functions.h"
#include "engine/reference/interpret.h"

static bool all_inputs_known(const struct node *node)
{
    for (size_t i = 0; i < node->input_count; i++)
        if (node->inputs[i] && !node->inputs[i]->known)
            return false;
    return true;
}

/* Would folding blow memory up? A folded tensor may be as large as what it is made from, or small
 * (16 MiB); Expand and Tile of a scalar to a gigabyte stay nodes. */
static bool worth_folding(const struct node *node)
{
    size_t in = 0, out = 0;
    for (size_t i = 0; i < node->input_count; i++)
        if (node->inputs[i])
            in += node->inputs[i]->known->bytes;
    for (size_t i = 0; i < node->output_count; i++) {
        size_t bytes;
        const struct value *value = node->outputs[i];
        if (!value)
            continue;
        if (!shape_is_known(&value->shape))
            continue; /* data-dependent: bounded by its inputs */
        if (shape_check(&value->shape, value->dtype, NULL, &bytes, NULL) != STATUS_OK ||
            !size_add(out, bytes, &out))
            return false;
    }
    /* ConstantOfShape, which the zoo stores weights with, has a tiny input. */
    return out <= (16u << 20) || out / 4 <= in || node->op == OP_CONSTANT_OF_SHAPE;
}

static enum status fold_node(struct graph *graph, struct node *node, struct error *err)
{
    enum { MOST = 64 };
    struct tensor *outputs[MOST] = {NULL};
    if (node->output_count > MOST)
        return STATUS_OK;
    TRY(interpret_node(node, graph->budget, outputs, err));
    for (size_t i = 0; i < node->output_count; i++) {
        struct value *value = node->outputs[i];
        if (!value)
            continue;
        value->known = outputs[i]; /* the reference moves */
        value->dtype = outputs[i]->dtype;
        value->shape = outputs[i]->shape;
        value->producer = NULL;
        node->outputs[i] = NULL;
    }
    edit_kill(node);
    return STATUS_OK;
}

/* Shape and Size need only the shape of their input, not its contents. */
static bool fold_from_shape(const struct node *node)
{
    return (node->op == OP_SHAPE || node->op == OP_SIZE) && node->inputs[0] &&
           shape_is_known(&node->inputs[0]->shape);
}

static enum status fold_shape(struct graph *graph, struct node *node, struct error *err)
{
    struct value *input = node->inputs[0];
    struct tensor *stand_in = NULL;
    if (!input->known) {
        /* The kernel reads only the shape; memory without contents stands for the input. */
        TRY(tensor_wrap(input->dtype == DTYPE_NONE ? DTYPE_U8 : input->dtype, &input->shape,
                        DEVICE_HOST, NULL, NULL, NULL, &stand_in, err));
        input->known = stand_in;
    }
    enum status status = fold_node(graph, node, err);
    if (stand_in) {
        input->known = NULL;
        tensor_unref(stand_in);
    }
    return status;
}

/* Identity (also of an initialiser), inference-mode Dropout and, once dtypes are inferred, a Cast
 * to the dtype there is pass their input on. */
static bool is_identity(const struct node *node, bool inferred)
{
    if (node->op == OP_IDENTITY)
        return true;
    if (node->op == OP_CAST && inferred && node->inputs[0])
        return node->inputs[0]->dtype == (enum dtype)node_int(node, "to", 0);
    return node->op == OP_DROPOUT && !node_output(node, 1);
}

static bool is_graph_input(const struct graph *graph, const struct value *value)
{
    for (size_t i = 0; i < graph->input_count; i++)
        if (graph->inputs[i] == value)
            return true;
    return false;
}

static bool is_graph_output(const struct graph *graph, const struct value *value)
{
    for (size_t i = 0; i < graph->output_count; i++)
        if (graph->outputs[i] == value)
            return true;
    return false;
}

/* The mask of a Dropout that nobody reads is not computed. */
static void drop_unread_mask(const struct graph *graph, struct node *node)
{
    const struct value *mask = node->op == OP_DROPOUT ? node_output(node, 1) : NULL;
    if (!mask || is_graph_output(graph, mask))
        return;
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *reader = graph->nodes[n];
        for (size_t i = 0; i < reader->input_count; i++)
            if (reader->inputs[i] == mask)
                return;
        for (size_t i = 0; i < reader->capture_count; i++)
            if (reader->captures[i] == mask)
                return;
    }
    node->output_count = 1;
}

/* An output that would become an input or a constant keeps its Identity: somebody must copy. */
static void drop_identity(struct graph *graph, struct node *node)
{
    struct value *from = node->outputs[0], *to = node->inputs[0];
    if (!from || (is_graph_output(graph, from) && (to->known || is_graph_input(graph, to))))
        return;
    edit_replace(graph, from, to);
    edit_kill(node);
}

static bool may_fold(const struct node *node)
{
    const struct op_info *info = op_find(node->op, node->opset);
    bool body = false;
    for (size_t i = 0; i < node->attr_count; i++)
        body = body || node->attrs[i].kind == ATTR_GRAPH;
    return info && !(info->flags & OP_NO_FOLD) && !body;
}

static enum status fold_graph(struct graph *graph, bool infer, struct error *err)
{
    for (size_t n = 0; n < graph->node_count; n++) {
        struct node *node = graph->nodes[n];
        if (node->op == OP_NONE)
            continue;
        if (infer && function_is_expanded(node)) {
            TRY(function_expand(graph, n, err));
            node = graph->nodes[n];
        }
        drop_unread_mask(graph, node);
        if (is_identity(node, infer)) {
            drop_identity(graph, node);
            if (node->op == OP_NONE)
                continue;
        }
        bool known = all_inputs_known(node);
        if (infer || known)
            TRY(graph_infer_node(node, err));
        if (infer && fold_from_shape(node))
            TRY(fold_shape(graph, node, err));
        else if (known && may_fold(node) && worth_folding(node))
            TRY(fold_node(graph, node, err));
    }
    return edit_sweep(graph, err);
}

/* ---- float16 to float32 ---- */

static bool is_narrow(enum dtype dtype)
{
    return dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

/* Replaces *tensor by its float32 form. */
static enum status promote_tensor(struct graph *graph, struct tensor **tensor, struct error *err)
{
    struct tensor *wide, *half = *tensor;
    TRY(tensor_create(graph->budget, DTYPE_F32, &half->shape, &wide, err));
    const uint16_t *from = half->data;
    float *to = wide->data;
    bool is_half = half->dtype == DTYPE_F16;
    size_t count = shape_count(&half->shape);
    for (size_t i = 0; i < count; i++)
        to[i] = is_half ? half_to_float(from[i]) : bfloat16_to_float(from[i]);
    tensor_unref(half);
    *tensor = wide;
    return STATUS_OK;
}

/* ConstantOfShape whose shape is not known yet carries its dtype in an attribute. */
static enum status promote_attributes(struct graph *graph, struct node *node, struct error *err)
{
    bool any = false;
    for (size_t a = 0; a < node->attr_count; a++)
        any = any || (node->attrs[a].kind == ATTR_TENSOR && is_narrow(node->attrs[a].t->dtype));
    if (!any)
        return STATUS_OK;
    struct attr *attrs = arena_alloc(graph->arena, node->attr_count, sizeof *attrs);
    if (!attrs)
        return edit_no_memory(err);
    memcpy(attrs, node->attrs, node->attr_count * sizeof *attrs);
    node->attrs = attrs;
    for (size_t a = 0; a < node->attr_count; a++)
        if (attrs[a].kind == ATTR_TENSOR && is_narrow(attrs[a].t->dtype))
            TRY(promote_tensor(graph, &attrs[a].t, err));
    return STATUS_OK;
}

/* A CPU computes float16 in float32: widen every constant and every Cast, and keep the declared
 * dtypes of inputs and outputs with a Cast at the border. Graphs with bodies are left alone. */
static enum status promote_half(struct graph *graph, struct error *err)
{
    bool any = false;
    for (size_t v = 0; v < graph->value_count; v++)
        any = any || is_narrow(graph->values[v]->dtype);
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        if (node->capture_count)
            return STATUS_OK;
        for (size_t a = 0; a < node->attr_count; a++)
            if (node->attrs[a].kind == ATTR_GRAPH)
                return STATUS_OK;
        enum dtype to = (enum dtype)node_int(node, "to", 0);
        any = any || (node->op == OP_CAST && is_narrow(to));
        /* float16 enters quantisation through its scales: those kernels keep their dtypes. */
        if (node->op == OP_QUANTIZE_LINEAR || node->op == OP_DEQUANTIZE_LINEAR ||
            node->op == OP_CAST_LIKE)
            return STATUS_OK;
    }
    if (!any)
        return STATUS_OK;
    enum dtype *declared = arena_alloc(graph->arena, graph->output_count, sizeof *declared);
    if (!declared)
        return edit_no_memory(err);
    for (size_t i = 0; i < graph->output_count; i++)
        declared[i] = graph->outputs[i]->dtype;
    for (size_t v = 0; v < graph->value_count; v++) {
        struct value *value = graph->values[v];
        if (value->known && is_narrow(value->known->dtype)) {
            TRY(promote_tensor(graph, &value->known, err));
            value->dtype = DTYPE_F32;
        } else if (is_narrow(value->dtype) && !is_graph_input(graph, value)) {
            value->dtype = DTYPE_F32;
        }
    }
    for (size_t n = 0; n < graph->node_count; n++) {
        struct node *node = graph->nodes[n];
        bool narrows = node->op == OP_CAST && is_narrow((enum dtype)node_int(node, "to", 0));
        if (narrows && !node_set_int(graph, node, "to", DTYPE_F32))
            return edit_no_memory(err);
        TRY(promote_attributes(graph, node, err));
    }
    for (size_t i = 0; i < graph->input_count; i++) {
        struct value *input = graph->inputs[i];
        if (!is_narrow(input->dtype))
            continue;
        struct value *wide = graph_add_value(graph, "", DTYPE_F32, &input->shape);
        if (!wide)
            return edit_no_memory(err);
        edit_replace(graph, input, wide);
        struct node *cast = edit_insert_node(graph, 0, OP_CAST, "promote", 1, 1);
        if (!cast || !node_set_int(graph, cast, "to", DTYPE_F32))
            return edit_no_memory(err);
        cast->opset = 13;
        cast->inputs[0] = input;
        node_set_output(cast, 0, wide);
    }
    for (size_t i = 0; i < graph->output_count; i++) {
        if (!is_narrow(declared[i]))
            continue;
        graph->outputs[i] =
            edit_insert_cast(graph, graph->node_count, "promote", graph->outputs[i], declared[i]);
        if (!graph->outputs[i])
            return edit_no_memory(err);
    }
    return STATUS_OK;
}

/* ---- per-channel scale and shift into convolutions ---- */

/* Scales each output channel of a Conv's weights [M, …] by scale[m] and makes the bias
 * bias * scale + shift. New tensors: the old ones may be shared. */
static enum status scale_conv(struct graph *graph, struct node *conv, const float *scale,
                              const float *shift, struct error *err)
{
    const struct tensor *old = conv->inputs[1]->known;
    size_t channels = (size_t)old->shape.dims[0];
    size_t each = channels ? shape_count(&old->shape) / channels : 0;
    const struct value *old_bias = node_input(conv, 2);
    struct value *weights, *bias;
    struct shape bias_shape = SHAPE((int64_t)channels);
    TRY(edit_constant_f32(graph, "", &old->shape, old->data, &weights, err));
    TRY(edit_constant_f32(graph, "", &bias_shape, shift, &bias, err));
    float *w = weights->known->data, *b = bias->known->data;
    for (size_t m = 0; m < channels; m++) {
        for (size_t i = 0; i < each; i++)
            w[m * each + i] *= scale[m];
        if (old_bias)
            b[m] += ((const float *)old_bias->known->data)[m] * scale[m];
    }
    conv->inputs[1] = weights;
    if (conv->input_count < 3)
        return edit_append_input(graph, conv, bias) ? STATUS_OK : edit_no_memory(err);
    conv->inputs[2] = bias;
    return STATUS_OK;
}

static bool is_f32_vector(const struct value *value, int64_t count)
{
    return value && value->known && value->known->dtype == DTYPE_F32 &&
           shape_count(&value->known->shape) == (size_t)count;
}

/* Is it a per-channel constant for [N, C, spatial…]: C elements along axis 1 of `rank`, or one? */
static bool is_per_channel(const struct value *value, int64_t channels, int rank)
{
    if (!value || !value->known || value->known->dtype != DTYPE_F32)
        return false;
    const struct shape *shape = &value->known->shape;
    size_t count = shape_count(shape);
    if (count == 1)
        return shape->rank <= rank;
    if (count != (size_t)channels || shape->rank > rank || shape->rank < rank - 1)
        return false;
    return shape->dims[shape->rank - rank + 1] == channels;
}

static float per_channel(const struct value *value, size_t c)
{
    const float *data = value->known->data;
    return shape_count(&value->known->shape) == 1 ? data[0] : data[c];
}

/* What y = x * scale + shift a node applies per channel; false when it is no such node. */
static bool affine_of(const struct node *node, const struct value *x, int64_t channels, int rank,
                      float *scale, float *shift)
{
    size_t count = (size_t)channels;
    if (node->op == OP_BATCH_NORMALIZATION) {
        for (size_t i = 1; i <= 4; i++)
            if (!is_f32_vector(node_input(node, i), channels))
                return false;
        if (node->inputs[0] != x || node->output_count > 1 || node_int(node, "training_mode", 0))
            return false;
        const float *gamma = node->inputs[1]->known->data, *beta = node->inputs[2]->known->data;
        const float *mean = node->inputs[3]->known->data, *var = node->inputs[4]->known->data;
        double epsilon = node_float(node, "epsilon", 1e-5f);
        for (size_t c = 0; c < count; c++) {
            double s = gamma[c] / sqrt((double)var[c] + epsilon);
            scale[c] = (float)s;
            shift[c] = (float)(beta[c] - mean[c] * s);
        }
        return true;
    }
    if (node->op != OP_MUL && node->op != OP_ADD && node->op != OP_SUB && node->op != OP_DIV)
        return false;
    bool left = node->inputs[0] == x;
    const struct value *other = node->inputs[left ? 1 : 0];
    if (node->inputs[0] == node->inputs[1] || !is_per_channel(other, channels, rank) ||
        (!left && (node->op == OP_SUB || node->op == OP_DIV)) || node_attr(node, "broadcast"))
        return false;
    for (size_t c = 0; c < count; c++) {
        float v = per_channel(other, c);
        bool multiplies = node->op == OP_MUL || node->op == OP_DIV;
        scale[c] = node->op == OP_MUL ? v : node->op == OP_DIV ? 1 / v : 1;
        shift[c] = multiplies ? 0 : node->op == OP_ADD ? v : -v;
    }
    return true;
}

static bool foldable_conv(const struct node *conv)
{
    if (conv->op != OP_CONV)
        return false;
    const struct value *weights = conv->inputs[1], *bias = node_input(conv, 2);
    return weights && weights->known && weights->known->dtype == DTYPE_F32 &&
           weights->known->shape.rank >= 3 &&
           (!bias || is_f32_vector(bias, weights->known->shape.dims[0]));
}

/* Conv → BatchNormalization / Mul / Add by per-channel constants, as often as it repeats. */
static enum status fold_conv_affine(struct graph *graph, struct error *err)
{
    struct edit edit;
    enum status status = edit_init(&edit, graph, err);
    for (size_t n = 0; n < graph->node_count && status == STATUS_OK; n++) {
        struct node *conv = graph->nodes[n];
        while (foldable_conv(conv)) {
            const struct shape *shape = &conv->inputs[1]->known->shape;
            struct node *next = edit_only_reader(&edit, conv->outputs[0]);
            if (!next)
                break;
            size_t channels = (size_t)shape->dims[0];
            float *factors = alloc_array(channels, 2 * sizeof *factors);
            if (!factors) {
                status = edit_no_memory(err);
                break;
            }
            bool folds = affine_of(next, conv->outputs[0], shape->dims[0], shape->rank, factors,
                                   factors + channels);
            if (folds)
                status = scale_conv(graph, conv, factors, factors + channels, err);
            free(factors);
            if (!folds || status != STATUS_OK)
                break;
            struct value *output = next->outputs[0];
            next->outputs[0] = NULL;
            edit_kill(next);
            node_set_output(conv, 0, output);
            status = edit_count_readers(&edit, err);
        }
    }
    edit_done(&edit);
    return status == STATUS_OK ? edit_sweep(graph, err) : status;
}

enum status optimize_weights(struct graph *graph, struct error *err)
{
    TRY(graph_sort(graph, err));
    TRY(fold_graph(graph, false, err));
    TRY(promote_half(graph, err));
    return fold_conv_affine(graph, err);
}

enum status optimize_specialise(struct graph *graph, const struct shape *shapes, struct error *err)
{
    for (size_t i = 0; i < graph->input_count; i++)
        graph->inputs[i]->shape = shapes[i];
    return fold_graph(graph, true, err);
}
