/* Fills the weights of a graph by a formula of their names and positions. */
#include "tests/conformance/randfill.h"

#include <math.h>
#include <string.h>

static uint32_t fnv1a(const char *text)
{
    uint32_t h = 0x811c9dc5;
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        h = (h ^ *p) * 0x01000193;
    return h;
}

static float fill_value(uint32_t h, size_t i, double scale, bool is_matrix)
{
    uint32_t k = h + (uint32_t)i * 0x9E3779B9u;
    k ^= k >> 16;
    k *= 0x85EBCA6Bu;
    k ^= k >> 13;
    k *= 0xC2B2AE35u;
    k ^= k >> 16;
    double u = (double)(k >> 8) / 8388608.0 - 1.0;
    return (float)(is_matrix ? u * scale : 0.75 + 0.25 * u);
}

static enum status fill_node(struct node *node, double gain, struct error *err)
{
    const struct tensor *dims = node->inputs[0] ? node->inputs[0]->known : NULL;
    struct value *value = node->outputs[0];
    if (!dims || dims->dtype != DTYPE_I64 || dims->shape.rank != 1 ||
        dims->shape.dims[0] > TENSOR_MAX_RANK)
        return error_set(err, STATUS_MODEL, "the shape of '%s' is not a constant", value->name);
    struct shape shape = {.rank = (int)dims->shape.dims[0]};
    double fan = 1;
    for (int d = 0; d < shape.rank; d++) {
        shape.dims[d] = tensor_int(dims, (size_t)d);
        fan *= d ? (double)shape.dims[d] : 1;
    }
    struct tensor *tensor;
    TRY(tensor_create(NULL, DTYPE_F32, &shape, &tensor, err));
    float *dst = tensor->data;
    uint32_t h = fnv1a(value->name);
    size_t count = shape_count(&shape);
    for (size_t i = 0; i < count; i++)
        dst[i] = fill_value(h, i, sqrt(gain / fan), shape.rank >= 2);
    value->known = tensor;
    value->dtype = DTYPE_F32;
    value->shape = shape;
    value->producer = NULL;
    return STATUS_OK;
}

enum status randfill(struct graph *graph, double gain, struct error *err)
{
    size_t kept = 0;
    for (size_t i = 0; i < graph->node_count; i++) {
        struct node *node = graph->nodes[i];
        if (node->op == OP_CONSTANT_OF_SHAPE) {
            TRY(fill_node(node, gain, err));
            /* The node leaves the graph, which would have freed what its attributes hold. */
            for (size_t a = 0; a < node->attr_count; a++)
                if (node->attrs[a].kind == ATTR_TENSOR)
                    tensor_unref(node->attrs[a].t);
        } else {
            graph->nodes[kept++] = node;
        }
    }
    graph->node_count = kept;
    return STATUS_OK;
}
