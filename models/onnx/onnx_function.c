/* Expands model-local functions (ONNX IR.md, "Functions") at their calls.
 *
 * A call gets its own scope over the caller's graph: formal inputs refer to the caller's values,
 * formal outputs are bound to the caller's values, and other names get the call's name as prefix.
 * Recursive functions, calls nested deeper than IMPORT_MAX_CALLS and expansions beyond
 * IMPORT_MAX_WORK are refused (GHSA-7w46-vvrh-m8q5, and a chain of functions that each call the
 * next one twice). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/onnx/onnx_import.h"

#define MAX_ATTRIBUTES 256

static char *make_key(const char *domain, const char *name, const char *overload)
{
    char *key;
    return asprintf(&key, "%s\n%s\n%s", domain, name, overload) < 0 ? NULL : key;
}

enum status functions_index(struct import *import)
{
    const Onnx__ModelProto *model = import->model;
    if (model->n_functions > IMPORT_MAX_FUNCTIONS)
        return error_set(import->err, STATUS_MODEL, "%zu functions; at most %d are accepted",
                         model->n_functions, IMPORT_MAX_FUNCTIONS);
    for (size_t i = 0; i < model->n_functions; i++) {
        Onnx__FunctionProto *function = model->functions[i];
        const char *name = text_or_empty(function->name);
        char *key =
            make_key(plain_domain(function->domain), name, text_or_empty(function->overload));
        const char *kept = key ? arena_copy_text(import->keys, key, strlen(key)) : NULL;
        free(key);
        TRY(check_memory(kept, "while expanding a function", import->err));
        if (!*name || name_map_find(&import->functions, kept))
            return error_set(import->err, STATUS_MODEL,
                             "function '%.100s' is defined twice or has no name", name);
        const struct opsets opsets = {function->opset_import, function->n_opset_import};
        if (opsets_check(&opsets, import->err) != STATUS_OK)
            return error_prefix(import->err, "function '%.100s'", name);
        TRY(check_memory(name_map_put(&import->functions, kept, function),
                         "while expanding a function", import->err));
    }
    return STATUS_OK;
}

const Onnx__FunctionProto *function_find(const struct import *import, const char *domain,
                                         const char *name, const char *overload)
{
    if (!import->functions.root)
        return NULL;
    char *key = make_key(domain, name, overload);
    const struct name_slot *slot = key ? name_map_find(&import->functions, key) : NULL;
    free(key);
    return slot ? slot->value : NULL;
}

/* True if a call of `function` contains the scope. */
static bool is_recursive(const struct scope *scope, const Onnx__FunctionProto *function)
{
    for (; scope; scope = scope->caller ? scope->caller : scope->outer)
        if (scope->function == function)
            return true;
    return false;
}

/* Binds the call's attributes. If one refers to an attribute of the calling function, binds that
 * attribute's value. Omitted attributes get the function's defaults. */
static enum status bind_attributes(struct scope *caller, const Onnx__NodeProto *call,
                                   const Onnx__FunctionProto *function, struct scope *scope)
{
    struct import *import = caller->import;
    for (size_t i = 0; i < call->n_attribute; i++) {
        const Onnx__AttributeProto *value;
        TRY(attribute_resolve(caller, call->attribute[i], &value));
        if (!value)
            continue;
        if (value->g || value->n_graphs)
            return error_set(import->err, STATUS_UNSUPPORTED,
                             "graphs as attributes of a function are not supported");
        scope->bindings[scope->binding_count++] =
            (struct attribute_binding){text_or_empty(call->attribute[i]->name), value};
    }
    const size_t given = scope->binding_count;
    for (size_t i = 0; i < function->n_attribute_proto; i++) {
        const Onnx__AttributeProto *value = function->attribute_proto[i];
        const char *name = text_or_empty(value->name);
        size_t k = 0;
        while (k < given && strcmp(scope->bindings[k].name, name) != 0)
            k++;
        if (k == given)
            scope->bindings[scope->binding_count++] = (struct attribute_binding){name, value};
    }
    return STATUS_OK;
}

/* Binds each formal name to the value that the call gives, or to NULL if the call omits it. */
static enum status bind_names(struct scope *caller, char *const *formal, size_t count,
                              char *const *given, size_t given_count, const char *what,
                              struct name_map *names)
{
    struct error *err = caller->import->err;
    for (size_t i = 0; i < count; i++) {
        struct value *value = NULL;
        if (i < given_count)
            TRY(scope_resolve(caller, given[i], &value));
        if (name_map_find(names, formal[i]))
            return error_set(err, STATUS_MODEL, "the function has two %s '%.60s'", what, formal[i]);
        TRY(check_memory(name_map_put(names, formal[i], value), "while expanding a function", err));
    }
    return STATUS_OK;
}

static enum status bind_operands(struct scope *caller, const Onnx__NodeProto *call,
                                 const Onnx__FunctionProto *function, struct scope *scope)
{
    struct import *import = caller->import;
    if (call->n_input > function->n_input || call->n_output > function->n_output)
        return error_set(import->err, STATUS_MODEL,
                         "%zu inputs and %zu outputs, but the function has %zu and %zu",
                         call->n_input, call->n_output, function->n_input, function->n_output);
    TRY(bind_names(caller, function->input, function->n_input, call->input, call->n_input, "inputs",
                   &scope->names));
    return bind_names(caller, function->output, function->n_output, call->output, call->n_output,
                      "outputs", &scope->results);
}

/* Binds outputs that no node of the function makes: a returned input becomes an Identity. */
static enum status bind_results(const Onnx__NodeProto *call, const Onnx__FunctionProto *function,
                                struct scope *scope)
{
    for (size_t i = 0; i < call->n_output; i++) {
        struct value *value, *wanted = name_map_find(&scope->results, function->output[i])->value;
        if (!wanted)
            continue;
        TRY(scope_resolve(scope, function->output[i], &value));
        if (value == wanted)
            continue;
        struct node *node =
            value ? graph_add_node(scope->graph, OP_IDENTITY, scope->prefix, 1, 1) : NULL;
        if (!node)
            return error_set(scope->import->err, STATUS_MODEL,
                             "the function's output '%.60s' has no value", function->output[i]);
        node->opset = opset_of(&scope->opsets, "");
        node->opset = node->opset ? node->opset : scope->graph->opset;
        node->inputs[0] = value;
        node_set_output(node, 0, wanted);
    }
    return STATUS_OK;
}

enum status function_call(struct scope *caller, const Onnx__NodeProto *call,
                          const Onnx__FunctionProto *function, const char *name)
{
    struct import *import = caller->import;
    const char *function_name = text_or_empty(function->name);
    if (is_recursive(caller, function))
        return error_set(import->err, STATUS_MODEL, "function '%.100s' calls itself",
                         function_name);
    if (caller->calls >= IMPORT_MAX_CALLS)
        return error_set(import->err, STATUS_MODEL, "functions call each other more than %d deep",
                         IMPORT_MAX_CALLS);
    if (import->calls >= IMPORT_MAX_EXPANDED)
        return error_set(import->err, STATUS_MODEL,
                         "the graph is too large: its functions call each other more than %u times",
                         IMPORT_MAX_EXPANDED);
    char prefix[160];
    if (strlen(name) < 96)
        snprintf(prefix, sizeof prefix, "%s/", name);
    else
        snprintf(prefix, sizeof prefix, "%.60s#%zu/", function_name, import->calls);
    import->calls++;
    struct scope scope = {.import = import,
                          .graph = caller->graph,
                          .caller = caller,
                          .function = function,
                          .opsets = {function->opset_import, function->n_opset_import},
                          .prefix = prefix,
                          .bodies = caller->bodies,
                          .calls = caller->calls + 1};
    if (call->n_attribute > MAX_ATTRIBUTES || function->n_attribute_proto > MAX_ATTRIBUTES)
        return error_set(import->err, STATUS_MODEL, "function '%.100s' has too many attributes",
                         function_name);
    TRY(import_work(import, 1 + call->n_attribute + function->n_attribute_proto +
                                function->n_input + function->n_output));
    size_t attributes = call->n_attribute + function->n_attribute_proto;
    scope.bindings = alloc_array(attributes, sizeof *scope.bindings);
    enum status status = check_memory(scope.bindings, "while expanding a function", import->err);
    IF_OK(status, bind_attributes(caller, call, function, &scope));
    IF_OK(status, bind_operands(caller, call, function, &scope));
    IF_OK(status, import_nodes(&scope, function->node, function->n_node));
    IF_OK(status, bind_results(call, function, &scope));
    scope_done(&scope);
    free(scope.bindings);
    /* Only the outermost call adds its name to the error, because a chain of names would be too
     * long. */
    return status == STATUS_OK || caller->calls
               ? status
               : error_prefix(import->err, "in function '%.60s'", function_name);
}
