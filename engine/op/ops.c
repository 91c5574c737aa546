/* The operator table: all families of engine/op/, looked up by operator and opset. */
#include "engine/op/ops.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/families.h"
#include "engine/op/kernel.h"

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
