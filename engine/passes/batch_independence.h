/* Proves that the images of a batch are independent of each other. */
#pragma once

#include <stdbool.h>

#include "engine/graph/graph.h"

/* Proves from the operators that no image changes another image's result, and that an image's place
 * in the batch does not matter. The graph is specialised for `batch` images. follows[i] says
 * that input i is [batch, …]; other inputs are the same for all images. `base` is the graph before
 * it was specialised: its constants are the same for every batch size. If `base` is NULL, every
 * constant may depend on the batch size. False means not proven. *ret_hash covers the constants
 * that are combined with an image, and the shapes of an image. If the hash differs between batch
 * sizes, results depend on the batch size. For a batch of 1, true only means that the hash is
 * complete. *ret_node is the node where the proof failed, or NULL. Does not change the graph. */
bool batch_is_independent(const struct graph *graph, const struct graph *base, int64_t batch,
                          const bool *follows, uint64_t *ret_hash, const struct node **ret_node);
