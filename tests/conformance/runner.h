/* How a case is computed: the reference interpreter, or a compiled session. */
#pragma once

#include "engine/graph/graph.h"

/* Runs `graph` once on inputs[graph->input_count]; outputs[graph->output_count] receive one
 * reference each on success. The graph's values may be written; what the file declares may be lost.
 */
typedef enum status (*runner_fn)(struct graph *graph, struct tensor *const *inputs,
                                 struct tensor **outputs, struct error *err);

/* Node by node with the reference kernels. */
enum status run_interpreted(struct graph *graph, struct tensor *const *inputs,
                            struct tensor **outputs, struct error *err) MUST_USE;

/* As the server runs it: optimised, planned and compiled for exactly these shapes on the CPU. */
/* The device of run_compiled: cuda:0 instead of the CPU. */
void run_compiled_on_cuda(void);
enum status run_compiled(struct graph *graph, struct tensor *const *inputs, struct tensor **outputs,
                         struct error *err) MUST_USE;
