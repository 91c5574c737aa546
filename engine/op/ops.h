/* The table of operators: names, versions, operand counts, attributes, shape inference and more.
 *
 * ops.c assembles the table from the families (families.h). The list of names alone is in
 * engine/graph/op.h. The importer refuses an operator that is not in the table, with the operator's
 * name. The optimizer and the backends look up operators' properties in the table.
 *
 * Source: ONNX operators, https://onnx.ai/onnx/operators/ ; com.microsoft: ONNX Runtime's
 * ContribOperators.md. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "engine/graph/op.h"
#include "engine/op/batch.h"

struct node;
struct graph;

/* Infers dtype and shape of every wanted output from the inputs' dtypes, shapes and known contents.
 * Called only when every present input has a fully known shape, and after the operands and the
 * kinds of attributes were checked. The function itself checks axes and sizes, with
 * overflow-checked arithmetic. If an output's shape depends on unknown contents, only its dtype is
 * set and its shape is SHAPE_NONE. Errors: STATUS_SHAPE / STATUS_MODEL / STATUS_UNSUPPORTED, in a
 * text to which the caller adds the node's name. */
typedef enum status (*infer_fn)(struct node *node, struct error *err);

struct kernel_args;
typedef enum status kernel_function(const struct kernel_args *args, struct error *err);

/* Properties of an operator. Each operator has at least one; OP_PLAIN means none of the others. */
enum op_trait {
    OP_PLAIN = 1u << 0,
    OP_UNARY = 1u << 1,         /* elementwise, one input; further inputs are scalars or a table */
    OP_BROADCAST = 1u << 2,     /* elementwise, numpy broadcasting over all inputs */
    OP_VIEW = 1u << 3,          /* output 0 is input 0's bytes under another shape */
    OP_MOVES = 1u << 4,         /* outputs consist of elements of input 0 */
    OP_KEEPS_NUMBERS = 1u << 5, /* if input 0 is quantized, outputs have its scale */
    OP_PRODUCT = 1u << 6,       /* Conv, Gemm …: takes a bias, residual and activation */
    OP_NORMALIZATION = 1u << 7, /* its inputs after the first are parameters */
    OP_PROBABILITIES = 1u << 8, /* outputs are probabilities, 0 … 1, computed from logits */
    OP_SHAPE_ONLY = 1u << 9,    /* reads only the shape of input 0 */
    OP_HEAVY = 1u << 10,        /* the work can grow faster than the number of elements */
    OP_PREDICATE = 1u << 13,    /* outputs are bool */
    OP_DATA_SHAPE = 1u << 11,   /* output shapes depend on contents; inference never sets shapes */
    OP_NO_FOLD = 1u << 12,      /* never folded to a constant */
};

#define OP_VARIADIC 255

/* A row of the tables in engine/op: one operator in a range of opsets. */
struct op_info {
    enum op op;
    int since, until; /* range of opsets; until 0 = every later one (up to OPSET_MAX) */
    uint8_t min_inputs, max_inputs, min_outputs, max_outputs;
    const char *operands; /* dtypes and shapes of the inputs, operands.h; NULL: not checked */
    unsigned traits;      /* enum op_trait */
    const char *attrs; /* its attributes, such as "axis:int mode:string"; NULL = none. Kinds: int,
                          float, string, tensor, graph, ints, floats, strings */
    infer_fn infer;
    const struct batch_rule *batch;          /* how images of a batch pass through the node */
    double (*work)(const struct node *node); /* multiply-adds, for node_work() */
    kernel_function *kernel;                 /* engine/op/kernel.h */
};

/* The newest ai.onnx opset that the table was checked against. */
#define OPSET_MAX 28

/* The row of an operator for an opset. Returns NULL if lensd does not implement the operator at
 * this opset. Thread-safe. */
const struct op_info *op_find(enum op op, int opset);

/* The newest row of an operator, and its traits. Every operator has a row. Thread-safe. */
const struct op_info *op_record(enum op op);
bool op_has(enum op op, unsigned traits); /* true if the operator has one of `traits` */

/* The type to which a Cast converts; DTYPE_NONE if lensd does not support the type. Any thread. */
enum dtype op_cast_target(const struct node *cast);

/* Estimates the work of a node from its operands' shapes: elements read and written, and the
 * multiply-adds of products, convolutions and windows. An unknown shape counts as 0. Any thread. */
double node_work(const struct node *node);

/* STATUS_MODEL if the node has too many or too few inputs or outputs, or lacks a required input. */
enum status op_check_operands(const struct node *node, const struct op_info *info,
                              struct error *err) MUST_USE;

/* The activation that an elementwise node computes, with its parameters, as an epilogue without a
 * residual. Returns false if the node computes no activation, and for Clip. Any thread. */
struct epilogue;
bool op_activation(const struct node *node, struct epilogue *ret);

/* The numbers alpha and beta that the attributes of an elementwise node with one operand set; 0 if
 * the operator has none. IsInf: whether to detect +inf, and -inf. Any thread. */
void op_parameters(const struct node *node, double *ret_alpha, double *ret_beta);

/* One attribute in op_info.attrs. */
struct attr_spec {
    const char *name;
    size_t length; /* of the name, which has no terminator */
    int kind;      /* as in enum attr_kind */
};

/* Parses the first attribute of *attrs and moves *attrs to the next. Returns false at the end. */
bool op_next_attr(const char **attrs, struct attr_spec *ret);

/* The kind (enum attr_kind) of the operator's attribute `name`; -1 if the operator has no such
 * attribute. */
int op_attr_kind(const struct op_info *info, const char *name);
