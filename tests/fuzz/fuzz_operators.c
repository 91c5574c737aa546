/* Every operator of the table with a client's tensors: the bytes choose an operator, its
 * attributes, dtypes, shapes and contents, and which inputs are constants. Whatever comes is
 * refused with a sentence or computed, within its memory, and soon after it is told to stop. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/op/interpret.h"
#include "tests/fuzz/target.h"

#define MAX_OPERANDS 6
#define MAX_ATTRS    24
#define MAX_ELEMENTS 4096
#define MEMORY       ((size_t)64 << 20)
#define STOP_MS      300.0
/* A kernel asks every few million elements whether to stop; a sanitizer makes that slow. */
#define STUCK_MS 20000.0

/* The input, read byte by byte; zeros after its end. */
struct source {
    const uint8_t *at, *end;
};

static uint8_t next(struct source *source)
{
    return source->at < source->end ? *source->at++ : 0;
}

static int64_t next_number(struct source *source)
{
    static const int64_t odd[] = {INT64_MIN,  INT64_MAX,        INT32_MIN,           INT32_MAX, -1,
                                  1000000000, INT64_C(1) << 54, -(INT64_C(1) << 54), 1 << 24};
    const uint8_t byte = next(source);
    if (byte < 200)
        return byte % 8 - (byte > 150); /* mostly axes, counts and small sizes */
    return byte < 245 ? odd[byte % COUNT_OF(odd)] : (int64_t)(int8_t)next(source);
}

static double next_real(struct source *source)
{
    static const double odd[] = {NAN, INFINITY, -INFINITY, 0x1p54, -0x1p54, 1e-40, 3e38, -1e300};
    const uint8_t byte = next(source);
    return byte < 224 ? (byte - 100) / 16.0 : odd[byte % COUNT_OF(odd)];
}

static const char *next_word(struct source *source)
{
    static const char *const words[] = {"",
                                        "NOTSET",
                                        "SAME_UPPER",
                                        "SAME_LOWER",
                                        "VALID",
                                        "constant",
                                        "reflect",
                                        "edge",
                                        "wrap",
                                        "nearest",
                                        "linear",
                                        "cubic",
                                        "bilinear",
                                        "bicubic",
                                        "zeros",
                                        "border",
                                        "reflection",
                                        "align_corners",
                                        "half_pixel",
                                        "asymmetric",
                                        "floor",
                                        "ceil",
                                        "none",
                                        "add",
                                        "mul",
                                        "max",
                                        "min",
                                        "avg",
                                        "forward",
                                        "reverse",
                                        "bidirectional",
                                        "Sigmoid",
                                        "Tanh",
                                        "ij,jk->ik",
                                        "...ii->...i",
                                        "DCR",
                                        "CRD",
                                        "tanh",
                                        "output_half_pixel",
                                        "tf_crop_and_resize"};
    return words[next(source) % COUNT_OF(words)];
}

static struct shape next_shape(struct source *source)
{
    struct shape shape = {.rank = (int)(next(source) % 6)};
    size_t count = 1;
    for (int i = 0; i < shape.rank; i++) {
        const uint8_t byte = next(source);
        int64_t dim = byte < 240 ? byte % 6 : byte % 2 ? 257 : 64;
        if (dim > 0 && count * (size_t)dim > MAX_ELEMENTS)
            dim = 1;
        count *= (size_t)dim;
        shape.dims[i] = dim;
    }
    return shape;
}

static void fill(struct tensor *tensor, struct source *source)
{
    const size_t size = dtype_size(tensor->dtype), count = shape_count(&tensor->shape);
    for (size_t i = 0; i < count; i++) {
        uint8_t *at = (uint8_t *)tensor->data + i * size;
        const double real = dtype_is_float(tensor->dtype) ? next_real(source) : 0;
        const int64_t number = dtype_is_float(tensor->dtype) ? 0 : next_number(source);
        const float single = (float)real;
        const uint16_t half =
            tensor->dtype == DTYPE_BF16 ? float_to_bfloat16(single) : float_to_half(single);
        const uint8_t truth = number & 1;
        memcpy(at,
               tensor->dtype == DTYPE_F32      ? (const void *)&single
               : tensor->dtype == DTYPE_F64    ? (const void *)&real
               : dtype_is_float(tensor->dtype) ? (const void *)&half
               : tensor->dtype == DTYPE_BOOL   ? (const void *)&truth
                                               : (const void *)&number,
               size);
    }
}

static struct tensor *next_tensor(struct source *source)
{
    static const enum dtype dtypes[] = {DTYPE_F32,  DTYPE_F32, DTYPE_F32,  DTYPE_I64,
                                        DTYPE_I64,  DTYPE_I32, DTYPE_U8,   DTYPE_I8,
                                        DTYPE_BOOL, DTYPE_F16, DTYPE_BF16, DTYPE_F64};
    const enum dtype dtype = dtypes[next(source) % COUNT_OF(dtypes)];
    const struct shape shape = next_shape(source);
    struct tensor *tensor;
    HOLDS(tensor_create(NULL, dtype, &shape, &tensor, NULL) == STATUS_OK);
    fill(tensor, source);
    return tensor;
}

/* ---- attributes ---- */

struct attrs {
    struct attr list[MAX_ATTRS];
    char names[MAX_ATTRS][40];
    int64_t ints[MAX_ATTRS][8];
    float floats[MAX_ATTRS][8];
    const char *strings[MAX_ATTRS][8];
    struct tensor *tensors[MAX_ATTRS];
    size_t count;
};

static void next_attr(struct attrs *attrs, const struct attr_spec *spec, struct source *source)
{
    const size_t i = attrs->count;
    struct attr *attr = &attrs->list[i];
    HOLDS(i < MAX_ATTRS);
    if (next(source) % 4 == 0)
        return; /* left out */
    snprintf(attrs->names[i], sizeof attrs->names[i], "%.*s", (int)spec->length, spec->name);
    *attr = (struct attr){.name = attrs->names[i], .kind = spec->kind};
    const size_t count = next(source) % 8;
    for (size_t k = 0; k < 8; k++) {
        attrs->ints[i][k] = next_number(source);
        attrs->floats[i][k] = (float)next_real(source);
        attrs->strings[i][k] = next_word(source);
    }
    attr->count = count;
    if (spec->kind == ATTR_INT) {
        attr->i = attrs->ints[i][0];
    } else if (spec->kind == ATTR_FLOAT) {
        attr->f = attrs->floats[i][0];
    } else if (spec->kind == ATTR_INTS) {
        attr->ints = attrs->ints[i];
    } else if (spec->kind == ATTR_FLOATS) {
        attr->floats = attrs->floats[i];
    } else if (spec->kind == ATTR_STRINGS) {
        attr->strings = attrs->strings[i];
    } else if (spec->kind == ATTR_STRING) {
        attr->s = attrs->strings[i][0];
        attr->count = strlen(attr->s);
    } else {
        attr->t = attrs->tensors[i] = next_tensor(source);
    }
    attrs->count++;
}

/* False: it takes a graph, which interpret() has other tests for. */
static bool next_attrs(struct attrs *attrs, const char *declared, struct source *source)
{
    struct attr_spec spec;
    while (op_next_attr(&declared, &spec)) {
        if (spec.kind == ATTR_GRAPH)
            return false;
        next_attr(attrs, &spec, source);
    }
    return true;
}

/* ---- a run ---- */

static double cpu_limit;

static bool is_late(void *context)
{
    (void)context;
    return clock_ms(clock_thread()) > cpu_limit;
}

static void run(const struct op_info *info, struct attrs *attrs, struct source *source)
{
    struct tensor *inputs[MAX_OPERANDS] = {0}, *outputs[MAX_OPERANDS] = {0};
    const size_t fewest = info->min_inputs,
                 most = info->max_inputs < MAX_OPERANDS ? info->max_inputs : MAX_OPERANDS;
    const size_t count = fewest + (most > fewest ? next(source) % (most - fewest + 1) : 0);
    const size_t wanted = info->min_outputs > 0 ? info->min_outputs : 1;
    if (count > MAX_OPERANDS || wanted > MAX_OPERANDS)
        return;
    struct graph *graph = graph_create(NULL);
    HOLDS(graph);
    graph->opset = OPSET_MAX;
    struct node *node = graph_add_node(graph, info->op, "fuzzed", count, wanted);
    HOLDS(node);
    graph->inputs = arena_alloc(graph->arena, MAX_OPERANDS, sizeof *graph->inputs);
    graph->outputs = arena_alloc(graph->arena, MAX_OPERANDS, sizeof *graph->outputs);
    HOLDS(graph->inputs && graph->outputs);
    node->attrs = attrs->list;
    node->attr_count = attrs->count;
    size_t given = 0;
    for (size_t i = 0; i < count; i++) {
        const uint8_t how = next(source);
        if (i >= fewest && how % 8 == 0)
            continue; /* left out */
        struct tensor *tensor = next_tensor(source);
        if (how % 2) {
            node->inputs[i] = graph_add_constant(graph, "in", tensor);
            tensor_unref(tensor);
        } else {
            node->inputs[i] = graph_add_value(graph, "in", tensor->dtype, &tensor->shape);
            graph->inputs[given] = node->inputs[i];
            inputs[given++] = tensor;
        }
        HOLDS(node->inputs[i]);
    }
    for (size_t i = 0; i < wanted; i++) {
        struct value *value = graph_add_value(graph, "out", DTYPE_NONE, NULL);
        HOLDS(value);
        node_set_output(node, i, value);
        graph->outputs[i] = value;
    }
    graph->input_count = given;
    graph->output_count = wanted;
    struct memory_budget whole = {.limit = MEMORY}, budget = {.limit = MEMORY, .whole = &whole};
    const struct interpreter_limits limits = {.stop = is_late};
    struct error err = {0};
    const double begun = clock_ms(clock_thread());
    cpu_limit = begun + STOP_MS;
    const enum status status = interpret(graph, inputs, outputs, &budget, &limits, &err);
    HOLDS(clock_ms(clock_thread()) - begun < STUCK_MS);
    HOLDS(status == STATUS_OK || err.message[0]);
    for (size_t i = 0; i < wanted; i++) {
        HOLDS((outputs[i] != NULL) == (status == STATUS_OK));
        tensor_unref(outputs[i]);
    }
    for (size_t i = 0; i < given; i++)
        tensor_unref(inputs[i]);
    node->attr_count = 0; /* its tensors are the caller's */
    graph_free(graph);
    HOLDS(budget.used == 0 && whole.used == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct source source = {data, data + size};
    struct attrs attrs = {.count = 0};
    const enum op op = (enum op)(next(&source) % OP_COUNT);
    const struct op_info *info = op == OP_NONE ? NULL : op_record(op);
    /* Of lensd's own domain are what passes make: no client does. */
    if (info && strcmp(op_domain(op), "lensd") != 0 && next_attrs(&attrs, info->attrs, &source))
        run(info, &attrs, &source);
    for (size_t i = 0; i < MAX_ATTRS; i++)
        tensor_unref(attrs.tensors[i]);
    return 0;
}
