/* Private to models/onnx/: building the graph.
 *
 *   onnx.c           file to messages, metadata
 *   onnx_ops.c       nodes: operator, operands, attributes
 *   onnx_function.c  model-local functions, inlined at their calls
 *   onnx_graph.c     graphs and bodies: initialisers, inputs, nodes in order, outputs
 *   onnx_scope.c     resolves names, attributes of functions, and opsets
 *
 * A file only calls files below it in this list, except that a graph creates its nodes through
 * import->make_node.
 *
 * Names are resolved through scopes. A scope is a graph, a body of If / Loop / Scan, or a call of a
 * function. All outputs of its nodes are declared before its nodes are made, so that the nodes may
 * be in any order in the file (graph_sort() sorts them afterwards). */
#pragma once

#include <string.h>

#include "engine/graph/graph.h"
#include "models/onnx/name_map.h"
#include "models/onnx/onnx_file.h"

/* Limits of one import. MAX_BODIES and MAX_CALLS limit the depth of nested bodies and of nested
 * calls. wire_slim() bounds the depth of bodies in a file, but functions could multiply that depth.
 * Work is the number of nodes, operands, attribute elements and expanded functions. */
#define IMPORT_MAX_BODIES    32
#define IMPORT_MAX_CALLS     100
#define IMPORT_MAX_FUNCTIONS 10000
#define IMPORT_MAX_EXPANDED  (64u << 10) /* calls of functions in total */
#define IMPORT_MAX_OPSETS    256
#define IMPORT_MAX_WORK      (2u << 20)

struct opsets {
    Onnx__OperatorSetIdProto *const *entries;
    size_t count;
};

struct scope;

struct import {
    struct onnx_file *file;
    const Onnx__ModelProto *model;
    /* import_node(). onnx_graph.c calls it through this pointer, because onnx_ops.c calls
     * onnx_graph.c. */
    enum status (*make_node)(struct scope *scope, const Onnx__NodeProto *proto, size_t position);
    struct name_map functions; /* keys "domain\nname\noverload", values Onnx__FunctionProto */
    struct arena *keys;        /* memory for the keys of `functions` */
    size_t work;
    size_t calls; /* number of expanded functions, for unique names */
    struct error *err;
};

struct scope {
    struct import *import;
    struct graph *graph;
    struct scope *outer;  /* scope of the enclosing graph, whose values can be captured */
    struct scope *caller; /* scope of the call, for a function */
    const Onnx__FunctionProto *function;
    struct attribute_binding { /* an attribute of the call, or a default of the function */
        const char *name;
        const Onnx__AttributeProto *value;
    } * bindings;
    size_t binding_count;
    struct opsets opsets;
    const char *prefix;      /* new values and nodes get names with this prefix: "" or "call/" */
    int bodies, calls;       /* current nesting depths */
    struct name_map names;   /* to struct value, or to NULL for an input that the caller omitted */
    struct name_map results; /* formal outputs of a function to values of the caller */
    struct value **captured; /* values of outer->graph that this scope reads, each once */
    size_t captured_count, captured_capacity;
};

/* ---- onnx_scope.c ---- */

void scope_done(struct scope *scope);

/* Counts `units` of work; STATUS_MODEL when IMPORT_MAX_WORK is exceeded. */
enum status import_work(struct import *import, size_t units) MUST_USE;

/* Finds the value called `name`; "" gives NULL. If only an enclosing graph has the value, captures
 * it from there. STATUS_MODEL when no visible value has the name. */
enum status scope_resolve(struct scope *scope, const char *name, struct value **ret) MUST_USE;

/* Returns the name of a constant's data type in the file, if the importer has widened it
 * (onnx_packed_find()); otherwise NULL. */
const char *scope_packed(const struct value *value);

/* Creates a value for a name in this scope; STATUS_MODEL when the name exists. */
enum status scope_declare(struct scope *scope, const char *name, enum dtype dtype,
                          const struct shape *shape, struct value **ret) MUST_USE;

/* Sets *ret to the attribute itself. If the attribute refers to an attribute of the function, sets
 * *ret to the value from the call, or to the function's default, or to NULL. */
enum status attribute_resolve(const struct scope *scope, const Onnx__AttributeProto *proto,
                              const Onnx__AttributeProto **ret) MUST_USE;

/* Opset of a domain; 0 if the model does not import the domain. "ai.onnx" is "". */
int opset_of(const struct opsets *opsets, const char *domain);
enum status opsets_check(const struct opsets *opsets, struct error *err) MUST_USE;

/* ---- onnx_graph.c ---- */

/* Fills scope->graph from a message: the main graph (is_body false) or a body. */
enum status import_graph(struct scope *scope, const Onnx__GraphProto *proto, bool is_body) MUST_USE;

/* Declares the outputs of all nodes, then makes the nodes. */
enum status import_nodes(struct scope *scope, Onnx__NodeProto *const *nodes, size_t count) MUST_USE;

/* ---- onnx_function.c ---- */

/* functions_index() fills import->functions and refuses duplicates. function_find() returns NULL if
 * there is no such function. function_call() expands a call. */
enum status functions_index(struct import *import) MUST_USE;
const Onnx__FunctionProto *function_find(const struct import *import, const char *domain,
                                         const char *name, const char *overload);
enum status function_call(struct scope *scope, const Onnx__NodeProto *call,
                          const Onnx__FunctionProto *function, const char *name) MUST_USE;

/* ---- onnx_ops.c ---- */

/* Makes the node at `position` of its list; its outputs are already declared. */
enum status import_node(struct scope *scope, const Onnx__NodeProto *proto,
                        size_t position) MUST_USE;

static inline const char *text_or_empty(const char *text)
{
    return text ? text : "";
}

/* Returns the domain; "" for ai.onnx and for NULL. */
static inline const char *plain_domain(const char *domain)
{
    return domain && strcmp(domain, "ai.onnx") ? domain : "";
}
