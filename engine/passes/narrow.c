/* Changes activations to bfloat16 or float16 where the backend supports it.
 *
 * The graph's own inputs and outputs keep their dtype; sums inside products are float32 in the
 * backend. The node that makes a value decides its dtype. For a reader that needs the other dtype,
 * a Cast is inserted, once per value. Values after the last product, such as scores and boxes, stay
 * float32: rounding these values would gain no speed and lose the most precision. */
#include <math.h>

#include "engine/op/ops.h"
#include "engine/passes/passes.h"

/* The state of a value from before the pass. */
struct narrow_value {
    struct value *narrowed, *widened; /* results of the value's Casts, or NULL */
    bool keeps_f32;                   /* an output of the graph, or no product comes after it */
    bool is_narrow;                   /* this pass, not the file, made the value 16-bit */
};

struct narrow {
    struct edit *edit;
    enum dtype dtype;            /* the 16-bit type that activations get */
    struct narrow_value *values; /* by value->index */
};

static bool is_narrow(const struct narrow *narrow, const struct value *value)
{
    return value && narrow->values[value->index].is_narrow;
}

static bool is_activation(const struct narrow *narrow, const struct value *value)
{
    return value && !value->known && (value->dtype == DTYPE_F32 || is_narrow(narrow, value));
}

/* Returns `from` converted to dtype `to`. Inserts the Cast before node *at on the first call for
 * `from`. Returns NULL when out of memory. */
static struct value *cast_value(struct narrow *narrow, size_t *at, struct value *from,
                                enum dtype to)
{
    struct narrow_value *of = &narrow->values[from->index];
    struct value **cast = to == narrow->dtype ? &of->narrowed : &of->widened;
    if (!*cast)
        *cast = edit_insert_cast(narrow->edit, (*at)++, dtype_name(narrow->dtype), from, to);
    return *cast;
}

static uint16_t narrow_bits(enum dtype dtype, float x)
{
    const float greatest = 65504;
    if (dtype == DTYPE_BF16)
        return float_to_bfloat16(x);
    return float_to_half(isfinite(x) ? fminf(fmaxf(x, -greatest), greatest) : x);
}

/* Returns a 16-bit copy of a float32 constant, for a NARROW_SAME node that reads it with 16-bit
 * activations. */
static struct value *narrow_constant(struct narrow *narrow, const struct tensor *from)
{
    struct value *value = edit_constant(narrow->edit, narrow->dtype, &from->shape, NULL);
    const float *wide = from->data;
    for (size_t i = 0; value && i < shape_count(&from->shape); i++)
        ((uint16_t *)value->known->data)[i] = narrow_bits(narrow->dtype, wide[i]);
    return value;
}

/* True if operand i of a NARROW_SAME node is a parameter, which stays float32 if it is constant. */
static bool stays_f32(const struct node *node, size_t i)
{
    if (node->op == OP_SCALE_SHIFT) /* operands from 3 on are parts of the image */
        return i == 1 || i == 2;
    return i > 0 && ((node->op == OP_ATTENTION && i >= 3) || node->op == OP_RESIZE ||
                     op_has(node->op, OP_NORMALIZATION | OP_UNARY)); /* Clip's limits */
}

static void convert_inputs(struct narrow *narrow, size_t *at, struct node *node,
                           enum narrow_support support)
{
    for (size_t i = 0; i < node->input_count; i++) {
        struct value *value = node->inputs[i];
        bool residual = value && value == node->epilogue.residual && i == node->input_count - 1;
        enum dtype wanted = support == NARROW_NO ? DTYPE_F32 : narrow->dtype;
        if (residual) /* a residual is added in place, so it has the result's dtype */
            wanted = node->outputs[0]->dtype;
        if (is_activation(narrow, value) && value->dtype != wanted)
            node->inputs[i] = cast_value(narrow, at, value, wanted);
        else if (is_f32_constant(value) && support == NARROW_SAME && !stays_f32(node, i))
            node->inputs[i] = narrow_constant(narrow, value->known);
        if (residual)
            node->epilogue.residual = node->inputs[i];
    }
}

/* Returns how the node can run on 16-bit numbers, but NARROW_NO instead of NARROW_SAME if a result
 * must stay float32. Call this while all activations are still float32. */
static enum narrow_support support_of(const struct narrow *narrow, const struct node *node)
{
    struct kernel_caps caps;
    bool any = false;
    for (size_t i = 0; i < node->input_count; i++)
        any = any || is_activation(narrow, node->inputs[i]);
    for (size_t o = 0; o < node->output_count; o++)
        any = any && (!node->outputs[o] || node->outputs[o]->dtype == DTYPE_F32);
    if (!any || !narrow->edit->options->claim(node, &caps) || !kernel_fits_layout(&caps, node))
        return NARROW_NO;
    for (size_t o = 0; o < node->output_count && caps.narrow == NARROW_SAME; o++)
        if (node->outputs[o] && narrow->values[node->outputs[o]->index].keeps_f32)
            return NARROW_NO;
    return caps.narrow;
}

/* True for a Cast to a float of 16 or 32 bits: it may read either type, so no other Cast is
 * needed. */
static bool is_cast_to_float(const struct node *node)
{
    return node->op == OP_CAST && dtype_is_float(node->outputs[0]->dtype) &&
           node->outputs[0]->dtype != DTYPE_F64;
}

static void narrow_nodes(struct narrow *narrow)
{
    struct graph *graph = narrow->edit->graph;
    enum narrow_support *supports = arena_alloc(graph->arena, graph->node_count, sizeof *supports);
    if (!supports)
        edit_no_memory(narrow->edit);
    for (size_t n = 0; supports && n < graph->node_count; n++)
        supports[n] = support_of(narrow, graph->nodes[n]);
    for (size_t n = 0; n < graph->node_count && narrow->edit->status == STATUS_OK; n++) {
        struct node *node = graph->nodes[n];
        const enum narrow_support support = *supports++; /* convert_inputs() moves n */
        for (size_t o = 0; o < node->output_count && support != NARROW_NO; o++)
            if (node->outputs[o] && !narrow->values[node->outputs[o]->index].keeps_f32) {
                node->outputs[o]->dtype = narrow->dtype;
                narrow->values[node->outputs[o]->index].is_narrow = true;
            }
        bool floats = support != NARROW_NO;
        for (size_t i = 0; i < node->input_count; i++)
            floats = floats || is_narrow(narrow, node->inputs[i]);
        if (floats && !is_cast_to_float(node))
            convert_inputs(narrow, &n, node, support);
    }
}

static bool is_product(const struct node *node)
{
    return op_has(node->op, OP_PRODUCT) || node->op == OP_ATTENTION ||
           (node->op == OP_EINSUM && node->input_count > 1);
}

static void find_ends(struct narrow *narrow)
{
    const struct graph *graph = narrow->edit->graph;
    for (size_t v = 0; v < graph->value_count; v++)
        narrow->values[v].keeps_f32 = true;
    for (size_t n = graph->node_count; n-- > 0;) {
        const struct node *node = graph->nodes[n];
        bool feeds = is_product(node);
        for (size_t o = 0; o < node->output_count; o++)
            feeds =
                feeds || (node->outputs[o] && !narrow->values[node->outputs[o]->index].keeps_f32);
        for (size_t i = 0; i < node->input_count && feeds; i++)
            if (node->inputs[i])
                narrow->values[node->inputs[i]->index].keeps_f32 = false;
    }
    for (size_t i = 0; i < graph->output_count; i++)
        narrow->values[graph->outputs[i]->index].keeps_f32 = true;
}

void pass_narrow(struct edit *edit)
{
    struct graph *graph = edit->graph;
    struct narrow narrow = {
        .edit = edit,
        .dtype = edit->options->narrow,
        .values = arena_alloc(graph->arena, graph->value_count, sizeof *narrow.values)};
    if (!narrow.values)
        edit_no_memory(edit);
    if (edit->status != STATUS_OK)
        return;
    find_ends(&narrow);
    narrow_nodes(&narrow);
    if (edit->status == STATUS_OK)
        edit_sweep(edit);
}
