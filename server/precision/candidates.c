/* Lists the precisions worth a trial: those whose instructions on this hardware beat float32. */
#include "engine/base/cpu.h"
#include "server/precision/internal.h"

/* bfloat16 gains only where the graph has products. */
static bool has_products(const struct graph *graph)
{
    for (size_t n = 0; n < graph->node_count; n++)
        if (graph->nodes[n]->op == OP_CONV || graph->nodes[n]->op == OP_GEMM ||
            graph->nodes[n]->op == OP_MATMUL)
            return true;
    return false;
}

/* Integers first: a quantized file was made for them. float16 next: it has three bits more than
 * bfloat16 at the same speed, so that bfloat16 is what a model gets whose numbers leave float16's
 * range. */
static size_t gpu_candidates(struct device_id device, const struct graph *graph,
                             enum precision ret[PRECISION_COUNT])
{
    struct device_info devices[DEVICE_MAX];
    const size_t device_count = device_list(devices, DEVICE_MAX);
    size_t count = 0;
    for (size_t i = 0; i < device_count; i++) {
        if (devices[i].id.kind != device.kind || devices[i].id.index != device.index)
            continue;
        if (devices[i].int8 && session_is_quantized(graph))
            ret[count++] = PRECISION_INT8;
        if (devices[i].fp16 && has_products(graph))
            ret[count++] = PRECISION_FP16;
        if (devices[i].bf16 && has_products(graph))
            ret[count++] = PRECISION_BF16;
    }
    return count;
}

size_t candidates_find(struct device_id device, const struct graph *graph, bool can_calibrate,
                       enum precision ret[PRECISION_COUNT])
{
    size_t count = 0;
    if (device.kind != DEVICE_CPU)
        return gpu_candidates(device, graph, ret);
    /* First for a quantized file, as on a GPU: what comes later may find no time for its trial. */
    const bool is_quantized = session_is_quantized(graph);
    if (is_quantized)
        ret[count++] = PRECISION_INT8;
    if (device_cpu_has_bf16() && has_products(graph))
        ret[count++] = PRECISION_BF16;
    if (!is_quantized && can_calibrate)
        ret[count++] = PRECISION_INT8;
    return count;
}
