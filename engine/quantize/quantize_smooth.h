/* Private to engine/quantize: smoothing (SmoothQuant, Xiao et al. 2022). In transformers a few
 * channels are far larger than the others, so one scale for the whole tensor is too coarse.
 * Smoothing divides a LayerNorm's gain and bias by a factor per channel, and multiplies the rows of
 * weights that read this channel by the same factor. */
#pragma once

#include "engine/quantize/quantize_ranges.h"

/* Smooths all LayerNorms whose readers are all products with constant weights; changes these
 * constants of `graph`. `ranges` (by value index) has the tensors that products read. *ret is the
 * number of smoothed LayerNorms. Values keep their indexes. STATUS_NO_MEMORY. */
enum status quantize_smooth(struct graph *graph, const struct number_range *ranges, size_t *ret,
                            struct error *err) MUST_USE;
