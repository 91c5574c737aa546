/* Inserts QuantizeLinear and DequantizeLinear for the tensors that a plan stores. */
#include "engine/quantize/quantize_rewrite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/op/resolve.h"
#include "engine/passes/edit.h"

/* An int32 bias may use half of the range, because the product's sums need the rest. */
#define BIAS_MOST ((double)(INT32_MAX / 2))

struct rewrite {
    struct edit edit;
    const struct quantize_plan *plan;
    const struct number_scale *numbers;
    const struct quantize_weights *options;
    struct value **stored;  /* by value index: result of a stored tensor's DequantizeLinear */
    struct value **weights; /* by value index: result of the weights' DequantizeLinear, which layers
                               may share */
};

/* A layer's weights, rounded. */
struct stored_layer {
    struct value *weights, *scales; /* constants: int8 weights; one float32 scale per channel */
    float *corrections; /* added to the channels' biases: minus the mean error from rounding */
};

/* Names `value`, which may be NULL, after another value. Returns `value`; NULL when out of
 * memory. */
static struct value *set_name(struct rewrite *r, struct value *value, const struct value *of,
                              const char *suffix)
{
    char name[600];
    const int length = snprintf(name, sizeof name, "%.500s%s", of->name, suffix);
    if (!value || length < 0)
        return NULL;
    value->name = arena_copy_text(r->edit.graph->arena, name, (size_t)length);
    return value->name ? value : (edit_no_memory(&r->edit), NULL);
}

static struct value *named_constant(struct rewrite *r, const struct value *of, const char *suffix,
                                    enum dtype dtype, const struct shape *shape, const void *data)
{
    return set_name(r, edit_constant(&r->edit, dtype, shape, data), of, suffix);
}

/* Appends a node at the end; graph_sort() moves it. */
static struct value *append_node(struct rewrite *r, enum op op, const struct value *of,
                                 struct value *const inputs[3], enum dtype dtype,
                                 const struct shape *shape)
{
    struct graph *graph = r->edit.graph;
    char name[600];
    snprintf(name, sizeof name, "%.500s_%s", of->name, op_name(op));
    struct value *value = edit_insert_value(&r->edit, graph->node_count, op, graph->opset, name,
                                            inputs, 3, dtype, shape);
    return set_name(r, value, of, op == OP_QUANTIZE_LINEAR ? "_quantized" : "_dequantized");
}

static bool store_activation(struct rewrite *r, struct value *value)
{
    const struct number_scale *as = &r->numbers[value->index];
    struct value *scale = named_constant(r, value, "_scale", DTYPE_F32, &SHAPE_SCALAR, &as->scale);
    struct value *zero =
        named_constant(r, value, "_zero_point", DTYPE_U8, &SHAPE_SCALAR, &as->zero);
    if (!scale || !zero)
        return false;
    struct value *const to[3] = {value, scale, zero};
    struct value *bytes = append_node(r, OP_QUANTIZE_LINEAR, value, to, DTYPE_U8, NULL);
    struct value *const from[3] = {bytes, scale, zero};
    r->stored[value->index] =
        bytes ? append_node(r, OP_DEQUANTIZE_LINEAR, value, from, DTYPE_F32, NULL) : NULL;
    return r->stored[value->index] != NULL;
}

/* ---- weights ---- */

/* Returns the dimension of a layer's weights that counts output channels. */
static int channel_axis(const struct node *layer)
{
    return layer->op == OP_CONV || (layer->op == OP_GEMM && node_int(layer, "transB", 0)) ? 0 : 1;
}

/* Limit for a bias in units of input scale x weight scale: ONNX Runtime 1.32 converts float32
 * biases to int32, and larger ones overflow. The margin up to BIAS_MOST is for methods that give
 * the input a smaller scale than its whole range needs. */
#define BIAS_UNITS 0x1p24f

/* Chooses each channel's scale: the channel's largest weight becomes `most`, or less if a large
 * bias needs a larger scale. `c` is the layout of the weights around the axis of channels. */
static void choose_scales(const float *weights, struct axis_layout c, const float *bias,
                          float input_scale, float most, float *scales)
{
    for (size_t o = 0; o < c.outer; o++)
        for (size_t m = 0; m < c.extent; m++)
            for (size_t i = 0; i < c.inner; i++, weights++)
                scales[m] = fmaxf(scales[m], fabsf(*weights) / most);
    for (size_t m = 0; m < c.extent; m++) {
        scales[m] = scales[m] > 1e-30f ? scales[m] : 1e-4f; /* the channel's weights are all 0 */
        const float least = bias ? fabsf(bias[m]) / BIAS_UNITS / input_scale : 0;
        scales[m] = isfinite(least) ? fmaxf(scales[m], least) : scales[m];
    }
}

/* Rounds the `count` weights of one channel. Returns the sum over the weights of the change by
 * rounding times means[input], or 0 if `means` is NULL. Weight i multiplies input i / positions. */
static double round_weights(const float *from, int8_t *to, size_t count, float scale, float most,
                            const double *means, size_t positions)
{
    double change = 0;
    for (size_t i = 0, k = 0; i < count; k++)
        for (size_t p = 0; p < positions; p++, i++) {
            const float stored = fmaxf(fminf(rintf(from[i] / scale), most), -most);
            to[i] = (int8_t)stored;
            change += means ? (double)(stored * scale - from[i]) * means[k] : 0;
        }
    return change;
}

static void store_numbers(const struct node *layer, const struct number_range *input,
                          const struct axis_layout c, float most, struct stored_layer *ret)
{
    const float *from = layer->inputs[1]->known->data, *scales = ret->scales->known->data;
    int8_t *to = ret->weights->known->data;
    const bool is_conv = layer->op == OP_CONV;
    const size_t each = is_conv ? (size_t)layer->inputs[1]->known->shape.dims[1] : 1;
    const size_t groups = is_conv && each ? input->channels / each : 1;
    const size_t positions = is_conv && each ? c.inner / each : 1;
    /* The means leave out the zeros that pad an image. */
    const bool has_means = input->summed > 0 && groups && each;
    for (size_t o = 0; o < c.outer; o++)
        for (size_t m = 0; m < c.extent; m++, from += c.inner, to += c.inner) {
            size_t first = is_conv && groups ? m / (c.extent / groups) * each : o;
            first = first + c.inner / positions <= input->channels ? first : 0;
            const double change = round_weights(from, to, c.inner, scales[m], most,
                                                has_means ? input->sums + first : NULL, positions);
            ret->corrections[m] -= has_means ? (float)(change / input->summed) : 0;
        }
}

/* Rounds the weights of a layer. */
static bool round_layer(struct rewrite *r, const struct node *layer, struct stored_layer *ret)
{
    const struct number_range *input = &r->options->ranges[layer->inputs[0]->index];
    const struct value *weights = layer->inputs[1];
    const struct value *bias = layer->op == OP_MATMUL ? NULL : node_input(layer, 2);
    const struct axis_layout c = axis_layout_of(&weights->known->shape, channel_axis(layer));
    const float most = (float)r->options->most;
    *ret = (struct stored_layer){
        .weights = named_constant(r, weights, "_quantized", DTYPE_I8, &weights->known->shape, NULL),
        .scales = named_constant(r, weights, "_scale", DTYPE_F32, &SHAPE((int64_t)c.extent), NULL),
        .corrections = arena_alloc(r->edit.graph->arena, c.extent, sizeof *ret->corrections)};
    if (!ret->weights || !ret->scales || !ret->corrections)
        return edit_no_memory(&r->edit);
    choose_scales(weights->known->data, c, bias ? bias->known->data : NULL,
                  range_scale(input, true).scale, most, ret->scales->known->data);
    store_numbers(layer, input, c, most, ret);
    return true;
}

static struct value *append_dequantize(struct rewrite *r, const struct value *of,
                                       struct value *stored, struct value *scales,
                                       struct value *zeros, int64_t axis)
{
    struct value *const inputs[3] = {stored, scales, zeros};
    struct value *value = stored && scales && zeros ? append_node(r, OP_DEQUANTIZE_LINEAR, of,
                                                                  inputs, DTYPE_F32, &stored->shape)
                                                    : NULL;
    if (value && !node_set_int(r->edit.graph, value->producer, "axis", axis))
        edit_no_memory(&r->edit);
    return value;
}

/* Returns the bias as int32 in units of input scale x weight scale. Returns the float32 bias if it
 * does not fit, and NULL when out of memory. `unit` is the input's scale. */
static struct value *add_bias(struct rewrite *r, struct value *bias,
                              const struct stored_layer *stored, double unit)
{
    const struct shape *row = &bias->known->shape;
    const float *from = bias->known->data, *scales = stored->scales->known->data;
    struct value *numbers = named_constant(r, bias, "_quantized", DTYPE_I32, row, NULL);
    struct value *units = named_constant(r, bias, "_quantized_scale", DTYPE_F32, row, NULL);
    for (size_t m = 0; numbers && units && m < shape_count(row); m++) {
        const float scale = (float)(unit * (double)scales[m]);
        const float correction = r->options->corrects_biases ? stored->corrections[m] : 0;
        const double number = rint((double)(from[m] + correction) / (double)scale);
        if (!(fabs(number) <= BIAS_MOST))
            return bias;
        ((float *)units->known->data)[m] = scale;
        ((int32_t *)numbers->known->data)[m] = (int32_t)number;
    }
    return append_dequantize(r, bias, numbers, units,
                             named_constant(r, bias, "_quantized_zero_point", DTYPE_I32, row, NULL),
                             0);
}

static bool store_layer(struct rewrite *r, struct node *layer)
{
    struct stored_layer stored;
    struct value *weights = layer->inputs[1];
    struct value *bias = layer->op == OP_MATMUL ? NULL : node_input(layer, 2);
    const struct value *shared = r->weights[weights->index];
    if (!round_layer(r, layer, &stored))
        return false;
    const struct tensor *scales = stored.scales->known;
    if (!shared || node_int(shared->producer, "axis", 0) != channel_axis(layer) ||
        memcmp(shared->producer->inputs[1]->known->data, scales->data, scales->bytes) != 0)
        r->weights[weights->index] = append_dequantize(
            r, weights, stored.weights, stored.scales,
            named_constant(r, weights, "_zero_point", DTYPE_I8, &scales->shape, NULL),
            channel_axis(layer));
    layer->inputs[1] = r->weights[weights->index];
    if (bias)
        layer->inputs[2] =
            add_bias(r, bias, &stored, (double)r->numbers[layer->inputs[0]->index].scale);
    return r->edit.status == STATUS_OK;
}

/* ---- rewriting the graph ---- */

/* Stores the layers and activations in 8 bits. The graph is a clone of the plan's graph, with the
 * same positions of nodes. */
static bool rewrite_nodes(struct rewrite *r)
{
    const struct quantize_plan *plan = r->plan;
    struct graph *graph = r->edit.graph;
    const struct graph *from = plan->edit.graph;
    const size_t nodes = from->node_count, values = from->value_count;
    for (size_t n = 0; n < nodes; n++)
        if (plan->kinds[n] == QUANTIZE_LAYER && !store_layer(r, graph->nodes[n]))
            return false;
    for (size_t v = 0; v < values; v++)
        if (plan->is_stored[v] && !store_activation(r, graph->values[v]))
            return false;
    for (size_t n = 0; n < nodes; n++) {
        struct node *node = graph->nodes[n];
        for (size_t i = 0; i < node->input_count; i++) {
            const struct value *input = node->inputs[i];
            if (input && input->index < values && r->stored[input->index] &&
                quantize_reads_stored(plan, n, from->values[input->index]))
                node->inputs[i] = r->stored[input->index];
        }
    }
    return true;
}

enum status quantize_rewrite(struct graph *graph, const struct quantize_plan *plan,
                             const struct number_scale *numbers,
                             const struct quantize_weights *weights, struct error *err)
{
    const size_t values = graph->value_count;
    struct rewrite r = {.edit = {.graph = graph, .err = err},
                        .plan = plan,
                        .numbers = numbers,
                        .options = weights,
                        .stored = arena_alloc(graph->arena, values, sizeof *r.stored),
                        .weights = arena_alloc(graph->arena, values, sizeof *r.weights)};
    if (!r.stored || !r.weights)
        edit_no_memory(&r.edit);
    else if (rewrite_nodes(&r) && (r.edit.status = graph_sort(graph, err)) == STATUS_OK)
        edit_sweep(&r.edit);
    return edit_end(&r.edit);
}
