/* Private to engine/quantize: smoothing (SmoothQuant, Xiao et al. 2022). Transformers have a few
 * channels that are far larger than the others, so one scale for the whole tensor is too coarse.
 * Smoothing divides a LayerNorm's gain and bias by a factor per channel. It multiplies the weights'
 * rows of the products that read the LayerNorm by the same factor. */
#pragma once

#include "engine/quantize/quantize_ranges.h"

/* Changes constants of `graph`, for norms whose readers are all products with constant weights.
 * `ranges` (by value index) has the tensors that products read. *ret is the number of smoothed
 * norms. Values keep their indexes. STATUS_NO_MEMORY. */
enum status quantize_smooth(struct graph *graph, const struct number_range *ranges, size_t *ret,
                            struct error *err) MUST_USE;
