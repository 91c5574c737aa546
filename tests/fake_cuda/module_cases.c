/* Helpers of the tests of the whole CUDA module: the stand-in's functions, and a small network. */
#include "tests/fake_cuda/module_cases.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/device.h"
#include "tests/unit/random_graph.h"

struct fake_module fake;

static void find(void *module, const char *name, void *ret)
{
    void *symbol = dlsym(module, name);
    cr_assert_not_null(symbol, "%s", name);
    memcpy(ret, &symbol, sizeof symbol);
}

void find_fake_module(void)
{
    struct device_info devices[DEVICE_MAX];
    cr_assert_geq(device_list(devices, DEVICE_MAX), 2);
    void *module = dlopen(getenv("LENSD_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD);
    cr_assert_not_null(module, "%s", devices[1].reason);
    find(module, "fake_cuda_reset", &fake.reset);
    find(module, "fake_cuda_fail", &fake.fail);
    find(module, "fake_cuda_delay", &fake.delay);
    find(module, "fake_cuda_peers", &fake.peers);
    find(module, "fake_cuda_pools", &fake.pools);
    find(module, "fake_cuda_pinned_limit", &fake.pinned_limit);
    find(module, "fake_cuda_compute_mode", &fake.compute_mode);
    find(module, "fake_cuda_capability", &fake.capability);
    find(module, "fake_cuda_check_order", &fake.check_order);
    find(module, "fake_cuda_races", &fake.races);
    find(module, "fake_cuda_skip", &fake.skip);
    find(module, "fake_cuda_count", &fake.count);
    find(module, "fake_cuda_used", &fake.used);
    find(module, "fake_cuda_operations", &fake.operations);
    find(module, "fake_cuda_graph_launches", &fake.graph_launches);
    fake.reset(2, (size_t)1 << 30);
}

struct graph *small_classifier(int channels, int height, int width, int features, int classes)
{
    struct graph *graph = graph_create(NULL);
    struct error err;
    graph->opset = 13;
    struct value *x =
        graph_add_value(graph, "image", DTYPE_F32, &SHAPE(DIM_UNKNOWN, channels, height, width));
    graph->inputs = arena_alloc(graph->arena, 1, sizeof *graph->inputs);
    graph->inputs[0] = x;
    graph->input_count = 1;
    const struct shape shapes[] = {SHAPE(features, channels, 3, 3), SHAPE(classes, features, 1, 1)};
    const enum op ops[] = {OP_CONV, OP_RELU, OP_GLOBAL_AVERAGE_POOL, OP_CONV};
    uint32_t state = 5;
    for (size_t i = 0, conv = 0; i < 4; i++) {
        struct node *node = graph_add_node(graph, ops[i], "node", ops[i] == OP_CONV ? 2 : 1, 1);
        node->opset = 13;
        node->inputs[0] = x;
        if (ops[i] == OP_CONV) {
            struct tensor *weights;
            const struct shape *shape = &shapes[conv++];
            cr_assert_eq(tensor_create(NULL, DTYPE_F32, shape, &weights, &err), STATUS_OK);
            for (size_t k = 0; k < shape_count(shape); k++)
                ((float *)weights->data)[k] = random_unit(&state);
            node->inputs[1] = graph_add_constant(graph, conv == 1 ? "w1" : "w2", weights);
            tensor_unref(weights);
        }
        x = i == 3 ? graph_add_value(graph, "scores", DTYPE_F32, &SHAPE(DIM_UNKNOWN, classes, 1, 1))
                   : graph_add_value(graph, "", DTYPE_NONE, &SHAPE_NONE);
        node_set_output(node, 0, x);
    }
    graph->outputs = arena_alloc(graph->arena, 1, sizeof *graph->outputs);
    graph->outputs[0] = x;
    graph->output_count = 1;
    return graph;
}
