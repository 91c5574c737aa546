/* Random small image graphs, for comparing the compiled session with the interpreter. */
#pragma once

#include "engine/graph/graph.h"

#define RANDOM_GRAPH_OUTPUTS 3

/* A graph with one image input "image" [?, 3, h, w] and one to three float32 outputs (perhaps one
 * twice), chosen by `seed`: convolutions, pools, normalisations, elementwise operators with
 * broadcasting, concatenations, splits, slices, transposes, reshapes, reductions, products, and
 * what exporters write in several nodes. Weights are small random numbers. NULL when out of memory.
 */
struct graph *random_graph(uint32_t seed, int64_t height, int64_t width);

/* The next number of a small deterministic generator, and one in [0, n). */
uint32_t random_next(uint32_t *state);
uint32_t random_below(uint32_t *state, uint32_t n);
float random_unit(uint32_t *state); /* [-1, 1) */
