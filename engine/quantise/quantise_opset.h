/* Private to engine/quantise: raising the opset of a graph. */
#pragma once

#include "engine/graph/graph.h"

/* The oldest opset with a scale for each channel. */
#define QUANTISE_OPSET 13

/* Gives a graph of an older ai.onnx opset, with constants folded, QUANTISE_OPSET: attributes become
 * operands where the operator changed so. `shapes`: of the values by index, for Softmax.
 * STATUS_UNSUPPORTED names the node whose operator changed its meaning; STATUS_NO_MEMORY. */
enum status quantise_raise_opset(struct graph *graph, const struct shape *shapes,
                                 struct error *err) MUST_USE;
