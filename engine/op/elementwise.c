/* Cast, CastLike, Identity, Dropout and Where. elementwise_unary.c and elementwise_binary.c
 * have the other elementwise operators.
 *
 * Each elementwise operator accepts the types of its newest version at every opset: an older file
 * with a type that its opset does not have is still unambiguous. */
#include <string.h>

#include "engine/op/elementwise.h"
#include "engine/op/family.h"

/* ---- unary ---- */

enum dtype op_cast_target(const struct node *cast)
{
    const int64_t to = node_int(cast, "to", DTYPE_NONE);
    return to > 0 && to <= DTYPE_BF16 && dtype_size((enum dtype)to) ? (enum dtype)to : DTYPE_NONE;
}

static enum status infer_cast(struct node *node, struct error *err)
{
    TRY(resolve_required(node, "to", err));
    const enum dtype to = op_cast_target(node);
    if (to == DTYPE_NONE)
        return error_set(
            err, STATUS_UNSUPPORTED,
            "a cast to ONNX data type %lld; `to` must be a float of 16 bits or more, an integer of "
            "8 bits or more, or bool",
            (long long)node_int(node, "to", DTYPE_NONE));
    return infer_output(node, 0, to, &node->inputs[0]->shape, err);
}

static enum status infer_cast_like(struct node *node, struct error *err)
{
    return infer_output(node, 0, node->inputs[1]->dtype, &node->inputs[0]->shape, err);
}

/* Dropout is Identity in evaluation mode, and from opset 12 on if the ratio is 0. The importer
 * makes another node for the mask. */
static enum status check_dropout(const struct tensor *ratio, const struct tensor *training,
                                 struct error *err)
{
    const bool drops = !ratio || shape_count(&ratio->shape) != 1 || tensor_number(ratio, 0) != 0;
    if (!drops || !training || shape_count(&training->shape) != 1 || !tensor_int(training, 0))
        return STATUS_OK;
    (void)error_set(err, STATUS_UNSUPPORTED, "training_mode is true");
    return error_advise(err, "export the model in evaluation mode");
}

static enum status infer_dropout(struct node *node, struct error *err)
{
    TRY(check_dropout(resolve_contents(node, 1), resolve_contents(node, 2), err));
    return infer_like(node, err);
}

/* ---- broadcasting ---- */

static enum status infer_where(struct node *node, struct error *err)
{
    return infer_broadcasts(node, node->inputs[1]->dtype, err);
}

KERNEL(kernel_cast)
{
    const struct tensor *x = args->in[0];
    struct tensor *y = args->out[0];
    convert_row(x->data, x->dtype, y->data, y->dtype, shape_count(&x->shape));
    return STATUS_OK;
}

/* For operators that only change the shape. The output may be a view, which needs no copy. */
enum status kernel_view(const struct kernel_args *args, __attribute__((unused)) struct error *err)
{
    if (args->out[0] && args->out[0]->data != args->in[0]->data)
        copy_bytes(args->out[0]->data, args->in[0]->data, args->in[0]->bytes);
    return STATUS_OK;
}

KERNEL(kernel_dropout)
{
    TRY(check_dropout(kernel_input(args, 1), kernel_input(args, 2), err));
    return kernel_view(args, err);
}

/* ---- Where ---- */

#define DEFINE_CHOOSE(TYPE)                                                                        \
    static void choose_##TYPE(const uint8_t *condition, const void *x_data, bool x_moves,          \
                              const void *y_data, bool y_moves, void *dst_data, size_t n)          \
    {                                                                                              \
        const TYPE *x = x_data, *y = y_data;                                                       \
        TYPE *dst = dst_data;                                                                      \
        for (size_t i = 0; i < n; i++)                                                             \
            dst[i] = condition[i] ? x[x_moves ? i : 0] : y[y_moves ? i : 0];                       \
    }
EACH_ITEM_TYPE(DEFINE_CHOOSE)

KERNEL(kernel_where)
{
    const struct tensor *condition = args->in[0], *x = args->in[1], *y = args->in[2];
    struct tensor *out = args->out[0];
    const struct shape *const shapes[] = {&condition->shape, &x->shape, &y->shape};
    size_t item = dtype_size(out->dtype);
    struct broadcast operands;
    broadcast_start(&operands, &out->shape, shapes, 3);
    do {
        const uint8_t *flags = (const uint8_t *)condition->data + operands.rows.offset[0];
        const void *from[] = {element(x->data, x->dtype, operands.rows.offset[1]),
                              element(y->data, y->dtype, operands.rows.offset[2])};
        void *to = element_at(out->data, out->dtype, operands.done);
        int chosen = *flags ? 0 : 1;
        if (operands.moves[0])
            BY_ITEM_SIZE(item, choose, flags, from[0], operands.moves[1], from[1],
                         operands.moves[2], to, operands.row);
        else if (operands.moves[1 + chosen])
            memcpy(to, from[chosen], operands.row * item);
        else
            fill_row(to, from[chosen], item, operands.row);
    } while (broadcast_next(&operands));
    return STATUS_OK;
}

const struct op_info ops_elementwise[] = {
    OP_ROW(CAST, 6, 1, 1, "input:any", OP_UNARY, "to:int saturate:int round_mode:string", cast,
           &batch_elementwise),
    OP_ROW_OF(CAST_LIKE, 15, 2, 2, "input:any target_type:any", OP_PLAIN,
              "saturate:int round_mode:string", cast_like, &batch_elementwise, cast),
    OP_ROW_OF(IDENTITY, 1, 1, 1, "input:any", OP_UNARY | OP_VIEW | OP_MOVES | OP_KEEPS_NUMBERS,
              NULL, like, &batch_reshape, view),
    OP_ROW(DROPOUT, 12, 1, 3, "data:float", OP_VIEW, "seed:int", dropout, &batch_unary),
    OP_ROW(WHERE, 9, 3, 3, "condition:bool X:any Y:=1", OP_BROADCAST, NULL, where,
           &batch_elementwise),
    {0},
};
