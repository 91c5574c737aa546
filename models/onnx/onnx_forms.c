/* Rewrites older forms of operators, and com.microsoft's fused operators, as nodes of today's
 * operators.
 *
 * Sources: ONNX's Changelog.md, ONNX Runtime's ContribOperators.md. Shapes are not known yet. If a
 * rewrite depends on a rank that the file does not declare, the rewrite adds shape arithmetic,
 * which is folded once the shapes are known. */
#include "models/onnx/onnx_forms.h"

#include <string.h>

#include "engine/base/size.h"
#include "engine/op/families.h"
#include "engine/passes/edit.h"

struct onnx_rewrite {
    struct edit edit;
    struct node *node;
    struct value *result; /* the node's output in the file; after follow() it is the output of an
                             added node */
};

/* ---- building blocks: after a failure they do nothing and return NULL ---- */

static void fail(struct onnx_rewrite *r, enum status status)
{
    if (r->edit.status == STATUS_OK)
        r->edit.status = status;
}

#define FAIL(r, ...) fail(r, error_set((r)->edit.err, __VA_ARGS__))

static struct value *form_ints(struct onnx_rewrite *r, size_t count, const int64_t *data)
{
    return edit_constant(&r->edit, DTYPE_I64, &SHAPE((int64_t)count), data);
}

static struct value *form_int(struct onnx_rewrite *r, int64_t number)
{
    return form_ints(r, 1, &number);
}

static struct value *form_float(struct onnx_rewrite *r, float number)
{
    return edit_constant(&r->edit, DTYPE_F32, &SHAPE_SCALAR, &number);
}

static void set_input(struct onnx_rewrite *r, size_t at, struct value *value)
{
    while (r->node->input_count <= at)
        if (!edit_append_input(&r->edit, r->node, NULL))
            return;
    r->node->inputs[at] = value;
}

static struct node *form_node(struct onnx_rewrite *r, enum op op, size_t count,
                              struct value *const *inputs)
{
    const int since = op_record(op)->since;
    return edit_insert_node(&r->edit, r->edit.graph->node_count, op,
                            r->node->opset > since ? r->node->opset : since, r->node->name, inputs,
                            count);
}

/* Adds a node with these inputs, and returns its new value. */
static struct value *form_value(struct onnx_rewrite *r, enum op op, size_t count,
                                struct value *const *inputs)
{
    struct node *node = form_node(r, op, count, inputs);
    struct value *value = node ? graph_add_value(r->edit.graph, "", DTYPE_NONE, NULL) : NULL;
    if (value)
        node_set_output(node, 0, value);
    else
        (void)edit_no_memory(&r->edit);
    return value;
}

/* Adds a node with the inputs a and b (NULL: only a), and returns its new value. */
static struct value *apply(struct onnx_rewrite *r, enum op op, struct value *a, struct value *b)
{
    return form_value(r, op, b ? 2 : 1, (struct value *[]){a, b});
}

/* Returns `number` in x's type, even if x's type is not known before inference. */
static struct value *form_number_like(struct onnx_rewrite *r, float number, struct value *x)
{
    struct value *value = form_float(r, number);
    return x->dtype == DTYPE_F32 ? value : apply(r, OP_CAST_LIKE, value, x);
}

/* Appends a node whose inputs are the result so far and b (NULL: only the result), and whose output
 * is the new result. */
static struct node *follow(struct onnx_rewrite *r, enum op op, struct value *b)
{
    if (!r->result || r->edit.status != STATUS_OK)
        return NULL;
    struct node *from = r->result->producer;
    struct value *between = graph_add_value(r->edit.graph, "", DTYPE_NONE, NULL);
    struct node *node =
        between ? form_node(r, op, b ? 2 : 1, (struct value *[]){between, b}) : NULL;
    if (!node) {
        (void)edit_no_memory(&r->edit);
        return NULL;
    }
    node_set_output(from, 0, between);
    node_set_output(node, 0, r->result);
    return node;
}

static void drop(struct onnx_rewrite *r, const char *name)
{
    struct node *node = r->node;
    struct attr *attrs = arena_alloc(r->edit.graph->arena, node->attr_count, sizeof *attrs);
    size_t kept = 0;
    for (size_t a = 0; attrs && a < node->attr_count; a++)
        if (strcmp(node->attrs[a].name, name) != 0)
            attrs[kept++] = node->attrs[a];
    if (!attrs)
        (void)edit_no_memory(&r->edit);
    node->attrs = attrs;
    node->attr_count = kept;
}

static void set_int(struct onnx_rewrite *r, struct node *node, const char *name, int64_t value)
{
    if (node && !node_set_int(r->edit.graph, node, name, value))
        (void)edit_no_memory(&r->edit);
}

static struct value *form_cast(struct onnx_rewrite *r, struct value *x, enum dtype dtype)
{
    struct value *value = apply(r, OP_CAST, x, NULL);
    if (value)
        set_int(r, value->producer, "to", dtype);
    return value;
}

static struct value *form_transpose(struct onnx_rewrite *r, struct value *x, const int64_t *perm,
                                    int rank)
{
    struct value *value = apply(r, OP_TRANSPOSE, x, NULL);
    if (value && !node_set_ints(r->edit.graph, value->producer, "perm", perm, (size_t)rank))
        (void)edit_no_memory(&r->edit);
    return value;
}

static void set_float(struct onnx_rewrite *r, struct node *node, const char *name, float value)
{
    if (node && !node_set_float(r->edit.graph, node, name, value))
        (void)edit_no_memory(&r->edit);
}

static void set_string(struct onnx_rewrite *r, struct node *node, const char *name,
                       const char *text)
{
    if (node && !node_set_string(r->edit.graph, node, name, text))
        (void)edit_no_memory(&r->edit);
}

/* ---- attributes that became operands ---- */

/* Moves the attribute, a list or a number, to operand `at`. Returns false if there is none. */
static bool to_operand(struct onnx_rewrite *r, const char *name, size_t at)
{
    const struct attr *attr = node_attr(r->node, name);
    if (!attr)
        return false;
    const struct shape list = SHAPE((int64_t)attr->count);
    struct value *value = attr->kind == ATTR_INTS ? form_ints(r, attr->count, attr->ints)
                          : attr->kind == ATTR_FLOATS
                              ? edit_constant(&r->edit, DTYPE_F32, &list, attr->floats)
                          : attr->kind == ATTR_FLOAT ? form_float(r, attr->f)
                                                     : form_int(r, attr->i);
    set_input(r, at, value);
    drop(r, name);
    return true;
}

static void needs_operand(struct onnx_rewrite *r, const char *name, size_t at)
{
    if (!to_operand(r, name, at))
        FAIL(r, STATUS_MODEL, "attribute '%s' is missing", name);
}

static void axes_operand(struct onnx_rewrite *r)
{
    to_operand(r, "axes", 1);
}

static void needs_axes(struct onnx_rewrite *r)
{
    needs_operand(r, "axes", 1);
}

static void shape_operand(struct onnx_rewrite *r)
{
    if (!to_operand(r, "shape", 1))
        set_input(r, 1, form_ints(r, 0, NULL));
}

static void k_operand(struct onnx_rewrite *r)
{
    needs_operand(r, "k", 1);
}

static void split_operand(struct onnx_rewrite *r)
{
    if (!to_operand(r, "split", 1) && !node_input(r->node, 1))
        set_int(r, r->node, "num_outputs", (int64_t)r->node->output_count);
}

static void clip_operands(struct onnx_rewrite *r)
{
    to_operand(r, "min", 1);
    to_operand(r, "max", 2);
}

static void slice_operands(struct onnx_rewrite *r)
{
    needs_operand(r, "starts", 1);
    needs_operand(r, "ends", 2);
    to_operand(r, "axes", 3);
}

static void pad_operands(struct onnx_rewrite *r)
{
    if (!to_operand(r, "paddings", 1)) /* opset 1 */
        needs_operand(r, "pads", 1);
    const float value = node_float(r->node, "value", 0);
    if (value != 0)
        set_input(r, 2, form_number_like(r, value, r->node->inputs[0]));
    drop(r, "value");
}

/* ---- broadcasting before opset 7 ---- */

static struct value *shape_of(struct onnx_rewrite *r, struct value *x)
{
    return apply(r, OP_SHAPE, x, NULL);
}

/* Returns the rank of x as a tensor of one number. It is a constant if the file declares x's
 * shape. */
static struct value *rank_of(struct onnx_rewrite *r, struct value *x)
{
    return x->shape.rank >= 0 ? form_int(r, x->shape.rank) : shape_of(r, shape_of(r, x));
}

static struct value *join(struct onnx_rewrite *r, struct value *a, struct value *b)
{
    struct value *joined = apply(r, OP_CONCAT, a, b);
    if (joined)
        set_int(r, joined->producer, "axis", 0);
    return joined;
}

/* Returns a list that repeats `number`; `count`, a tensor of one number, is its length. */
static struct value *int64_fill(struct onnx_rewrite *r, struct value *count, int64_t number)
{
    return apply(r, OP_EXPAND, form_int(r, number), count);
}

/* Appends dimensions of 1 to b's shape, so that numpy's broadcasting aligns b's first dimension
 * with dimension `axis` of a. */
static struct value *placed(struct onnx_rewrite *r, struct value *a, struct value *b, int64_t axis)
{
    struct value *from = form_int(r, axis);
    if (axis < 0)
        from = apply(r, OP_ADD, from, rank_of(r, a));
    struct value *missing = apply(r, OP_SUB, rank_of(r, a), apply(r, OP_ADD, from, rank_of(r, b)));
    return apply(r, OP_RESHAPE, b, join(r, shape_of(r, b), int64_fill(r, missing, 1)));
}

static void broadcast_as_numpy(struct onnx_rewrite *r)
{
    struct node *node = r->node;
    const int64_t axis = node_int(node, "axis", 0);
    if (node_int(node, "broadcast", 0) != 0 && node_attr(node, "axis"))
        set_input(r, 1, placed(r, node->inputs[0], node->inputs[1], axis));
    drop(r, "axis");
    drop(r, "broadcast");
}

/* A slope that is a vector has one number per channel. */
static void slope_of_channels(struct onnx_rewrite *r)
{
    struct value *x = r->node->inputs[0], *slope = r->node->inputs[1];
    if (slope->shape.rank == 1 && slope->shape.dims[0] != 1 && x->shape.rank != 1)
        set_input(r, 1, placed(r, x, slope, 1));
}

/* ---- other old forms ---- */

/* Makes the operator work on one dimension, to which all dimensions from the axis on are
 * flattened. */
static void flatten_from(struct onnx_rewrite *r, int64_t axis)
{
    struct node *node = r->node;
    struct value *x = node->inputs[0];
    drop(r, "axis");
    set_int(r, node, "axis", -1);
    if (axis == -1 || (x->shape.rank > 0 && axis == x->shape.rank - 1))
        return;
    struct value *flat = apply(r, OP_FLATTEN, x, NULL);
    if (flat)
        set_int(r, flat->producer, "axis", axis);
    set_input(r, 0, flat);
    follow(r, OP_RESHAPE, shape_of(r, x));
}

static void softmax_of_one_axis(struct onnx_rewrite *r)
{
    flatten_from(r, node_int(r->node, "axis", 1));
}

/* Repeats scale and bias of each group for its channels. */
static void group_norm_of_channels(struct onnx_rewrite *r)
{
    const int64_t column[2] = {node_int(r->node, "num_groups", 0), 1};
    for (size_t i = 1; i < 3 && column[0] > 0; i++) {
        struct value *channels = shape_of(r, r->node->inputs[0]);
        if (!channels)
            return;
        set_int(r, channels->producer, "start", 1);
        set_int(r, channels->producer, "end", 2);
        struct value *of_group = apply(r, OP_DIV, channels, form_int(r, column[0]));
        struct value *shape = join(r, form_int(r, column[0]), of_group);
        struct value *each = apply(r, OP_RESHAPE, r->node->inputs[i], form_ints(r, 2, column));
        set_input(r, i, apply(r, OP_RESHAPE, apply(r, OP_EXPAND, each, shape), form_int(r, -1)));
    }
}

/* With spatial = 0 each position of [C, D1, D2 …] has its own statistics: (x - mean) / sqrt(var +
 * epsilon) * scale + B. The node becomes the Mul. */
static void batch_norm_of_positions(struct onnx_rewrite *r)
{
    struct node *node = r->node;
    const bool is_spatial = node_int(node, "spatial", 1) != 0;
    const float epsilon = node_float(node, "epsilon", 1e-5f);
    bool training = node->opset < 7 && node_int(node, "is_test", 0) == 0;
    for (size_t i = 1; i < node->output_count; i++)
        training = training || node->outputs[i];
    drop(r, "spatial");
    drop(r, "is_test");
    if (training) {
        FAIL(r, STATUS_UNSUPPORTED,
             "this is the training form (batch statistics); lensd runs the inference form");
        (void)error_advise(r->edit.err, "export the model in eval mode");
        return;
    }
    if (is_spatial)
        return;
    struct value *bias = node->inputs[2], *variance = node->inputs[4];
    struct value *added = form_number_like(r, epsilon, variance);
    struct value *deviation = apply(r, OP_SQRT, apply(r, OP_ADD, variance, added), NULL);
    struct value *centered = apply(r, OP_SUB, node->inputs[0], node->inputs[3]);
    node->op = OP_MUL;
    node->attr_count = 0;
    node->output_count = 1;
    node->inputs[0] = apply(r, OP_DIV, centered, deviation);
    node->input_count = 2;
    follow(r, OP_ADD, bias);
}

/* Before opset 6 `to` names a TensorProto.DataType; enum dtype has the same numbers. */
static void cast_by_number(struct onnx_rewrite *r)
{
    static const char *const names[] = {
        [DTYPE_F32] = "FLOAT",  [DTYPE_U8] = "UINT8",   [DTYPE_I8] = "INT8",
        [DTYPE_U16] = "UINT16", [DTYPE_I16] = "INT16",  [DTYPE_I32] = "INT32",
        [DTYPE_I64] = "INT64",  [DTYPE_BOOL] = "BOOL",  [DTYPE_F16] = "FLOAT16",
        [DTYPE_F64] = "DOUBLE", [DTYPE_U32] = "UINT32", [DTYPE_U64] = "UINT64",
    };
    const char *name = node_string(r->node, "to", "");
    drop(r, "to");
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (names[i] && !strcmp(name, names[i])) {
            set_int(r, r->node, "to", (int64_t)i);
            return;
        }
    FAIL(r, STATUS_UNSUPPORTED,
         "a cast to '%.40s' is not supported; lensd supports float, integer and bool tensors",
         name);
}

/* Every element of the mask is true. Before opset 10, the mask has the data's type. */
static void dropout(struct onnx_rewrite *r)
{
    static const uint8_t yes = 1;
    struct node *node = r->node;
    struct value *x = node->inputs[0], *mask = node_output(node, 1);
    drop(r, "ratio");
    drop(r, "is_test");
    node->output_count = 1;
    if (!mask)
        return;
    struct value *one = edit_constant(&r->edit, DTYPE_BOOL, &SHAPE_SCALAR, &yes);
    struct value *made = apply(r, OP_EXPAND, one, shape_of(r, x));
    if (node->opset < 10) /* cast the expanded mask: with a cast of the scalar,
                             batch_is_independent() would not prove independence */
        made = apply(r, OP_CAST_LIKE, made, x);
    if (made)
        node_set_output(made->producer, 0, mask);
}

static void tile_by_repeats(struct onnx_rewrite *r)
{
    struct node *node = r->node;
    struct value *operands[2]; /* tiles, axis */
    for (size_t i = 0; i < 2; i++) {
        struct value *number = form_cast(r, node->inputs[1 + i], DTYPE_I64);
        operands[i] = apply(r, OP_RESHAPE, number, form_int(r, 1));
    }
    struct value *ones = int64_fill(r, rank_of(r, node->inputs[0]), 1);
    node->inputs[1] =
        form_value(r, OP_SCATTER_ELEMENTS, 3, (struct value *[]){ones, operands[1], operands[0]});
    node->input_count = 2;
}

static void axis_1(struct onnx_rewrite *r)
{
    if (!node_attr(r->node, "axis"))
        set_int(r, r->node, "axis", 1);
}

static void norm_as_int(struct onnx_rewrite *r)
{
    const float p = node_float(r->node, "p", 2);
    if (p >= 1 && p <= 1024 && p == (float)(int)p) {
        drop(r, "p");
        set_int(r, r->node, "p", (int64_t)p);
    }
}

static void selu_of_opset_1(struct onnx_rewrite *r)
{
    set_float(r, r->node, "alpha", node_float(r->node, "alpha", 1.6732f));
    set_float(r, r->node, "gamma", node_float(r->node, "gamma", 1.0507f));
}

static void roi_without_half_pixel(struct onnx_rewrite *r)
{
    if (!node_attr(r->node, "coordinate_transformation_mode"))
        set_string(r, r->node, "coordinate_transformation_mode", "output_half_pixel");
}

static void grid_modes(struct onnx_rewrite *r)
{
    const char *mode = node_string(r->node, "mode", "bilinear");
    set_string(r, r->node, "mode",
               !strcmp(mode, "bilinear")  ? "linear"
               : !strcmp(mode, "bicubic") ? "cubic"
                                          : mode);
}

/* Coordinates are asymmetric. In mode "nearest", they are rounded down, but rounded up on axes that
 * shrink. */
static void resize_of_scales(struct onnx_rewrite *r)
{
    struct node *node = r->node;
    struct value *scales = node_input(node, 1);
    /* `shrinks` and `grows` are also true if the scales are not known yet */
    bool shrinks = scales && !scales->known, grows = !scales || !scales->known;
    for (size_t i = 0; scales && scales->known && i < shape_count(&scales->shape); i++) {
        shrinks = shrinks || tensor_number(scales->known, i) < 1;
        grows = grows || tensor_number(scales->known, i) > 1;
    }
    if (!scales)
        FAIL(r, STATUS_MODEL, "scales are missing");
    set_input(r, 2, scales);
    node->inputs[1] = NULL;
    if (!strcmp(node_string(node, "mode", ""), "bilinear"))
        set_string(r, node, "mode", "linear");
    set_string(r, node, "coordinate_transformation_mode", "asymmetric");
    set_string(r, node, "nearest_mode", !shrinks ? "floor" : grows ? "simple" : "ceil");
}

static void upsample_by_attribute(struct onnx_rewrite *r)
{
    const float first[4] = {1, 1, node_float(r->node, "height_scale", 0),
                            node_float(r->node, "width_scale", 0)}; /* before opset 7 */
    if (!to_operand(r, "scales", 1) && !node_input(r->node, 1))
        set_input(r, 1, edit_constant(&r->edit, DTYPE_F32, &SHAPE(4), first));
    drop(r, "height_scale");
    drop(r, "width_scale");
    resize_of_scales(r);
}

/* ---- experimental operators of opset 1 to 9 ---- */

static void affine(struct onnx_rewrite *r)
{
    struct value *x = r->node->inputs[0];
    set_input(r, 1, form_number_like(r, node_float(r->node, "alpha", 1), x));
    follow(r, OP_ADD, form_number_like(r, node_float(r->node, "beta", 0), x));
    r->node->attr_count = 0;
}

static void image_scaler(struct onnx_rewrite *r)
{
    size_t count;
    const float *bias = node_floats(r->node, "bias", &count);
    if (!bias)
        FAIL(r, STATUS_MODEL, "attribute 'bias' is missing");
    struct value *x = r->node->inputs[0];
    struct value *added = edit_constant(&r->edit, DTYPE_F32, &SHAPE((int64_t)count, 1, 1), bias);
    set_input(r, 1, form_number_like(r, node_float(r->node, "scale", 1), x));
    follow(r, OP_ADD, x->dtype == DTYPE_F32 ? added : apply(r, OP_CAST_LIKE, added, x));
    r->node->attr_count = 0;
}

/* `border` has the numbers of elements to remove on the left, at the top, on the right and at the
 * bottom. `scale`, if present, is the height and width that remain, and replaces the numbers on the
 * right and at the bottom. */
static void crop(struct onnx_rewrite *r)
{
    static const int64_t axes[2] = {2, 3};
    size_t borders, scales;
    const int64_t *border = node_ints(r->node, "border", &borders);
    const int64_t *scale = node_ints(r->node, "scale", &scales);
    bool fits = borders == 4 && (!scale || scales == 2);
    int64_t starts[2], ends[2];
    for (size_t i = 0; fits && i < 2; i++) {
        starts[i] = border[1 - i];
        ends[i] = border[3 - i] > 0 ? -border[3 - i] : INT64_MAX;
        fits =
            border[1 - i] >= 0 && (scale || border[3 - i] >= 0) &&
            (!scale || (scale[i] >= 0 && !__builtin_add_overflow(starts[i], scale[i], &ends[i])));
    }
    if (!fits) {
        FAIL(r, STATUS_MODEL,
             "cannot crop: expected a border of four numbers and a scale of two, 0 or more");
        return;
    }
    set_input(r, 1, form_ints(r, 2, starts));
    set_input(r, 2, form_ints(r, 2, ends));
    set_input(r, 3, form_ints(r, 2, axes));
    r->node->attr_count = 0;
}

/* ---- today's operators that others replace exactly ---- */

/* As in ONNX's own definition, subtracts the mean over the axes, and divides by the standard
 * deviation + 1e-9. */
static void mean_variance(struct onnx_rewrite *r)
{
    static const int64_t otherwise[] = {0, 2, 3};
    size_t count;
    const int64_t *list = node_ints(r->node, "axes", &count);
    struct value *x = r->node->inputs[0];
    struct value *axes = form_ints(r, list ? count : COUNT_OF(otherwise), list ? list : otherwise);
    struct value *centered = apply(r, OP_SUB, x, apply(r, OP_REDUCE_MEAN, x, axes));
    struct value *variance = apply(r, OP_REDUCE_MEAN, apply(r, OP_MUL, centered, centered), axes);
    struct value *deviation = apply(r, OP_SQRT, variance, NULL);
    r->node->inputs[0] = centered;
    set_input(r, 1, apply(r, OP_ADD, deviation, form_number_like(r, 1e-9f, x)));
    r->node->attr_count = 0;
}

/* Combines the operands of Sum, Mean, Max or Min by operators with two operands. If the first
 * operand is known to be a 16-bit float, adds in float32 and converts the sum, so that precision
 * and range do not depend on the order and number of operands. The type of another node's result is
 * not known yet; but sessions widen all 16-bit floats of a graph without a Loop, If or Scan. */
static void combine(struct onnx_rewrite *r)
{
    struct node *node = r->node;
    struct value **inputs = node->inputs, *const first = inputs[0];
    const size_t count = node->input_count;
    const enum dtype dtype = first ? first->dtype : DTYPE_NONE;
    const bool is_mean = node->op == OP_DIV, adds = is_mean || node->op == OP_ADD;
    const bool is_half = adds && (dtype == DTYPE_F16 || dtype == DTYPE_BF16);
    node->op = count == 1 ? OP_IDENTITY : is_mean ? OP_ADD : node->op;
    for (size_t i = 0; i < count; i++) {
        if (!inputs[i]) {
            FAIL(r, STATUS_MODEL, "input %zu is left out", i);
            return;
        }
        if (is_half)
            inputs[i] = form_cast(r, inputs[i], DTYPE_F32);
    }
    for (size_t i = 1; i + 1 < count; i++)
        inputs[0] = apply(r, node->op, inputs[0], inputs[i]);
    if (count > 1)
        inputs[1] = inputs[count - 1];
    node->input_count = count > 1 ? 2 : 1;
    if (is_mean)
        follow(r, OP_DIV,
               is_half ? form_float(r, (float)count) : form_number_like(r, (float)count, first));
    if (is_half)
        set_int(r, follow(r, OP_CAST, NULL), "to", dtype);
}

/* Gathers at the positions where the condition, a list, is true. */
static void compress(struct onnx_rewrite *r)
{
    struct value *places = apply(r, OP_NON_ZERO, r->node->inputs[1], NULL);
    if (!node_attr(r->node, "axis"))
        set_input(r, 0, apply(r, OP_RESHAPE, r->node->inputs[0], form_int(r, -1)));
    set_input(r, 1, apply(r, OP_SQUEEZE, places, form_int(r, 0)));
}

/* ---- com.microsoft ---- */

/* com.microsoft's operators may have a scale per channel, as ONNX's since opset 13. */
static void quantize_as_13(struct onnx_rewrite *r)
{
    r->node->opset = 13;
}

/* Returns operand `at` of an operator on 8-bit tensors as float. Operands at + 1 and at + 2 are the
 * scale and the zero point. */
static struct value *dequantized(struct onnx_rewrite *r, size_t at)
{
    struct value *const inputs[3] = {node_input(r->node, at), node_input(r->node, at + 1),
                                     node_input(r->node, at + 2)};
    struct value *value = apply(r, OP_DEQUANTIZE_LINEAR, inputs[0], inputs[1]);
    if (!inputs[0] || !inputs[1])
        FAIL(r, STATUS_MODEL, "input %zu or its scale is left out", at);
    else if (value && inputs[2])
        (void)edit_set_inputs(&r->edit, value->producer, inputs, 3);
    return value;
}

/* Makes `inputs` the node's operands, and adds a QuantizeLinear with the scale and zero point of
 * operands `at` and `at + 1`. The default zero point is 0 of the type of operand `like`. */
static void quantized(struct onnx_rewrite *r, size_t at, size_t like, size_t count,
                      struct value *const *inputs)
{
    static const uint8_t zero;
    struct value *scale = node_input(r->node, at), *point = node_input(r->node, at + 1);
    struct value *of_type = node_input(r->node, like);
    if (!scale)
        FAIL(r, STATUS_MODEL, "the output's scale is left out");
    if (!point)
        point = apply(r, OP_CAST_LIKE, edit_constant(&r->edit, DTYPE_U8, &SHAPE_SCALAR, &zero),
                      of_type);
    if (r->edit.status != STATUS_OK)
        return;
    (void)edit_set_inputs(&r->edit, r->node, inputs, count);
    struct node *node = follow(r, OP_QUANTIZE_LINEAR, scale);
    if (node)
        (void)edit_set_inputs(&r->edit, node, (struct value *[]){node->inputs[0], scale, point}, 3);
}

static void quantized_unary(struct onnx_rewrite *r)
{
    quantized(r, 3, 0, 1, (struct value *[]){dequantized(r, 0)});
}

/* The attribute `opset` says which version of ONNX's Softmax applies. */
static void quantized_softmax(struct onnx_rewrite *r)
{
    const bool is_flat = node_int(r->node, "opset", 13) < 13;
    quantized_unary(r);
    drop(r, "opset");
    if (is_flat && r->edit.status == STATUS_OK)
        flatten_from(r, node_int(r->node, "axis", -1));
}

static void quantized_where(struct onnx_rewrite *r)
{
    quantized(r, 7, 1, 3,
              (struct value *[]){r->node->inputs[0], dequantized(r, 1), dequantized(r, 4)});
}

/* Returns the quantized operand i, [directions, rows, columns], as float32 [directions, columns,
 * rows]. Its scale and zero point, operands `scale` and `scale + 1`, have one number for each
 * direction, or one for each column of each direction. */
static struct value *quantized_gates(struct onnx_rewrite *r, size_t i, size_t scale)
{
    static const int64_t beside_rows[] = {0, 1, -1}, turned[] = {0, 2, 1};
    struct value *shape = form_ints(r, 3, beside_rows), *parts[3];
    for (size_t k = 0; k < 3; k++) {
        struct value *from = r->node->inputs[k ? scale + k - 1 : i];
        parts[k] = form_cast(r, k ? apply(r, OP_RESHAPE, from, shape) : from, DTYPE_F32);
    }
    struct value *product = apply(r, OP_MUL, apply(r, OP_SUB, parts[0], parts[2]), parts[1]);
    return form_transpose(r, product, turned, 3);
}

/* Dequantizes the weights. Input and states, which com.microsoft's operator quantizes, stay
 * float32. */
static void quantized_lstm(struct onnx_rewrite *r)
{
    for (size_t i = 8; i < 12; i++)
        if (!node_input(r->node, i)) {
            FAIL(r, STATUS_MODEL, "the scale or zero point of W or R is left out");
            return;
        }
    struct value *const w = quantized_gates(r, 1, 8), *const h = quantized_gates(r, 2, 10);
    set_input(r, 1, w);
    set_input(r, 2, h);
    r->node->input_count = 8;
}

/* Adds the activation at the end of a fused node. */
static void activate(struct onnx_rewrite *r, const char *name, const float *params, size_t count)
{
    if (!*name)
        return;
    const enum op op = op_by_name("", name);
    const struct op_info *record = op_has(op, OP_UNARY) ? op_record(op) : NULL;
    const bool has_alpha = op == OP_CLIP || (record && op_attr_kind(record, "alpha") >= 0);
    const bool has_beta = op == OP_CLIP || (record && op_attr_kind(record, "beta") >= 0);
    if (!record)
        FAIL(r, STATUS_UNSUPPORTED, "lensd does not support the activation '%.40s'", name);
    else if (count < (size_t)has_alpha + has_beta)
        FAIL(r, STATUS_MODEL, "activation %s needs %d activation_params", name,
             has_alpha + has_beta);
    struct node *node = follow(r, op, NULL);
    if (node && op == OP_CLIP) {
        (void)edit_set_inputs(
            &r->edit, node,
            (struct value *[]){node->inputs[0], form_float(r, params[0]), form_float(r, params[1])},
            3);
        return;
    }
    if (node && has_alpha)
        set_float(r, node, "alpha", params[0]);
    if (node && has_beta)
        set_float(r, node, "beta", params[1]);
}

static void fused_conv(struct onnx_rewrite *r)
{
    struct node *node = r->node;
    struct value *added = node_input(node, 3);
    const char *name = node_string(node, "activation", "");
    size_t count;
    const float *params = node_floats(node, "activation_params", &count);
    node->input_count = node->input_count > 3 ? 3 : node->input_count;
    drop(r, "activation");
    drop(r, "activation_params");
    if (added)
        follow(r, OP_ADD, added);
    activate(r, name, params, count);
}

static void fused_gemm(struct onnx_rewrite *r)
{
    const char *name = node_string(r->node, "activation", "");
    const float params[2] = {node_float(r->node, "activation_alpha", 0),
                             node_float(r->node, "activation_beta", 0)};
    const bool has_alpha = node_attr(r->node, "activation_alpha") != NULL;
    const bool has_beta = node_attr(r->node, "activation_beta") != NULL;
    drop(r, "activation");
    drop(r, "activation_alpha");
    drop(r, "activation_beta");
    drop(r, "activation_gamma");
    activate(r, name, params, !has_alpha ? 0 : has_beta ? 2 : 1);
}

/* Swaps the operand's last two dimensions; NULL without a declared rank. */
static struct value *transposed(struct onnx_rewrite *r, struct value *x)
{
    int64_t perm[TENSOR_MAX_RANK];
    const int rank = x->shape.rank;
    if (rank < 2)
        return NULL;
    for (int i = 0; i < rank; i++)
        perm[i] = i < rank - 2 ? i : 2 * rank - 3 - i;
    return form_transpose(r, x, perm, rank);
}

/* alpha * a b; a and b may be transposed. */
static void fused_matmul(struct onnx_rewrite *r)
{
    struct node *node = r->node;
    static const char *const equations[4] = {"...ij,...jk->...ik", "...ji,...jk->...ik",
                                             "...ij,...kj->...ik", "...ji,...kj->...ik"};
    const float alpha = node_float(node, "alpha", 1);
    const bool flips[2] = {node_int(node, "transA", 0) != 0, node_int(node, "transB", 0) != 0};
    if (node_int(node, "transBatchA", 0) || node_int(node, "transBatchB", 0))
        FAIL(r, STATUS_UNSUPPORTED, "lensd does not support transBatchA and transBatchB");
    node->attr_count = 0;
    const bool is_einsum = (flips[0] && node->inputs[0]->shape.rank < 2) ||
                           (flips[1] && node->inputs[1]->shape.rank < 2);
    for (size_t i = 0; i < 2 && !is_einsum; i++)
        if (flips[i])
            set_input(r, i, transposed(r, node->inputs[i]));
    if (is_einsum) {
        node->op = OP_EINSUM;
        set_string(r, node, "equation", equations[flips[0] + 2 * flips[1]]);
    }
    if (alpha != 1)
        follow(r, OP_MUL, form_number_like(r, alpha, node->inputs[0]));
}

/* x * sigmoid(alpha * x). The node becomes the last Mul. */
static void quick_gelu(struct onnx_rewrite *r)
{
    const float alpha = node_float(r->node, "alpha", 1.702f);
    struct value *x = r->node->inputs[0];
    struct value *scaled = apply(r, OP_MUL, x, form_number_like(r, alpha, x));
    r->node->attr_count = 0;
    set_input(r, 1, apply(r, OP_SIGMOID, scaled, NULL));
}

static void bias_gelu(struct onnx_rewrite *r)
{
    follow(r, OP_GELU, NULL);
}

/* With a bias the node becomes the sum, and a Gelu follows. */
static void fast_gelu(struct onnx_rewrite *r)
{
    struct node *gelu = node_input(r->node, 1) ? follow(r, OP_GELU, NULL) : r->node;
    if (gelu == r->node) {
        gelu->op = OP_GELU;
        gelu->input_count = 1;
    }
    set_string(r, gelu, "approximate", "tanh");
}

/* Inputs: x, skip, gamma, beta (not of RMSNormalization), bias. Output 3 is the sum before
 * normalisation. */
static void skip_norm(struct onnx_rewrite *r)
{
    struct node *node = r->node;
    const size_t bias = node->op == OP_LAYER_NORMALIZATION ? 4 : 3;
    struct value *sum = apply(r, OP_ADD, node->inputs[0], node->inputs[1]);
    struct value *further = node_input(node, bias), *beta = bias == 4 ? node_input(node, 3) : NULL;
    const float epsilon = node_float(node, "epsilon", 1e-12f);
    if (further)
        sum = apply(r, OP_ADD, sum, further);
    if (node_output(node, 1) || node_output(node, 2))
        FAIL(r, STATUS_UNSUPPORTED, "lensd does not compute mean and inv_std_var");
    if (r->edit.status != STATUS_OK)
        return;
    struct value *kept = node_output(node, 3);
    /* an Identity makes this output, which must keep its name from the file */
    struct node *copy = kept ? form_node(r, OP_IDENTITY, 1, &sum) : NULL;
    node->output_count = 1;
    if (copy)
        node_set_output(copy, 0, kept);
    node->inputs[0] = sum;
    node->inputs[1] = node->inputs[2];
    node->inputs[2] = beta;
    node->input_count = beta ? 3 : 2;
    node->attr_count = 0;
    set_int(r, node, "axis", -1);
    set_float(r, node, "epsilon", epsilon);
}

/* ---- the table ---- */

#define FORM(domain, name, op, first, last, min_in, max_in, min_out, max_out, attrs, rewrite)      \
    {                                                                                              \
        domain, name,                                                                              \
            {OP_##op, first, last, min_in, max_in, min_out, max_out, NULL, OP_PLAIN, attrs},       \
            rewrite                                                                                \
    }
#define OLD(name, op, last, inputs, attrs, rewrite)                                                \
    FORM("", name, op, 1, last, inputs, inputs, 1, 1, attrs, rewrite)
#define BINARY(name, op)        OLD(name, op, 6, 2, "axis:int broadcast:int", broadcast_as_numpy)
#define COMBINED(name, op)      FORM("", name, op, 1, 0, 1, OP_VARIADIC, 1, 1, NULL, combine)
#define REDUCE(name, op, moved) OLD(name, op, moved - 1, 1, "axes:ints keepdims:int", axes_operand)
#define MS(name, op, min_in, max_in, attrs, rewrite)                                               \
    FORM("com.microsoft", name, op, 1, 0, min_in, max_in, 1, 1, attrs, rewrite)
#define QUANTIZE_ATTRS "axis:int saturate:int block_size:int output_dtype:int precision:int"

static const struct onnx_form forms[] = {
    FORM("", "Constant", NONE, 1, 0, 0, 0, 1, 1, NULL, NULL), /* onnx_ops.c makes a constant */
    BINARY("Add", ADD),
    BINARY("Sub", SUB),
    BINARY("Mul", MUL),
    BINARY("Div", DIV),
    BINARY("Pow", POW),
    BINARY("And", AND),
    BINARY("Or", OR),
    BINARY("Xor", XOR),
    BINARY("Equal", EQUAL),
    BINARY("Greater", GREATER),
    BINARY("Less", LESS),
    OLD("PRelu", PRELU, 6, 2, NULL, slope_of_channels),
    OLD("Clip", CLIP, 10, 1, "min:float max:float", clip_operands),
    OLD("Cast", CAST, 5, 1, "to:string", cast_by_number),
    FORM("", "Dropout", DROPOUT, 1, 11, 1, 1, 1, 2, "ratio:float is_test:int", dropout),
    FORM("", "Dropout", DROPOUT, 12, 0, 1, 3, 1, 2, "seed:int", dropout),
    OLD("Selu", SELU, 5, 1, "alpha:float gamma:float", selu_of_opset_1),
    OLD("Affine", MUL, 9, 1, "alpha:float beta:float", affine),
    OLD("ImageScaler", MUL, 9, 1, "bias:floats scale:float", image_scaler),
    OLD("Crop", SLICE, 9, 1, "border:ints scale:ints", crop),
    OLD("Reshape", RESHAPE, 4, 1, "shape:ints", shape_operand),
    OLD("Squeeze", SQUEEZE, 12, 1, "axes:ints", axes_operand),
    OLD("Unsqueeze", UNSQUEEZE, 12, 1, "axes:ints", needs_axes),
    FORM("", "Concat", CONCAT, 1, 3, 1, OP_VARIADIC, 1, 1, "axis:int", axis_1),
    FORM("", "Split", SPLIT, 1, 12, 1, 1, 1, OP_VARIADIC, "axis:int split:ints", split_operand),
    FORM("", "Split", SPLIT, 13, 17, 1, 2, 1, OP_VARIADIC, "axis:int num_outputs:int",
         split_operand),
    OLD("Slice", SLICE, 9, 1, "starts:ints ends:ints axes:ints", slice_operands),
    OLD("Tile", TILE, 5, 3, NULL, tile_by_repeats),
    OLD("Pad", PAD, 10, 1, "mode:string paddings:ints pads:ints value:float", pad_operands),
    FORM("", "Scatter", SCATTER_ELEMENTS, 9, 0, 3, 3, 1, 1, "axis:int", NULL),
    FORM("", "TopK", TOP_K, 1, 9, 1, 1, 2, 2, "axis:int k:int largest:int sorted:int", k_operand),
    REDUCE("ReduceSum", REDUCE_SUM, 13),
    REDUCE("ReduceMean", REDUCE_MEAN, 18),
    REDUCE("ReduceMax", REDUCE_MAX, 18),
    REDUCE("ReduceMin", REDUCE_MIN, 18),
    REDUCE("ReduceProd", REDUCE_PROD, 18),
    REDUCE("ReduceL1", REDUCE_L1, 18),
    REDUCE("ReduceL2", REDUCE_L2, 18),
    REDUCE("ReduceLogSum", REDUCE_LOG_SUM, 18),
    REDUCE("ReduceLogSumExp", REDUCE_LOG_SUM_EXP, 18),
    REDUCE("ReduceSumSquare", REDUCE_SUM_SQUARE, 18),
    OLD("LpPool", LP_POOL, 1, 1, "auto_pad:string kernel_shape:ints p:float pads:ints strides:ints",
        norm_as_int),
    OLD("GlobalLpPool", GLOBAL_LP_POOL, 1, 1, "p:float", norm_as_int),
    FORM("", "BatchNormalization", BATCH_NORMALIZATION, 1, 8, 5, 5, 1, 5,
         "epsilon:float momentum:float spatial:int is_test:int", batch_norm_of_positions),
    FORM("", "GroupNormalization", GROUP_NORMALIZATION, 18, 20, 3, 3, 1, 1,
         "epsilon:float num_groups:int stash_type:int", group_norm_of_channels),
    OLD("Softmax", SOFTMAX, 12, 1, "axis:int", softmax_of_one_axis),
    OLD("LogSoftmax", LOG_SOFTMAX, 12, 1, "axis:int", softmax_of_one_axis),
    OLD("Hardmax", HARDMAX, 12, 1, "axis:int", softmax_of_one_axis),
    FORM("", "Resize", RESIZE, 10, 10, 2, 2, 1, 1, "mode:string", resize_of_scales),
    OLD("Upsample", RESIZE, 6, 1, "mode:string height_scale:float width_scale:float",
        upsample_by_attribute),
    FORM("", "Upsample", RESIZE, 7, 9, 1, 2, 1, 1, "mode:string scales:floats",
         upsample_by_attribute),
    FORM("", "GridSample", GRID_SAMPLE, 16, 19, 2, 2, 1, 1,
         "align_corners:int mode:string padding_mode:string", grid_modes),
    FORM("", "RoiAlign", ROI_ALIGN, 10, 15, 3, 3, 1, 1,
         "coordinate_transformation_mode:string mode:string output_height:int output_width:int "
         "sampling_ratio:int spatial_scale:float",
         roi_without_half_pixel),
    FORM("", "MeanVarianceNormalization", DIV, 9, 0, 1, 1, 1, 1, "axes:ints", mean_variance),
    COMBINED("Sum", ADD),
    COMBINED("Mean", DIV),
    COMBINED("Max", MAX),
    COMBINED("Min", MIN),
    FORM("", "Compress", GATHER, 9, 0, 2, 2, 1, 1, "axis:int", compress),
    MS("QuantizeLinear", QUANTIZE_LINEAR, 2, 3, QUANTIZE_ATTRS, quantize_as_13),
    MS("DequantizeLinear", DEQUANTIZE_LINEAR, 2, 3, QUANTIZE_ATTRS, quantize_as_13),
    MS("QLinearSigmoid", SIGMOID, 2, 5, NULL, quantized_unary),
    MS("QLinearLeakyRelu", LEAKY_RELU, 2, 5, "alpha:float", quantized_unary),
    MS("QLinearSoftmax", SOFTMAX, 2, 5, "axis:int opset:int", quantized_softmax),
    MS("QLinearWhere", WHERE, 8, 9, NULL, quantized_where),
    FORM("com.microsoft", "DynamicQuantizeLSTM", LSTM, 1, 0, 3, 12, 1, 3,
         "activation_alpha:floats activation_beta:floats activations:strings clip:float "
         "direction:string hidden_size:int input_forget:int",
         quantized_lstm),
    MS("FusedConv", CONV, 2, 4,
       WINDOW_ATTRS " group:int activation:string activation_params:floats", fused_conv),
    MS("FusedGemm", GEMM, 2, 3,
       "alpha:float beta:float transA:int transB:int activation:string activation_alpha:float "
       "activation_beta:float activation_gamma:float",
       fused_gemm),
    MS("FusedMatMul", MATMUL, 2, 2,
       "alpha:float transA:int transB:int transBatchA:int transBatchB:int", fused_matmul),
    MS("TransposeMatMul", MATMUL, 2, 2, "alpha:float transA:int transB:int", fused_matmul),
    MS("Gelu", GELU, 1, 1, NULL, NULL),
    MS("BiasGelu", ADD, 2, 2, NULL, bias_gelu),
    MS("FastGelu", ADD, 1, 2, NULL, fast_gelu),
    MS("QuickGelu", MUL, 1, 1, "alpha:float", quick_gelu),
    FORM("com.microsoft", "SkipLayerNormalization", LAYER_NORMALIZATION, 1, 0, 3, 5, 1, 4,
         "epsilon:float", skip_norm),
    FORM("com.microsoft", "SkipSimplifiedLayerNormalization", RMS_NORMALIZATION, 1, 0, 3, 4, 1, 4,
         "epsilon:float", skip_norm),
};

const struct onnx_form *onnx_form_find(const char *domain, const char *name, int opset)
{
    for (size_t i = 0; i < COUNT_OF(forms); i++)
        if (!strcmp(forms[i].name, name) && !strcmp(forms[i].domain, domain) &&
            opset >= forms[i].spec.since && (!forms[i].spec.until || opset <= forms[i].spec.until))
            return &forms[i];
    return NULL;
}

const struct op_info *onnx_spec(const char *domain, const char *name, int opset)
{
    const struct onnx_form *form = onnx_form_find(domain, name, opset);
    return form ? &form->spec : op_find(op_by_name(domain, name), opset);
}

enum status onnx_form_rewrite(const struct onnx_form *form, struct graph *graph, struct node *node,
                              struct error *err)
{
    struct onnx_rewrite r = {
        .edit = {.graph = graph, .err = err}, .node = node, .result = node_output(node, 0)};
    TRY(op_check_operands(node, &form->spec, err));
    if (form->rewrite)
        form->rewrite(&r);
    const int last = form->spec.until, since = op_record(node->op)->since;
    node->opset = node->opset > last ? node->opset : last + 1;
    node->opset = node->opset > since ? node->opset : since;
    return r.edit.status;
}
