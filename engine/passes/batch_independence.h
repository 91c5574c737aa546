/* Proves that the images of a batch are independent of each other. */
#pragma once

#include <stdbool.h>

#include "engine/graph/graph.h"

/* True if it is proven, from the operators of a graph specialised for `batch` images, that no image
 * changes the result of another and that its place in the batch does not matter. follows[i]: input
 * i is [batch, …]; the others are the same for all images. False: not proven. `base`: the graph it
 * was cloned from, whose constants are the same for every size of the batch; NULL: none are.
 * *ret_hash: hash of the constants combined with an image and of the shapes of an image. If it
 * differs between batch sizes, results depend on the batch size. For one image true means that the
 * hash is complete. *ret_node: where the proof ended; NULL if it did not, or for lack of memory or
 * of a shape. Only reads. */
bool batch_is_independent(const struct graph *graph, const struct graph *base, int64_t batch,
                          const bool *follows, uint64_t *ret_hash, const struct node **ret_node);
