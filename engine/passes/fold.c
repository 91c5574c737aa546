/* Constant folding, specialisation for concrete shapes, and rewrites of weights that need no
 * shapes. Folding runs the reference kernels through the interpreter, so that folded and computed
 * values cannot differ. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/convert.h"
#include "engine/op/geometry.h"
#include "engine/op/interpret.h"
#include "engine/op/ops.h"
#include "engine/op/recurrent.h"
#include "engine/passes/functions.h"
#include "engine/passes/passes.h"

static bool all_inputs_known(const struct node *node)
{
    for (size_t i = 0; i < node->input_count; i++)
        if (node->inputs[i] && !node->inputs[i]->known)
            return false;
    return true;
}

/* Limit for the work of folding one node (node_work()), so that a load stays fast. Nodes with more
 * work run in each inference. */
#define FOLDED_WORK 1e10

/* True if folding is cheap: at most FOLDED_WORK, and results of at most 16 MiB or four times the
 * inputs. Expand and Tile of a scalar to a gigabyte stay nodes. */
static bool worth_folding(const struct node *node)
{
    size_t in = 0, out = 0;
    if (node_work(node) > FOLDED_WORK)
        return false;
    for (size_t i = 0; i < node->input_count; i++)
        if (node->inputs[i])
            in += node->inputs[i]->known->bytes;
    for (size_t i = 0; i < node->output_count; i++) {
        size_t bytes;
        const struct value *value = node->outputs[i];
        if (!value)
            continue;
        if (!shape_is_known(&value->shape))
            continue; /* the size depends on data, and the inputs bound it */
        if (shape_check(&value->shape, value->dtype, NULL, &bytes, NULL) != STATUS_OK ||
            !size_add(out, bytes, &out))
            return false;
    }
    /* ConstantOfShape has a tiny input, but makes weights in models of ONNX's zoo. */
    return out <= (16u << 20) || out / 4 <= in || node->op == OP_CONSTANT_OF_SHAPE;
}

bool fold_needs_shape_only(const struct node *node)
{
    return op_has(node->op, OP_SHAPE_ONLY) && node->inputs[0] &&
           shape_is_known(&node->inputs[0]->shape);
}

static enum status run_node(struct node *node, struct memory_budget *budget,
                            struct tensor **outputs, struct error *err)
{
    struct value *input = node_input(node, 0);
    struct tensor *stand_in = NULL;
    if (fold_needs_shape_only(node) && !input->known) {
        /* The kernel reads only the shape, so it gets memory without contents. */
        TRY(tensor_wrap(input->dtype == DTYPE_NONE ? DTYPE_U8 : input->dtype, &input->shape, NULL,
                        NULL, NULL, &stand_in, err));
        input->known = stand_in;
    }
    enum status status = interpret_node(node, budget, outputs, err);
    if (stand_in) {
        input->known = NULL;
        tensor_unref(stand_in);
    }
    return status;
}

enum status fold_node(struct node *node, struct memory_budget *budget, struct error *err)
{
    enum { MOST = 64 };
    struct tensor *outputs[MOST] = {NULL};
    if (node->output_count > MOST)
        return STATUS_OK;
    TRY(run_node(node, budget, outputs, err));
    for (size_t i = 0; i < node->output_count; i++) {
        struct value *value = node->outputs[i];
        if (!value)
            continue;
        value->known = outputs[i]; /* takes over the reference */
        value->dtype = outputs[i]->dtype;
        value->shape = outputs[i]->shape;
        value->producer = NULL;
        node->outputs[i] = NULL;
    }
    node->op = OP_NONE;
    return STATUS_OK;
}

/* True for nodes that pass their input on: Identity (also of an initialiser), Dropout, a
 * Concat of one value and, once dtypes are inferred, a Cast or CastLike to the same dtype. */
static bool is_identity(const struct node *node, bool inferred)
{
    if (node->op == OP_IDENTITY || (node->op == OP_CONCAT && node->input_count == 1))
        return true;
    if (node->op == OP_CAST && inferred && node->inputs[0])
        return node->inputs[0]->dtype == op_cast_target(node);
    if (node->op == OP_CAST_LIKE && inferred && node->inputs[0] && node->inputs[1])
        return node->inputs[0]->dtype != DTYPE_NONE &&
               node->inputs[0]->dtype == node->inputs[1]->dtype;
    return node->op == OP_DROPOUT;
}

/* Removes a node that passes `to` on. Keeps the node if a graph output would otherwise be an input
 * or a constant, because such an output must be a copy. */
static void drop_identity(struct graph *graph, struct node *node, struct value *to)
{
    struct value *from = node->outputs[0];
    if (!from || (edit_is_output(graph, from) && !to->producer))
        return;
    edit_replace(graph, from, to);
    node->op = OP_NONE;
}

/* Removes a Where that selects all of one operand, because its condition is constant and everywhere
 * the same. */
static void fold_where(struct graph *graph, struct node *node)
{
    const struct value *condition = node->op == OP_WHERE ? node->inputs[0] : NULL;
    if (!condition || !condition->known || !shape_count(&condition->shape))
        return;
    const bool *selects = condition->known->data;
    for (size_t i = 1; i < shape_count(&condition->shape); i++)
        if (selects[i] != selects[0])
            return;
    struct value *to = node->inputs[selects[0] ? 1 : 2];
    if (shape_is_known(&to->shape) && shape_equal(&to->shape, &node->outputs[0]->shape))
        drop_identity(graph, node, to);
}

static bool may_fold(const struct node *node)
{
    return !op_has(node->op, OP_NO_FOLD) && !edit_has_body(node);
}

/* Replaces Flatten → Softmax → Reshape back, the importer's form of a Softmax before opset 13, by
 * one Softmax if at most one of the dimensions that the Flatten joins at the end is not 1. Does the
 * same for other operators with batch_beside_last and no attribute but `axis`. */
static void fold_flat_softmax(struct edit *edit, struct node *back)
{
    struct node *softmax = back->op == OP_RESHAPE ? back->inputs[0]->producer : NULL;
    const bool is_softmax = softmax && op_record(softmax->op)->batch == &batch_beside_last &&
                            softmax->input_count == 1 && softmax->output_count == 1 &&
                            softmax->attr_count == (size_t)(node_attr(softmax, "axis") != NULL);
    const struct node *flat = is_softmax ? softmax->inputs[0]->producer : NULL;
    struct value *x = flat && flat->op == OP_FLATTEN ? flat->inputs[0] : NULL;
    if (!x || node_int(softmax, "axis", -1) != -1 || !shape_is_known(&x->shape) ||
        x->shape.rank < 1 || !shape_equal(&x->shape, &back->outputs[0]->shape))
        return;
    int64_t first = node_int(flat, "axis", 1), axis = x->shape.rank - 1;
    int count = 0;
    for (int64_t d = first < 0 ? first + x->shape.rank : first; d < x->shape.rank; d++)
        if (x->shape.dims[d] != 1) {
            axis = d;
            count++;
        }
    if (count <= 1 && edit_become(edit, back, softmax->op, softmax->opset, &x, 1) &&
        !node_set_int(edit->graph, back, "axis", axis))
        edit_no_memory(edit);
}

static enum status fold_graph(struct edit *edit, bool infer)
{
    struct graph *graph = edit->graph;
    struct error *err = edit->err;
    for (size_t n = 0; n < graph->node_count; n++) {
        struct node *node = graph->nodes[n];
        if (node->op == OP_NONE)
            continue;
        if (infer && composite_is_expanded(node)) {
            TRY(composite_expand(edit, n));
            node = graph->nodes[n];
        } else if (infer && masked_fill_as_where(edit, n)) {
            node = graph->nodes[n];
        }
        if (is_identity(node, infer)) {
            drop_identity(graph, node, node->inputs[0]);
            if (node->op == OP_NONE)
                continue;
            if (node->op == OP_DROPOUT) /* Dropout's other inputs do not matter */
                node->input_count = 1;
        }
        bool known = all_inputs_known(node);
        if (infer || known)
            TRY(graph_infer_node(node, err));
        if (infer)
            fold_flat_softmax(edit, node);
        if (infer && !known)
            fold_where(graph, node);
        if ((infer && fold_needs_shape_only(node)) ||
            (known && may_fold(node) && worth_folding(node)))
            TRY(fold_node(node, graph->budget, err));
    }
    edit_sweep(edit);
    return edit->status;
}

/* ---- float16 to float32 ---- */

static bool is_narrow(enum dtype dtype)
{
    return dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

/* Replaces *tensor by its float32 form. */
static enum status promote_tensor(struct edit *edit, struct tensor **tensor)
{
    struct tensor *wide, *half = *tensor;
    TRY(tensor_create(edit->graph->budget, DTYPE_F32, &half->shape, &wide, edit->err));
    load_floats(half->data, half->dtype, wide->data, shape_count(&half->shape));
    tensor_unref(half);
    *tensor = wide;
    return STATUS_OK;
}

/* Promotes tensors in attributes. For example, the dtype of a ConstantOfShape's tensor is the dtype
 * of its result, whose shape may not be known yet. */
static enum status promote_attributes(struct edit *edit, struct node *node)
{
    for (size_t a = 0; a < node->attr_count; a++) {
        if (node->attrs[a].kind != ATTR_TENSOR || !is_narrow(node->attrs[a].t->dtype))
            continue;
        struct attr *attrs =
            arena_copy(edit->graph->arena, node->attrs, node->attr_count, sizeof *attrs);
        TRY(check_memory(attrs, "while optimising the graph", edit->err));
        node->attrs = attrs;
        TRY(promote_tensor(edit, &attrs[a].t));
    }
    return STATUS_OK;
}

/* True if a QuantizeLinear or DequantizeLinear computes in float32, so that its results do not
 * change if 16-bit floats become float32. */
static bool quantizes_f32(const struct node *node)
{
    const struct value *scale = node_input(node, 1);
    return scale && scale->known && scale->known->dtype == DTYPE_F32 &&
           !is_narrow((enum dtype)node_int(node, "output_dtype", DTYPE_NONE)) &&
           !is_narrow((enum dtype)node_int(node, "precision", DTYPE_NONE));
}

/* True if the graph has 16-bit floats and all may be widened. False for graphs with bodies or
 * 16-bit scales of a quantization, whose results depend on these dtypes. */
static bool is_promoted(const struct graph *graph)
{
    bool any = false;
    for (size_t v = 0; v < graph->value_count; v++)
        any = any || is_narrow(graph->values[v]->dtype);
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        const bool quantizes = node->op == OP_QUANTIZE_LINEAR || node->op == OP_DEQUANTIZE_LINEAR;
        if (node->capture_count || edit_has_body(node) || (quantizes && !quantizes_f32(node)))
            return false;
        any = any || (node->op == OP_CAST && is_narrow(op_cast_target(node)));
    }
    return any;
}

/* Widens every 16-bit constant and Cast, because every backend starts from float32; pass_narrow()
 * narrows again for 16-bit precisions. Casts keep the declared dtypes of inputs and outputs. A
 * CastLike follows its target. */
static enum status promote_half(struct edit *edit)
{
    struct graph *graph = edit->graph;
    if (!is_promoted(graph))
        return STATUS_OK;
    const size_t values = graph->value_count;
    for (size_t n = 0; n < graph->node_count; n++) {
        struct node *node = graph->nodes[n];
        bool narrows = node->op == OP_CAST && is_narrow(op_cast_target(node));
        if (narrows && !node_set_int(graph, node, "to", DTYPE_F32))
            edit_no_memory(edit);
        TRY(promote_attributes(edit, node));
    }
    for (size_t i = 0; i < graph->output_count && edit->status == STATUS_OK; i++)
        if (is_narrow(graph->outputs[i]->dtype))
            graph->outputs[i] = edit_insert_cast(edit, graph->node_count, "promote",
                                                 graph->outputs[i], graph->outputs[i]->dtype);
    for (size_t i = 0; i < graph->input_count && edit->status == STATUS_OK; i++) {
        struct value *input = graph->inputs[i];
        if (!is_narrow(input->dtype))
            continue;
        struct value *wide = edit_insert_cast(edit, 0, "promote", input, DTYPE_F32);
        if (!wide)
            break;
        edit_replace(graph, input, wide);
        wide->producer->inputs[0] = input;
    }
    for (size_t v = 0; v < values && edit->status == STATUS_OK; v++) {
        struct value *value = graph->values[v];
        if (value->known && is_narrow(value->known->dtype)) {
            TRY(promote_tensor(edit, &value->known));
            value->dtype = DTYPE_F32;
        } else if (is_narrow(value->dtype) && value->producer) {
            value->dtype = DTYPE_F32;
        }
    }
    return edit->status;
}

/* ---- per-channel scale and shift into convolutions ---- */

/* Scales each output channel of a Conv's weights [M, …] by scale[m] and sets the bias to bias *
 * scale + shift. Makes new tensors, because the old ones may be shared. */
static bool scale_conv(struct edit *edit, struct node *conv, const float *scale, const float *shift)
{
    const struct tensor *old = conv->inputs[1]->known;
    size_t channels = (size_t)old->shape.dims[0];
    size_t each = channels ? shape_count(&old->shape) / channels : 0;
    const struct value *old_bias = node_input(conv, 2);
    struct value *weights = edit_constant(edit, DTYPE_F32, &old->shape, old->data);
    struct value *bias = edit_constant(edit, DTYPE_F32, &SHAPE((int64_t)channels), shift);
    if (!weights || !bias)
        return false;
    float *w = weights->known->data, *b = bias->known->data;
    for (size_t m = 0; m < channels; m++) {
        for (size_t i = 0; i < each; i++)
            w[m * each + i] *= scale[m];
        if (old_bias)
            b[m] += ((const float *)old_bias->known->data)[m] * scale[m];
    }
    conv->inputs[1] = weights;
    if (conv->input_count < 3)
        return edit_append_input(edit, conv, bias);
    conv->inputs[2] = bias;
    return true;
}

/* True for a float32 constant that broadcasts over [N, C, spatial…] of rank `rank`, with one number
 * per channel or a single number. */
static bool is_per_channel(const struct value *value, int64_t channels, int rank)
{
    if (!is_f32_constant(value))
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

bool fold_is_affine_norm(const struct node *node, int64_t channels)
{
    bool is = node->op == OP_BATCH_NORMALIZATION && node->output_count == 1 &&
              !node_int(node, "training_mode", 0);
    for (size_t i = 1; is && i <= 4; i++)
        is = is_f32_vector(node_input(node, i), channels);
    return is;
}

void fold_affine_norm(const struct node *node, float *scale, float *shift)
{
    const float *gamma = node->inputs[1]->known->data, *beta = node->inputs[2]->known->data;
    const float *mean = node->inputs[3]->known->data, *variance = node->inputs[4]->known->data;
    const size_t channels = shape_count(&node->inputs[1]->known->shape);
    const double epsilon = node_float(node, "epsilon", 1e-5f);
    for (size_t c = 0; c < channels; c++) {
        const double factor = gamma[c] / sqrt((double)variance[c] + epsilon);
        scale[c] = (float)factor;
        shift[c] = (float)(beta[c] - mean[c] * factor);
    }
}

/* Reads the y = x * scale + shift that a node applies per channel. Returns false for other
 * nodes. */
static bool affine_of(const struct node *node, const struct value *x, int64_t channels, int rank,
                      float *scale, float *shift)
{
    size_t count = (size_t)channels;
    if (node->inputs[0] == x && fold_is_affine_norm(node, channels)) {
        fold_affine_norm(node, scale, shift);
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
    return is_f32_constant(weights) && weights->known->shape.rank >= 3 &&
           (!bias || is_f32_vector(bias, weights->known->shape.dims[0]));
}

/* Folds a BatchNormalization, Mul, Div, Add or Sub with per-channel constants into the Conv before
 * it. */
static bool fold_conv_affine(struct edit *edit, size_t *n)
{
    struct node *conv = edit->graph->nodes[*n];
    struct node *next = foldable_conv(conv) ? edit_only_reader(edit, conv->outputs[0]) : NULL;
    if (!next)
        return false;
    const struct shape *shape = &conv->inputs[1]->known->shape;
    size_t channels = (size_t)shape->dims[0];
    float *factors = alloc_array(channels, 2 * sizeof *factors);
    if (!factors)
        return edit_no_memory(edit);
    bool folds = affine_of(next, conv->outputs[0], shape->dims[0], shape->rank, factors,
                           factors + channels) &&
                 scale_conv(edit, conv, factors, factors + channels);
    free(factors);
    if (!folds)
        return false;
    edit_take_over(conv, next);
    --*n; /* visit the same node again, in case the pattern repeats */
    return true;
}

/* Turns a MatMulNBits with constant weights into a MatMul with dequantized weights. */
static bool widen_nbits(struct edit *edit, size_t *n)
{
    struct node *node = edit->graph->nodes[*n];
    struct nbits_shape shape;
    if (node->op != OP_MATMUL_NBITS || is_narrow(node->inputs[0]->dtype))
        return false;
    for (size_t i = 1; i < node->input_count; i++)
        if (node->inputs[i] && !node->inputs[i]->known)
            return false;
    if (nbits_shape_init(node, &shape, NULL) != STATUS_OK)
        return false;
    const struct value *zeros = node_input(node, 3);
    struct value *bias = node_input(node, 5);
    struct value *weights =
        edit_constant(edit, DTYPE_F32, &SHAPE((int64_t)shape.k, (int64_t)shape.n), NULL);
    if (!weights)
        return false;
    nbits_widen(&shape, node->inputs[1]->known, node->inputs[2]->known, zeros ? zeros->known : NULL,
                weights->known->data);
    struct value *operands[2] = {node->inputs[0], weights};
    if (!bias)
        return edit_become(edit, node, OP_MATMUL, 13, operands, 2);
    struct value *product =
        edit_insert_value(edit, (*n)++, OP_MATMUL, 13, node->name, operands, 2, DTYPE_F32, NULL);
    return product &&
           edit_become(edit, node, OP_ADD, 14, (struct value *const[]){product, bias}, 2);
}

static bool split_recurrent(struct edit *edit, size_t *n)
{
    struct node *node = edit->graph->nodes[*n];
    const struct value *w = node_input(node, RECURRENT_W);
    struct recurrent r;
    if ((node->op != OP_LSTM && node->op != OP_GRU && node->op != OP_RNN) || !is_f32_constant(w) ||
        !is_f32_constant(node_input(node, RECURRENT_R)) || w->shape.rank != 3)
        return false;
    const struct shape x = SHAPE(1, 1, w->shape.dims[2]);
    if (recurrent_init(node, &x, &w->shape, &node->inputs[RECURRENT_R]->shape, &r, NULL) !=
        STATUS_OK)
        return false;
    const size_t rows = r.directions * r.width;
    struct value *columns =
        edit_constant(edit, DTYPE_F32, &SHAPE((int64_t)r.inputs, (int64_t)rows), NULL);
    if (!columns || !node_set_int(edit->graph, node, "cell", (int64_t)r.cell))
        return edit_no_memory(edit);
    const float *from = w->known->data;
    float *to = columns->known->data;
    for (size_t row = 0; row < rows; row++)
        for (size_t k = 0; k < r.inputs; k++)
            to[k * rows + row] = from[row * r.inputs + k];
    struct value *const operands[2] = {node->inputs[RECURRENT_X], columns};
    struct value *product =
        edit_insert_value(edit, (*n)++, OP_MATMUL, 13, node->name, operands, 2, DTYPE_F32, NULL);
    if (!product)
        return false;
    node->op = OP_RECURRENCE;
    node->opset = 1;
    node->inputs[RECURRENT_X] = product;
    node->inputs[RECURRENT_W] = NULL;
    return true;
}

enum status optimize_weights(struct graph *graph, struct error *err)
{
    struct edit edit = {.graph = graph, .err = err};
    TRY(graph_sort(graph, err));
    TRY(fold_graph(&edit, false));
    TRY(promote_half(&edit));
    edit_nodes(&edit, widen_nbits);
    edit_nodes(&edit, fold_conv_affine);
    return edit_end(&edit);
}

enum status optimize_recurrent(struct graph *graph, struct error *err)
{
    struct edit edit = {.graph = graph, .err = err};
    edit_nodes(&edit, split_recurrent);
    return edit_end(&edit);
}

enum status optimize_specialise(struct graph *graph, struct error *err)
{
    struct edit edit = {.graph = graph, .err = err};
    return fold_graph(&edit, true);
}
