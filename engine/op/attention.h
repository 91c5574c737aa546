/* OP_ATTENTION, made by passes: y = softmax(scale * q k^T + bias_0 + bias_1 …) v
 *
 * for `batch` independent matrices (images, windows, heads): q [rows, depth], k [keys, depth],
 * v [keys, width], biases [rows, keys], y [rows, width]. Inputs 0, 1, 2 are what q, k and v are
 * read from (often the same value: one product's result), further ones the biases; each operand has
 * an access map (engine/op/access_map.h) of batch, rows, columns in the attribute "q", "k", "v",
 * "bias0" …, and the result one in "y". Biases are float32 or of the operands' dtype; their last
 * group has stride 1 or is one key wide.
 *
 * A row whose greatest score is -inf or that has a NaN is NaN, as Softmax has it, and 0 where the
 * attribute "nan_is_zero" says so (PyTorch's scaled_dot_product_attention). */
#pragma once

#include "engine/op/access_map.h"

#define ATTENTION_BIASES 3

struct attention {
    int64_t batch, rows, keys, depth, width;
    struct access_map q, k, v, y, bias[ATTENTION_BIASES];
    size_t bias_count;
    float scale;
    bool nan_is_zero;
};

/* From the node's attributes and its operands' known shapes, all checked; the result's shape is the
 * attribute "shape". STATUS_MODEL, STATUS_SHAPE. Thread-safe. */
enum status attention_load(const struct node *node, struct attention *ret, struct shape *ret_shape,
                           struct error *err) MUST_USE;

/* Sets the attributes; false when out of memory. `shape`: the result's. */
bool attention_store(struct graph *graph, struct node *node, const struct attention *attention,
                     const struct shape *shape);
