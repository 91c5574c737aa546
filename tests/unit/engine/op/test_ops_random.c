/* Every operator on random operands: whatever a file or a request holds, a node either runs, with
 * outputs as inference said, or is refused with a sentence, and gives all memory back. Most of the
 * worth of this test is in the sanitizer builds. Seeds are fixed; the operator, the opset, dtypes,
 * shapes, contents and attributes are drawn, with extremes among them. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/interpret.h"
#include "engine/op/ops.h"

#define NODES     60000
#define MAX_LIST  16
#define MAX_ATTRS 10

static uint64_t state;

static uint32_t below(uint32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

/* Mostly small, sometimes anything. */
static int64_t random_int(void)
{
    switch (below(12)) {
    case 0:
        return INT64_MAX;
    case 1:
        return INT64_MIN;
    case 2:
        return (int64_t)1 << below(63);
    case 3:
        return -((int64_t)1 << below(63));
    default:
        return (int64_t)below(9) - 4;
    }
}

static enum dtype random_dtype(void)
{
    static const enum dtype dtypes[] = {
        DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_I64, DTYPE_I64, DTYPE_I32, DTYPE_U8,   DTYPE_I8,
        DTYPE_U16, DTYPE_I16, DTYPE_U32, DTYPE_U64, DTYPE_F64, DTYPE_F16, DTYPE_BF16, DTYPE_BOOL};
    return dtypes[below(COUNT_OF(dtypes))];
}

static struct shape random_shape(uint32_t max_rank)
{
    struct shape shape = {.rank = (int)below(max_rank + 1)};
    for (int i = 0; i < shape.rank; i++)
        shape.dims[i] = below(12) ? 1 + (int64_t)below(5) : 0;
    return shape;
}

static void random_element(void *to, enum dtype dtype, bool small)
{
    if (dtype == DTYPE_I64)
        *(int64_t *)to = small ? (int64_t)below(7) - 3 : random_int();
    else if (dtype == DTYPE_I32)
        *(int32_t *)to = small ? (int32_t)below(7) - 3 : (int32_t)random_int();
    else if (dtype == DTYPE_BOOL)
        *(uint8_t *)to = (uint8_t)below(2);
    else if (dtype == DTYPE_F32 && below(4))
        *(float *)to = (float)((int)below(2000) - 1000) / 100;
    else
        for (size_t i = 0; i < dtype_size(dtype); i++)
            ((uint8_t *)to)[i] = (uint8_t)below(256);
}

static struct tensor *random_tensor(enum dtype dtype, struct shape shape)
{
    struct tensor *tensor;
    bool small = below(4);
    cr_assert_eq(tensor_create(NULL, dtype, &shape, &tensor, NULL), STATUS_OK);
    for (size_t i = 0; i < shape_count(&shape); i++)
        random_element((char *)tensor->data + i * dtype_size(dtype), dtype, small);
    return tensor;
}

/* Operands after the first: like it, broadcastable with it, a list of integers, or anything. */
static struct tensor *random_operand(enum dtype dtype, struct shape first, uint32_t kind)
{
    if (kind == 0)
        return random_tensor(below(4) ? dtype : random_dtype(), random_shape(4));
    if (kind == 1) {
        int64_t length = below(5) ? (below(3) ? 1 : 2) * first.rank : 1 + (int64_t)below(4);
        return random_tensor(below(3) ? DTYPE_I64 : random_dtype(),
                             below(4) ? SHAPE(length) : SHAPE_SCALAR);
    }
    for (int i = 0; kind == 2 && i < first.rank; i++)
        first.dims[i] = below(3) ? first.dims[i] : 1;
    return random_tensor(below(8) ? dtype : random_dtype(), first);
}

/* One node and what it points at. */
struct drawn {
    struct graph *graph;
    struct node *node;
    struct attr attrs[MAX_ATTRS];
    int64_t lists[MAX_ATTRS][MAX_LIST];
    struct tensor *tensor; /* of the one attribute of that kind */
};

static const float floats[] = {0.5f, 2, -1};

static void draw_attr(struct drawn *drawn, const struct attr_spec *spec, int rank)
{
    static const char *const words[] = {"none", "add",   "mul",     "max",    "min",  "constant",
                                        "edge", "wrap",  "reflect", "linear", "DCR",  "CRD",
                                        "tanh", "cubic", "nearest", "VALID",  "junk", "SAME_UPPER"};
    size_t index = drawn->node->attr_count;
    struct attr *attr = &drawn->attrs[index];
    *attr = (struct attr){
        .name = arena_copy_text(drawn->graph->arena, spec->name, spec->length),
        .kind = (enum attr_kind)spec->kind,
    };
    cr_assert_not_null(attr->name);
    switch (attr->kind) {
    case ATTR_INT:
        attr->i = strcmp(attr->name, "to") ? random_int() : (int64_t)below(18);
        break;
    case ATTR_FLOAT:
        attr->f = (float)((int)below(100) - 50) / 10;
        break;
    case ATTR_STRING:
        attr->s = words[below(COUNT_OF(words))];
        attr->count = strlen(attr->s);
        break;
    case ATTR_INTS:
        attr->count = below(4) ? (size_t)rank : below(MAX_LIST);
        for (size_t i = 0; i < attr->count; i++)
            drawn->lists[index][i] = below(5) ? (int64_t)i : random_int();
        attr->ints = drawn->lists[index];
        break;
    case ATTR_FLOATS:
        attr->count = COUNT_OF(floats);
        attr->floats = floats;
        break;
    case ATTR_TENSOR:
        if (drawn->tensor)
            return;
        attr->t = drawn->tensor =
            random_tensor(random_dtype(), below(2) ? SHAPE(1) : random_shape(3));
        break;
    default:
        return;
    }
    drawn->node->attr_count++;
}

static size_t draw_count(uint8_t min, uint8_t max)
{
    return max == OP_VARIADIC ? 1 + below(4) : min + below((uint32_t)(max - min + 1));
}

static void draw(struct drawn *drawn, const struct op_info *info, int opset)
{
    memset(drawn, 0, sizeof *drawn);
    drawn->graph = graph_create(NULL);
    cr_assert_not_null(drawn->graph);
    drawn->graph->opset = opset;
    struct node *node = graph_add_node(drawn->graph, info->op, "drawn",
                                       draw_count(info->min_inputs, info->max_inputs),
                                       draw_count(info->min_outputs, info->max_outputs));
    cr_assert_not_null(node);
    drawn->node = node;
    enum dtype dtype = random_dtype();
    struct shape first = random_shape(5);
    uint32_t kind = below(4);
    for (size_t i = 0; i < node->input_count; i++) {
        if (i >= info->min_inputs && !below(6))
            continue;
        struct tensor *tensor =
            i ? random_operand(dtype, first, kind) : random_tensor(dtype, first);
        node->inputs[i] = graph_add_constant(drawn->graph, "in", tensor);
        tensor_unref(tensor);
    }
    for (size_t i = 0; i < node->output_count; i++)
        if (i == 0 || below(6))
            node_set_output(node, i, graph_add_value(drawn->graph, "out", DTYPE_NONE, NULL));
    node->attrs = drawn->attrs;
    const char *attrs = info->attrs;
    struct attr_spec spec;
    while (op_next_attr(&attrs, &spec))
        if (node->attr_count < MAX_ATTRS && below(3))
            draw_attr(drawn, &spec, first.rank);
}

static void drawn_free(struct drawn *drawn)
{
    drawn->node->attr_count = 0; /* the tensor is ours */
    tensor_unref(drawn->tensor);
    graph_free(drawn->graph);
}

/* Runs the node and looks at every byte that it made. True when it ran. */
static bool run(const struct drawn *drawn)
{
    enum { MOST = 8 };
    struct memory_budget budget = {.limit = 32 << 20};
    struct error err = {0};
    struct tensor *out[MOST] = {NULL};
    char text[NODE_TEXT];
    node_text(drawn->node, text);
    enum status status = interpret_node(drawn->node, &budget, out, &err);
    cr_expect(status == STATUS_OK || (*err.message && status != STATUS_INTERNAL), "%s: %s", text,
              err.message);
    for (size_t i = 0; i < MOST; i++) {
        const struct value *value = node_output(drawn->node, i);
        cr_expect_eq(out[i] != NULL, value && status == STATUS_OK, "%s: output %zu", text, i);
        if (!out[i] || !value)
            continue;
        volatile uint8_t sum = 0; /* a sanitizer sees memory that is not there */
        for (size_t k = 0; k < out[i]->bytes; k++)
            sum = (uint8_t)(sum + ((const uint8_t *)out[i]->data)[k]);
        cr_expect_eq(value->dtype, out[i]->dtype, "%s: dtype of output %zu", text, i);
        cr_expect(!shape_is_known(&value->shape) || shape_equal(&value->shape, &out[i]->shape),
                  "%s: shape of output %zu", text, i);
        tensor_unref(out[i]);
    }
    cr_expect_eq(budget.used, 0u, "%s: %zu bytes leaked", text, (size_t)budget.used);
    return status == STATUS_OK;
}

Test(ops_random, any_operands_run_or_are_refused)
{
    size_t ran = 0;
    state = 42;
    for (int n = 0; n < NODES; n++) {
        enum op op = (enum op)(OP_NONE + 1 + below(OP_IF - 1)); /* bodies are for the importer */
        int opset = below(4) ? 7 + (int)below(OPSET_MAX - 6) : 1 + (int)below(OPSET_MAX);
        const struct op_info *info = op_find(op, opset);
        if (!info)
            continue;
        struct drawn drawn;
        draw(&drawn, info, opset);
        ran += run(&drawn);
        drawn_free(&drawn);
    }
    cr_expect_gt(ran, (size_t)NODES / 20, "only %zu nodes ran: the draw is too wild to test much",
                 ran);
}
