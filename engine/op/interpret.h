/* The interpreter: runs a graph node by node with the reference kernels.
 *
 * It folds constants (a graph without unknown inputs), runs the parts whose shapes depend on data,
 * the bodies of If, Loop and Scan, and is the reference that tests compare compiled plans with. For
 * every node: infer shapes from this run's tensors, allocate outputs, run the kernel, drop inputs
 * after their last reader (no-grad: nothing is kept). */
#pragma once

#include "engine/op/kernel.h"

/* One node with this run's operands, for a node_runner. All tensors are in host memory, shapes of
 * `out` are inferred and its bytes are to be written wholly. */
struct node_call {
    const struct node *node;
    const struct tensor *const *in; /* NULL: left out */
    const bool *constant; /* input i is the same tensor, with the same bytes, in every run */
    struct tensor *const *out;
    struct memory_budget *budget; /* for scratch memory; may be NULL */
};

/* Runs nodes faster than the reference kernels do, where it can: *ret_taken says whether it has.
 * A backend's, called on the thread that interprets. */
struct node_runner {
    enum status (*run)(void *context, const struct node_call *call, bool *ret_taken,
                       struct error *err);
    void *context;
};

/* Limits of one run. Bodies are entered at most `max_depth` deep. */
struct interpreter_limits {
    uint64_t max_steps; /* node executions, loops included; 0 = 100 million */
    double max_work;    /* limit for the sum of node_work() over all bodies; 0 = 3e11 */
    int max_depth;      /* 0 = 16 */
    /* Called before each node, and inside of kernels (kernel_goes_on); if it returns true, the run
     * ends with STATUS_CANCELLED. NULL: nothing stops the run. */
    bool (*stop)(void *context);
    void *stop_context;
    const struct node_runner *runner; /* is asked before the reference kernel; or NULL */
};

/* Runs `graph` (it writes the graph's value->known, dtype and shape while running: one thread at a
 * time per graph) on inputs[graph->input_count], in the order of graph->inputs; dtypes and ranks
 * are checked against what the graph declares. outputs[graph->output_count] receives one reference
 * each on success, and is untouched on failure. Tensors are charged to `budget` (may be NULL).
 * An output may be an input, or a view of one (Identity, Reshape …): a caller that wraps its own
 * memory as an input copies such outputs before it reuses the memory. What the run wrote into the
 * graph is taken back when it ends. */
enum status interpret(struct graph *graph, struct tensor *const *inputs, struct tensor **outputs,
                      struct memory_budget *budget, const struct interpreter_limits *limits,
                      struct error *err) MUST_USE;

/* Runs one node whose inputs are all known; outputs are returned as interpret() does, NULL where
 * not wanted. For constant folding. */
enum status interpret_node(struct node *node, struct memory_budget *budget, struct tensor **outputs,
                           struct error *err) MUST_USE;
