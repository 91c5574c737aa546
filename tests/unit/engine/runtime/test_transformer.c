/* ONNX's Attention, RotaryEmbedding and RMSNormalization against its reference implementation: the
 * reference kernels, and the compiled session, with operands that are constants and such that a run
 * brings; which kernel runs; and files that contradict themselves. LENSD_TEST_DEVICE=cuda: the
 * sessions are of the first GPU. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/interpret.h"
#include "engine/passes/functions.h"
#include "engine/runtime/session.h"
#include "tests/unit/engine/op/one_node.h"
#include "tests/unit/golden.h"

enum { MOST_IN = 7, MOST_OUT = 4, MOST_ATTRS = 4 };

struct operand_case {
    enum dtype dtype; /* DTYPE_NONE: left out */
    struct shape shape;
    const void *data; /* NULL: by the formula of make_transformer_cases.py */
};

struct transformer_case {
    const char *name;
    enum op op;
    int opset;
    struct attr attrs[MOST_ATTRS];
    size_t attr_count;
    struct operand_case in[MOST_IN];
    size_t in_count;
    struct shape out[MOST_OUT]; /* the numbers are in transformer_outputs.npy, one after another */
    size_t out_count;
};

#include "tests/unit/engine/runtime/transformer_cases.h"

static struct tensor *tensor_of(const struct operand_case *o, size_t operand)
{
    struct tensor *tensor;
    struct error err = {0};
    cr_assert_eq(tensor_create(NULL, o->dtype, &o->shape, &tensor, &err), STATUS_OK);
    if (o->data)
        memcpy(tensor->data, o->data, tensor->bytes);
    for (size_t i = 0; !o->data && i < tensor->bytes / sizeof(float); i++)
        ((float *)tensor->data)[i] = (float)((double)((i * 37 + operand * 101) % 97) / 48 - 1);
    return tensor;
}

/* Which operands a run brings; the others are constants. */
enum brought { NONE, FIRST, ALL };

struct made {
    struct graph *graph;
    struct tensor *inputs[MOST_IN];
    struct value *ends[MOST_IN + MOST_OUT];
};

static void make(const struct transformer_case *c, enum brought brought, struct made *ret)
{
    struct graph *graph = graph_create(NULL);
    *ret = (struct made){.graph = graph};
    graph->opset = c->opset;
    struct node *node = graph_add_node(graph, c->op, "tested", c->in_count, c->out_count);
    node->opset = c->opset;
    node->attrs = c->attrs;
    node->attr_count = c->attr_count;
    for (size_t i = 0; i < c->in_count; i++) {
        const struct operand_case *o = &c->in[i];
        if (o->dtype == DTYPE_NONE)
            continue;
        struct tensor *tensor = tensor_of(o, i);
        if (brought == ALL || (brought == FIRST && i == 0)) {
            node->inputs[i] = graph_add_value(graph, "in", o->dtype, &o->shape);
            ret->ends[graph->input_count] = node->inputs[i];
            ret->inputs[graph->input_count++] = tensor;
        } else {
            node->inputs[i] = graph_add_constant(graph, "in", tensor);
            tensor_unref(tensor);
        }
    }
    for (size_t i = 0; i < c->out_count; i++) {
        node_set_output(node, i, graph_add_value(graph, "out", DTYPE_NONE, NULL));
        ret->ends[graph->input_count + i] = node->outputs[i];
    }
    graph->inputs = ret->ends;
    graph->outputs = ret->ends + graph->input_count;
    graph->output_count = c->out_count;
}

static void drop(struct made *made)
{
    for (size_t i = 0; i < MOST_IN; i++)
        tensor_unref(made->inputs[i]);
    graph_free(made->graph);
}

/* Output i of one of the cases. */
static const float *expected(const struct transformer_case *c, size_t i)
{
    static const struct tensor *all;
    size_t before = 0;
    if (!all)
        all = golden_read("engine/runtime/transformer_outputs.npy");
    for (const struct transformer_case *other = cases; other <= c; other++)
        for (size_t k = 0; k < (other < c ? other->out_count : i); k++)
            before += (size_t)shape_count(&other->out[k]);
    cr_assert_leq((before + (size_t)shape_count(&c->out[i])) * sizeof(float), all->bytes);
    return (const float *)all->data + before;
}

static void compare(const struct transformer_case *c, const char *how, size_t i,
                    const struct tensor *got)
{
    const float *e = expected(c, i), *g = got->data;
    cr_assert_eq(got->dtype, DTYPE_F32, "%s, %s", c->name, how);
    cr_assert(shape_equal(&got->shape, &c->out[i]), "%s, %s, output %zu", c->name, how, i);
    for (size_t k = 0; k < shape_count(&got->shape); k++)
        cr_assert(e[k] == g[k] || fabsf(e[k] - g[k]) <= 2e-6f * (1 + fabsf(e[k])),
                  "%s, %s, output %zu, element %zu: %.8g, not %.8g", c->name, how, i, k,
                  (double)g[k], (double)e[k]);
}

Test(transformer, reference_kernels)
{
    for (size_t n = 0; n < COUNT_OF(cases); n++) {
        struct made made;
        struct tensor *outputs[MOST_OUT] = {NULL};
        struct error err = {0};
        make(&cases[n], ALL, &made);
        cr_assert_eq(interpret(made.graph, made.inputs, outputs, NULL, NULL, &err), STATUS_OK,
                     "%s: %s", cases[n].name, err.message);
        for (size_t i = 0; i < cases[n].out_count; i++) {
            compare(&cases[n], "reference", i, outputs[i]);
            tensor_unref(outputs[i]);
        }
        drop(&made);
    }
}

static struct device_id device(void)
{
    const char *name = getenv("LENSD_TEST_DEVICE");
    return (struct device_id){name && !strcmp(name, "cuda") ? DEVICE_CUDA : DEVICE_CPU, 0};
}

static struct session *session_of(const struct graph *graph, const char *name)
{
    struct error err = {0};
    struct session *session;
    const struct session_options options = {.device = device(),
                                            .threads = 2,
                                            .max_batch = 1,
                                            .image_input = SIZE_MAX,
                                            .image_layout = IMAGE_AS_DECLARED};
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s: %s", name,
                 err.message);
    return session;
}

static void run_session(const struct transformer_case *c, enum brought brought, const char *how)
{
    struct made made;
    struct error err = {0};
    const struct tensor *outputs[MOST_OUT];
    const void *data[MOST_IN];
    make(c, brought, &made);
    for (size_t i = 0; i < made.graph->input_count; i++)
        data[i] = made.inputs[i]->data;
    struct session *session = session_of(made.graph, c->name);
    for (int run = 0; run < 2; run++) {
        cr_assert_eq(session_run(session, 1, data, outputs, &err), STATUS_OK, "%s, %s: %s", c->name,
                     how, err.message);
        for (size_t i = 0; i < c->out_count; i++)
            compare(c, how, i, outputs[i]);
    }
    session_free(session);
    drop(&made);
}

Test(transformer, compiled_sessions)
{
    for (size_t n = 0; n < COUNT_OF(cases); n++) {
        run_session(&cases[n], FIRST, "constants");
        run_session(&cases[n], ALL, "inputs");
    }
}

/* ---- which kernel runs ---- */

/* A layer of a transformer: its operands made by a product, as in a model. */
static struct graph *layer(const struct transformer_case *c, struct value **ends)
{
    struct graph *graph = graph_create(NULL);
    struct shape tokens = SHAPE(2, 17, 64);
    struct value *x = ends[0] = graph_add_value(graph, "x", DTYPE_F32, &tokens);
    struct node *node = graph_add_node(graph, c->op, "tested", c->in_count, 1);
    graph->opset = node->opset = c->opset;
    node->attrs = c->attrs;
    node->attr_count = c->attr_count;
    for (size_t i = 0; i < c->in_count; i++) {
        struct tensor *tensor = tensor_of(&c->in[i], i);
        struct value *constant = graph_add_constant(graph, "w", tensor);
        tensor_unref(tensor);
        if (i >= 3 || (i > 0 && c->op != OP_ONNX_ATTENTION)) {
            node->inputs[i] = constant;
            continue;
        }
        struct node *product = graph_add_node(graph, OP_MATMUL, "product", 2, 1);
        product->opset = 13;
        product->inputs[0] = x;
        product->inputs[1] = constant;
        node_set_output(product, 0, graph_add_value(graph, "y", DTYPE_NONE, NULL));
        node->inputs[i] = product->outputs[0];
    }
    node_set_output(node, 0, ends[1] = graph_add_value(graph, "out", DTYPE_NONE, NULL));
    graph->inputs = ends;
    graph->outputs = ends + 1;
    graph->input_count = graph->output_count = 1;
    cr_assert_eq(graph_sort(graph, NULL), STATUS_OK);
    return graph;
}

#define WEIGHTS(columns)                                                                           \
    {                                                                                              \
        DTYPE_F32, SHAPE(64, columns), NULL                                                        \
    }
#define INT(key, value)                                                                            \
    {                                                                                              \
        .name = key, .kind = ATTR_INT, .i = value                                                  \
    }

/* A layer's one fast step, and no reference kernel. */
Test(transformer, fast_kernels)
{
    static const bool hidden[17] = {[3] = true, [5] = true};
    static const bool rows[17 * 17] = {[3] = true, [20] = true}; /* of the first two alone */
    static const struct {
        struct transformer_case layer;
        const char *kernel;
        bool clears; /* rows of the result, by a small step behind it */
    } samples[] = {
        {{"attention",
          OP_ONNX_ATTENTION,
          23,
          {INT("q_num_heads", 4), INT("kv_num_heads", 4)},
          2,
          {WEIGHTS(64), WEIGHTS(64), WEIGHTS(64)},
          3,
          {{0}},
          1},
         "attention"},
        {{"grouped",
          OP_ONNX_ATTENTION,
          24,
          {INT("q_num_heads", 4), INT("kv_num_heads", 2), INT("is_causal", 1)},
          3,
          {WEIGHTS(64), WEIGHTS(32), WEIGHTS(32)},
          3,
          {{0}},
          1},
         "attention"},
        {{"masked",
          OP_ONNX_ATTENTION,
          23,
          {INT("q_num_heads", 2), INT("kv_num_heads", 1)},
          2,
          {WEIGHTS(64), WEIGHTS(32), WEIGHTS(32), {DTYPE_BOOL, SHAPE(17), hidden}},
          4,
          {{0}},
          1},
         "attention"},
        {{"a row without keys",
          OP_ONNX_ATTENTION,
          23,
          {INT("q_num_heads", 2), INT("kv_num_heads", 1)},
          2,
          {WEIGHTS(64), WEIGHTS(32), WEIGHTS(32), {DTYPE_BOOL, SHAPE(17, 17), rows}},
          4,
          {{0}},
          1},
         "attention",
         true},
        {{"RMSNormalization",
          OP_RMS_NORMALIZATION,
          23,
          {{0}},
          0,
          {WEIGHTS(64), {DTYPE_F32, SHAPE(64), NULL}},
          2,
          {{0}},
          1},
         NULL},
        {{"rotary",
          OP_ROTARY_EMBEDDING,
          23,
          {INT("num_heads", 4)},
          1,
          {WEIGHTS(64), {DTYPE_F32, SHAPE(1, 17, 8), NULL}, {DTYPE_F32, SHAPE(1, 17, 8), NULL}},
          3,
          {{0}},
          1},
         NULL},
    };
    for (size_t n = 0; n < COUNT_OF(samples); n++) {
        struct value *ends[2];
        struct error err = {0};
        const char *name = samples[n].layer.name;
        struct graph *graph = layer(&samples[n].layer, ends);
        struct session *session = session_of(graph, name);
        struct session_step *steps;
        size_t count, found = 0;
        cr_assert_eq(session_profile(session, 1, 1, &steps, &count, &err), STATUS_OK);
        for (size_t i = 0; i < count; i++) {
            found += samples[n].kernel && !strcmp(steps[i].kernel, samples[n].kernel);
            cr_assert(samples[n].clears || (strcmp(steps[i].kernel, "reference") != 0 &&
                                            strcmp(steps[i].kernel, "host") != 0),
                      "%s: %s is run by its reference kernel", name, steps[i].name);
        }
        cr_assert_eq(found, samples[n].kernel ? 1 : 0, "%s: %zu fast steps", name, found);
        free(steps);
        session_free(session);
        graph_free(graph);
    }
}

/* ---- files that contradict themselves ---- */

static void start(struct one_node *one, enum op op, int opset, size_t inputs, size_t outputs)
{
    one_start(one, op, opset, inputs, outputs);
    one->node->opset = opset;
}

static void zeroes(struct one_node *one, size_t i, struct shape shape)
{
    static const float data[512];
    cr_assert_leq(shape_count(&shape), COUNT_OF(data));
    one_input(one, i, DTYPE_F32, shape, data);
}

static void refused(struct one_node *one, enum status status, const char *words)
{
    one_fails(one, status, words);
    one_end(one);
}

static void qkv(struct one_node *one, int opset, size_t inputs, struct shape q, struct shape k,
                struct shape v)
{
    start(one, OP_ONNX_ATTENTION, opset, inputs, 1);
    zeroes(one, 0, q);
    zeroes(one, 1, k);
    zeroes(one, 2, v);
}

Test(transformer, attention_refuses)
{
    struct one_node one;
    const struct shape x = SHAPE(2, 3, 8), heads = SHAPE(1, 2, 3, 4);
    qkv(&one, 23, 3, x, x, x);
    refused(&one, STATUS_MODEL, "q_num_heads");
    qkv(&one, 23, 3, x, x, x);
    one_int(&one, "q_num_heads", 3);
    one_int(&one, "kv_num_heads", 1);
    refused(&one, STATUS_SHAPE, "3 heads do not divide");
    qkv(&one, 23, 3, x, x, x);
    one_int(&one, "q_num_heads", INT64_MAX);
    one_int(&one, "kv_num_heads", -1);
    refused(&one, STATUS_MODEL, "at least 1");
    qkv(&one, 23, 3, SHAPE(1, 3, 3, 4), heads, heads);
    refused(&one, STATUS_SHAPE, "a multiple of the 2");
    qkv(&one, 23, 3, heads, SHAPE(1, 2, 3, 5), heads);
    refused(&one, STATUS_SHAPE, "K has shape");
    qkv(&one, 23, 3, heads, heads, SHAPE(1, 2, 4, 4));
    refused(&one, STATUS_SHAPE, "V has shape");
    qkv(&one, 23, 3, heads, SHAPE(1, 2, 0, 4), SHAPE(1, 2, 0, 4));
    refused(&one, STATUS_SHAPE, "0 keys");
    qkv(&one, 23, 4, heads, heads, heads);
    zeroes(&one, 3, SHAPE(3, 2));
    refused(&one, STATUS_SHAPE, "does not broadcast");
    qkv(&one, 24, 4, heads, heads, heads);
    zeroes(&one, 3, SHAPE(3, 4));
    refused(&one, STATUS_SHAPE, "does not broadcast");
    qkv(&one, 23, 5, heads, heads, heads);
    zeroes(&one, 4, SHAPE(1, 2, 1, 4));
    refused(&one, STATUS_MODEL, "come together");
    qkv(&one, 24, 7, heads, heads, heads);
    zeroes(&one, 4, SHAPE(1, 2, 1, 4));
    zeroes(&one, 5, SHAPE(1, 2, 1, 4));
    ONE_I64(&one, 6, 1);
    refused(&one, STATUS_MODEL, "two forms of a cache");
    qkv(&one, 24, 7, heads, heads, heads);
    ONE_I64(&one, 6, 4);
    refused(&one, STATUS_INVALID, "expected 0 to 3");
    qkv(&one, 24, 7, heads, heads, heads);
    ONE_I64(&one, 6, INT64_MIN);
    refused(&one, STATUS_INVALID, "expected 0 to 3");
    qkv(&one, 25, 3, heads, heads, heads);
    one_int(&one, "left_window_size", -2);
    refused(&one, STATUS_MODEL, "left_window_size");
    qkv(&one, 23, 3, heads, heads, heads);
    one_int(&one, "qk_matmul_output_mode", 4);
    refused(&one, STATUS_MODEL, "expected 0 to 3");
    qkv(&one, 23, 3, heads, heads, heads);
    one_int(&one, "softmax_precision", 7);
    refused(&one, STATUS_MODEL, "softmax_precision");
    qkv(&one, 23, 3, heads, heads, heads);
    one_float(&one, "softcap", -1);
    refused(&one, STATUS_MODEL, "softcap");
    qkv(&one, 23, 3, heads, heads, heads);
    one_float(&one, "scale", NAN);
    refused(&one, STATUS_MODEL, "scale");
}

Test(transformer, windows_may_be_endless)
{
    struct one_node one;
    const struct shape heads = SHAPE(1, 1, 2, 1);
    qkv(&one, 25, 3, heads, heads, heads);
    one_int(&one, "left_window_size", INT64_MAX);
    one_int(&one, "right_window_size", INT64_MAX);
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F32, heads, (const float[]){0, 0});
    one_end(&one);
}

/* Attention of q [1, 1, rows, 1] and k and v [1, 1, keys, 1], none of them known. */
static struct graph *long_attention(int64_t rows, int64_t keys, struct attr *attr, size_t count)
{
    struct graph *graph = graph_create(NULL);
    struct node *node = graph_add_node(graph, OP_ONNX_ATTENTION, "long", 3, 1);
    node->opset = 25;
    node->attrs = attr;
    node->attr_count = count;
    for (size_t i = 0; i < 3; i++) {
        const struct shape shape = SHAPE(1, 1, i ? keys : rows, 1);
        node->inputs[i] = graph_add_value(graph, "in", DTYPE_F32, &shape);
    }
    node_set_output(node, 0, graph_add_value(graph, "out", DTYPE_NONE, NULL));
    return graph;
}

/* A few bytes of a file say how long sequences are: that makes no gigabytes and takes no minutes
 * before a run does. */
Test(transformer, long_sequences_cost_nothing_to_load)
{
    struct attr causal = INT("is_causal", 1);
    struct error err = {0};
    struct graph *graph = long_attention(8192, 8193, &causal, 1);
    cr_assert_not(composite_is_expanded(graph->nodes[0]));
    graph_free(graph);
    graph = long_attention(8192, 8192, &causal, 1);
    cr_assert(composite_is_expanded(graph->nodes[0]));
    graph_free(graph);
    graph = long_attention(INT64_C(1) << 40, 2, NULL, 0);
    cr_assert(composite_is_expanded(graph->nodes[0]));
    struct edit edit = {.graph = graph, .err = &err};
    cr_assert_eq(composite_expand(&edit, 0), STATUS_OK, "%s", err.message);
    graph_free(graph);
}

/* ---- what only a run knows ---- */

/* Attention of q, k, v [1, heads, 2, 1] or, merged, [1, 2, 2], and a mask [2, 2] or lengths [1],
 * all of them brought by each run, through the interpreter (`compiled` false) or a session. Returns
 * the status of that; y: [4]. */
struct run {
    float q[4], k[4], v[4], mask[4], softcap;
    int64_t valid;
    bool has_valid, merged;
};

static enum status attend(const struct run *run, bool compiled, float *y, struct error *err)
{
    const struct shape x = run->merged ? SHAPE(1, 2, 2) : SHAPE(1, 2, 2, 1);
    struct transformer_case c = {"run",
                                 OP_ONNX_ATTENTION,
                                 24,
                                 {INT("q_num_heads", 2), INT("kv_num_heads", 2)},
                                 2,
                                 {{DTYPE_F32, x, run->q},
                                  {DTYPE_F32, x, run->k},
                                  {DTYPE_F32, x, run->v},
                                  {DTYPE_F32, SHAPE(2, 2), run->mask}},
                                 4,
                                 {{0}},
                                 1};
    if (run->softcap > 0)
        c.attrs[c.attr_count++] =
            (struct attr){.name = "softcap", .kind = ATTR_FLOAT, .f = run->softcap};
    if (run->has_valid) {
        c.in[3] = (struct operand_case){0};
        c.in[6] = (struct operand_case){DTYPE_I64, SHAPE(1), &run->valid};
        c.in_count = 7;
    }
    struct made made;
    struct tensor *outputs[MOST_OUT] = {NULL};
    enum status status;
    make(&c, ALL, &made);
    if (compiled) {
        const void *data[MOST_IN];
        const struct tensor *got[MOST_OUT];
        for (size_t i = 0; i < made.graph->input_count; i++)
            data[i] = made.inputs[i]->data;
        struct session *session = session_of(made.graph, "run");
        status = session_run(session, 1, data, got, err);
        if (status == STATUS_OK)
            memcpy(y, got[0]->data, 4 * sizeof *y);
        session_free(session);
    } else {
        status = interpret(made.graph, made.inputs, outputs, NULL, NULL, err);
        if (status == STATUS_OK)
            memcpy(y, outputs[0]->data, 4 * sizeof *y);
        tensor_unref(outputs[0]);
    }
    drop(&made);
    return status;
}

/* A row without keys is 0; a NaN of the file's own numbers is none of those. */
Test(transformer, a_run_hides_rows_and_keeps_nan)
{
    static const struct {
        struct run run;
        float y[4];
    } table[] = {
        {{{1, 2, 3, 4}, {1, 1, 1, 1}, {5, 5, 7, 7}, {0, 0, -INFINITY, -INFINITY}}, {5, 0, 7, 0}},
        {{{NAN, 2, 3, NAN}, {1, 1, 1, 1}, {5, 5, 7, 7}, {0, 0, -INFINITY, -INFINITY}},
         {NAN, 0, 7, 0}},
        {{{1, 2, 3, 4}, {1, NAN, 1, 1}, {5, 5, 7, 7}, {0, -1, 0, 0}}, {NAN, NAN, 7, 7}},
        {{{1, NAN, 3, 4}, {1, 1, 1, 1}, {5, 7, 5, 7}, {0, 0, -INFINITY, -INFINITY}, .merged = true},
         {5, NAN, 0, 0}},
        {{{1, 2, 3, 4}, {1, 1, 1, 1}, {5, 5, 7, 7}, .has_valid = true, .valid = 0}, {0, 0, 0, 0}},
        {{{1, NAN, 3, 4}, {1, 1, 1, 1}, {5, 0, 7, 0}, .has_valid = true, .valid = 1},
         {5, NAN, 7, 7}},
        {{{1, -2, 0, 4}, {1, 1, 1, 1}, {5, 5, 7, 7}, .softcap = 1e-40f}, {5, 5, 7, 7}},
        {{{0, 0, 0, 0}, {1, 1, 1, 1}, {5, 5, 7, 7}, .softcap = 1e-45f}, {5, 5, 7, 7}},
    };
    for (size_t n = 0; n < COUNT_OF(table); n++)
        for (int compiled = 0; compiled < 2; compiled++) {
            float y[4];
            struct error err = {0};
            cr_assert_eq(attend(&table[n].run, compiled, y, &err), STATUS_OK, "%s", err.message);
            for (size_t i = 0; i < 4; i++)
                cr_expect(isnan(table[n].y[i]) ? isnan(y[i]) : fabsf(y[i] - table[n].y[i]) < 1e-5f,
                          "case %zu, %s, element %zu: %g, not %g", n,
                          compiled ? "compiled" : "reference", i, (double)y[i],
                          (double)table[n].y[i]);
        }
}

Test(transformer, valid_keys_of_a_run_are_checked)
{
    static const int64_t wrong[] = {-1, 3, INT64_MIN, INT64_MAX};
    for (size_t n = 0; n < COUNT_OF(wrong); n++)
        for (int compiled = 0; compiled < 2; compiled++) {
            const struct run run = {.has_valid = true, .valid = wrong[n]};
            char words[100];
            float y[4];
            struct error err = {0};
            snprintf(words, sizeof words, "nonpad_kv_seqlen is %lld for image 0, expected 0 to 2",
                     (long long)wrong[n]);
            cr_expect_eq(attend(&run, compiled, y, &err), STATUS_INVALID);
            cr_expect(strstr(err.message, words), "%s, not %s", err.message, words);
        }
}

/* Opset 24: what the mask leaves out at the end is hidden, all of it, too. */
Test(transformer, a_mask_without_keys)
{
    struct one_node one;
    const struct shape heads = SHAPE(1, 1, 2, 1);
    qkv(&one, 24, 4, heads, heads, heads);
    one_input(&one, 2, DTYPE_F32, heads, (const float[]){1, 2});
    one_input(&one, 3, DTYPE_F64, SHAPE(0), (const double[]){0});
    cr_assert_eq(one_run(&one), STATUS_OK, "%s", one.err.message);
    one_equals(&one, 0, DTYPE_F32, heads, (const float[]){0, 0});
    one_end(&one);
}

Test(transformer, rotary_embedding_refuses)
{
    struct one_node one;
    const struct shape x = SHAPE(1, 2, 3, 6), table = SHAPE(1, 3, 3);
    start(&one, OP_ROTARY_EMBEDDING, 23, 3, 1);
    zeroes(&one, 0, SHAPE(1, 3, 12));
    zeroes(&one, 1, table);
    zeroes(&one, 2, table);
    refused(&one, STATUS_MODEL, "num_heads");
    start(&one, OP_ROTARY_EMBEDDING, 23, 3, 1);
    zeroes(&one, 0, x);
    zeroes(&one, 1, table);
    zeroes(&one, 2, SHAPE(1, 3, 2));
    refused(&one, STATUS_SHAPE, "sin_cache");
    static const int64_t turned[] = {-2, 3, 8};
    for (size_t i = 0; i < COUNT_OF(turned); i++) {
        start(&one, OP_ROTARY_EMBEDDING, 23, 3, 1);
        zeroes(&one, 0, x);
        zeroes(&one, 1, table);
        zeroes(&one, 2, table);
        one_int(&one, "rotary_embedding_dim", turned[i]);
        refused(&one, STATUS_MODEL, "an even number");
    }
    start(&one, OP_ROTARY_EMBEDDING, 23, 4, 1);
    zeroes(&one, 0, x);
    zeroes(&one, 1, SHAPE(5, 3));
    zeroes(&one, 2, SHAPE(5, 3));
    one_input(&one, 3, DTYPE_I64, SHAPE(1, 3), (const int64_t[]){0, 5, 1});
    refused(&one, STATUS_INVALID, "have 5 rows");
}

Test(transformer, rms_normalization_refuses)
{
    struct one_node one;
    start(&one, OP_RMS_NORMALIZATION, 23, 2, 1);
    zeroes(&one, 0, SHAPE(2, 3));
    zeroes(&one, 1, SHAPE(5, 2, 3));
    refused(&one, STATUS_SHAPE, "scale");
    start(&one, OP_RMS_NORMALIZATION, 23, 2, 1);
    zeroes(&one, 0, SHAPE(2, 3));
    zeroes(&one, 1, SHAPE(3));
    one_int(&one, "axis", 2);
    refused(&one, STATUS_SHAPE, "axis");
}
