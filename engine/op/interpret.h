/* The interpreter: runs a graph node by node with the reference kernels.
 *
 * The interpreter folds constants (interpret_node()), and runs data-dependent parts and the bodies
 * of If, Loop and Scan. Tests compare compiled programs with the interpreter. For every node, the
 * interpreter infers shapes from this run's tensors, allocates outputs, runs the kernel, and frees
 * each input after the input's last reader. */
#pragma once

#include "engine/op/kernel.h"

/* A backend's function that runs some nodes faster than the reference kernels. *ret_taken becomes
 * true if the function has run the node; then it has written all bytes of the outputs, whose shapes
 * are inferred. Called on the interpreting thread. */
struct node_runner {
    enum status (*run)(void *context, const struct kernel_args *call, bool *ret_taken,
                       struct error *err);
    void *context;
};

/* Limits of one run, and functions that the run calls. */
struct interpreter_limits {
    uint64_t max_steps; /* node executions, loops included; 0 stands for 100 million */
    double max_work;    /* limit for the sum of node_work() of nodes in bodies; 0 stands for 3e11 */
    /* Called before each node, and inside kernels (kernel_goes_on()). If it returns true, the run
     * ends with STATUS_CANCELLED. May be NULL. */
    bool (*stop)(void *context);
    void *stop_context;
    const struct node_runner *runner; /* asked before the reference kernel; may be NULL */
};

/* Runs `graph` on inputs[graph->input_count], in the order of graph->inputs. Dtypes and ranks are
 * checked against the graph's declarations. outputs[graph->output_count] receives one reference
 * each on success, and does not change on failure. Tensors are charged to `budget` (may be NULL).
 * The run sets known, dtype and shape of the graph's values and resets them at the end: one thread
 * at a time per graph. An output may be an input or a view of an input (Identity, Reshape …). A
 * caller that wraps its own memory as an input must copy such outputs before reusing the memory. */
enum status interpret(struct graph *graph, struct tensor *const *inputs, struct tensor **outputs,
                      struct memory_budget *budget, const struct interpreter_limits *limits,
                      struct error *err) MUST_USE;

/* Runs one node whose inputs are all known, for constant folding. Outputs are returned as in
 * interpret(), or NULL if they are not wanted. */
enum status interpret_node(struct node *node, struct memory_budget *budget, struct tensor **outputs,
                           struct error *err) MUST_USE;
