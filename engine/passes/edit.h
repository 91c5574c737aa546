/* Private to engine/passes/: small steps that passes are made of, and what takes a pass over the
 * nodes. */
#pragma once

#include "engine/passes/optimize.h"

/* One rewriting of a graph. Steps that make something record their failure here and return false or
 * NULL, so that a pass only gives up: edit->status and *edit->err say why. */
struct edit {
    struct graph *graph;
    const struct optimize_options *options; /* of optimize_kernels(); NULL elsewhere */
    struct error *err;
    enum status status; /* of the first failure */
    /* How often each value is read by nodes (residuals and captures included) or is a graph output;
     * by value->index. Of when edit_count_readers() was called. */
    uint32_t *readers;
    size_t reader_capacity;
};

/* Calls `visit` for each node of the graph that is alive, in order, while nothing has failed. It
 * returns true when it has changed the graph: readers are counted again. It may set *n, the
 * position of its node, to go on from another. Dead nodes are swept away at the end. */
void edit_nodes(struct edit *edit, bool (*visit)(struct edit *edit, size_t *n));

/* Frees what the edit has counted; returns edit->status. */
enum status edit_end(struct edit *edit) MUST_USE;

/* Records that memory is short; always false. */
bool edit_no_memory(struct edit *edit);

bool edit_count_readers(struct edit *edit);

/* Makes every reader of `from` (nodes, graph outputs, captures in bodies) read `to`. */
void edit_replace(struct graph *graph, struct value *from, struct value *to);

/* Marks a node dead: OP_NONE; edit_sweep drops dead nodes and those nobody reads. */
void edit_kill(struct node *node);
void edit_sweep(struct edit *edit);

/* From now on `producer` makes what `node` made, which is killed. */
void edit_take_over(struct node *producer, struct node *node);

bool edit_is_output(const struct graph *graph, const struct value *value);

/* True when `value` is read exactly once and is no graph output. */
bool edit_single_reader(const struct edit *edit, const struct value *value);

/* The node that alone reads `value`; NULL where there is none or the value is a graph output. */
struct node *edit_only_reader(const struct edit *edit, const struct value *value);

/* Has the node a graph among its attributes (If, Loop, Scan)? */
bool edit_has_body(const struct node *node);

/* A float constant read as a scalar (any shape with one element). */
bool edit_scalar(const struct value *value, float *ret);

/* The limits of a Clip, infinite where left out; false when only a run knows them. */
bool edit_clip_limits(const struct node *clip, float *ret_low, float *ret_high);

/* The integers of attribute `name`, or of operand i where the node has no such attribute; false
 * where neither is known, or there are more than `most`. */
bool edit_integers(const struct node *node, const char *name, size_t i, int64_t *ret, size_t most,
                   size_t *ret_count);

/* The same for axes of the node's first operand: 1 … its rank of them, each in 0 … rank - 1. */
bool edit_axes(const struct node *node, size_t i, int64_t ret[static TENSOR_MAX_RANK],
               size_t *ret_count);

/* A new constant with these contents; NULL: to be written by the caller. */
struct value *edit_constant(struct edit *edit, enum dtype dtype, const struct shape *shape,
                            const void *data);

/* node->inputs becomes a copy of these. */
bool edit_set_inputs(struct edit *edit, struct node *node, struct value *const *inputs,
                     size_t count);
bool edit_append_input(struct edit *edit, struct node *node, struct value *value);

/* The node becomes another operator, without attributes. Its outputs stay. */
bool edit_become(struct edit *edit, struct node *node, enum op op, int opset,
                 struct value *const *inputs, size_t count);

/* A new node without attributes right before position `before` of graph->nodes. Its outputs are to
 * be set. */
struct node *edit_insert_node(struct edit *edit, size_t before, enum op op, int opset,
                              const char *name, struct value *const *inputs, size_t count);

/* The same with one output, a new value, which is returned; shape NULL: not inferred yet. */
struct value *edit_insert_value(struct edit *edit, size_t before, enum op op, int opset,
                                const char *name, struct value *const *inputs, size_t count,
                                enum dtype dtype, const struct shape *shape);
struct value *edit_insert_cast(struct edit *edit, size_t before, const char *name,
                               struct value *from, enum dtype to);

/* Position of a node in graph->nodes. */
size_t edit_position(const struct graph *graph, const struct node *node);
