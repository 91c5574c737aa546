/* Attention as exporters write it: the compiled session, whose optimizer makes one operator of it,
 * against the interpreter on the graph as it was; and the moves around it. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/cpu.h"
#include "engine/base/size.h"
#include "engine/cpu/cpu.h"
#include "engine/op/interpret.h"
#include "engine/runtime/session.h"
#include "tests/unit/engine/cpu/simd_variants.h"
#include "tests/unit/random_graph.h"

/* How the exporter wrote it. */
enum style {
    TIMM,        /* one product; Reshape, Transpose, Split, Squeeze; q and k scaled */
    TORCHVISION, /* tokens in front: Transposes outside, Gathers, three dimensions merged */
    HF,          /* three products; result through a Reshape */
    EINSUM,      /* torchvision's MaxViT: Slices, Einsum */
    TURNED,      /* timm's CoAtNet: [heads, depth, tokens], v times the turned softmax */
};

enum bias {
    BIAS_NONE,
    BIAS_HEADS,   /* a constant [1, heads, rows, keys] */
    BIAS_WINDOWS, /* that, and a constant [1, batch, 1, rows, keys] between Reshapes, as Swin has it
                   */
    BIAS_CAUSAL,  /* a constant [rows, keys] of 0 and -inf */
    BIAS_KEYS,    /* an input [batch, 1, 1, keys] */
    BIAS_FULL,    /* an input of the scores' own shape */
    BIAS_WHERE,   /* Where(constant, scores, -inf) */
    BIAS_DEAD,    /* a constant with a row of -inf, whose NaN is replaced by 0 */
    BIAS_NAN,     /* the same, left as it is */
};

struct sample {
    const char *name;
    enum style style;
    int64_t batch, tokens, heads, depth;
    enum bias bias;
    bool scale_behind; /* the scores are divided, not q and k multiplied */
};

struct build {
    struct graph *graph;
    uint32_t state;
    struct value *inputs[2];
    size_t input_count;
    bool unbiased; /* products have no bias, which would become their epilogue */
};

static struct value *f32(struct build *b, struct shape shape, float scale)
{
    struct error err = {0};
    struct tensor *tensor;
    cr_assert_eq(tensor_create(NULL, DTYPE_F32, &shape, &tensor, &err), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++)
        ((float *)tensor->data)[i] = random_unit(&b->state) * scale;
    struct value *value = graph_add_constant(b->graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

static struct value *number(struct build *b, float x)
{
    struct value *value = f32(b, SHAPE_SCALAR, 0);
    *(float *)value->known->data = x;
    return value;
}

static struct value *list(struct build *b, struct shape shape, size_t count, const int64_t *data)
{
    struct error err = {0};
    struct tensor *tensor;
    cr_assert_eq(tensor_create(NULL, DTYPE_I64, &shape, &tensor, &err), STATUS_OK);
    memcpy(tensor->data, data, count * sizeof *data);
    struct value *value = graph_add_constant(b->graph, "", tensor);
    tensor_unref(tensor);
    return value;
}

#define COUNT_ARGS(...) (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#define LIST(b, ...)                                                                               \
    list(b, SHAPE(COUNT_ARGS(__VA_ARGS__)), COUNT_ARGS(__VA_ARGS__), (int64_t[]){__VA_ARGS__})

static struct node *node(struct build *b, enum op op, size_t outputs, struct value *x,
                         struct value *y, struct value *z, struct value *w)
{
    struct value *all[4] = {x, y, z, w};
    size_t count = 0;
    while (count < 4 && all[count])
        count++;
    struct node *made = graph_add_node(b->graph, op, "", count, outputs);
    made->opset = 13;
    memcpy(made->inputs, all, count * sizeof *all);
    for (size_t o = 0; o < outputs; o++)
        node_set_output(made, o, graph_add_value(b->graph, "", DTYPE_NONE, NULL));
    return made;
}

static struct value *two(struct build *b, enum op op, struct value *x, struct value *y)
{
    return node(b, op, 1, x, y, NULL, NULL)->outputs[0];
}

static struct value *turn(struct build *b, struct value *x, size_t count, const int64_t *perm)
{
    struct node *made = node(b, OP_TRANSPOSE, 1, x, NULL, NULL, NULL);
    cr_assert(node_set_ints(b->graph, made, "perm", perm, count));
    return made->outputs[0];
}
#define TURN(b, x, ...)    turn(b, x, COUNT_ARGS(__VA_ARGS__), (int64_t[]){__VA_ARGS__})
#define RESHAPE(b, x, ...) two(b, OP_RESHAPE, x, LIST(b, __VA_ARGS__))

static struct value *pick(struct build *b, struct value *x, int64_t i)
{
    struct node *made = node(b, OP_GATHER, 1, x, list(b, SHAPE_SCALAR, 1, &i), NULL, NULL);
    cr_assert(node_set_int(b->graph, made, "axis", 0));
    return made->outputs[0];
}

static struct value *cut(struct build *b, struct value *x, int64_t axis, int64_t from, int64_t to)
{
    return node(b, OP_SLICE, 1, x, LIST(b, from), LIST(b, to), LIST(b, axis))->outputs[0];
}

static struct value *einsum(struct build *b, struct value *x, struct value *y, const char *equation)
{
    struct node *made = node(b, OP_EINSUM, 1, x, y, NULL, NULL);
    struct attr *attr = arena_alloc(b->graph->arena, 1, sizeof *attr);
    *attr = (struct attr){
        .name = "equation", .kind = ATTR_STRING, .count = strlen(equation), .s = equation};
    made->attrs = attr;
    made->attr_count = 1;
    return made->outputs[0];
}

static struct value *linear(struct build *b, struct value *x, int64_t in, int64_t out)
{
    struct value *product = two(b, OP_MATMUL, x, f32(b, SHAPE(in, out), 2 / sqrtf((float)in)));
    return b->unbiased ? product : two(b, OP_ADD, product, f32(b, SHAPE(out), 0.3f));
}

/* The mask of a constant bias: -inf above the diagonal, or a row that has nothing else. */
static struct value *mask(struct build *b, const struct sample *s)
{
    struct value *value = f32(b, SHAPE(s->tokens, s->tokens), 1);
    float *m = value->known->data;
    for (int64_t i = 0; i < s->tokens; i++)
        for (int64_t k = 0; k < s->tokens; k++)
            if (s->bias == BIAS_CAUSAL ? k > i : i == s->tokens / 2)
                m[i * s->tokens + k] = -INFINITY;
    return value;
}

static struct value *where(struct build *b, const struct sample *s, struct value *scores)
{
    struct error err = {0};
    struct tensor *tensor;
    struct shape shape = SHAPE(1, s->tokens, s->tokens);
    cr_assert_eq(tensor_create(NULL, DTYPE_BOOL, &shape, &tensor, &err), STATUS_OK);
    for (size_t i = 0; i < tensor->bytes; i++) /* each row keeps its first key */
        ((bool *)tensor->data)[i] = i % (size_t)s->tokens == 0 || random_below(&b->state, 3) > 0;
    struct value *condition = graph_add_constant(b->graph, "", tensor);
    tensor_unref(tensor);
    return node(b, OP_WHERE, 1, condition, scores, number(b, -INFINITY), NULL)->outputs[0];
}

static struct value *biased(struct build *b, const struct sample *s, struct value *scores)
{
    const int64_t n = s->tokens;
    struct shape shape =
        SHAPE(s->batch, s->bias == BIAS_FULL ? s->heads : 1, s->bias == BIAS_FULL ? n : 1, n);
    switch (s->bias) {
    case BIAS_NONE:
        return scores;
    case BIAS_HEADS:
        return two(b, OP_ADD, scores, f32(b, SHAPE(1, s->heads, n, n), 2));
    case BIAS_WINDOWS:
        scores = two(b, OP_ADD, scores, f32(b, SHAPE(1, s->heads, n, n), 2));
        scores = two(b, OP_ADD, RESHAPE(b, scores, 1, s->batch, s->heads, n, n),
                     f32(b, SHAPE(1, s->batch, 1, n, n), 3));
        return RESHAPE(b, scores, s->batch, s->heads, n, n);
    case BIAS_KEYS:
    case BIAS_FULL:
        b->inputs[b->input_count++] = graph_add_value(b->graph, "mask", DTYPE_F32, &shape);
        return two(b, OP_ADD, b->inputs[1], scores);
    case BIAS_WHERE:
        return where(b, s, scores);
    default:
        return two(b, OP_ADD, scores, mask(b, s));
    }
}

static struct value *softmax(struct build *b, const struct sample *s, struct value *scores)
{
    scores = biased(b, s, scores);
    struct node *made = node(b, OP_SOFTMAX, 1, scores, NULL, NULL, NULL);
    cr_assert(node_set_int(b->graph, made, "axis", -1));
    struct value *p = made->outputs[0];
    if (s->bias != BIAS_DEAD)
        return p;
    struct value *nan = node(b, OP_IS_NAN, 1, p, NULL, NULL, NULL)->outputs[0];
    return node(b, OP_WHERE, 1, nan, number(b, 0), p, NULL)->outputs[0];
}

/* q [.., tokens, depth] and turned k [.., depth, tokens]. */
static struct value *scores_of(struct build *b, const struct sample *s, struct value *q,
                               struct value *k)
{
    const float scale = 1 / sqrtf((float)s->depth);
    if (s->scale_behind)
        return two(b, OP_DIV, two(b, OP_MATMUL, q, k), number(b, 1 / scale));
    return two(b, OP_MATMUL, two(b, OP_MUL, q, number(b, sqrtf(scale))),
               two(b, OP_MUL, k, number(b, sqrtf(scale))));
}

static struct value *attention(struct build *b, const struct sample *s, struct value *x)
{
    const int64_t n = s->tokens, h = s->heads, d = s->depth, c = h * d, batch = s->batch;
    struct value *q, *k, *v, *y;
    struct node *parts;
    switch (s->style) {
    case TIMM:
        x = RESHAPE(b, linear(b, x, c, 3 * c), batch, n, 3, h, d);
        parts = node(b, OP_SPLIT, 3, TURN(b, x, 2, 0, 3, 1, 4), NULL, NULL, NULL);
        q = two(b, OP_SQUEEZE, parts->outputs[0], LIST(b, 0));
        k = TURN(b, two(b, OP_SQUEEZE, parts->outputs[1], LIST(b, 0)), 0, 1, 3, 2);
        v = two(b, OP_SQUEEZE, parts->outputs[2], LIST(b, 0));
        y = two(b, OP_MATMUL, softmax(b, s, scores_of(b, s, q, k)), v);
        return RESHAPE(b, TURN(b, y, 0, 2, 1, 3), batch, n, c);
    case TORCHVISION:
        x = RESHAPE(b, linear(b, TURN(b, x, 1, 0, 2), c, 3 * c), n, batch, 3, c);
        x = two(b, OP_UNSQUEEZE, x, LIST(b, 0));
        x = two(b, OP_SQUEEZE, TURN(b, x, 3, 1, 2, 0, 4), LIST(b, 3));
        q = TURN(b, RESHAPE(b, pick(b, x, 0), n, batch * h, d), 1, 0, 2);
        k = TURN(b, RESHAPE(b, pick(b, x, 1), n, batch * h, d), 1, 0, 2);
        v = TURN(b, RESHAPE(b, pick(b, x, 2), n, batch * h, d), 1, 0, 2);
        q = RESHAPE(b, q, batch, h, n, d);
        k = TURN(b, RESHAPE(b, k, batch, h, n, d), 0, 1, 3, 2);
        v = RESHAPE(b, v, batch, h, n, d);
        y = two(b, OP_MATMUL, softmax(b, s, scores_of(b, s, q, k)), v);
        y = RESHAPE(b, TURN(b, y, 2, 0, 1, 3), n, batch, c);
        return TURN(b, y, 1, 0, 2);
    case HF:
        q = TURN(b, RESHAPE(b, linear(b, x, c, c), batch, n, h, d), 0, 2, 1, 3);
        k = TURN(b, RESHAPE(b, linear(b, x, c, c), batch, n, h, d), 0, 2, 3, 1);
        v = TURN(b, RESHAPE(b, linear(b, x, c, c), batch, n, h, d), 0, 2, 1, 3);
        y = two(b, OP_MATMUL, softmax(b, s, scores_of(b, s, q, k)), v);
        return RESHAPE(b, TURN(b, y, 0, 2, 1, 3), batch, n, c);
    case EINSUM:
        x = linear(b, x, c, 3 * c);
        q = TURN(b, RESHAPE(b, cut(b, x, 2, 0, c), batch, n, h, d), 0, 2, 1, 3);
        k = TURN(b, RESHAPE(b, cut(b, x, 2, c, 2 * c), batch, n, h, d), 0, 2, 1, 3);
        v = TURN(b, RESHAPE(b, cut(b, x, 2, 2 * c, 3 * c), batch, n, h, d), 0, 2, 1, 3);
        k = two(b, OP_MUL, k, number(b, 1 / sqrtf((float)d)));
        y = softmax(b, s, einsum(b, q, k, "B H I D, B H J D -> B H I J"));
        y = einsum(b, y, v, "B H I J, B H J D -> B H I D");
        return RESHAPE(b, TURN(b, y, 0, 2, 1, 3), batch, n, c);
    default:
        x = RESHAPE(b, TURN(b, linear(b, x, c, 3 * c), 0, 2, 1), batch, h, 3 * d, n);
        q = TURN(b, cut(b, x, 2, 0, d), 0, 1, 3, 2);
        k = cut(b, x, 2, d, 2 * d);
        v = cut(b, x, 2, 2 * d, 3 * d);
        y = TURN(b, softmax(b, s, scores_of(b, s, q, k)), 0, 1, 3, 2);
        return RESHAPE(b, two(b, OP_MATMUL, v, y), batch, c, n);
    }
}

static struct graph *make_graph(const struct sample *s, bool unbiased)
{
    struct build b = {.graph = graph_create(NULL), .state = 11, .unbiased = unbiased};
    struct shape shape = SHAPE(s->batch, s->tokens, s->heads * s->depth);
    b.inputs[b.input_count++] = graph_add_value(b.graph, "tokens", DTYPE_F32, &shape);
    struct value *y = attention(&b, s, b.inputs[0]);
    y = two(&b, OP_ADD, y, number(&b, 1)); /* something that computes behind it */
    struct value **ends = arena_alloc(b.graph->arena, 3, sizeof *ends);
    ends[0] = b.inputs[0];
    ends[1] = b.inputs[1];
    ends[2] = y;
    b.graph->opset = 13;
    b.graph->inputs = ends;
    b.graph->input_count = b.input_count;
    b.graph->outputs = ends + 2;
    b.graph->output_count = 1;
    return b.graph;
}

static void compare(const struct sample *s, const char *how, const struct tensor *expected,
                    const struct tensor *got, float tolerance)
{
    const float *e = expected->data, *g = got->data;
    float largest = 0;
    cr_assert(shape_equal(&expected->shape, &got->shape), "%s", s->name);
    for (size_t i = 0; i < expected->bytes / sizeof *e; i++)
        largest = isnan(e[i]) ? largest : fmaxf(largest, fabsf(e[i]));
    for (size_t i = 0; i < expected->bytes / sizeof *e; i++)
        cr_assert(fabsf(e[i] - g[i]) <= tolerance * largest || (isnan(e[i]) && isnan(g[i])),
                  "%s, %s, %s, element %zu: %g, not %g", s->name, how, simd()->name, i,
                  (double)g[i], (double)e[i]);
}

static void check_session(const struct sample *s, const struct graph *graph, void *const *inputs,
                          const struct tensor *expected, enum precision precision, int threads)
{
    struct error err = {0};
    struct session *session;
    const struct session_options options = {.precision = precision,
                                            .threads = threads,
                                            .max_batch = 1,
                                            .image_input = SIZE_MAX,
                                            .image_layout = IMAGE_AS_DECLARED};
    const struct tensor *output;
    cr_assert_eq(session_create(graph, &options, &session, &err), STATUS_OK, "%s: %s", s->name,
                 err.message);
    for (int run = 0; run < 2; run++) {
        cr_assert_eq(session_run(session, 1, (const void *const *)inputs, &output, &err),
                     STATUS_OK);
        compare(s, precision == PRECISION_BF16 ? "bf16" : "fp32", expected, output,
                precision == PRECISION_BF16 ? 3e-2f : 1e-5f);
    }
    struct session_step *steps;
    size_t count, found = 0;
    cr_assert_eq(session_profile(session, 1, 1, &steps, &count, &err), STATUS_OK);
    for (size_t i = 0; i < count; i++) {
        found += !strcmp(steps[i].kernel, "attention");
        cr_assert(strcmp(steps[i].kernel, "reference") != 0,
                  "%s: %s is run by its reference kernel", s->name, steps[i].name);
    }
    cr_assert_eq(found, 1, "%s: attention was not recognised", s->name);
    free(steps);
    session_free(session);
}

/* The operator's own reference kernel, which backends without a faster one run. Reference kernels
 * know no epilogues. */
static void check_reference(const struct sample *s, struct tensor *const *inputs)
{
    struct error err = {0};
    struct graph *plain = make_graph(s, true), *fused;
    struct tensor *expected, *output;
    const struct optimize_options options = {.fuse = true};
    size_t found = 0;
    cr_assert_eq(graph_clone(plain, &fused, &err), STATUS_OK);
    cr_assert_eq(optimize_weights(fused, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(optimize_specialise(fused, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(optimize_for_backend(fused, &options, &err), STATUS_OK, "%s", err.message);
    for (size_t n = 0; n < fused->node_count; n++) {
        cr_assert_neq(fused->nodes[n]->op, OP_SOFTMAX, "%s", s->name);
        found += fused->nodes[n]->op == OP_ATTENTION;
    }
    cr_assert_eq(found, 1, "%s: %zu nodes of attention", s->name, found);
    cr_assert_eq(interpret(plain, inputs, &expected, NULL, NULL, &err), STATUS_OK, "%s: %s",
                 s->name, err.message);
    cr_assert_eq(interpret(fused, inputs, &output, NULL, NULL, &err), STATUS_OK, "%s: %s", s->name,
                 err.message);
    compare(s, "reference", expected, output, 1e-5f);
    tensor_unref(expected);
    tensor_unref(output);
    graph_free(plain);
    graph_free(fused);
}

static void check(const struct sample *s)
{
    struct error err = {0};
    struct graph *graph = make_graph(s, false), *plain;
    struct tensor *inputs[2] = {NULL, NULL}, *expected;
    void *data[2] = {NULL, NULL};
    uint32_t state = 5;
    for (size_t i = 0; i < graph->input_count; i++) {
        cr_assert_eq(tensor_create(NULL, DTYPE_F32, &graph->inputs[i]->shape, &inputs[i], &err),
                     STATUS_OK);
        data[i] = inputs[i]->data;
        for (size_t k = 0; k < inputs[i]->bytes / sizeof(float); k++)
            ((float *)data[i])[k] = random_unit(&state) * (i ? 4 : 1);
    }
    cr_assert_eq(graph_clone(graph, &plain, &err), STATUS_OK);
    cr_assert_eq(interpret(plain, inputs, &expected, NULL, NULL, &err), STATUS_OK, "%s: %s",
                 s->name, err.message);
    const struct simd_kernels *variants[SIMD_VARIANTS];
    const size_t variant_count = simd_variants(variants);
    for (size_t v = 0; v < variant_count; v++) {
        simd_use(variants[v]);
        check_session(s, graph, data, expected, PRECISION_FP32, 1 + (int)v);
        if (s->bias != BIAS_NAN && device_cpu_has_bf16())
            check_session(s, graph, data, expected, PRECISION_BF16, 2);
    }
    simd_use(NULL);
    check_reference(s, inputs);
    for (size_t i = 0; i < 2; i++)
        tensor_unref(inputs[i]);
    tensor_unref(expected);
    graph_free(plain);
    graph_free(graph);
}

static void check_all(const struct sample *samples, size_t count)
{
    for (size_t i = 0; i < count; i++)
        check(&samples[i]);
}

Test(attention, as_exporters_write_it)
{
    static const struct sample samples[] = {
        {"timm", TIMM, 2, 50, 3, 32, BIAS_NONE, false},
        {"timm, scores divided", TIMM, 1, 33, 2, 20, BIAS_NONE, true},
        {"torchvision", TORCHVISION, 3, 29, 2, 16, BIAS_NONE, false},
        {"hf", HF, 2, 17, 4, 24, BIAS_NONE, true},
        {"einsum", EINSUM, 3, 49, 2, 32, BIAS_NONE, false},
        {"turned", TURNED, 2, 36, 3, 8, BIAS_NONE, false},
        {"an odd depth", HF, 1, 67, 2, 7, BIAS_NONE, true},
        {"more columns than a panel", HF, 1, 130, 2, 70, BIAS_NONE, true},
    };
    check_all(samples, COUNT_OF(samples));
}

Test(attention, biases_and_masks)
{
    static const struct sample samples[] = {
        {"a bias for each head", TIMM, 2, 49, 3, 32, BIAS_HEADS, false},
        {"bias and window mask", TIMM, 4, 16, 3, 8, BIAS_WINDOWS, true},
        {"bias and window mask, einsum", EINSUM, 5, 9, 2, 12, BIAS_WINDOWS, false},
        {"causal", HF, 2, 40, 2, 16, BIAS_CAUSAL, true},
        {"an input for each key", HF, 3, 21, 2, 16, BIAS_KEYS, true},
        {"an input for each score", TORCHVISION, 2, 13, 3, 8, BIAS_FULL, true},
        {"turned, with a bias", TURNED, 2, 25, 2, 8, BIAS_HEADS, false},
        {"a row without keys", TIMM, 1, 11, 2, 16, BIAS_NAN, false},
        {"a row without keys, replaced", HF, 2, 19, 2, 16, BIAS_DEAD, true},
        {"where", TIMM, 2, 15, 2, 16, BIAS_WHERE, true},
    };
    check_all(samples, COUNT_OF(samples));
}

Test(attention, odd_sizes)
{
    static const struct sample samples[] = {
        {"one token", TIMM, 2, 1, 2, 8, BIAS_NONE, false},
        {"one head", HF, 1, 197, 1, 64, BIAS_NONE, true},
        {"depth of one", EINSUM, 1, 7, 3, 1, BIAS_NONE, false},
        {"odd depth", TIMM, 2, 31, 1, 37, BIAS_HEADS, false},
        {"deep", HF, 1, 10, 1, 130, BIAS_NONE, true},
        {"many tokens", TIMM, 1, 1100, 1, 8, BIAS_NONE, false},
        {"many tokens, causal", HF, 1, 1061, 1, 6, BIAS_CAUSAL, true},
        {"many tokens, a row without keys", TIMM, 1, 1030, 1, 4, BIAS_DEAD, false},
    };
    check_all(samples, COUNT_OF(samples));
}
