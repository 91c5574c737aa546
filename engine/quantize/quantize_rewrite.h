/* Private to engine/quantize: carries out a plan on a graph. */
#pragma once

#include "engine/quantize/quantize_plan.h"
#include "engine/quantize/quantize_ranges.h"

/* How weights are rounded. */
struct quantize_weights {
    const struct number_range *ranges; /* by value index; a channel's mean is its sum / summed */
    int most;                          /* largest absolute value of a stored weight */
    bool corrects_biases;              /* subtract from biases the mean error of rounded weights */
};

/* Changes `graph`, a clone of the plan's graph. Inserts QuantizeLinear and DequantizeLinear after
 * each stored tensor, with the scales of `numbers` (by value index). Gives each layer 8-bit weights
 * and int32 biases; biases that do not fit stay float32. Values keep their indexes; new values
 * follow. STATUS_NO_MEMORY, STATUS_MODEL. */
enum status quantize_rewrite(struct graph *graph, const struct quantize_plan *plan,
                             const struct number_scale *numbers,
                             const struct quantize_weights *weights, struct error *err) MUST_USE;
