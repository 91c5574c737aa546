/* If only a QuantizeLinear reads a node's result, the node itself stores that result in 8 bits:
 *
 *     LayerNormalization → Transpose → QuantizeLinear   ─▶   LayerNormalization → Transpose
 *
 * A move between the node and the QuantizeLinear then copies bytes. */
#include "engine/op/ops.h"
#include "engine/passes/passes.h"
#include "engine/passes/quantize.h"

/* True if the node's result has all elements of its operand, in any order. */
static bool only_moves_elements(const struct node *node)
{
    return op_has(node->op, OP_MOVES) && (op_has(node->op, OP_VIEW) || node->op == OP_TRANSPOSE);
}

bool pass_storing(struct edit *edit, size_t *n)
{
    struct node *quantize = edit->graph->nodes[*n];
    struct value *const x = node_input(quantize, 0);
    struct node *from = x ? x->producer : NULL;
    struct ends to;
    bool alone = x && edit_single_reader(edit, x);
    while (alone && from && only_moves_elements(from)) {
        alone = edit_single_reader(edit, from->inputs[0]);
        from = from->inputs[0]->producer;
    }
    if (!alone || !from || from->epilogue.step != 0 || node_output(from, 1) ||
        !quantize_read_quantize(quantize, &to) ||
        !edit_kernel_can(edit, from, KERNEL_STORED_RESULT))
        return false;
    struct node *last = x->producer;
    from->epilogue.step = (float)tensor_number(to.scale->known, 0);
    from->epilogue.zero = (int)tensor_int(to.zero->known, 0);
    for (struct value *value = x; value->producer != from; value = value->producer->inputs[0])
        value->dtype = to.stored->dtype;
    from->outputs[0]->dtype = to.stored->dtype;
    edit_take_over(last, quantize);
    return true;
}
