/* Private to engine/quantize: decides which activations of a graph are stored in 8 bits, and which
 * nodes read the stored numbers.
 *
 * The rules match what lensd (engine/passes/quantize.c), ONNX Runtime and OpenVINO compute in
 * integers. A layer reads a stored activation, and a Conv stores its result after its Relu or
 * Clip. Results of sums, gates, Concats, pools and moves between stored tensors are stored, too, so
 * that no float32 tensor lies between two stored ones. Values after the last product, norm or pool
 * stay float32, because answers are compared with thresholds. */
#pragma once

#include "engine/passes/edit.h"
#include "engine/quantize/quantizer.h"

enum quantize_kind {
    QUANTIZE_OTHER,
    QUANTIZE_LAYER, /* a product with constant weights */
    QUANTIZE_CLAMP, /* Relu, Clip */
    QUANTIZE_UNARY, /* each result depends on one number of one tensor */
    QUANTIZE_JOIN,  /* Add or Mul of two activations */
    QUANTIZE_CONCAT,
    QUANTIZE_MOVE, /* numbers stay the same: MaxPool, Reshape … */
    QUANTIZE_POOL, /* means over the positions of an image */
};

/* Arrays are indexed by value->index of the graph, but `kinds` by the node's position. */
struct quantize_plan {
    struct edit edit; /* the graph, and how often its values are read */
    enum quantize_kind *kinds;
    bool *is_answer;  /* no product, norm or pool lies between the value and an output */
    bool *can_store;  /* the value's producer can write 8-bit numbers */
    bool *is_stored;  /* gets a QuantizeLinear */
    bool *is_integer; /* the value's producer runs on integers: readers read stored numbers */
};

/* Returns the kind of the node's operator. Does not read the contents of weights. In a plan, a
 * layer that stays in float32 has the kind QUANTIZE_OTHER. */
enum quantize_kind quantize_kind_of(const struct node *node);

/* `is_kept`, indexed by the node's position, says which layers stay in float32. `is_float`, indexed
 * by value->index, says which values are float32 tensors that can be stored. The plan lies in
 * `arena`. STATUS_NO_MEMORY. */
enum status quantize_plan_make(struct graph *graph, const bool *is_kept, const bool *is_float,
                               struct arena *arena, struct quantize_plan *ret,
                               struct error *err) MUST_USE;

/* Goes up from `value` through Relus and Clips that are the only readers of their inputs. Returns
 * the input of the first Relu or Clip; the node that makes this input then stores `value`. Returns
 * `value` itself if no Relu or Clip makes `value`. */
const struct value *quantize_before_clamp(const struct quantize_plan *plan,
                                          const struct value *value);

/* True if node n reads the stored numbers of its activation `value`. */
bool quantize_reads_stored(const struct quantize_plan *plan, size_t n, const struct value *value);
