/* Validates a graph: infers every node whose input shapes are known and computes small constants,
 * so that a contradictory model is refused when it is loaded and not when the first photo arrives.
 */
#pragma once

#include "engine/graph/graph.h"

struct validate_limits {
    size_t value_elements; /* of one value that a node makes; 0 = 2^29 */
    size_t fold_elements;  /* computed in all while validating; 0 = 2^26. More is not an error: the
                              rest is then only inferred as far as shapes go. */
};

/* Graph inputs whose declared shape is wholly known count as known, others (and what follows from
 * them) as unknown: there only operand counts are checked. Bodies of If, Loop and Scan are checked
 * once each, with what they capture as unknown: a branch that is not taken may be wrong for the
 * shapes at hand.
 *
 * Writes dtype, shape and known contents of values: call it on a clone where the graph must stay as
 * it is. Errors: those of inference and of kernels that run on constants, with the node's name;
 * STATUS_NO_MEMORY for a value beyond the limit. Bounded in time and memory whatever the graph
 * says. */
enum status graph_validate(struct graph *graph, const struct validate_limits *limits,
                           struct error *err) MUST_USE;
