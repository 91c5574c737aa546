/* LSTM, GRU and RNN of the sizes that networks have, where threads share images or hidden numbers:
 * each instruction set, several thread counts and batches against the reference kernel. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/interpret.h"
#include "engine/runtime/session.h"
#include "tests/unit/engine/cpu/simd_variants.h"
#include "tests/unit/random_graph.h"

enum { BATCH = 9, INPUTS = 24 };

struct recurrent_case {
    enum op op;
    int64_t gates, steps, hidden;
    const char *direction;
    int64_t directions;
    const char *flag; /* an attribute that is 1, or NULL */
    bool peeks;
};

static struct value *weights(struct graph *graph, uint32_t *state, struct shape shape)
{
    struct error err = {0};
    struct tensor *tensor;
    const float scale = 1.0f / sqrtf((float)shape.dims[shape.rank - 1]);
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &tensor, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++)
        ((float *)tensor->data)[i] = random_unit(state) * scale;
    struct value *value = graph_add_constant(graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

/* The images come first: layout 1. */
static struct graph *make_graph(const struct recurrent_case *c)
{
    uint32_t state = 11;
    struct graph *graph = graph_create(NULL);
    const int64_t d = c->directions, rows = c->gates * c->hidden;
    struct node *node = graph_add_node(graph, c->op, "recurrent", c->op == OP_LSTM ? 8 : 6, 1);
    struct attr *direction = arena_alloc(graph->arena, 1, sizeof *direction);
    struct value **ends = arena_alloc(graph->arena, 2, sizeof *ends);
    *direction = (struct attr){
        .name = "direction", .kind = ATTR_STRING, .count = strlen(c->direction), .s = c->direction};
    node->opset = 14;
    node->attrs = direction;
    node->attr_count = 1;
    cr_assert(node_set_int(graph, node, "layout", 1));
    cr_assert(!c->flag || node_set_int(graph, node, c->flag, 1));
    ends[0] = graph_add_value(graph, "x", DTYPE_F32, &SHAPE(DIM_UNKNOWN, c->steps, INPUTS));
    ends[1] = graph_add_value(graph, "y", DTYPE_NONE, NULL);
    node->inputs[0] = ends[0];
    node->inputs[1] = weights(graph, &state, SHAPE(d, rows, INPUTS));
    node->inputs[2] = weights(graph, &state, SHAPE(d, rows, c->hidden));
    node->inputs[3] = weights(graph, &state, SHAPE(d, 2 * rows));
    if (c->peeks)
        node->inputs[7] = weights(graph, &state, SHAPE(d, 3 * c->hidden));
    node_set_output(node, 0, ends[1]);
    graph->opset = 14;
    graph->inputs = ends;
    graph->outputs = ends + 1;
    graph->input_count = graph->output_count = 1;
    return graph;
}

static void expect(const struct graph *graph, const float *x, const struct tensor *expected,
                   int batch, int threads)
{
    struct error err = {0};
    struct session *session;
    const struct session_options options = {
        .threads = threads, .max_batch = batch, .image_layout = IMAGE_AS_DECLARED};
    const struct tensor *output;
    const void *inputs[1] = {x};
    struct session_step *steps;
    size_t count, found = 0;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s", err.message);
    cr_expect(session_info(session)->batched, "%s", session_info(session)->note);
    cr_assert_eq(session_run(session, batch, inputs, &output, &err), STATUS_OK, "%s", err.message);
    const float *e = expected->data, *g = output->data;
    for (size_t i = 0; i < output->bytes / sizeof *g; i++)
        cr_assert_float_eq(g[i], e[i], 2e-6, "%s, batch %d, %d threads, element %zu: %g, not %g",
                           simd()->name, batch, threads, i, (double)g[i], (double)e[i]);
    cr_assert_eq(session_profile(session, batch, 1, &steps, &count, &err), STATUS_OK);
    for (size_t i = 0; i < count; i++)
        found += strcmp(steps[i].kernel, "recurrent") == 0;
    cr_expect_eq(found, 1, "a reference kernel ran it");
    free(steps);
    session_free(session);
}

static void check(const struct recurrent_case *c)
{
    struct error err = {0};
    struct graph *graph = make_graph(c), *reference;
    struct tensor *input, *expected;
    uint32_t state = 5;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &SHAPE(BATCH, c->steps, INPUTS), &input, &err),
                 STATUS_OK);
    for (size_t i = 0; i < shape_count(&input->shape); i++)
        ((float *)input->data)[i] = 2 * random_unit(&state);
    cr_assert_eq(graph_clone(graph, &reference, &err), STATUS_OK);
    cr_assert_eq(interpret(reference, &input, &expected, NULL, NULL, &err), STATUS_OK, "%s",
                 err.message);
    const struct simd_kernels *variants[SIMD_VARIANTS];
    const size_t variant_count = simd_variants(variants);
    for (size_t v = 0; v < variant_count; v++) {
        simd_use(variants[v]);
        expect(graph, input->data, expected, 1, 4); /* threads share the hidden numbers */
        expect(graph, input->data, expected, BATCH, 3);
    }
    simd_use(NULL);
    tensor_unref(expected);
    tensor_unref(input);
    graph_free(reference);
    graph_free(graph);
}

Test(recurrent, kernels_agree_with_the_reference)
{
    static const struct recurrent_case cases[] = {
        {OP_LSTM, 4, 7, 200, "forward", 1, NULL, true},
        {OP_LSTM, 4, 5, 200, "bidirectional", 2, "input_forget", false},
        {OP_GRU, 3, 6, 224, "reverse", 1, "linear_before_reset", false},
        {OP_GRU, 3, 6, 224, "bidirectional", 2, NULL, false},
        {OP_RNN, 1, 4, 400, "bidirectional", 2, NULL, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        check(&cases[i]);
}
