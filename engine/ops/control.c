/* Control flow: If, Loop, Scan.
 *
 * What a body computes may change shape from run to run and from iteration to iteration, so the
 * shapes of all outputs are left to the run. */
#include "engine/base/size.h"
#include "engine/ops/families.h"
#include "engine/ops/operands.h"

static enum status read_body(const struct node *node, const char *name, struct graph **ret,
                             struct error *err)
{
    const struct attr *attr = node_attr(node, name);
    if (!attr || attr->kind != ATTR_GRAPH || !attr->g)
        return error_set(err, STATUS_MODEL, "the attribute %s is missing", name);
    *ret = attr->g;
    return STATUS_OK;
}

static enum status infer_if(struct node *node, struct error *err)
{
    struct graph *then_branch = NULL, *else_branch = NULL;
    TRY(operand_dtype(node, 0, "cond", DTYPE_BIT(BOOL), err));
    TRY(operand_single(node, 0, "cond", err));
    TRY(read_body(node, "then_branch", &then_branch, err));
    TRY(read_body(node, "else_branch", &else_branch, err));
    if (then_branch->input_count || else_branch->input_count)
        return error_set(err, STATUS_MODEL, "a branch has inputs, expected none");
    if (then_branch->output_count < node->output_count ||
        else_branch->output_count < node->output_count)
        return error_set(err, STATUS_MODEL,
                         "%zu outputs are wanted, but the branches have %zu and %zu",
                         node->output_count, then_branch->output_count, else_branch->output_count);
    for (size_t i = 0; i < node->output_count; i++) {
        enum dtype a = then_branch->outputs[i]->dtype, b = else_branch->outputs[i]->dtype;
        if (a != b && a != DTYPE_NONE && b != DTYPE_NONE)
            return error_set(err, STATUS_MODEL,
                             "output %zu is %s in one branch and %s in the other", i, dtype_name(a),
                             dtype_name(b));
        infer_unknown(node, i, a != DTYPE_NONE ? a : b);
    }
    return STATUS_OK;
}

/* A body takes `extra` inputs of its own, then the states, then `items`; it gives `extra_outputs`,
 * the states, then what is collected. */
static enum status check_body(const struct node *node, const struct graph *body, size_t extra,
                              size_t states, size_t items, size_t extra_outputs, struct error *err)
{
    if (body->input_count != extra + states + items)
        return error_set(err, STATUS_MODEL, "the body has %zu inputs, expected %zu",
                         body->input_count, extra + states + items);
    if (body->output_count < extra_outputs + states)
        return error_set(err, STATUS_MODEL, "the body has %zu outputs, expected at least %zu",
                         body->output_count, extra_outputs + states);
    size_t available = body->output_count - extra_outputs;
    if (node->output_count > available)
        return error_set(err, STATUS_MODEL, "%zu outputs are wanted, but the body gives %zu",
                         node->output_count, available);
    return STATUS_OK;
}

/* States keep the dtype they start with; what is collected has the body's. */
static void set_dtypes(struct node *node, const struct graph *body, size_t first_state,
                       size_t states, size_t extra_outputs)
{
    for (size_t i = 0; i < node->output_count; i++)
        infer_unknown(node, i,
                      i < states ? node->inputs[first_state + i]->dtype
                                 : body->outputs[extra_outputs + i]->dtype);
}

static enum status infer_loop(struct node *node, struct error *err)
{
    struct graph *body = NULL;
    size_t states = node->input_count > 2 ? node->input_count - 2 : 0;
    TRY(operand_dtype(node, 0, "M", DTYPE_BIT(I64) | DTYPE_BIT(I32), err));
    TRY(operand_single(node, 0, "M", err));
    TRY(operand_dtype(node, 1, "cond", DTYPE_BIT(BOOL), err));
    TRY(operand_single(node, 1, "cond", err));
    TRY(read_body(node, "body", &body, err));
    TRY(check_body(node, body, 2, states, 0, 1, err));
    for (size_t i = 0; i < states; i++)
        TRY(operand_present(node, 2 + i, "an initial value", err));
    set_dtypes(node, body, 2, states, 1);
    return STATUS_OK;
}

/* An attribute with one number a scan input or output, each in min … max. */
static enum status check_list(const struct node *node, const char *name, size_t expected,
                              int64_t min, int64_t max, struct error *err)
{
    size_t count;
    const int64_t *list = node_ints(node, name, &count);
    if (count && count != expected)
        return error_set(err, STATUS_MODEL, "%s has %zu entries, expected %zu", name, count,
                         expected);
    for (size_t i = 0; i < count; i++)
        if (list[i] < min || list[i] > max)
            return error_set(err, STATUS_MODEL, "%s holds %lld, which is out of range", name,
                             (long long)list[i]);
    return STATUS_OK;
}

/* first: position of the first state (Scan-8 has the sequence lengths in front). */
static enum status infer_scan_from(struct node *node, size_t first, struct error *err)
{
    struct graph *body = NULL;
    int64_t wanted = node_int(node, "num_scan_inputs", 0);
    TRY(read_body(node, "body", &body, err));
    size_t operands = node->input_count > first ? node->input_count - first : 0;
    if (wanted < 1 || (uint64_t)wanted > operands)
        return error_set(err, STATUS_MODEL, "num_scan_inputs is %lld, expected 1 to %zu",
                         (long long)wanted, operands);
    size_t items = (size_t)wanted, states = operands - items;
    TRY(check_body(node, body, 0, states, items, 0, err));
    for (size_t i = 0; i < operands; i++)
        TRY(operand_present(node, first + i, "a state or scan input", err));
    size_t collected = body->output_count - states;
    TRY(check_list(node, first ? "directions" : "scan_input_directions", items, 0, 1, err));
    TRY(check_list(node, "scan_output_directions", collected, 0, 1, err));
    TRY(check_list(node, "scan_output_axes", collected, -TENSOR_MAX_RANK, TENSOR_MAX_RANK - 1,
                   err));
    size_t listed;
    const int64_t *axes = node_ints(node, "scan_input_axes", &listed);
    TRY(check_list(node, "scan_input_axes", items, -TENSOR_MAX_RANK, TENSOR_MAX_RANK - 1, err));
    int64_t length = -1;
    for (size_t i = 0; i < items; i++) {
        const struct shape *shape = &node->inputs[first + states + i]->shape;
        int64_t axis = first ? 1 : listed ? axes[i] : 0;
        TRY(infer_axis(&axis, shape->rank, err));
        if (length >= 0 && shape->dims[axis] != length)
            return error_set(err, STATUS_SHAPE, "scan inputs have lengths %lld and %lld",
                             (long long)length, (long long)shape->dims[axis]);
        length = shape->dims[axis];
    }
    set_dtypes(node, body, first, states, 0);
    return STATUS_OK;
}

static enum status infer_scan(struct node *node, struct error *err)
{
    return infer_scan_from(node, 0, err);
}

/* Scan-8: every operand has a batch dimension in front; sequence_lens comes first. */
static enum status infer_scan_batched(struct node *node, struct error *err)
{
    TRY(operand_dtype(node, 0, "sequence_lens", DTYPE_BIT(I64) | DTYPE_BIT(I32), err));
    TRY(infer_scan_from(node, 1, err));
    int64_t batch = node->inputs[node->input_count - 1]->shape.dims[0];
    TRY(operand_vector(node, 0, "sequence_lens", batch, err));
    for (size_t i = 1; i < node->input_count; i++) {
        const struct shape *shape = &node->inputs[i]->shape;
        char text[SHAPE_TEXT];
        if (shape->rank < 1 || shape->dims[0] != batch)
            return error_set(err, STATUS_SHAPE,
                             "operand %zu has shape %s, expected a batch of "
                             "%lld",
                             i, shape_text(shape, text), (long long)batch);
    }
    return STATUS_OK;
}

/* A Loop is never folded: a file decides how long it runs, and loading must be quick. */
static const struct op_info entries[] = {
    {OP_IF, 1, 0, 1, 1, 1, OP_VARIADIC, OP_DATA_SHAPE, "then_branch:graph else_branch:graph",
     infer_if, &batch_mixes, work_elements},
    {OP_LOOP, 1, 0, 0, OP_VARIADIC, 1, OP_VARIADIC, OP_DATA_SHAPE | OP_NO_FOLD, "body:graph",
     infer_loop, &batch_mixes, work_elements},
    {OP_SCAN, 8, 8, 0, OP_VARIADIC, 1, OP_VARIADIC, OP_DATA_SHAPE | OP_NO_FOLD,
     "body:graph num_scan_inputs:int directions:ints", infer_scan_batched, &batch_mixes,
     work_elements},
    {OP_SCAN, 9, 0, 1, OP_VARIADIC, 1, OP_VARIADIC, OP_DATA_SHAPE | OP_NO_FOLD,
     "body:graph num_scan_inputs:int scan_input_axes:ints scan_input_directions:ints "
     "scan_output_axes:ints scan_output_directions:ints",
     infer_scan, &batch_mixes, work_elements},
};

const struct op_family ops_control = {entries, COUNT_OF(entries)};
