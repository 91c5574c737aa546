/* Fuses squeeze-and-excite blocks into the Convs around them. The image is then not read again for
 * the mean, and not read and written again for the multiplication:
 *
 *     Conv ─┬──────────────────────────────▶ Mul ─▶ Conv        Conv ─┬───────────────▶ Conv
 *           └▶ GlobalAveragePool ─▶ … gate ─▲              ⇒          └ mean ▶ … gate ──▲
 *
 * The first Conv sums its results while the results are in registers; the second Conv multiplies
 * the image by the gate as it reads the image. Any nodes may compute the gate. This saves 3 to 5 %
 * of EfficientNet-B0's time and 2 to 3 % of MobileNetV3-Large's (AVX-512, two threads). */
#include "engine/passes/passes.h"

static bool is_image(const struct value *value)
{
    return value && !value->known && value->dtype == DTYPE_F32 && value->shape.rank == 4;
}

/* True if `gate` has one number per image and channel of x. */
static bool is_gate_of(const struct value *gate, const struct value *x)
{
    return is_image(gate) && gate->shape.dims[0] == x->shape.dims[0] && gate->shape.dims[1] == 1 &&
           gate->shape.dims[2] == 1 && gate->shape.dims[3] == x->shape.dims[3] && gate != x;
}

static bool give_mean(struct edit *edit, struct node *pool)
{
    struct value *x = node_input(pool, 0);
    struct node *conv = x ? x->producer : NULL;
    if (pool->op != OP_GLOBAL_AVERAGE_POOL || !pool->channels_last || !is_image(x) ||
        !is_image(pool->outputs[0]) || !conv || conv->op != OP_CONV || conv->output_count != 1 ||
        conv->outputs[0] != x || !edit_kernel_can(edit, conv, KERNEL_MEAN))
        return false;
    struct value **outputs = arena_alloc(edit->graph->arena, 2, sizeof *outputs);
    if (!outputs)
        return edit_no_memory(edit);
    outputs[0] = x;
    conv->outputs = outputs;
    conv->output_count = 2;
    node_set_output(conv, 1, pool->outputs[0]);
    pool->outputs[0] = NULL;
    pool->op = OP_NONE;
    return true;
}

/* Fuses the Mul before a Conv into the Conv. The Conv's inputs become: x, weights, bias or NULL,
 * gate, residual if there is one. */
static bool take_gate(struct edit *edit, struct node *conv)
{
    const struct value *product = node_input(conv, 0);
    struct node *mul = product ? product->producer : NULL;
    if (conv->op != OP_CONV || conv->gate || !mul || mul->op != OP_MUL || mul->input_count != 2 ||
        mul->epilogue.activation || !edit_single_reader(edit, product) || !is_image(product) ||
        !edit_kernel_can(edit, conv, KERNEL_GATE))
        return false;
    for (size_t i = 0; i < 2; i++) {
        struct value *x = mul->inputs[i], *gate = mul->inputs[1 - i];
        if (!is_image(x) || !shape_equal(&x->shape, &product->shape) || !is_gate_of(gate, x))
            continue;
        struct value *residual = conv->epilogue.residual;
        struct value *inputs[5] = {x, conv->inputs[1], node_bias(conv), gate, residual};
        if (!edit_set_inputs(edit, conv, inputs, residual ? 5 : 4))
            return false;
        conv->gate = gate;
        mul->op = OP_NONE;
        return true;
    }
    return false;
}

bool pass_gates(struct edit *edit, size_t *n)
{
    struct node *node = edit->graph->nodes[*n];
    const bool is_wide = !edit->options->narrow; /* kernels with a gate support only float32 */
    return node->output_count && (give_mean(edit, node) || (is_wide && take_gate(edit, node)));
}
