/* The operator table: all families of engine/op/, looked up by operator and opset. Inference of one
 * node by the table. */
#include "engine/op/ops.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/families.h"
#include "engine/op/kernel.h"
#include "engine/op/operands.h"

#define MAX_ENTRIES 4 /* opset ranges of one operator */

static const struct op_info *const families[] = {
#define OP_FAMILY_ENTRY(name) ops_##name,
    OP_FAMILIES(OP_FAMILY_ENTRY)
#undef OP_FAMILY_ENTRY
};

static const struct op_info *by_op[OP_COUNT][MAX_ENTRIES];
static pthread_once_t index_once = PTHREAD_ONCE_INIT;

static void build_index(void)
{
    for (size_t f = 0; f < COUNT_OF(families); f++) {
        for (const struct op_info *info = families[f]; info->op != OP_NONE; info++) {
            size_t slot = 0;
            while (slot < MAX_ENTRIES && by_op[info->op][slot])
                slot++;
            assert(slot < MAX_ENTRIES); /* otherwise, increase MAX_ENTRIES */
            by_op[info->op][slot] = info;
        }
    }
}

const struct op_info *op_find(enum op op, int opset)
{
    pthread_once(&index_once, build_index);
    if (op <= OP_NONE || op >= OP_COUNT)
        return NULL;
    for (size_t i = 0; i < MAX_ENTRIES && by_op[op][i]; i++) {
        const struct op_info *info = by_op[op][i];
        if (opset >= info->since && (!info->until || opset <= info->until))
            return info;
    }
    return NULL;
}

const struct op_info *op_record(enum op op)
{
    const struct op_info *newest = NULL;
    pthread_once(&index_once, build_index);
    for (size_t i = 0; op > OP_NONE && op < OP_COUNT && i < MAX_ENTRIES && by_op[op][i]; i++)
        if (!newest || by_op[op][i]->since > newest->since)
            newest = by_op[op][i];
    return newest;
}

kernel_function *kernel_find(enum op op)
{
    const struct op_info *record = op_record(op);
    return record ? record->kernel : NULL;
}

bool op_has(enum op op, unsigned traits)
{
    const struct op_info *record = op_record(op);
    return record && record->traits & traits;
}

double node_work(const struct node *node)
{
    const struct op_info *record = op_record(node->op);
    double work = record ? record->work(node) : 0;
    for (size_t i = 0; i < node->input_count; i++)
        work += elements_of(node_input(node, i));
    for (size_t i = 0; i < node->output_count; i++)
        work += elements_of(node_output(node, i));
    return work;
}

bool op_next_attr(const char **attrs, struct attr_spec *ret)
{
    static const char *const kinds[] = {
        [ATTR_INT] = "int",       [ATTR_FLOAT] = "float",    [ATTR_STRING] = "string",
        [ATTR_TENSOR] = "tensor", [ATTR_GRAPH] = "graph",    [ATTR_INTS] = "ints",
        [ATTR_FLOATS] = "floats", [ATTR_STRINGS] = "strings"};
    if (!*attrs || !**attrs)
        return false;
    *ret = (struct attr_spec){*attrs, strcspn(*attrs, ":"), ATTR_FLOAT};
    const char *kind = *attrs + ret->length + 1, *end = kind + strcspn(kind, " ");
    while ((size_t)ret->kind < COUNT_OF(kinds) &&
           (strlen(kinds[ret->kind]) != (size_t)(end - kind) ||
            memcmp(kinds[ret->kind], kind, (size_t)(end - kind)) != 0))
        ret->kind++;
    assert((size_t)ret->kind < COUNT_OF(kinds)); /* a kind is misspelt in the table */
    *attrs = end + (*end == ' ');
    return true;
}

int op_attr_kind(const struct op_info *info, const char *name)
{
    const char *attrs = info->attrs;
    struct attr_spec spec;
    while (op_next_attr(&attrs, &spec))
        if (spec.length == strlen(name) && !memcmp(spec.name, name, spec.length))
            return spec.kind;
    return -1;
}

enum status op_check_operands(const struct node *node, const struct op_info *info,
                              struct error *err)
{
    if (node->input_count < info->min_inputs ||
        (info->max_inputs != OP_VARIADIC && node->input_count > info->max_inputs))
        return error_set(err, STATUS_MODEL, "%zu inputs, expected %d to %d", node->input_count,
                         info->min_inputs, info->max_inputs);
    if (node->output_count < info->min_outputs ||
        (info->max_outputs != OP_VARIADIC && node->output_count > info->max_outputs))
        return error_set(err, STATUS_MODEL, "%zu outputs, expected %d to %d", node->output_count,
                         info->min_outputs, info->max_outputs);
    for (size_t i = 0; i < info->min_inputs; i++)
        if (!node->inputs[i])
            return error_set(err, STATUS_MODEL, "required input %zu is left out", i);
    return STATUS_OK;
}

enum status graph_infer_node(struct node *node, struct error *err)
{
    const struct op_info *info = op_find(node->op, node->opset);
    if (!info) {
        (void)error_set(err, STATUS_UNSUPPORTED,
                        "%s: lensd does not support this operator at this opset",
                        NODE_STRING(node));
        return error_advise(err, "re-export the model with another opset (7 to %d)", OPSET_MAX);
    }
    enum status status = op_check_operands(node, info, err);
    bool known = true;
    for (size_t i = 0; i < node->input_count; i++)
        known = known && (!node->inputs[i] || shape_is_known(&node->inputs[i]->shape));
    bool ready = known;
    if (status == STATUS_OK && known)
        status = operands_check(node, info->operands, &ready, err);
    if (status == STATUS_OK && ready)
        status = info->infer(node, err);
    for (size_t i = 0; i < node->output_count && !ready; i++)
        if (node->outputs[i]) {
            node->outputs[i]->shape = SHAPE_NONE;
            if (known)
                node->outputs[i]->dtype = node->inputs[0]->dtype;
        }
    if (status != STATUS_OK)
        return error_prefix(err, "%s", NODE_STRING(node));
    return STATUS_OK;
}
