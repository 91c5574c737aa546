/* What is worth a trial: a precision that the hardware has instructions for which beat its float32
 * ones. */
#include "engine/base/cpu.h"
#include "server/precision/internal.h"

/* Products in bfloat16 have to be in the graph for it to gain anything. */
static bool has_products(const struct graph *graph)
{
    for (size_t n = 0; n < graph->node_count; n++)
        if (graph->nodes[n]->op == OP_CONV || graph->nodes[n]->op == OP_GEMM ||
            graph->nodes[n]->op == OP_MATMUL)
            return true;
    return false;
}

size_t candidates_find(struct device_id device, const struct graph *graph,
                       enum precision ret[PRECISION_COUNT])
{
    size_t count = 0;
    if (device.kind != DEVICE_CPU)
        return 0;
    if (device_cpu_has_bf16() && has_products(graph))
        ret[count++] = PRECISION_BF16;
    if (session_is_quantised(graph))
        ret[count++] = PRECISION_INT8;
    return count;
}
