/* Builds a graph of one node with constant inputs, runs it and checks its outputs. */
#include "tests/unit/engine/op/one_node.h"

#include <criterion/criterion.h>
#include <string.h>

void one_start(struct one_node *one, enum op op, int opset, size_t inputs, size_t outputs)
{
    memset(one, 0, sizeof *one);
    one->graph = graph_create(NULL);
    cr_assert_not_null(one->graph);
    one->graph->opset = opset;
    one->node = graph_add_node(one->graph, op, "tested", inputs, outputs);
    cr_assert_not_null(one->node);
    one->node->attrs = one->attrs;
    for (size_t i = 0; i < outputs; i++) {
        struct value *value = graph_add_value(one->graph, "out", DTYPE_NONE, NULL);
        cr_assert_not_null(value);
        node_set_output(one->node, i, value);
    }
}

void one_end(struct one_node *one)
{
    for (size_t i = 0; i < ONE_MAX; i++)
        tensor_unref(one->out[i]);
    graph_free(one->graph);
    cr_expect_eq(one->budget.used, 0u, "%zu bytes leaked", (size_t)one->budget.used);
}

void one_input(struct one_node *one, size_t i, enum dtype dtype, struct shape shape,
               const void *data)
{
    struct tensor *tensor;
    cr_assert_eq(tensor_create(NULL, dtype, &shape, &tensor, NULL), STATUS_OK);
    if (tensor->bytes)
        memcpy(tensor->data, data, tensor->bytes);
    one->node->inputs[i] = graph_add_constant(one->graph, "in", tensor);
    cr_assert_not_null(one->node->inputs[i]);
    tensor_unref(tensor);
}

static struct attr *attribute(struct one_node *one, const char *name, enum attr_kind kind)
{
    cr_assert_lt(one->node->attr_count, (size_t)ONE_MAX);
    struct attr *attr = &one->attrs[one->node->attr_count++];
    *attr = (struct attr){.name = name, .kind = kind};
    return attr;
}

void one_int(struct one_node *one, const char *name, int64_t value)
{
    attribute(one, name, ATTR_INT)->i = value;
}

void one_float(struct one_node *one, const char *name, float value)
{
    attribute(one, name, ATTR_FLOAT)->f = value;
}

void one_string(struct one_node *one, const char *name, const char *value)
{
    struct attr *attr = attribute(one, name, ATTR_STRING);
    attr->s = value;
    attr->count = strlen(value);
}

void one_ints(struct one_node *one, const char *name, const int64_t *values, size_t count)
{
    struct attr *attr = attribute(one, name, ATTR_INTS);
    attr->ints = values;
    attr->count = count;
}

void one_floats(struct one_node *one, const char *name, const float *values, size_t count)
{
    struct attr *attr = attribute(one, name, ATTR_FLOATS);
    attr->floats = values;
    attr->count = count;
}

enum status one_run(struct one_node *one)
{
    return interpret_node(one->node, &one->budget, one->out, &one->err);
}

void one_fails(struct one_node *one, enum status status, const char *words)
{
    enum status got = one_run(one);
    cr_expect_eq(got, status, "%s: status %s, expected %s (%s)", op_name(one->node->op),
                 status_word(got), status_word(status), got ? one->err.message : "no error");
    cr_expect(got != STATUS_OK && strstr(one->err.message, words),
              "%s: the error does not say '%s': %s", op_name(one->node->op), words,
              one->err.message);
    cr_expect(strstr(one->err.message, "'tested'"), "the error does not name the node: %s",
              one->err.message);
}

void one_equals(struct one_node *one, size_t i, enum dtype dtype, struct shape shape,
                const void *expected)
{
    const struct tensor *out = one->out[i];
    cr_assert_not_null(out, "%s: %s", op_name(one->node->op), one->err.message);
    cr_expect_eq(out->dtype, dtype, "%s: %s, expected %s", op_name(one->node->op),
                 dtype_name(out->dtype), dtype_name(dtype));
    cr_assert(shape_equal(&out->shape, &shape), "%s: shape %s, expected %s", op_name(one->node->op),
              SHAPE_STRING(&out->shape), SHAPE_STRING(&shape));
    size_t size = dtype_size(dtype);
    for (size_t k = 0; k < shape_count(&shape); k++)
        cr_expect(
            !memcmp((const char *)out->data + k * size, (const char *)expected + k * size, size),
            "%s: element %zu is %.9g", op_name(one->node->op), k, tensor_number(out, k));
}
