/* Weights from a formula: makes the light_* models worth running (corpus README, section 4). */
#pragma once

#include "engine/graph/graph.h"

/* Replaces the output of every ConstantOfShape node of the graph by pseudo-random float32 values
 * that depend on the output's name and on `gain` alone. STATUS_MODEL when such a node's shape is
 * not a constant. */
enum status randfill(struct graph *graph, double gain, struct error *err) MUST_USE;
