/* Private to engine/quantize: smoothing (SmoothQuant, Xiao et al. 2022). Transformers have a few
 * channels far greater than the others, which one scale for the whole tensor stores coarsely. What
 * products read from a LayerNorm is divided by a factor for each channel, in the gain and the bias
 * of the norm, and the rows of the products' weights are multiplied by it. */
#pragma once

#include "engine/quantize/quantize_ranges.h"

/* Changes constants of `graph` where all that reads a norm are products with constant weights;
 * `ranges` by value index, of the tensors that products read. *ret: how many norms. Values keep
 * their index. STATUS_NO_MEMORY. */
enum status quantize_smooth(struct graph *graph, const struct number_range *ranges, size_t *ret,
                            struct error *err) MUST_USE;
