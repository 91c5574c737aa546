/* Activations in bfloat16 or float16 where the backend computes in it.
 *
 * The graph's own inputs and outputs keep their dtype; sums inside products are float32 in the
 * backend. A value's dtype is decided by the node that makes it; where a reader wants the other
 * one, a Cast stands between, once per value. What follows the last product, scores and boxes, is
 * float32: rounding it would gain nothing and cost the most. */
#include <math.h>

#include "engine/passes/passes.h"

struct narrow {
    struct graph *graph;
    enum dtype dtype; /* the narrow one */
    const struct optimize_options *options;
    struct value **narrowed, **widened; /* by value->index: the value's Cast, when there is one */
    size_t value_count;
    bool *keeps_f32; /* by value->index: an output of the graph, or no product follows it */
    bool *is_narrow; /* made so by this pass: a file's own 16-bit values are left alone */
};

static bool is_narrow(const struct narrow *narrow, const struct value *value)
{
    return value && value->index < narrow->value_count && narrow->is_narrow[value->index];
}

static bool is_activation(const struct narrow *narrow, const struct value *value)
{
    return value && !value->known && (value->dtype == DTYPE_F32 || is_narrow(narrow, value));
}

static enum status cast_value(struct narrow *narrow, size_t *at, struct value *from, enum dtype to,
                              struct value **ret, struct error *err)
{
    struct value **cache = to == narrow->dtype ? narrow->narrowed : narrow->widened;
    if (from->index < narrow->value_count && cache[from->index]) {
        *ret = cache[from->index];
        return STATUS_OK;
    }
    struct graph *graph = narrow->graph;
    struct node *cast = edit_insert_node(graph, (*at)++, OP_CAST, dtype_name(narrow->dtype), 1, 1);
    struct value *value = graph_add_value(graph, "", to, &from->shape);
    if (!cast || !value || !node_set_int(graph, cast, "to", to))
        return edit_no_memory(err);
    cast->opset = 13;
    cast->inputs[0] = from;
    node_set_output(cast, 0, value);
    if (from->index < narrow->value_count)
        cache[from->index] = value;
    *ret = value;
    return STATUS_OK;
}

static uint16_t narrow_bits(enum dtype dtype, float x)
{
    const float greatest = 65504;
    if (dtype == DTYPE_BF16)
        return float_to_bfloat16(x);
    return float_to_half(isfinite(x) ? fminf(fmaxf(x, -greatest), greatest) : x);
}

/* Constants that an elementwise operator or Concat reads beside 16-bit activations. */
static enum status narrow_constant(struct narrow *narrow, struct value *from, struct value **ret,
                                   struct error *err)
{
    struct tensor *tensor;
    TRY(tensor_create(narrow->graph->budget, narrow->dtype, &from->known->shape, &tensor, err));
    const float *wide = from->known->data;
    uint16_t *bits = tensor->data;
    size_t count = shape_count(&tensor->shape);
    for (size_t i = 0; i < count; i++)
        bits[i] = narrow_bits(narrow->dtype, wide[i]);
    *ret = graph_add_constant(narrow->graph, "", tensor);
    tensor_unref(tensor);
    return *ret ? STATUS_OK : edit_no_memory(err);
}

/* Which operands of a BF16_SAME node are float32 parameters that stay float32. */
static bool stays_f32(const struct node *node, size_t i)
{
    if (node->op == OP_SCALE_SHIFT) /* its further operands are parts of its image */
        return i == 1 || i == 2;
    return i > 0 && ((node->op == OP_ATTENTION && i >= 3) || node->op == OP_RESIZE ||
                     node->op == OP_UPSAMPLE || node->op == OP_LAYER_NORMALIZATION ||
                     node->op == OP_RMS_NORMALIZATION || node->op == OP_CLIP ||
                     node->op == OP_GROUP_NORMALIZATION || node->op == OP_INSTANCE_NORMALIZATION);
}

static enum status convert_inputs(struct narrow *narrow, size_t *at, struct node *node,
                                  enum bf16_support support, struct error *err)
{
    for (size_t i = 0; i < node->input_count; i++) {
        struct value *value = node->inputs[i];
        bool residual = value && value == node->epilogue.residual && i == node->input_count - 1;
        enum dtype wanted = support == BF16_NO ? DTYPE_F32 : narrow->dtype;
        if (residual) /* added to the result where it lies: the same dtype */
            wanted = node->outputs[0]->dtype;
        if (is_activation(narrow, value) && value->dtype != wanted)
            TRY(cast_value(narrow, at, value, wanted, &node->inputs[i], err));
        else if (value && value->known && value->known->dtype == DTYPE_F32 &&
                 support == BF16_SAME && !stays_f32(node, i))
            TRY(narrow_constant(narrow, value, &node->inputs[i], err));
        if (residual)
            node->epilogue.residual = node->inputs[i];
    }
    return STATUS_OK;
}

/* The backend answers for a node as it was before this pass: all activations float32. */
static enum bf16_support ask_backend(const struct narrow *narrow, const struct node *node)
{
    enum { MOST = 64 };
    bool was_narrow[MOST];
    if (node->input_count > MOST)
        return BF16_NO;
    for (size_t i = 0; i < node->input_count; i++) {
        was_narrow[i] = is_narrow(narrow, node->inputs[i]);
        if (was_narrow[i])
            node->inputs[i]->dtype = DTYPE_F32;
    }
    enum bf16_support support = narrow->options->bf16(node);
    for (size_t i = 0; i < node->input_count; i++)
        if (was_narrow[i])
            node->inputs[i]->dtype = narrow->dtype;
    return support;
}

/* A node all of whose activations must be alike cannot make a float32 output of the graph from
 * 16-bit operands; it stays float32. */
static enum bf16_support support_of(const struct narrow *narrow, const struct node *node)
{
    bool any = false;
    for (size_t i = 0; i < node->input_count; i++)
        any = any || is_activation(narrow, node->inputs[i]);
    for (size_t o = 0; o < node->output_count; o++)
        if (node->outputs[o] && node->outputs[o]->dtype != DTYPE_F32)
            return BF16_NO;
    enum bf16_support support = any ? ask_backend(narrow, node) : BF16_NO;
    for (size_t o = 0; o < node->output_count && support == BF16_SAME; o++)
        if (node->outputs[o] && narrow->keeps_f32[node->outputs[o]->index])
            return BF16_NO;
    return support;
}

/* A Cast reads what it gets. */
static bool is_cast_to_float(const struct node *node)
{
    return node->op == OP_CAST && dtype_is_float(node->outputs[0]->dtype) &&
           node->outputs[0]->dtype != DTYPE_F64;
}

static enum status narrow_nodes(struct narrow *narrow, struct error *err)
{
    struct graph *graph = narrow->graph;
    for (size_t n = 0; n < graph->node_count; n++) {
        struct node *node = graph->nodes[n];
        enum bf16_support support = support_of(narrow, node);
        for (size_t o = 0; o < node->output_count && support != BF16_NO; o++)
            if (node->outputs[o] && !narrow->keeps_f32[node->outputs[o]->index]) {
                node->outputs[o]->dtype = narrow->dtype;
                narrow->is_narrow[node->outputs[o]->index] = true;
            }
        bool floats = support != BF16_NO;
        for (size_t i = 0; i < node->input_count; i++)
            floats = floats || is_narrow(narrow, node->inputs[i]);
        if (floats && !is_cast_to_float(node))
            TRY(convert_inputs(narrow, &n, node, support, err));
    }
    return STATUS_OK;
}

static bool is_product(const struct node *node)
{
    switch (node->op) {
    case OP_CONV:
    case OP_CONV_TRANSPOSE:
    case OP_GEMM:
    case OP_MATMUL:
    case OP_ATTENTION:
    case OP_ONNX_ATTENTION:
        return true;
    case OP_EINSUM:
        return node->input_count > 1;
    default:
        return false;
    }
}

static void find_ends(struct narrow *narrow)
{
    const struct graph *graph = narrow->graph;
    for (size_t v = 0; v < graph->value_count; v++)
        narrow->keeps_f32[v] = true;
    for (size_t n = graph->node_count; n-- > 0;) {
        const struct node *node = graph->nodes[n];
        bool feeds = is_product(node);
        for (size_t o = 0; o < node->output_count; o++)
            feeds = feeds || (node->outputs[o] && !narrow->keeps_f32[node->outputs[o]->index]);
        for (size_t i = 0; i < node->input_count && feeds; i++)
            if (node->inputs[i])
                narrow->keeps_f32[node->inputs[i]->index] = false;
    }
    for (size_t i = 0; i < graph->output_count; i++)
        narrow->keeps_f32[graph->outputs[i]->index] = true;
}

enum status pass_bf16(struct graph *graph, const struct optimize_options *options,
                      struct error *err)
{
    struct narrow narrow = {.graph = graph,
                            .options = options,
                            .dtype = options->narrow,
                            .value_count = graph->value_count};
    narrow.narrowed = arena_alloc(graph->arena, graph->value_count, sizeof(struct value *));
    narrow.widened = arena_alloc(graph->arena, graph->value_count, sizeof(struct value *));
    narrow.keeps_f32 = arena_alloc(graph->arena, graph->value_count, sizeof *narrow.keeps_f32);
    narrow.is_narrow = arena_alloc(graph->arena, graph->value_count, sizeof *narrow.is_narrow);
    if (!narrow.narrowed || !narrow.widened || !narrow.keeps_f32 || !narrow.is_narrow)
        return edit_no_memory(err);
    find_ends(&narrow);
    TRY(narrow_nodes(&narrow, err));
    return edit_sweep(graph, err);
}
