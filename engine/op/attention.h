/* OP_ATTENTION, made by passes: y = softmax(scale * q k^T + bias_0 + bias_1 …) v
 *
 * for `batch` independent matrices (images, windows, heads): q [rows, depth], k [keys, depth], v
 * [keys, width], biases [rows, keys], y [rows, width]. Inputs 0, 1 and 2 contain q, k and v; all
 * three are often the same value, the result of one product. Further inputs are biases. Each
 * operand has an access map (engine/op/access_map.h) of batch, rows and columns in the attribute
 * "q", "k", "v", "bias0" …, and the result has an access map in "y". Biases are float32 or have the
 * operands' dtype. In the access map of a bias, the last group has stride 1 or extent 1.
 *
 * A row with a NaN, or whose highest score is -inf, becomes NaN, as in Softmax. With the attribute
 * "nan_is_zero" such a row becomes 0, as in PyTorch's scaled_dot_product_attention. */
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

/* Sets the attributes. Returns false when out of memory. */
bool attention_store(struct graph *graph, struct node *node, const struct attention *attention);

/* Reads the attributes that attention_store() has set. Thread-safe. */
void attention_load(const struct node *node, struct attention *ret);
