/* The graph: lensd's small typed intermediate representation (IR) of a model.
 *
 * The importer (models/onnx/onnx.c) builds a graph from a file; engine/passes rewrites it;
 * engine/backend/plan.c assigns memory to every value; a backend compiles it. Operators keep ONNX's
 * names and attributes; node->opset is the opset that defines their meaning.
 *
 * Memory: nodes, values, names and attributes live in the graph's arena. Constant tensors are
 * reference-counted; a graph and its clones share them. One thread at a time may change a graph.
 * Many threads may read or clone a graph that no thread changes. */
#pragma once

#include "engine/base/arena.h"
#include "engine/graph/activation.h"
#include "engine/graph/op.h"
#include "engine/tensor/tensor.h"

struct node;
struct graph;

/* One tensor that flows through the graph. */
struct value {
    const char *name;   /* unique in its graph; "" only for values made by passes */
    enum dtype dtype;   /* DTYPE_NONE: not inferred yet */
    struct shape shape; /* SHAPE_NONE: not inferred yet, or depends on data */
    /* The contents of an initialiser or a folded constant, with one reference. During a run of the
     * interpreter, the contents of every value. Otherwise NULL. */
    struct tensor *known;
    struct node *producer; /* NULL for graph inputs, constants, captures */
    struct value *outer; /* in a body of If, Loop or Scan: the value of the enclosing graph to which
                            this value refers; otherwise NULL */
    const char *dim_names[TENSOR_MAX_RANK]; /* symbolic names of the dimensions of graph inputs and
                                               outputs, or NULL */
    uint32_t index;                         /* position in graph->values */
    const char *packed; /* a constant's type in the file, "int4" …, if `known` has a wider type */
};

enum attr_kind { /* numbers of onnx.proto, AttributeProto.AttributeType */
                 ATTR_FLOAT = 1,
                 ATTR_INT,
                 ATTR_STRING,
                 ATTR_TENSOR,
                 ATTR_GRAPH,
                 ATTR_FLOATS,
                 ATTR_INTS,
                 ATTR_STRINGS,
};

struct attr {
    const char *name;
    enum attr_kind kind;
    size_t count; /* elements of a list, bytes of a string */
    union {
        int64_t i;
        float f;
        const char *s; /* `count` bytes and a terminator */
        struct tensor *t;
        struct graph *g;
        const int64_t *ints;
        const float *floats;
        const char *const *strings;
    };
};

/* The operations that a pass has fused into a node: y = activation(op(x) + residual). If `step` is
 * not 0, the node's result is y quantized to 8 bits, as by QuantizeLinear with scale `step` and
 * zero point `zero`. */
struct epilogue {
    enum activation activation;
    float alpha, beta;
    float step;
    int zero;
    struct value *residual; /* NULL, or the last of node->inputs */
};

struct node {
    enum op op;
    const char *name;      /* the name in the file, or a generated name such as "Conv_12" */
    int opset;             /* of the operator's domain */
    struct value **inputs; /* NULL: an optional input without a value */
    size_t input_count;
    struct value **outputs; /* NULL: an optional output that the file does not use */
    size_t output_count;
    const struct attr *attrs;
    size_t attr_count;
    struct value **captures; /* values of this graph that bodies in attrs read */
    size_t capture_count;
    struct epilogue epilogue;
    struct value *gate; /* [N, 1 …, C]: a Conv first multiplies its image by this value, which is
                           also inputs[3]; set by pass_gates(); NULL: none */
    bool channels_last; /* set by the layout pass: image operands are [N, spatial …, C] */
};

struct graph {
    struct arena *arena;
    const char *name;
    const char *producer; /* "pytorch 2.1.0"; "" if the file names no producer */
    int64_t ir_version;
    int opset; /* of ai.onnx */
    struct value **values;
    size_t value_count, value_capacity;
    struct node **nodes; /* topological order */
    size_t node_count, node_capacity;
    struct value **inputs; /* never initialisers */
    size_t input_count;
    struct value **outputs;
    size_t output_count;
    struct memory_budget *budget; /* the budget for tensors of this graph; may be NULL */
    struct graph *parent;         /* for bodies of If / Loop / Scan */
};

/* Creates an empty graph with its own arena; NULL when out of memory. graph_free() accepts NULL,
 * releases the graph's references to constants, and frees the bodies in attributes. */
struct graph *graph_create(struct memory_budget *budget);
void graph_free(struct graph *graph);

/* The graph_add functions return NULL when out of memory. Names are copied into the arena. */
struct value *graph_add_value(struct graph *graph, const char *name, enum dtype dtype,
                              const struct shape *shape);
struct value *graph_add_constant(struct graph *graph, const char *name, struct tensor *tensor);
/* Appends a node with room for the given numbers of operands, all NULL. */
struct node *graph_add_node(struct graph *graph, enum op op, const char *name, size_t inputs,
                            size_t outputs);

/* Releases the tensor of an attribute, or frees the body in an attribute. */
void attr_done(const struct attr *attr);

/* Counts how often each value is read: adds to readers[value->index] the number of operands and
 * captures of nodes (except OP_NONE), and of outputs of the graph, that are this value. */
void graph_count_readers(const struct graph *graph, uint32_t *readers);

/* Sets node->outputs[i] and the value's producer. */
void node_set_output(struct node *node, size_t i, struct value *value);

/* Makes a deep copy with bodies; constants are shared by reference. */
enum status graph_clone(const struct graph *graph, struct graph **ret, struct error *err) MUST_USE;

/* Sorts nodes topologically, without recursion. Moves a node only if an earlier node in the list
 * reads the node's result. Errors: STATUS_MODEL (the graph has a cycle), STATUS_NO_MEMORY. */
enum status graph_sort(struct graph *graph, struct error *err) MUST_USE;

/* These functions find an attribute by name. If the node lacks the attribute, node_attr() returns
 * NULL, and the other functions return `otherwise`. The importer has checked kinds against the
 * operator's table; an attribute of a wrong kind counts as absent. */
const struct attr *node_attr(const struct node *node, const char *name);
int64_t node_int(const struct node *node, const char *name, int64_t otherwise);
float node_float(const struct node *node, const char *name, float otherwise);
const char *node_string(const struct node *node, const char *name, const char *otherwise);
/* Return NULL with *ret_count = 0 if the attribute is absent. */
const int64_t *node_ints(const struct node *node, const char *name, size_t *ret_count);
const float *node_floats(const struct node *node, const char *name, size_t *ret_count);

/* Returns the attribute `axis`. A negative axis becomes axis + rank. The result may be out of range
 * if inference has not checked the attribute. */
static inline int64_t node_axis(const struct node *node, int64_t otherwise, int rank)
{
    const int64_t axis = node_int(node, "axis", otherwise);
    return axis < 0 ? axis + rank : axis;
}

/* For passes: adds or replaces an attribute. Returns false when out of memory. */
bool node_set_int(struct graph *graph, struct node *node, const char *name, int64_t value);
bool node_set_float(struct graph *graph, struct node *node, const char *name, float value);
bool node_set_string(struct graph *graph, struct node *node, const char *name,
                     const char *text); /* `text` is borrowed and must live as long as the graph */
bool node_set_ints(struct graph *graph, struct node *node, const char *name, const int64_t *values,
                   size_t count);

/* True if `value` is a float32 constant. is_f32_vector() also requires the shape [count] or [1, …,
 * 1, count]. `value` may be NULL. */
bool is_f32_constant(const struct value *value);
bool is_f32_vector(const struct value *value, int64_t count);

/* Size in bytes of a value with a known shape. */
size_t value_bytes(const struct value *value);

/* Input or output i, or NULL if it is omitted or i is out of range. */
struct value *node_input(const struct node *node, size_t i);
struct value *node_output(const struct node *node, size_t i);
/* The bias of a product (Conv, Gemm …): input 2, or NULL if input 2 is absent or the residual. */
struct value *node_bias(const struct node *node);

/* Infers dtypes and shapes of a node's outputs with the table of operators; checks operand counts.
 * Outputs stay unknown when an input's shape is unknown. Errors name node, operator and opset. */
enum status graph_infer_node(struct node *node, struct error *err) MUST_USE;

/* A running hash (initially zero) of a graph's computation: operators, attributes, edges and
 * contents of constants, but no names of values and nodes. Equal graphs have equal hashes in every
 * process. Attackers can construct collisions. */
struct graph_hash {
    uint64_t words[2];
};
void graph_hash(struct graph_hash *hash, const struct graph *graph);
/* Adds other data to the hash. */
void graph_hash_bytes(struct graph_hash *hash, const void *data, size_t size);

/* True if the activation only clamps to [*ret_low, *ret_high]. Without an activation, the range is
 * [-inf, inf]. */
bool epilogue_range(const struct epilogue *epilogue, float *ret_low, float *ret_high);

/* Writes text such as "Conv 'layer1.0.conv1' (opset 13)" for error texts; returns `text`. */
#define NODE_TEXT 200
const char *node_text(const struct node *node, char text[static NODE_TEXT]);

/* The text of node_text(), in memory that lasts until the enclosing block ends. */
#define NODE_STRING(node) node_text((node), (char[NODE_TEXT]){0})
