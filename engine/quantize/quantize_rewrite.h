/* Private to engine/quantize: carries out a plan on a graph. */
#pragma once

#include "engine/quantize/quantize_plan.h"
#include "engine/quantize/quantize_ranges.h"

/* A layer's weights, rounded: they are the same for all ranges of its inputs. */
struct stored_layer {
    struct tensor *weights, *scales; /* int8; float32, one a channel */
    float *corrections; /* of the bias, by channel: minus the mean error from rounding */
};

/* `input`: of the layer's activation; its sums tell the means. `most`: the greatest weight. Frees
 * with quantize_layer_done(), also after a failure. STATUS_NO_MEMORY. */
enum status quantize_layer_store(const struct node *layer, const struct number_range *input,
                                 int most, struct stored_layer *ret, struct error *err) MUST_USE;
void quantize_layer_done(struct stored_layer *layer);
/* How many channels a layer's weights have; each makes one channel of the output. */
int64_t quantize_layer_channels(const struct node *layer);

/* Changes `graph`, a clone of plan->graph: QuantizeLinear and DequantizeLinear behind each tensor
 * that is stored, as `numbers` (by value index) says; the weights of `layers` (by position of the
 * node) and int32 biases, with the layers' corrections if asked for, in front of each layer. Values
 * keep their index, new ones come behind. STATUS_NO_MEMORY, STATUS_MODEL. */
enum status quantize_rewrite(struct graph *graph, const struct quantize_plan *plan,
                             const struct number_scale *numbers, const struct stored_layer *layers,
                             bool corrects_biases, struct error *err) MUST_USE;
