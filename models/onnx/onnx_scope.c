/* Scopes of an import resolve names, attributes of functions and opsets of domains, and limit the
 * import's work. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/array.h"
#include "engine/op/ops.h"
#include "models/onnx/onnx_import.h"

enum status import_work(struct import *import, size_t units)
{
    if (units > IMPORT_MAX_WORK || import->work > IMPORT_MAX_WORK - units)
        return error_set(import->err, STATUS_MODEL,
                         "the graph is too large: more than %u nodes, operands and attribute "
                         "values once its functions are expanded",
                         IMPORT_MAX_WORK);
    import->work += units;
    return STATUS_OK;
}

void scope_done(struct scope *scope)
{
    name_map_done(&scope->names);
    name_map_done(&scope->results);
    free(scope->captured);
}

/* Values in a function get the call's name as prefix; very long names are replaced by numbers. */
static enum status add_value(struct scope *scope, const char *name, enum dtype dtype,
                             const struct shape *shape, struct value **ret)
{
    struct import *import = scope->import;
    char made_up[512];
    size_t length = strlen(name);
    TRY(onnx_charge(import->file, sizeof(struct value) + length + 2 * sizeof(void *), import->err));
    if (*scope->prefix) {
        int n = snprintf(made_up, sizeof made_up, "%s%s", scope->prefix, name);
        if (n < 0 || (size_t)n >= sizeof made_up)
            snprintf(made_up, sizeof made_up, "%.200s#%zu", scope->prefix,
                     scope->graph->value_count);
        name = made_up;
    }
    struct value *value = graph_add_value(scope->graph, name, dtype, shape);
    TRY(check_memory(value, "while building the graph", import->err));
    *ret = value;
    return STATUS_OK;
}

const char *scope_packed(const struct value *value)
{
    while (value && value->outer)
        value = value->outer;
    return value ? value->packed : NULL;
}

enum status scope_declare(struct scope *scope, const char *name, enum dtype dtype,
                          const struct shape *shape, struct value **ret)
{
    if (name_map_find(&scope->names, name))
        return error_set(scope->import->err, STATUS_MODEL,
                         "the name '%.100s' is given to more than one value", name);
    const struct name_slot *result = name_map_find(&scope->results, name);
    struct value *value = result ? result->value : NULL;
    if (!value)
        TRY(add_value(scope, name, dtype, shape, &value));
    TRY(check_memory(name_map_put(&scope->names, name, value), "while building the graph",
                     scope->import->err));
    *ret = value;
    return STATUS_OK;
}

/* Recursion follows the nesting of bodies, at most IMPORT_MAX_BODIES. */
static enum status scope_find(struct scope *scope, const char *name, bool *ret_found,
                              struct value **ret)
{
    const struct name_slot *slot = name_map_find(&scope->names, name);
    if (slot || !scope->outer) {
        *ret_found = slot != NULL;
        *ret = slot ? slot->value : NULL;
        return STATUS_OK;
    }
    struct value *outer;
    TRY(scope_find(scope->outer, name, ret_found, &outer));
    if (!*ret_found || !outer) {
        *ret = NULL;
        return STATUS_OK;
    }
    struct value *value;
    TRY(add_value(scope, name, outer->dtype, &outer->shape, &value));
    value->outer = outer;
    TRY(check_memory(name_map_put(&scope->names, name, value) &&
                         array_reserve(&scope->captured, &scope->captured_capacity,
                                       scope->captured_count + 1, sizeof(struct value *)),
                     "while building the graph", scope->import->err));
    scope->captured[scope->captured_count++] = outer;
    *ret = value;
    return STATUS_OK;
}

enum status scope_resolve(struct scope *scope, const char *name, struct value **ret)
{
    bool found;
    *ret = NULL;
    if (!*name)
        return STATUS_OK;
    TRY(scope_find(scope, name, &found, ret));
    if (!found)
        return error_set(scope->import->err, STATUS_MODEL,
                         "'%.100s' is read but nothing produces it", name);
    return STATUS_OK;
}

enum status attribute_resolve(const struct scope *scope, const Onnx__AttributeProto *proto,
                              const Onnx__AttributeProto **ret)
{
    const char *reference = text_or_empty(proto->ref_attr_name);
    *ret = proto;
    if (!*reference)
        return STATUS_OK;
    if (!scope->calls)
        return error_set(scope->import->err, STATUS_MODEL,
                         "refers to '%.60s', an attribute of a function, outside of one",
                         reference);
    *ret = NULL;
    for (size_t i = 0; i < scope->binding_count; i++)
        if (!strcmp(scope->bindings[i].name, reference))
            *ret = scope->bindings[i].value;
    return STATUS_OK;
}

int opset_of(const struct opsets *opsets, const char *domain)
{
    for (size_t i = 0; i < opsets->count; i++)
        if (!strcmp(plain_domain(opsets->entries[i]->domain), domain))
            return (int)opsets->entries[i]->version;
    return 0;
}

static enum status refuse_opset(const Onnx__OperatorSetIdProto *entry, const char *domain,
                                struct error *err)
{
    (void)error_set(err, entry->version < 1 ? STATUS_MODEL : STATUS_UNSUPPORTED,
                    "opset %lld of '%.60s' is not one lensd knows", (long long)entry->version,
                    *domain ? domain : "ai.onnx");
    return error_advise(err,
                        "convert the model with onnx.version_converter, or export it again, with "
                        "an opset from 7 to %d",
                        OPSET_MAX);
}

enum status opsets_check(const struct opsets *opsets, struct error *err)
{
    if (opsets->count > IMPORT_MAX_OPSETS)
        return error_set(err, STATUS_MODEL,
                         "%zu operator sets are imported; at most %d are accepted", opsets->count,
                         IMPORT_MAX_OPSETS);
    for (size_t i = 0; i < opsets->count; i++) {
        const Onnx__OperatorSetIdProto *entry = opsets->entries[i];
        const char *domain = plain_domain(entry->domain);
        /* lensd supports ai.onnx up to OPSET_MAX; other domains count their opsets differently. */
        int64_t newest = *domain ? INT32_MAX : OPSET_MAX;
        if (entry->version < 1 || entry->version > newest)
            return refuse_opset(entry, domain, err);
        for (size_t k = 0; k < i; k++)
            if (!strcmp(plain_domain(opsets->entries[k]->domain), domain) &&
                opsets->entries[k]->version != entry->version)
                return error_set(err, STATUS_MODEL, "opsets %lld and %lld of '%.60s' are imported",
                                 (long long)opsets->entries[k]->version, (long long)entry->version,
                                 *domain ? domain : "ai.onnx");
    }
    return STATUS_OK;
}
