/* Makes a ScaleShift between DequantizeLinear and QuantizeLinear work on stored numbers: folds the
 * scales and zero points of both quantizations into the ScaleShift's scale and shift. */
#include "engine/passes/passes.h"
#include "engine/passes/quantize.h"

enum { SCALE = 1, SHIFT = 2 }; /* indexes of inputs; the other inputs are parts of the image */

/* Copies scale and shift before they are changed. */
static bool copy_terms(struct edit *edit, struct node *node)
{
    struct value *inputs[2];
    for (size_t i = 0; i < 2; i++) {
        const struct tensor *from = node->inputs[SCALE + i]->known;
        inputs[i] = edit_constant(edit, DTYPE_F32, &from->shape, from->data);
        if (!inputs[i])
            return false;
    }
    node->inputs[SCALE] = inputs[0];
    node->inputs[SHIFT] = inputs[1];
    return true;
}

/* Folds a quantization into scale and shift of channels first … first + count - 1. Without
 * `inverse`, folds an operand's quantization, x = (stored - zero) * step; with `inverse`, the
 * result's, stored = y / step + zero. */
static void change_terms(const struct node *node, int64_t first, int64_t count,
                         const struct tensor *step, const struct tensor *zero, bool inverse)
{
    float *scale = node->inputs[SCALE]->known->data, *shift = node->inputs[SHIFT]->known->data;
    const double unit = tensor_number(step, 0), middle = (double)tensor_int(zero, 0);
    for (int64_t c = first; c < first + count; c++) {
        const double a = (double)scale[c], b = (double)shift[c];
        scale[c] = (float)(inverse ? a / unit : a * unit);
        shift[c] = (float)(inverse ? b / unit + middle : b - a * unit * middle);
    }
}

static bool read_stored(struct edit *edit, struct node *node)
{
    struct ends from;
    int64_t first = 0, channels;
    bool changed = false;
    for (size_t i = 0; i < node->input_count; i++, first += channels) {
        const struct value *part = node->inputs[i];
        channels = 0;
        if (i == SCALE || i == SHIFT)
            continue;
        channels = part->shape.dims[part->shape.rank - 1];
        if (!quantize_read_activation(part, &from))
            continue;
        if (!changed && !copy_terms(edit, node))
            return false;
        changed = true;
        change_terms(node, first, channels, from.scale->known, from.zero->known, false);
        node->inputs[i] = from.stored;
    }
    return changed;
}

static bool store_result(struct edit *edit, struct node *quantize)
{
    struct ends to;
    float low, high;
    if (!quantize_read_quantize(quantize, &to) || !(tensor_number(to.scale->known, 0) > 0))
        return false;
    const struct value *real = quantize->inputs[0];
    const struct node *node = real->producer;
    if (!node || node->op != OP_SCALE_SHIFT || !edit_single_reader(edit, real) ||
        !edit_kernel_can(edit, node, KERNEL_STORED_SCALE) ||
        !epilogue_range(&node->epilogue, &low, &high))
        return false;
    const float scale = (float)tensor_number(to.scale->known, 0);
    const float zero = (float)tensor_int(to.zero->known, 0);
    quantize->epilogue = (struct epilogue){
        .activation = ACTIVATION_CLIP, .alpha = low / scale + zero, .beta = high / scale + zero};
    quantize->channels_last = node->channels_last;
    if (!quantize_become(edit, quantize, node, OP_SCALE_SHIFT, 1, node->inputs,
                         node->input_count) ||
        !copy_terms(edit, quantize))
        return false;
    change_terms(quantize, 0, node->inputs[SCALE]->known->shape.dims[0], to.scale->known,
                 to.zero->known, true);
    return true;
}

bool pass_stored_scales(struct edit *edit, size_t *n)
{
    struct node *node = edit->graph->nodes[*n];
    if (node->op == OP_SCALE_SHIFT)
        return edit_kernel_can(edit, node, KERNEL_STORED_SCALE) && read_stored(edit, node);
    return node->op == OP_QUANTIZE_LINEAR && store_result(edit, node);
}
