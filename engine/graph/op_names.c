/* The names and domains of operators in OP_LIST. This file is separate from the table of operators
 * (engine/op/ops.c), which engine/graph cannot use. */
#include "engine/graph/op.h"

#include <string.h>

static const struct {
    const char *name, *domain;
} names[OP_COUNT] = {[OP_NONE] = {"", ""},
#define OP_NAME(id, op_name_text, op_domain_text) [OP_##id] = {op_name_text, op_domain_text},
                     OP_LIST(OP_NAME)
#undef OP_NAME
};

enum op op_by_name(const char *domain, const char *name)
{
    if (!strcmp(domain, "ai.onnx"))
        domain = "";
    if (!strcmp(domain, "lensd"))
        return OP_NONE;
    for (int op = OP_NONE + 1; op < OP_COUNT; op++)
        if (!strcmp(names[op].name, name) && !strcmp(names[op].domain, domain))
            return (enum op)op;
    return OP_NONE;
}

const char *op_name(enum op op)
{
    return op > OP_NONE && op < OP_COUNT ? names[op].name : "?";
}

const char *op_domain(enum op op)
{
    return op > OP_NONE && op < OP_COUNT ? names[op].domain : "";
}
