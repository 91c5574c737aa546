/* Proves that the images of a batch are independent of each other. */
#pragma once

#include <stdbool.h>

#include "engine/graph/graph.h"

/* Whether no image of a batch can change another one's result, proven from the operators of a graph
 * with one input, [batch, …], that is specialised for `batch` >= 2 images. False: not proven. Only
 * reads. */
bool rows_are_separate(const struct graph *graph, int64_t batch);
