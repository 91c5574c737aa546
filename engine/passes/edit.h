/* Functions that visit and edit the nodes and values of a graph, for passes and sessions. */
#pragma once

#include "engine/passes/optimize.h"

/* The state of a pass over a graph. A function that fails sets edit->status and *edit->err, and
 * returns false or NULL; the pass then returns and does not report the error again. */
struct edit {
    struct graph *graph;
    const struct optimize_options *options; /* NULL outside optimize_for_backend() */
    struct error *err;
    enum status status; /* of the first failure */
    /* By value->index: how often nodes (as operand or capture) and graph outputs read each value.
     * edit_count_readers() counts; later changes of the graph do not change the counts. */
    uint32_t *readers;
};

/* Calls `visit` for each live node in order, until a call fails. `visit` returns true if it has
 * changed the graph; readers are then counted again. *n is the node's position, which `visit` may
 * change to continue elsewhere. Removes dead nodes at the end. */
void edit_nodes(struct edit *edit, bool (*visit)(struct edit *edit, size_t *n));

/* Frees the reader counts and returns edit->status. */
enum status edit_end(struct edit *edit) MUST_USE;

/* Sets STATUS_NO_MEMORY; returns false. */
bool edit_no_memory(struct edit *edit);

bool edit_count_readers(struct edit *edit);

/* Makes every reader of `from` (nodes, graph outputs, captures in bodies) read `to`. */
void edit_replace(struct graph *graph, struct value *from, struct value *to);

/* True if a kernel of the backend claims the node and has this ability. */
bool edit_kernel_can(const struct edit *edit, const struct node *node, enum kernel_ability ability);

/* Removes dead nodes, which are those with OP_NONE, and nodes without readers. */
void edit_sweep(struct edit *edit);

/* Makes output 0 of `node` the output 0 of `producer`, and marks `node` dead. */
void edit_take_over(struct node *producer, struct node *node);

bool edit_is_output(const struct graph *graph, const struct value *value);

/* True when `value` is read exactly once and is not a graph output. */
bool edit_single_reader(const struct edit *edit, const struct value *value);

/* Returns the only node that reads `value`; NULL if there is none, or `value` is a graph output. */
struct node *edit_only_reader(const struct edit *edit, const struct value *value);

/* True if the node has a graph among its attributes (If, Loop, Scan). */
bool edit_has_body(const struct node *node);

/* Reads a constant with one element, of any type and rank, as a float. */
bool edit_scalar(const struct value *value, float *ret);

/* True for a float32 constant whose numbers all are `expected`. */
bool edit_is_all(const struct value *value, float expected);

/* Reads the limits of a Clip; a missing limit is infinite. Returns false if a limit is not
 * constant. */
bool edit_clip_limits(const struct node *clip, float *ret_low, float *ret_high);

/* Reads the integers of operand i. Returns false for unknown integers, and more than `most`. */
bool edit_integers(const struct node *node, size_t i, int64_t *ret, size_t most, size_t *ret_count);

/* True for a ReduceMean with keepdims over exactly these axes, given as a bit mask. */
bool edit_is_mean(const struct node *node, unsigned axes);
#define SPATIAL_AXES 0xcu /* of an image, [N, C, H, W] */

/* Creates a constant with a copy of `data`, or of zeros if `data` is NULL. */
struct value *edit_constant(struct edit *edit, enum dtype dtype, const struct shape *shape,
                            const void *data);

/* Replaces node->inputs by a copy of `inputs`. */
bool edit_set_inputs(struct edit *edit, struct node *node, struct value *const *inputs,
                     size_t count);
bool edit_append_input(struct edit *edit, struct node *node, struct value *value);

/* Turns the node into another operator without attributes. The node keeps its outputs. */
bool edit_become(struct edit *edit, struct node *node, enum op op, int opset,
                 struct value *const *inputs, size_t count);

/* Inserts a node without attributes before position `before` of graph->nodes. The caller sets the
 * node's only output. */
struct node *edit_insert_node(struct edit *edit, size_t before, enum op op, int opset,
                              const char *name, struct value *const *inputs, size_t count);

/* Inserts a node and returns its new output value. If `shape` is NULL, the value has none yet. */
struct value *edit_insert_value(struct edit *edit, size_t before, enum op op, int opset,
                                const char *name, struct value *const *inputs, size_t count,
                                enum dtype dtype, const struct shape *shape);
struct value *edit_insert_cast(struct edit *edit, size_t before, const char *name,
                               struct value *from, enum dtype to);

/* Returns the position of a node in graph->nodes. */
size_t edit_position(const struct graph *graph, const struct node *node);
