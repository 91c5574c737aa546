/* Random small quantized image graphs, for comparing a session with the interpreter. */
#pragma once

#include "engine/graph/graph.h"

/* A graph with one image input "image" [?, 3, h, w] (h and w at least 9) and one float32 output
 * [?, classes], chosen by `seed`: convolutions (grouped, depthwise, dilated, strided, padded at one
 * end alone; a scale a tensor or a channel; zero points of x, weights and results that are not 0),
 * sums, products, pools, sigmoids, concatenations, and matrix products, as single operators on
 * stored numbers, between QuantizeLinear and DequantizeLinear, or with scales that only a run
 * knows. `operators_only`: without what is QDQ, so that the interpreter computes in integers, too.
 * NULL when out of memory. */
struct graph *random_quantized(uint32_t seed, int64_t height, int64_t width, bool operators_only);
