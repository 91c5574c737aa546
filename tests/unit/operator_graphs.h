/* Graphs of one operator each, for every operator that a GPU has a kernel for beside those of
 * random graphs: what the backends must agree on, and none of which may run on the host. */
#pragma once

#include "engine/graph/graph.h"

size_t operator_graph_count(void);
const char *operator_graph_name(size_t i);
/* Are its numbers those of the image, or near them, so that 16-bit ones can be compared? */
bool operator_graph_is_smooth(size_t i);

/* A graph as random_graph() makes them: an image "image" [?, 3, h, w], one float32 output, weights
 * by `seed`. NULL when out of memory. */
struct graph *operator_graph(size_t i, uint32_t seed, int64_t height, int64_t width);
