/* Measures how much a graph makes of differences that are within a device's precision. */
#include "tests/gpu/sensitivity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/float_bits.h"
#include "engine/base/size.h"
#include "engine/op/interpret.h"
#include "engine/op/ops.h"
#include "tests/unit/random_graph.h"

double outcome_mean(const struct outcome *outcome)
{
    return outcome->count ? outcome->sum / (double)outcome->count : 0;
}

void outcome_add(struct outcome *ret, const struct tensor *expected, const struct tensor *got)
{
    const float *e = expected->data, *g = got->data;
    const size_t count = shape_count(&expected->shape);
    double largest = 1e-2;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)e[i]));
    for (size_t i = 0; i < count; i++) {
        const double d = fabs((double)e[i] - (double)g[i]) / largest;
        ret->worst = d <= ret->worst ? ret->worst : d;
        ret->sum += d;
    }
    ret->count += count;
}

/* ---- operands that are off ---- */

struct noise {
    uint32_t trial;
    float relative, absolute; /* a number is off by at most relative * |number| + absolute */
    uint32_t dropped;         /* bits of a float32; without them a number is what it was: not off */
    float steps;              /* and what QuantizeLinear rounds by this much of its scale */
};

static struct noise noise_of(const struct sensitivity_options *options, uint32_t trial)
{
    switch (options->precision) {
    case PRECISION_BF16:
        return (struct noise){.trial = trial, .relative = 0x1p-9f, .dropped = 0xffff};
    case PRECISION_TF32:
        return (struct noise){.trial = trial, .relative = 0x1p-12f, .dropped = 0x1fff};
    case PRECISION_FP16: /* subnormal below 2^-14 */
        return (struct noise){
            .trial = trial, .relative = 0x1p-12f, .absolute = 0x1p-25f, .dropped = 0x1fff};
    case PRECISION_INT8: /* a scale's error is to outlast a sum with the zero point */
        return (struct noise){.trial = trial,
                              .relative = 0x1p-18f,
                              .dropped = 0x1fff,
                              .steps = options->stored ? 0 : 0x1p-7f};
    default:
        return (struct noise){.trial = trial, .relative = 0x1p-22f, .dropped = 0x1fff};
    }
}

/* In [-1, 1), by the number alone: a device that reads it twice reads the same. */
static float share_of(float x, uint32_t trial)
{
    uint32_t state = (float_bits(x) ^ trial * 2654435761u) * 2246822519u;
    state ^= state >> 15;
    state += !state;
    random_next(&state);
    return random_unit(&state);
}

static float own_error(float x, const struct noise *noise)
{
    return float_bits(x) & noise->dropped ? noise->relative * fabsf(x) + noise->absolute : 0;
}

/* A copy of a float32 tensor, off. */
static enum status disturb(const struct tensor *x, const struct noise *noise, float step,
                           struct tensor **ret, struct error *err)
{
    TRY(tensor_create(NULL, DTYPE_F32, &x->shape, ret, err));
    const float *from = x->data;
    float *to = (*ret)->data;
    for (size_t i = 0; i < shape_count(&x->shape); i++)
        to[i] = from[i] + share_of(from[i], noise->trial) * (step + own_error(from[i], noise));
    return STATUS_OK;
}

/* What operand i of a node is off by beside its own precision. */
static float step_of(const struct kernel_args *call, size_t i, const struct noise *noise)
{
    if (call->node->op != OP_QUANTIZE_LINEAR || i != 0 || call->in[1]->dtype != DTYPE_F32)
        return 0;
    const float *scales = call->in[1]->data;
    float least = INFINITY; /* of an axis' scales */
    for (size_t k = 0; k < shape_count(&call->in[1]->shape); k++)
        least = fminf(least, scales[k]);
    return noise->steps * least;
}

/* Numbers that say what to compute, not with what. */
static bool is_parameter(const struct kernel_args *call, size_t i)
{
    return i > 0 && call->node->op == OP_RESIZE;
}

/* ret[input_count]: what the kernel reads; owned: what of it is disturbed, to be released. */
static enum status disturb_all(const struct kernel_args *call, const struct noise *noise,
                               const struct tensor **ret, struct tensor **owned, struct error *err)
{
    for (size_t i = 0; i < call->node->input_count; i++) {
        ret[i] = call->in[i];
        if (!ret[i] || ret[i]->dtype != DTYPE_F32 || is_parameter(call, i))
            continue;
        TRY(disturb(call->in[i], noise, step_of(call, i, noise), &owned[i], err));
        ret[i] = owned[i];
    }
    return STATUS_OK;
}

/* The reference kernel on disturbed operands; out[output_count]: NULL where not wanted. */
static enum status run_once(const struct kernel_args *call, const struct noise *noise,
                            struct tensor **out, struct error *err)
{
    const struct node *node = call->node;
    const struct tensor **in = alloc_array(node->input_count, sizeof *in);
    struct tensor **owned = alloc_array(node->input_count, sizeof *owned);
    enum status status = STATUS_OK;
    if (!in || !owned)
        status = error_set(err, STATUS_NO_MEMORY, "out of memory");
    if (status == STATUS_OK)
        status = disturb_all(call, noise, in, owned, err);
    const struct kernel_args args = {.node = node, .in = in, .out = out};
    if (status == STATUS_OK)
        status = kernel_call(kernel_find(node->op), &args, err);
    for (size_t i = 0; owned && i < node->input_count; i++)
        tensor_unref(owned[i]);
    free(owned);
    free(in);
    return status;
}

static bool is_stored(const struct tensor *tensor)
{
    return tensor && (tensor->dtype == DTYPE_U8 || tensor->dtype == DTYPE_I8);
}

/* What lies at a tie falls to one side or the other, each number by itself: of every second one the
 * integer that is rounded to with all operands off the other way. */
static enum status mix_opposite(const struct kernel_args *call, struct noise noise,
                                struct tensor **out, struct error *err)
{
    struct tensor **other = alloc_array(call->node->output_count, sizeof *other);
    enum status status = STATUS_OK;
    uint32_t state = noise.trial + 1;
    noise.relative = -noise.relative;
    noise.steps = -noise.steps;
    if (!other)
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < call->node->output_count && status == STATUS_OK; i++)
        if (out[i])
            status = tensor_create(NULL, out[i]->dtype, &out[i]->shape, &other[i], err);
    if (status == STATUS_OK)
        status = run_once(call, &noise, other, err);
    for (size_t b = 0; status == STATUS_OK && b < out[0]->bytes; b++)
        if (random_below(&state, 2))
            ((uint8_t *)out[0]->data)[b] = ((uint8_t *)other[0]->data)[b];
    for (size_t i = 0; i < call->node->output_count; i++)
        tensor_unref(other[i]);
    free(other);
    return status;
}

/* A node_runner. Views and bodies have readers of their own. */
static enum status run_disturbed(void *context, const struct kernel_args *call, bool *ret_taken,
                                 struct error *err)
{
    const struct node *node = call->node;
    *ret_taken = !(op_find(node->op, node->opset)->traits & OP_VIEW) && node->op != OP_IF &&
                 node->op != OP_LOOP && node->op != OP_SCAN;
    if (!*ret_taken)
        return STATUS_OK;
    struct tensor **out = alloc_array(node->output_count, sizeof *out);
    if (!out)
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    memcpy(out, call->out, node->output_count * sizeof *out);
    enum status status = run_once(call, context, out, err);
    if (status == STATUS_OK && is_stored(out[0]))
        status = mix_opposite(call, *(const struct noise *)context, out, err);
    free(out);
    return status;
}

enum status sensitivity_try(const struct graph *graph, struct tensor *input,
                            struct tensor *const *expected,
                            const struct sensitivity_options *options, uint32_t trial,
                            struct outcome *ret, struct error *err)
{
    struct noise noise = noise_of(options, trial);
    const struct node_runner runner = {run_disturbed, &noise};
    const struct interpreter_limits limits = {.runner = &runner};
    struct tensor *outputs[RANDOM_GRAPH_OUTPUTS] = {0};
    struct graph *copy = NULL;
    TRY(graph_clone(graph, &copy, err));
    enum status status = interpret(copy, &input, outputs, NULL, &limits, err);
    for (size_t o = 0; o < graph->output_count && status == STATUS_OK; o++)
        outcome_add(&ret[o], expected[o], outputs[o]);
    for (size_t o = 0; o < graph->output_count; o++)
        tensor_unref(outputs[o]);
    graph_free(copy);
    return status;
}
