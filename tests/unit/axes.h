/* The axes of a reduction as its second operand. */
#pragma once

#include <string.h>

#include "engine/graph/graph.h"

/* False when out of memory. */
static inline bool set_axes(struct graph *graph, struct node *node, const int64_t *axes,
                            size_t count)
{
    struct tensor *tensor;
    struct value **inputs = arena_alloc(graph->arena, 2, sizeof *inputs);
    if (!inputs ||
        tensor_create(NULL, DTYPE_I64, &SHAPE((int64_t)count), &tensor, NULL) != STATUS_OK)
        return false;
    memcpy(tensor->data, axes, tensor->bytes);
    inputs[0] = node->inputs[0];
    inputs[1] = graph_add_constant(graph, "axes", tensor);
    tensor_unref(tensor);
    node->inputs = inputs;
    node->input_count = 2;
    return inputs[1] != NULL;
}
