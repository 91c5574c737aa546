/* The graph: lensd's small typed intermediate representation (IR) of a model.
 *
 * The importer (models/onnx/onnx.c) builds one from a file; engine/passes rewrites it;
 * engine/backend/plan.c gives every value a place; a backend compiles it. Operators keep ONNX's
 * names, attributes and (after the importer) the meaning of the opset they were imported at:
 * node->opset.
 *
 * Memory: nodes, values, names, attributes live in the graph's arena and go with it; constant
 * tensors are reference-counted and shared between a graph and its clones. A graph is changed by
 * one thread at a time; a graph that nobody changes may be read (and cloned) by many. */
#pragma once

#include "engine/base/arena.h"
#include "engine/graph/activation.h"
#include "engine/graph/op.h"
#include "engine/tensor/tensor.h"

struct node;
struct graph;

/* One tensor that flows through the graph. */
struct value {
    const char *name;      /* unique in its graph; "" only for values made by passes */
    enum dtype dtype;      /* DTYPE_NONE: not inferred yet */
    struct shape shape;    /* SHAPE_NONE: not inferred yet, or depends on data */
    struct tensor *known;  /* contents, when they are known before the run: initialiser, folded
                              constant (one reference is held); while a data-dependent part is
                              interpreted, the contents of this run. NULL otherwise. */
    struct node *producer; /* NULL for graph inputs, constants, captures */
    struct value *outer;   /* in the body of If / Loop / Scan: the value of the enclosing graph that
                              this one stands for; NULL otherwise */
    const char *dim_names[TENSOR_MAX_RANK]; /* graph inputs / outputs: symbolic names, or NULL */
    uint32_t index;                         /* position in graph->values */
    const char *packed; /* a constant's type in the file, "int4" …, if `known` has a wider one */
};

enum attr_kind {
    ATTR_INT,
    ATTR_FLOAT,
    ATTR_STRING,
    ATTR_TENSOR,
    ATTR_GRAPH,
    ATTR_INTS,
    ATTR_FLOATS,
    ATTR_STRINGS,
};

struct attr {
    const char *name;
    enum attr_kind kind;
    size_t count; /* elements of a list, bytes of a string */
    union {
        int64_t i;
        float f;
        const char *s; /* count bytes, and a terminator */
        struct tensor *t;
        struct graph *g;
        const int64_t *ints;
        const float *floats;
        const char *const *strings;
    };
};

/* What a pass has fused after a node: y = activation(op(x) + residual). If `step` is not 0,
 * the node's result is y stored in 8 bits, as a QuantizeLinear of this scale and zero point does.
 */
struct epilogue {
    enum activation activation;
    float alpha, beta;
    float step;
    int zero;
    struct value *residual; /* also the last of node->inputs; NULL without */
};

struct node {
    enum op op;
    const char *name;      /* from the file; made up ("Conv_12") where the file has none */
    int opset;             /* of the operator's domain */
    struct value **inputs; /* NULL: optional input left out */
    size_t input_count;
    struct value **outputs; /* NULL: optional output not wanted */
    size_t output_count;
    const struct attr *attrs;
    size_t attr_count;
    struct value **captures; /* values of this graph that the bodies in attrs read */
    size_t capture_count;
    struct epilogue epilogue;
    struct value *gate; /* of a Conv: its image is multiplied by this first, [N, 1 …, C]; also
                           inputs[3]; NULL without. Made by pass_gates. */
    bool channels_last; /* set by the layout pass: image operands are [N, spatial …, C] */
};

struct graph {
    struct arena *arena;
    const char *name;
    const char *producer; /* "pytorch 2.1.0", "" when the file does not say */
    int64_t ir_version;
    int opset; /* of ai.onnx */
    struct value **values;
    size_t value_count, value_capacity;
    struct node **nodes; /* topological order */
    size_t node_count, node_capacity;
    struct value **inputs; /* real inputs only: never an initialiser */
    size_t input_count;
    struct value **outputs;
    size_t output_count;
    struct memory_budget
        *budget; /* what tensors made on behalf of this graph are charged to; may be NULL */
    struct graph *parent; /* for bodies of If / Loop / Scan */
};

/* An empty graph with its own arena; NULL when out of memory. graph_free takes NULL, drops the
 * references to constants, and frees bodies held by attributes. */
struct graph *graph_create(struct memory_budget *budget);
void graph_free(struct graph *graph);

/* All three return NULL when out of memory. Names are copied into the arena. */
struct value *graph_add_value(struct graph *graph, const char *name, enum dtype dtype,
                              const struct shape *shape);
struct value *graph_add_constant(struct graph *graph, const char *name, struct tensor *tensor);
/* Appends a node with room for the given operands, all NULL. */
struct node *graph_add_node(struct graph *graph, enum op op, const char *name, size_t inputs,
                            size_t outputs);

/* Sets node->outputs[i] and the value's producer. */
void node_set_output(struct node *node, size_t i, struct value *value);

/* A deep copy; constants are shared by reference. Bodies are copied too. */
enum status graph_clone(const struct graph *graph, struct graph **ret, struct error *err) MUST_USE;

/* Puts nodes into topological order (stable: the file's order where it is one) without recursion.
 * STATUS_MODEL naming a node of the cycle, or an input that nothing produces. */
enum status graph_sort(struct graph *graph, struct error *err) MUST_USE;

/* Attribute access by name; the default where the node has none. The kinds were checked at import
 * against the operator's table, so a wrong kind reads as absent. */
const struct attr *node_attr(const struct node *node, const char *name);
int64_t node_int(const struct node *node, const char *name, int64_t otherwise);
float node_float(const struct node *node, const char *name, float otherwise);
const char *node_string(const struct node *node, const char *name, const char *otherwise);
/* *ret_count = 0 and NULL where absent. */
const int64_t *node_ints(const struct node *node, const char *name, size_t *ret_count);
const float *node_floats(const struct node *node, const char *name, size_t *ret_count);

/* Returns the attribute `axis` counted from the front, for a tensor of `rank` dimensions. It may be
 * out of range if inference has not checked it. */
static inline int64_t node_axis(const struct node *node, int64_t otherwise, int rank)
{
    const int64_t axis = node_int(node, "axis", otherwise);
    return axis < 0 ? axis + rank : axis;
}

/* Adds or replaces an attribute (passes use it); false when out of memory. */
bool node_set_int(struct graph *graph, struct node *node, const char *name, int64_t value);
bool node_set_float(struct graph *graph, struct node *node, const char *name, float value);
bool node_set_string(struct graph *graph, struct node *node, const char *name,
                     const char *text); /* `text` is borrowed, and must live as the graph does */
bool node_set_ints(struct graph *graph, struct node *node, const char *name, const int64_t *values,
                   size_t count);

/* True if `value` (may be NULL) is a float32 constant; is_f32_vector(): one of shape [count]. */
bool is_f32_constant(const struct value *value);
bool is_f32_vector(const struct value *value, int64_t count);

/* Bytes that a value of known shape takes. */
size_t value_bytes(const struct value *value);

/* Input i, or NULL when left out or beyond the end. */
struct value *node_input(const struct node *node, size_t i);
struct value *node_output(const struct node *node, size_t i);
/* Input 2 of a product, which is its bias, unless a pass has put the residual there; or NULL. */
struct value *node_bias(const struct node *node);

/* Infers dtype and shape of the node's outputs through the operator's table: checks operand counts
 * first, leaves outputs unknown when an input's shape is unknown. Errors name node, op and opset.
 */
enum status graph_infer_node(struct node *node, struct error *err) MUST_USE;

/* A running hash (initially zero) of what a graph computes: operators, attributes, edges, contents
 * of its constants, but not names. Equal graphs have equal hashes in every process. Not
 * collision-resistant against an attacker. */
struct graph_hash {
    uint64_t words[2];
};
void graph_hash(struct graph_hash *hash, const struct graph *graph);
/* Adds other data to the hash. */
void graph_hash_bytes(struct graph_hash *hash, const void *data, size_t size);

/* True if the activation is a clamp to [*ret_low, *ret_high], or none, which is [-inf, inf]. */
bool epilogue_range(const struct epilogue *epilogue, float *ret_low, float *ret_high);

/* "Conv 'layer1.0.conv1' (opset 13)" for error texts; returns text. */
#define NODE_TEXT 200
const char *node_text(const struct node *node, char text[static NODE_TEXT]);
