/* Private to engine/passes/: small steps that passes are made of. */
#pragma once

#include "engine/passes/optimize.h"

/* How often each value is read by nodes (residuals and captures included) or is a graph output;
 * by value->index. Recomputed by edit_count_readers after a batch of changes. */
struct edit {
    struct graph *graph;
    uint32_t *readers;
    size_t reader_capacity;
};

enum status edit_init(struct edit *edit, struct graph *graph, struct error *err) MUST_USE;
void edit_done(struct edit *edit);
enum status edit_count_readers(struct edit *edit, struct error *err) MUST_USE;

/* Makes every reader of `from` (nodes, graph outputs, captures in bodies) read `to`. */
void edit_replace(struct graph *graph, struct value *from, struct value *to);

/* Marks a node dead: OP_NONE; edit_sweep drops dead nodes and those nobody reads. */
void edit_kill(struct node *node);
enum status edit_sweep(struct graph *graph, struct error *err) MUST_USE;

/* True when `value` is read exactly once and is no graph output. */
bool edit_single_reader(const struct edit *edit, const struct value *value);

/* The node that alone reads `value`; NULL where there is none or the value is a graph output. */
struct node *edit_only_reader(const struct edit *edit, const struct value *value);

/* A float constant read as a scalar (any shape with one element). */
bool edit_scalar(const struct value *value, float *ret);

/* A new float32 constant. */
enum status edit_constant_f32(struct graph *graph, const char *name, const struct shape *shape,
                              const float *data, struct value **ret, struct error *err) MUST_USE;

/* Sets node->inputs to one more entry. */
bool edit_append_input(struct graph *graph, struct node *node, struct value *value);

/* Appends a node and moves it right before position `before` of graph->nodes. */
struct node *edit_insert_node(struct graph *graph, size_t before, enum op op, const char *name,
                              size_t inputs, size_t outputs);

/* Position of a node in graph->nodes. */
size_t edit_position(const struct graph *graph, const struct node *node);

/* A Cast to `to` right before position `before`; returns its value, NULL when out of memory. */
struct value *edit_insert_cast(struct graph *graph, size_t before, const char *name,
                               struct value *from, enum dtype to);

static inline enum status edit_no_memory(struct error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "out of memory while optimising the graph");
}
