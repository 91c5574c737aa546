/* Helpers of the passes over quantized models, which read DequantizeLinear and QuantizeLinear nodes
 * and replace nodes by an operator on stored integers. */
#include "engine/passes/quantize.h"

#include <math.h>

bool quantize_is_one(const struct value *value)
{
    return value && value->known && shape_count(&value->known->shape) == 1;
}

bool quantize_read_dequantize(const struct value *value, struct ends *ret)
{
    const struct node *node = value ? value->producer : NULL;
    if (!node || node->op != OP_DEQUANTIZE_LINEAR || !is_f32_constant(node_input(node, 1)) ||
        !node_input(node, 2) || !node->inputs[2]->known || node_int(node, "block_size", 0))
        return false;
    *ret = (struct ends){node->inputs[0], node->inputs[1], node->inputs[2]};
    return true;
}

bool quantize_read_activation(const struct value *value, struct ends *ret)
{
    return quantize_read_dequantize(value, ret) && quantize_is_one(ret->scale) &&
           quantize_is_one(ret->zero) && dtype_is_8bit(ret->zero->known->dtype) &&
           !ret->stored->known;
}

bool quantize_read_quantize(const struct node *node, struct ends *ret)
{
    if (node->op != OP_QUANTIZE_LINEAR || !node->outputs[0] || !is_f32_constant(node->inputs[1]) ||
        !quantize_is_one(node->inputs[1]) || !quantize_is_one(node_input(node, 2)) ||
        !dtype_is_8bit(node->inputs[2]->known->dtype) || node_int(node, "precision", 0) ||
        !isnormal((float)tensor_number(node->inputs[1]->known, 0))) /* kernels divide by scales */
        return false;
    *ret = (struct ends){node->outputs[0], node->inputs[1], node->inputs[2]};
    return true;
}

bool quantize_become(struct edit *edit, struct node *quantize, const struct node *producer,
                     enum op op, int opset, struct value *const *inputs, size_t count)
{
    const struct node from = *producer; /* a copy, because `producer` may be `quantize` */
    if (!edit_become(edit, quantize, op, opset, inputs, count))
        return false;
    quantize->name = from.name;
    quantize->attrs = from.attrs;
    quantize->attr_count = from.attr_count;
    return true;
}
