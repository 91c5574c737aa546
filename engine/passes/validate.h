/* Validates a graph: infers every node whose input shapes are known and computes small constants. A
 * contradictory model is thus refused at load, not at the first photo. */
#pragma once

#include "engine/graph/graph.h"

/* Graph inputs with a fully known declared shape count as known. Other inputs are unknown,
 * and so are values that depend on unknown values. For nodes that read unknown values, only the
 * number of operands is checked.
 * Bodies of If, Loop and Scan are checked once each with unknown captures, because a branch that is
 * not taken may contradict the actual shapes.
 *
 * Call it on a clone: it writes dtype and shape of values and replaces nodes by constants, which
 * must not outlive the graph. Errors: those of inference and of kernels that run on constants, with
 * the node's name; STATUS_MODEL for an output of another type than declared; STATUS_NO_MEMORY for a
 * value of more than 2^29 elements. Time and memory are bounded for any graph. */
enum status graph_validate(struct graph *graph, struct error *err) MUST_USE;
