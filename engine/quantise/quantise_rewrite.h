/* Private to engine/quantise: a plan carried out on a graph. */
#pragma once

#include "engine/quantise/quantise_plan.h"
#include "engine/quantise/quantise_ranges.h"

/* Changes `graph`, a clone of plan->graph: QuantizeLinear and DequantizeLinear behind each tensor
 * that is stored, as `numbers` (by value index) says; int8 weights with a scale for each channel
 * and int32 biases in front of each layer. `ranges`, by value index: the means of a layer's inputs
 * tell what rounded weights change its results by in the mean, and the bias takes that back. Values
 * keep their index, new ones come behind. STATUS_NO_MEMORY, STATUS_MODEL. */
enum status quantise_rewrite(struct graph *graph, const struct quantise_plan *plan,
                             const struct stored_as *numbers, const struct number_range *ranges,
                             struct error *err) MUST_USE;
