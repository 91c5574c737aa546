/* Private to engine/quantize: converts a graph to a newer opset. */
#pragma once

#include "engine/graph/graph.h"

/* The oldest opset with a scale for each channel. */
#define QUANTIZE_OPSET 13

/* Converts a graph of an older ai.onnx opset, with constants folded, to QUANTIZE_OPSET: attributes
 * become operands where the newer operator has operands. `shapes`: of the values by index, for
 * Softmax. STATUS_UNSUPPORTED names the node whose operator changed its meaning; STATUS_NO_MEMORY.
 */
enum status quantize_raise_opset(struct graph *graph, const struct shape *shapes,
                                 struct error *err) MUST_USE;
