/* Private to engine/quantize: carries out a plan on a graph. */
#pragma once

#include "engine/quantize/quantize_plan.h"
#include "engine/quantize/quantize_ranges.h"

/* How weights are rounded. */
struct quantize_weights {
    const struct number_range *ranges; /* by value index: what was observed; sums tell the means */
    int most;                          /* the greatest weight */
    bool corrects_biases;              /* by minus the mean error from rounding */
};

/* How many channels a layer's weights have; each makes one channel of the output. */
int64_t quantize_layer_channels(const struct node *layer);

/* Changes `graph`, a clone of plan->graph: QuantizeLinear and DequantizeLinear behind each tensor
 * that is stored, as `numbers` (by value index) says; 8-bit weights and int32 biases in front of
 * each layer. Values keep their index, new ones come behind. STATUS_NO_MEMORY, STATUS_MODEL. */
enum status quantize_rewrite(struct graph *graph, const struct quantize_plan *plan,
                             const struct number_scale *numbers,
                             const struct quantize_weights *weights, struct error *err) MUST_USE;
