/* From ai.onnx opsets 7 … 12 to 13. Most operators only gained types; those that changed are here.
 * Source: ONNX's Changelog.md. */
#include "engine/quantize/quantize_opset.h"

#include <string.h>

#include "engine/passes/edit.h"

static enum status refuse_node(const struct node *node, struct error *err)
{
    char text[NODE_TEXT];
    (void)error_set(err, STATUS_UNSUPPORTED,
                    "quantizing needs opset %d, in which %s computes something else",
                    QUANTIZE_OPSET, node_text(node, text));
    return error_advise(err,
                        "export the model with opset %d or newer, or convert it with "
                        "onnx.version_converter",
                        QUANTIZE_OPSET);
}

static void drop_attribute(struct graph *graph, struct node *node, const char *name)
{
    struct attr *attrs = arena_alloc(graph->arena, node->attr_count, sizeof *attrs);
    size_t kept = 0;
    for (size_t a = 0; attrs && a < node->attr_count; a++)
        if (strcmp(node->attrs[a].name, name) != 0)
            attrs[kept++] = node->attrs[a];
    if (attrs) {
        node->attrs = attrs;
        node->attr_count = kept;
    }
}

/* An attribute of integers, or of one float, becomes operand `at`. */
static void attr_to_operand(struct edit *edit, struct node *node, const char *name, size_t at)
{
    const struct attr *attr = node_attr(node, name);
    if (!attr || (attr->kind != ATTR_INTS && attr->kind != ATTR_FLOAT))
        return;
    struct value *value =
        attr->kind == ATTR_INTS
            ? edit_constant(edit, DTYPE_I64, &SHAPE((int64_t)attr->count), attr->ints)
            : edit_constant(edit, DTYPE_F32, &SHAPE_SCALAR, &attr->f);
    while (value && node->input_count < at && edit_append_input(edit, node, NULL))
        continue;
    if (value && edit_append_input(edit, node, value))
        drop_attribute(edit->graph, node, name);
}

/* Older ones flatten to two dimensions first: the same where only one dimension from `axis` on is
 * not 1. */
static bool raise_softmax(struct edit *edit, struct node *node, const struct shape *shape)
{
    int64_t axis = node_int(node, "axis", 1);
    if (shape->rank < 1)
        return false;
    axis += axis < 0 ? shape->rank : 0;
    int64_t wide = axis;
    int count = 0;
    for (int64_t d = axis; d < shape->rank; d++)
        if (shape->dims[d] != 1) {
            wide = d;
            count++;
        }
    return count <= 1 && (node_set_int(edit->graph, node, "axis", wide) || edit_no_memory(edit));
}

/* False: it computes something else. */
static bool raise_node(struct edit *edit, struct node *node, const struct shape *shapes)
{
    switch (node->op) {
    case OP_SQUEEZE:
    case OP_UNSQUEEZE:
    case OP_REDUCE_SUM:
        attr_to_operand(edit, node, "axes", 1);
        return true;
    case OP_SPLIT:
        attr_to_operand(edit, node, "split", 1);
        return true;
    case OP_CLIP:
        if (node->opset < 11) {
            attr_to_operand(edit, node, "min", 1);
            attr_to_operand(edit, node, "max", 2);
        }
        return true;
    case OP_PAD:
        if (node->opset < 11) {
            attr_to_operand(edit, node, "pads", 1);
            attr_to_operand(edit, node, "value", 2);
        }
        return true;
    case OP_SOFTMAX:
    case OP_LOG_SOFTMAX:
    case OP_HARDMAX:
        return raise_softmax(edit, node, &shapes[node->inputs[0]->index]);
    case OP_BATCH_NORMALIZATION:
        return node->opset >= 9 || node_int(node, "spatial", 1) == 1;
    case OP_RESIZE:
        return node->opset >= 11;
    case OP_SLICE:
    case OP_TOP_K:
        return node->opset >= 10;
    case OP_UPSAMPLE:
    case OP_SCATTER:
    case OP_DROPOUT:
        return false;
    default:
        return !edit_has_body(node);
    }
}

enum status quantize_raise_opset(struct graph *graph, const struct shape *shapes, struct error *err)
{
    struct edit edit = {.graph = graph, .err = err};
    if (graph->opset >= QUANTIZE_OPSET)
        return STATUS_OK;
    for (size_t n = 0; n < graph->node_count && edit.status == STATUS_OK; n++) {
        struct node *node = graph->nodes[n];
        if (*op_domain(node->op))
            continue;
        if (!raise_node(&edit, node, shapes))
            return edit.status == STATUS_OK ? refuse_node(node, err) : edit.status;
        if (node->op == OP_BATCH_NORMALIZATION)
            drop_attribute(graph, node, "spatial");
        node->opset = QUANTIZE_OPSET;
    }
    graph->opset = QUANTIZE_OPSET;
    return edit_end(&edit);
}
