/* Puts QuantizeLinear and DequantizeLinear around what a plan stores. */
#include "engine/quantise/quantise_rewrite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/passes/edit.h"

/* Beside the sums of a product an int32 bias may take half of their range. */
#define BIAS_MOST ((double)(INT32_MAX / 2))

struct rewrite {
    struct edit edit;
    const struct quantise_plan *plan;
    const struct stored_as *numbers;
    const struct number_range *ranges;
    struct value **stored;  /* by index: what DequantizeLinear makes of a stored tensor */
    struct value **weights; /* by index: the same of weights that several layers share */
};

static struct value *named_constant(struct rewrite *r, const struct value *of, const char *suffix,
                                    enum dtype dtype, const struct shape *shape, const void *data)
{
    char name[600];
    struct value *value = edit_constant(&r->edit, dtype, shape, data);
    const int length = snprintf(name, sizeof name, "%.500s%s", of->name, suffix);
    if (!value || length < 0)
        return NULL;
    value->name = arena_copy_text(r->edit.graph->arena, name, (size_t)length);
    return value->name ? value : (edit_no_memory(&r->edit), NULL);
}

/* A node behind all others; graph_sort() puts it where it belongs. */
static struct value *append_node(struct rewrite *r, enum op op, const struct value *of,
                                 const char *suffix, struct value *const inputs[3],
                                 enum dtype dtype, const struct shape *shape)
{
    struct graph *graph = r->edit.graph;
    char name[600];
    snprintf(name, sizeof name, "%.500s_%s%s", of->name, op_name(op), suffix);
    struct node *node =
        edit_insert_node(&r->edit, graph->node_count, op, graph->opset, name, inputs, 3);
    snprintf(name, sizeof name, "%.500s%s", of->name,
             op == OP_QUANTIZE_LINEAR ? "_quantized" : "_dequantized");
    struct value *value = node ? graph_add_value(graph, name, dtype, shape) : NULL;
    if (!value) {
        edit_no_memory(&r->edit);
        return NULL;
    }
    node_set_output(node, 0, value);
    return value;
}

static bool store_activation(struct rewrite *r, struct value *value)
{
    const struct stored_as *as = &r->numbers[value->index];
    struct value *scale = named_constant(r, value, "_scale", DTYPE_F32, &SHAPE_SCALAR, &as->scale);
    struct value *zero =
        named_constant(r, value, "_zero_point", DTYPE_U8, &SHAPE_SCALAR, &as->zero);
    if (!scale || !zero)
        return false;
    struct value *const to[3] = {value, scale, zero};
    struct value *bytes = append_node(r, OP_QUANTIZE_LINEAR, value, "", to, DTYPE_U8, &SHAPE_NONE);
    struct value *const from[3] = {bytes, scale, zero};
    r->stored[value->index] =
        bytes ? append_node(r, OP_DEQUANTIZE_LINEAR, value, "", from, DTYPE_F32, &SHAPE_NONE)
              : NULL;
    return r->stored[value->index] != NULL;
}

/* ---- weights ---- */

/* Which dimension of a layer's weights its channels are. */
static int channel_axis(const struct node *layer)
{
    return layer->op == OP_CONV || (layer->op == OP_GEMM && node_int(layer, "transB", 0)) ? 0 : 1;
}

/* How the elements of weights are counted by channels: number i is of channel i / inner % count. */
struct channels {
    size_t count, inner;
};

static struct channels channels_of(const struct node *layer, const struct tensor *weights)
{
    struct channels c = {(size_t)weights->shape.dims[channel_axis(layer)], 1};
    for (int d = channel_axis(layer) + 1; d < weights->shape.rank; d++)
        c.inner *= (size_t)weights->shape.dims[d];
    return c;
}

/* A channel's greatest weight is stored as 127. `unit`: of the source's numbers; the bias must fit
 * 32 bits in units of both scales. */
static void choose_scales(const struct tensor *weights, struct channels c, const float *bias,
                          double unit, float *scales)
{
    const float *from = weights->data;
    const size_t total = shape_count(&weights->shape);
    for (size_t i = 0; i < total; i++) {
        float *most = &scales[i / c.inner % c.count];
        *most = fmaxf(*most, fabsf(from[i]));
    }
    for (size_t m = 0; m < c.count; m++) {
        double scale = (double)scales[m] / 127;
        if (bias)
            scale = fmax(scale, fabs((double)bias[m]) / (unit * BIAS_MOST));
        scales[m] = scale > 1e-30 ? (float)scale : 1;
    }
}

static int8_t stored_weight(float weight, float scale)
{
    return (int8_t)fmaxf(fminf(rintf(weight / scale), 127), -127);
}

static struct value *store_numbers(struct rewrite *r, const struct value *of, struct value *stored,
                                   struct value *scales, struct value *zeros, int64_t axis)
{
    struct value *const inputs[3] = {stored, scales, zeros};
    struct value *value = stored && scales && zeros ? append_node(r, OP_DEQUANTIZE_LINEAR, of, "",
                                                                  inputs, DTYPE_F32, &stored->shape)
                                                    : NULL;
    if (value && !node_set_int(r->edit.graph, value->producer, "axis", axis))
        edit_no_memory(&r->edit);
    return value;
}

static struct value *store_weights(struct rewrite *r, const struct node *layer,
                                   const struct value *weights, const float *scales)
{
    const struct channels c = channels_of(layer, weights->known);
    const struct shape row = SHAPE((int64_t)c.count);
    struct value *stored =
        named_constant(r, weights, "_quantized", DTYPE_I8, &weights->known->shape, NULL);
    struct value *zeros = named_constant(r, weights, "_zero_point", DTYPE_I8, &row, NULL);
    const float *from = weights->known->data;
    for (size_t i = 0; stored && i < shape_count(&weights->known->shape); i++)
        ((int8_t *)stored->known->data)[i] = stored_weight(from[i], scales[i / c.inner % c.count]);
    for (size_t m = 0; zeros && m < c.count; m++)
        ((int8_t *)zeros->known->data)[m] = 0;
    return store_numbers(r, weights, stored,
                         named_constant(r, weights, "_scale", DTYPE_F32, &row, scales), zeros,
                         channel_axis(layer));
}

/* bias -= the mean of what rounding the weights adds to each channel's results. The border that
 * pads an image is not counted. */
static void correct_bias(const struct node *layer, const struct number_range *input,
                         const float *scales, float *bias)
{
    const struct tensor *weights = layer->inputs[1]->known;
    const struct channels c = channels_of(layer, weights);
    const float *from = weights->data;
    const size_t total = shape_count(&weights->shape);
    if (!input->sums || input->summed <= 0)
        return;
    /* A Conv's weights are [M, C / groups, positions]; those of products [K, N] or [N, K]. */
    const bool is_conv = layer->op == OP_CONV;
    const size_t each = is_conv ? (size_t)weights->shape.dims[1] : 0;
    const size_t positions = each ? c.inner / each : 1;
    const size_t groups = each ? input->channels / each : 1;
    for (size_t i = 0; i < total; i++) {
        const size_t m = i / c.inner % c.count;
        size_t k = is_conv        ? i % c.inner / positions + m / (c.count / groups) * each
                   : c.inner == 1 ? i / c.count
                                  : i % c.inner;
        const double change =
            (double)stored_weight(from[i], scales[m]) * (double)scales[m] - (double)from[i];
        if (k < input->channels)
            bias[m] -= (float)(change * input->sums[k] / input->summed);
    }
}

static struct value *store_bias(struct rewrite *r, const struct value *bias, const float *from,
                                const float *scales, double unit)
{
    const struct shape *row = &bias->known->shape;
    struct value *stored = named_constant(r, bias, "_quantized", DTYPE_I32, row, NULL);
    struct value *units = named_constant(r, bias, "_quantized_scale", DTYPE_F32, row, NULL);
    struct value *zeros = named_constant(r, bias, "_quantized_zero_point", DTYPE_I32, row, NULL);
    for (size_t m = 0; stored && units && zeros && m < shape_count(row); m++) {
        const float scale = (float)(unit * (double)scales[m]);
        ((float *)units->known->data)[m] = scale;
        ((int32_t *)stored->known->data)[m] = (int32_t)rint((double)from[m] / (double)scale);
        ((int32_t *)zeros->known->data)[m] = 0;
    }
    return store_numbers(r, bias, stored, units, zeros, 0);
}

static bool store_layer(struct rewrite *r, struct node *layer)
{
    struct value *weights = layer->inputs[1];
    struct value *bias = layer->op == OP_MATMUL ? NULL : node_input(layer, 2);
    const double unit = (double)r->numbers[layer->inputs[0]->index].scale;
    const struct channels c = channels_of(layer, weights->known);
    float *scales = alloc_array(c.count, 2 * sizeof *scales), *corrected = scales + c.count;
    if (!scales)
        return edit_no_memory(&r->edit);
    choose_scales(weights->known, c, bias ? bias->known->data : NULL, unit, scales);
    if (bias) {
        memcpy(corrected, bias->known->data, c.count * sizeof *corrected);
        correct_bias(layer, &r->ranges[layer->inputs[0]->index], scales, corrected);
    }
    /* A layer with a bias may have scales of its own. */
    struct value *shared = bias ? NULL : r->weights[weights->index];
    layer->inputs[1] = shared ? shared : store_weights(r, layer, weights, scales);
    if (!bias)
        r->weights[weights->index] = layer->inputs[1];
    if (bias && layer->inputs[1])
        layer->inputs[2] = store_bias(r, bias, corrected, scales, unit);
    free(scales);
    return r->edit.status == STATUS_OK;
}

/* ---- the graph ---- */

/* Nodes of the clone are at the places that they have in the plan's graph. */
static bool rewrite_nodes(struct rewrite *r)
{
    const struct quantise_plan *plan = r->plan;
    struct graph *graph = r->edit.graph;
    const size_t nodes = plan->graph->node_count, values = plan->graph->value_count;
    for (size_t n = 0; n < nodes; n++)
        if (plan->kinds[n] == QUANTISE_LAYER && !store_layer(r, graph->nodes[n]))
            return false;
    for (size_t v = 0; v < values; v++)
        if (plan->is_stored[v] && !store_activation(r, graph->values[v]))
            return false;
    for (size_t n = 0; n < nodes; n++) {
        struct node *node = graph->nodes[n];
        for (size_t i = 0; i < node->input_count; i++) {
            const struct value *input = node->inputs[i];
            if (input && input->index < values && r->stored[input->index] &&
                quantise_reads_stored(plan, n, plan->graph->values[input->index]))
                node->inputs[i] = r->stored[input->index];
        }
    }
    return true;
}

enum status quantise_rewrite(struct graph *graph, const struct quantise_plan *plan,
                             const struct stored_as *numbers, const struct number_range *ranges,
                             struct error *err)
{
    const size_t values = plan->graph->value_count;
    struct rewrite r = {.edit = {.graph = graph, .err = err},
                        .plan = plan,
                        .numbers = numbers,
                        .ranges = ranges,
                        .stored = alloc_array(values, sizeof *r.stored),
                        .weights = alloc_array(values, sizeof *r.weights)};
    if (!r.stored || !r.weights)
        edit_no_memory(&r.edit);
    else if (rewrite_nodes(&r) && (r.edit.status = graph_sort(graph, err)) == STATUS_OK)
        edit_sweep(&r.edit);
    free((void *)r.stored);
    free((void *)r.weights);
    return edit_end(&r.edit);
}
