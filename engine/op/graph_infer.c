/* Infers dtypes and shapes of a node's outputs with the operator table. This file is separate from
 * graph.c, because the operators use graph.c. */
#include "engine/graph/graph.h"
#include "engine/op/operands.h"
#include "engine/op/ops.h"

enum status op_check_operands(const struct node *node, const struct op_info *info,
                              struct error *err)
{
    if (node->input_count < info->min_inputs ||
        (info->max_inputs != OP_VARIADIC && node->input_count > info->max_inputs))
        return error_set(err, STATUS_MODEL, "%zu inputs, expected %d to %d", node->input_count,
                         info->min_inputs, info->max_inputs);
    if (node->output_count < info->min_outputs ||
        (info->max_outputs != OP_VARIADIC && node->output_count > info->max_outputs))
        return error_set(err, STATUS_MODEL, "%zu outputs, expected %d to %d", node->output_count,
                         info->min_outputs, info->max_outputs);
    for (size_t i = 0; i < info->min_inputs; i++)
        if (!node->inputs[i])
            return error_set(err, STATUS_MODEL, "required input %zu is left out", i);
    return STATUS_OK;
}

enum status graph_infer_node(struct node *node, struct error *err)
{
    const struct op_info *info = op_find(node->op, node->opset);
    if (!info) {
        (void)error_set(err, STATUS_UNSUPPORTED,
                        "%s: lensd does not support this operator at this opset",
                        NODE_STRING(node));
        return error_advise(err, "re-export the model with another opset (7 to %d)", OPSET_MAX);
    }
    enum status status = op_check_operands(node, info, err);
    bool known = true;
    for (size_t i = 0; i < node->input_count; i++)
        known = known && (!node->inputs[i] || shape_is_known(&node->inputs[i]->shape));
    bool ready = known;
    if (status == STATUS_OK && known)
        status = operands_check(node, info->operands, &ready, err);
    if (status == STATUS_OK && ready)
        status = info->infer(node, err);
    for (size_t i = 0; i < node->output_count && !ready; i++)
        if (node->outputs[i]) {
            node->outputs[i]->shape = SHAPE_NONE;
            if (known)
                node->outputs[i]->dtype = node->inputs[0]->dtype;
        }
    if (status != STATUS_OK)
        return error_prefix(err, "%s", NODE_STRING(node));
    return STATUS_OK;
}
