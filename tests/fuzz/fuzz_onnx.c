/* Any bytes as an ONNX file: they are refused with a sentence, or they make a graph that holds
 * together: it can be copied, every value that a node reads is produced by an earlier node or
 * known, and it runs on zeros within its limits (or says why not). As a TensorProto: refused, or
 * exactly as many bytes as its shape needs. A file that names w.bin finds 64 bytes there. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/interpret.h"
#include "engine/op/ops.h"
#include "models/onnx/onnx.h"
#include "tests/conformance/tensor_pb.h"
#include "tests/fuzz/scratch.h"

#define RUN_ELEMENTS 4096
#define RUN_BYTES    ((size_t)8 << 20)

static void check_graph(const struct graph *graph)
{
    bool *made = alloc_array(graph->value_count, sizeof *made);
    HOLDS(made);
    for (size_t i = 0; i < graph->value_count; i++) {
        const struct value *value = graph->values[i];
        HOLDS(value->index == i);
        made[i] = value->known || !value->producer;
        if (value->known)
            HOLDS(value->known->bytes ==
                  shape_count(&value->known->shape) * dtype_size(value->known->dtype));
    }
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        HOLDS(op_find(node->op, node->opset));
        for (size_t i = 0; i < node->input_count; i++)
            HOLDS(!node->inputs[i] || made[node->inputs[i]->index]);
        for (size_t i = 0; i < node->output_count; i++)
            if (node->outputs[i])
                made[node->outputs[i]->index] = true;
        for (size_t a = 0; a < node->attr_count; a++)
            if (node->attrs[a].kind == ATTR_GRAPH)
                check_graph(node->attrs[a].g);
    }
    for (size_t i = 0; i < graph->output_count; i++)
        HOLDS(made[graph->outputs[i]->index]);
    free(made);
}

/* Zeros for every input; false when one is not of a small fixed shape. */
static bool make_inputs(const struct graph *graph, struct tensor **inputs)
{
    for (size_t i = 0; i < graph->input_count; i++) {
        const struct value *value = graph->inputs[i];
        if (!shape_is_known(&value->shape) || shape_count(&value->shape) > RUN_ELEMENTS ||
            tensor_create(NULL, value->dtype, &value->shape, &inputs[i], NULL) != STATUS_OK)
            return false;
        if (inputs[i]->bytes)
            memset(inputs[i]->data, 0, inputs[i]->bytes);
    }
    return true;
}

static void run(struct graph *graph)
{
    if (graph->node_count > 64 || graph->input_count > 16)
        return;
    struct tensor **inputs = alloc_array(graph->input_count, sizeof *inputs);
    struct tensor **outputs = alloc_array(graph->output_count, sizeof *outputs);
    struct memory_budget budget = {.limit = RUN_BYTES};
    const struct interpreter_limits limits = {.max_steps = 1000};
    struct error err = {0};
    HOLDS(inputs && outputs);
    if (make_inputs(graph, inputs)) {
        if (interpret(graph, inputs, outputs, &budget, &limits, &err) != STATUS_OK)
            HOLDS(*err.message);
        for (size_t i = 0; i < graph->output_count; i++)
            tensor_unref(outputs[i]);
    }
    for (size_t i = 0; i < graph->input_count; i++)
        tensor_unref(inputs[i]);
    free(inputs);
    free(outputs);
}

static enum status load(const uint8_t *data, size_t size, struct onnx_model *ret, struct error *err)
{
    static const char name[] = "w.bin", weights[64] = "";
    const size_t memory_limit = (size_t)256 << 20;
    if (!memmem(data, size, name, sizeof name - 1))
        return onnx_load_memory(data, size, memory_limit, ret, err);
    (void)scratch_write(name, weights, sizeof weights);
    return onnx_load_file(scratch_write("model.onnx", data, size), memory_limit, ret, err);
}

/* Reads every letter, so that a sanitizer sees a name outside its memory. */
static void read_name(void *context, bool is_output, const char *name)
{
    unsigned *sum = context;
    *sum += is_output;
    for (; *name; name++)
        *sum += (unsigned char)*name;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct onnx_model model;
    struct error err = {0};
    unsigned sum = 0;
    onnx_visit_names(scratch_write("names.onnx", data, size), read_name, &sum);
    if (load(data, size, &model, &err) == STATUS_OK) {
        struct graph *copy;
        check_graph(model.graph);
        HOLDS(graph_clone(model.graph, &copy, NULL) == STATUS_OK);
        onnx_model_done(&model);
        run(copy);
        graph_free(copy);
    } else {
        HOLDS(*err.message);
    }
    struct tensor *tensor;
    if (load_tensor_pb(data, size, &tensor, &err) == STATUS_OK) {
        HOLDS(tensor->bytes == shape_count(&tensor->shape) * dtype_size(tensor->dtype));
        tensor_unref(tensor);
    }
    return 0;
}
