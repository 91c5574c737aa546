/* Private to models/onnx/: building the graph.
 *
 *   onnx.c           file to messages, metadata
 *   onnx_ops.c       nodes: operator, operands, attributes
 *   onnx_function.c  model-local functions, inlined where they are called
 *   onnx_graph.c     graphs and bodies: initialisers, inputs, nodes in order, outputs
 *   onnx_scope.c     what names, attributes of functions and opsets stand for
 *
 * A file calls only those below it. The one call upwards, from a graph to its nodes, goes through
 * import->make_node.
 *
 * Names are resolved through scopes. A scope is one graph, one body of If / Loop / Scan, or one
 * call of a function; all outputs of its nodes are declared before its nodes are made, so that the
 * order of nodes in the file does not matter (graph_sort puts them right afterwards). */
#pragma once

#include "engine/graph/graph.h"
#include "models/onnx/name_map.h"
#include "models/onnx/onnx_file.h"

/* Bodies inside bodies (wire_slim bounds those of a file, functions could multiply them), calls
 * inside calls (ONNX's own limit), and the work of one import: nodes, operands, attribute elements,
 * functions expanded. */
#define IMPORT_MAX_BODIES    32
#define IMPORT_MAX_CALLS     100
#define IMPORT_MAX_FUNCTIONS 10000
#define IMPORT_MAX_EXPANDED  (64u << 10) /* calls, all in all */
#define IMPORT_MAX_OPSETS    256
#define IMPORT_MAX_WORK      (2u << 20)

struct opsets {
    const Onnx__OperatorSetIdProto *const *entries;
    size_t count;
};

struct scope;

struct import {
    struct onnx_file *file;
    const Onnx__ModelProto *model;
    /* import_node(). onnx_graph.c calls it through this pointer: onnx_ops.c calls onnx_graph.c. */
    enum status (*make_node)(struct scope *scope, const Onnx__NodeProto *proto, size_t position);
    struct name_map functions; /* "domain\nname\noverload" to Onnx__FunctionProto */
    struct arena *keys;        /* those keys */
    size_t work;
    size_t calls; /* functions expanded so far, for unique names */
    struct error *err;
};

struct scope {
    struct import *import;
    struct graph *graph;
    struct scope *outer;  /* of the enclosing graph: names not found here are captured from there */
    struct scope *caller; /* of the call, when this is a function */
    const Onnx__FunctionProto *function;
    const Onnx__AttributeProto *const *bindings; /* what the call gives the function's attributes */
    size_t binding_count;
    struct opsets opsets;
    const char *prefix;      /* of names made here: "" or "call/" */
    int bodies, calls;       /* how deep we are */
    struct name_map names;   /* struct value, or NULL for an input left out by the caller */
    struct name_map results; /* functions: formal outputs to values of the caller */
    struct value **captured; /* values of outer->graph that were read here, once each */
    size_t captured_count, captured_capacity;
};

/* ---- onnx_scope.c ---- */

void scope_done(struct scope *scope);

/* STATUS_MODEL when `units` more would pass IMPORT_MAX_WORK. */
enum status import_work(struct import *import, size_t units) MUST_USE;

/* What `name` stands for; "" is NULL. Captures it from the enclosing graphs when it is not from
 * here. STATUS_MODEL when nothing of that name is in reach. */
enum status scope_resolve(struct scope *scope, const char *name, struct value **ret) MUST_USE;

/* The name of a constant's data type in the file, if it was read as a wider one (onnx_packed_find);
 * else NULL. */
const char *scope_packed(const struct value *value);

/* Makes a value for a name of this scope; STATUS_MODEL when the name is taken. */
enum status scope_declare(struct scope *scope, const char *name, enum dtype dtype,
                          const struct shape *shape, struct value **ret) MUST_USE;

/* The attribute itself, or for one that refers to an attribute of the function, what the call (or
 * the function's default) gives it; NULL when that is left out. */
enum status attribute_resolve(const struct scope *scope, const Onnx__AttributeProto *proto,
                              const Onnx__AttributeProto **ret) MUST_USE;

/* Opset of a domain; 0 when it is not imported. "ai.onnx" is "". */
int opset_of(const struct opsets *opsets, const char *domain);
enum status opsets_check(const struct opsets *opsets, struct error *err) MUST_USE;

/* ---- onnx_graph.c ---- */

/* Fills scope->graph from a message: the main graph (is_body false) or a body. */
enum status import_graph(struct scope *scope, const Onnx__GraphProto *proto, bool is_body) MUST_USE;

/* Declares what the nodes produce, then makes the nodes. */
enum status import_nodes(struct scope *scope, Onnx__NodeProto *const *nodes, size_t count) MUST_USE;

/* ---- onnx_function.c ---- */

/* Functions: index them (duplicates are refused), find one (NULL: none), expand a call. */
enum status functions_index(struct import *import) MUST_USE;
const Onnx__FunctionProto *function_find(const struct import *import, const char *domain,
                                         const char *name, const char *overload);
enum status function_call(struct scope *scope, const Onnx__NodeProto *call,
                          const Onnx__FunctionProto *function, const char *name) MUST_USE;

/* ---- onnx_ops.c ---- */

/* Makes the node at `position` of its list; its outputs are declared already. */
enum status import_node(struct scope *scope, const Onnx__NodeProto *proto,
                        size_t position) MUST_USE;

static inline const char *text_or_empty(const char *text)
{
    return text ? text : "";
}
